"""``python -m bilevelax.testing adversarial [--fast] [--only TEXT]``: what is said of cases that mislead."""

from __future__ import annotations

import argparse
import sys
import time

import jax


def adversarial(only: str, fast: bool) -> int:
    """Run the table; the number of cases that said something else than they must."""
    from bilevelax.base.text_table import Table, show
    from bilevelax.testing.adversarial import CASES

    rows, failed = [], 0
    for case in CASES:
        if only not in case.name or (fast and case.slow):
            continue
        started = time.process_time()
        told = case.failed()
        failed += bool(told)
        rows.append([case.name, case.says, "FAILED" if told else "ok", f"{time.process_time() - started:.1f}"])
        if told:
            print(f"{case.name}: must say {case.says!r}. Said:\n{told}\n", file=sys.stderr)
    show(Table("", ["case", "must say", "", "CPU s"], rows))
    print(f"{len(rows) - failed} of {len(rows)} cases say what they must.")
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bilevelax.testing", description=__doc__)
    parser.add_argument("table", choices=["adversarial"])
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--fast", action="store_true", help="leave out what compiles much")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    return int(adversarial(given.only, given.fast) > 0)


if __name__ == "__main__":
    sys.exit(main())
