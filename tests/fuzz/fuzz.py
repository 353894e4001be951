"""Damaged and forged files by the ten thousand: `make fuzz`, or python tests/fuzz/fuzz.py --seconds 300 --seed 7.

Every input is made from (seed, subject, number), which is printed where something is wrong:
``--only SUBJECT --start NUMBER --count 1`` makes it again.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

LONGEST = 10  # seconds of the processor that one input may take
PATIENCE = 120  # seconds by the clock: others may use the machine, but nothing may wait for ever
MEMORY = 6 * 2**30  # bytes: whoever allocates what a file declares, fails


class Hang(Exception):
    """An input that took too long."""


def alarm(number, frame):
    raise Hang(f"no answer in {LONGEST} s of the processor or {PATIENCE} s by the clock")


def watch():
    """Let both clocks raise `Hang`; returns how they were answered before."""
    return {clock: signal.signal(clock, alarm) for clock in (signal.SIGPROF, signal.SIGALRM)}


def set_clocks(longest, patience):
    signal.setitimer(signal.ITIMER_PROF, longest)
    signal.setitimer(signal.ITIMER_REAL, patience)


class Fuzzer:
    """Subjects in folders of their own; what was found is in ``wrong``."""

    def __init__(self, place, seed):
        from subjects import SUBJECTS

        self.place, self.seed, self.kinds = Path(place), seed, SUBJECTS
        self.made, self.count, self.refused, self.wrong = {}, Counter(), Counter(), []

    def subject(self, name):
        if name not in self.made:
            folder = self.place / name
            folder.mkdir()
            (folder / "victim").write_text("mine")
            self.made[name] = self.kinds[name][1](folder)
        return self.made[name]

    def one(self, name, number):
        """One input of a subject; what goes wrong is kept."""
        import numpy as np
        from subjects import outside

        subject, folder = self.subject(name), self.place / name
        rng = np.random.default_rng([self.seed, sum(name.encode()), number])
        before = outside(folder)
        said = io.StringIO()
        set_clocks(LONGEST, PATIENCE)
        try:
            with contextlib.redirect_stderr(said):
                subject.one(rng)
        except ValueError as told:
            self.refused[name] += 1
            if len(str(told).splitlines()) != 1 or len(str(told)) > 2000:
                self.note(name, number, f"not one sentence: {str(told)[:200]}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.note(name, number, f"{type(error).__name__}: {error}", traceback.format_exc())
        finally:
            set_clocks(0, 0)
            self.count[name] += 1
        if "Traceback" in said.getvalue():
            self.note(name, number, "a traceback on standard error", said.getvalue())
        left = [each for each in outside(folder)[1] if each not in before[1]]
        if outside(folder)[0] != before[0] or [
            e for e in left if e not in ("t.csv", "t.zip", "t.gz", "out.csv", "orders.csv")
        ]:
            self.note(name, number, f"written outside: {left}")

    def note(self, name, number, text, trace=""):
        self.wrong.append({"subject": name, "number": number, "told": text, "trace": trace})
        print(f"WRONG --seed {self.seed} --only {name} --start {number} --count 1: {text}", flush=True)

    def report(self, seconds):
        for name, n in sorted(self.count.items()):
            print(f"{name:12} {n:8,} inputs, {self.refused[name]:8,} refused in a sentence")
        print(f"seed {self.seed}: {sum(self.count.values()):,} inputs in {seconds:.0f} s, {len(self.wrong)} wrong")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", help="subjects; by default all")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9, help="inputs of each subject at most")
    parser.add_argument("--out", help="JSON file of what was found")
    asked = parser.parse_args(arguments)
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    watch()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        fuzzer = Fuzzer(place, asked.seed)
        names = asked.only or list(fuzzer.kinds)
        for name in names:
            fuzzer.subject(name)
        started, shares, due = time.monotonic(), {name: fuzzer.kinds[name][0] for name in names}, Counter()
        while time.monotonic() - started < asked.seconds and any(fuzzer.count[name] < asked.count for name in names):
            for name in names:
                due[name] += shares[name] if not asked.only else 1
                while due[name] >= 1 and fuzzer.count[name] < asked.count:
                    due[name] -= 1
                    fuzzer.one(name, asked.start + fuzzer.count[name])
        fuzzer.report(time.monotonic() - started)
    if asked.out:
        Path(asked.out).write_text(json.dumps({"count": fuzzer.count, "wrong": fuzzer.wrong}, indent=2))
    return 1 if fuzzer.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
