"""A solve that survives a kill: what is saved of it after each stage, with the records of `minimize`."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevelax.core.estimate import Cost
from bilevelax.estimators.saa import saa
from bilevelax.run.looks import Look, of_plain, plain
from bilevelax.run.projected import projected
from bilevelax.run.quasi_newton import PAIRS, Curvature
from bilevelax.run.records.checkpoint import Checkpoint
from bilevelax.run.records.fingerprint import Identity, identity
from bilevelax.run.records.result import Snapshot
from bilevelax.run.records.solved import Stage
from bilevelax.run.solving import SAMPLES, Solving

Carry = dict[str, jax.Array]


def bits(array: np.ndarray) -> jax.Array:
    """float64 as it is, also where JAX has no such numbers."""
    return jnp.asarray(np.ascontiguousarray(array, np.float64).view(np.uint32))


def numbers(words: jax.Array) -> np.ndarray:
    return np.ascontiguousarray(words).view(np.float64)


class Saved:
    """``with Saved(solving, ...) as saves``: goes on where an earlier run stopped, then ``keep`` after each stage."""

    def __init__(self, solving: Solving, checkpoint: Checkpoint, resume: str, stages: int) -> None:
        self.solving, self.keeper = solving, checkpoint.keeper(stages, resume, "solve")
        self.finished = False

    def __enter__(self) -> Saved:
        self.keeper.__enter__()
        try:
            self.mark()
            found = self.keeper.restore(self)
            if found:
                self.go_on_from(found)
        except BaseException as error:
            self.keeper.__exit__(type(error), error, error.__traceback__)
            raise
        self.solving.interrupted = lambda: self.keeper.signals.caught
        return self

    def __exit__(self, *error: Any) -> None:
        self.keeper.__exit__(*error)

    def mark(self) -> None:
        """What stands now is what a stop in the middle of the next stage comes back to."""
        s = self.solving
        known = s.known
        padded = [np.pad(a, ((PAIRS - len(a), 0), (0, 0))) for a in (known.steps, known.changes)]
        self.carry: Carry = {"x": bits(s.x), "steps": bits(padded[0]), "changes": bits(padded[1])}
        totals = {
            "pairs": len(known.steps),
            "bent": known.bent,
            "next": [s.m, s.n, s.debias],
            "first": s.first,
            "reason": s.reason,
            "look": plain(s.look),
            "stages": [list(stage) for stage in s.stages],
            "cost": s.cost.asdict(),
            "counts": [s.evaluations, s.iterations],
            "seconds": [s.seconds, s.look_seconds, s.compile_seconds],
            "manifest": {},
        }
        self.saved = Snapshot(self.carry, list(s.history), totals)
        self.t = len(s.stages) + (s.reason is not None)

    def keep(self, last: bool = False) -> None:
        self.mark()
        self.keeper.keep(self, last)

    def stop(self) -> None:
        """In the middle of a stage, by a signal: save the last whole one, and stop."""
        self.keeper.keep(self)

    def go_on_from(self, saved: Snapshot) -> None:
        s, totals = self.solving, saved.totals
        s.x = numbers(saved.carry["x"])
        pairs = PAIRS - totals["pairs"]
        steps, changes = (numbers(saved.carry[name])[pairs:] for name in ("steps", "changes"))
        s.known = Curvature(steps, changes, totals["bent"])
        s.m, s.n, s.debias = totals["next"]
        s.first, s.look = totals["first"], of_plain(totals["look"])
        s.stages, s.history = [Stage(*stage) for stage in totals["stages"]], saved.history
        s.cost, (s.evaluations, s.iterations) = Cost(**totals["cost"]), totals["counts"]
        s.before, s.look_seconds, s.compile_seconds = totals["seconds"]
        s.started = time.perf_counter()
        again = totals["reason"] == "certified" and still_certified(s.look, s.goal)
        s.reason = totals["reason"] if again or totals["reason"] in ("unbounded", "not smooth", "heavy tails") else None
        self.finished = s.reason is not None

    def identity(self) -> Identity:
        """Of the problem, x1, key, level and constraint; tol, atol and the budget may change."""
        s = self.solving
        constraint, sgd = s.wanted.constraint, optax.sgd(1.0)
        rule = projected(sgd, constraint) if constraint else sgd
        found = identity(s.problem, saa(SAMPLES), rule, s.x1, s.key, 0)
        return {**found, "of": "solve", "settings": {"level": s.wanted.level}}

    def snapshot(self) -> Snapshot:
        return self.saved

    def result(self) -> Any:
        return self.solving.stopped("").result


def still_certified(look: Look | None, goal: float) -> bool:
    return look is not None and look.certificate.norm_high <= goal
