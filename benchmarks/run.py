"""All benchmarks: ``make bench``, or ``python benchmarks/run.py [--quick] [NAME ...]``, ``--page`` for the page.

Timings are medians of interleaved repeats, compared within one run; they are never asserted.
Run them alone on the machine.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
NAMES = ("latency", "ridge", "engine", "gradients", "modes", "batches", "overhead", "antithetic", "targets", "solve")
NAMES += ("defaults", "joint", "pairs", "clients", "devices", "compiles", "constraints", "false_alarms", "certificates")
NAMES += ("pricing", "scheduling", "faces", "claims")
FIELDS = Path(__file__).parent / "applications"  # one file each: ours beside a published number
sys.path.insert(0, str(FIELDS))
PUBLISHED = tuple(sorted(path.stem for path in FIELDS.glob("[a-z]*.py")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"which of {', '.join(NAMES + PUBLISHED)}")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it works")
    parser.add_argument("--page", action="store_true", help="only write the pages' tables from the last records")
    arguments = parser.parse_args()
    if arguments.page:
        importlib.import_module("page").write(NAMES)
        importlib.import_module("published").write()
        return
    for name in arguments.names:
        importlib.import_module(name).run(quick=arguments.quick)
    print("Records are in benchmarks/results; --page keeps them in results/benchmarks and writes the tables.")


if __name__ == "__main__":
    main()
