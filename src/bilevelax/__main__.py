"""``python -m bilevelax``, and the program ``bilevelax``."""

from __future__ import annotations

import sys


def run() -> None:
    """The command line, or a sentence where only the core is installed."""
    try:
        from bilevelax.cli import main
    except ModuleNotFoundError as error:
        sys.exit(f"The commands need {error.name}, which is not installed: pip install 'bilevelax[all]'.")
    main()


if __name__ == "__main__":
    run()
