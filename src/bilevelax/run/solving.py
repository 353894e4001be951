"""Where a solve stands, stage after stage: look on fresh draws, descend on them, choose the next sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.errors import RunStopped
from bilevelax.core.estimate import Cost
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.host import flat, unflat
from bilevelax.diagnostics.tails import ENOUGH, Tails, draws_for, few_of_sample
from bilevelax.exact.unsolved import MANY, tell
from bilevelax.exact.unsolved import sentence as no_minimum
from bilevelax.problems.reduced import reduced_to
from bilevelax.run.lanes import LANES, SAMPLES, work_of_lane
from bilevelax.run.looks import Look, look_at, without_interval
from bilevelax.run.quasi_newton import descent, no_curvature, stationarity
from bilevelax.run.reasons import notes, rare, sentence
from bilevelax.run.records.history import Row, environment
from bilevelax.run.records.result import Result
from bilevelax.run.records.solved import Solved, Stage
from bilevelax.run.sampled import Point, Sample

MOST_SAMPLES = SAMPLES * LANES  # of each context; at first as many as a lane holds
MOST_CONTEXTS = 2**18  # of a stage, where no budget is given
ALL = 256  # contexts, with all outcomes stored, that are all taken from the start
GROWTH = 8  # of m from stage to stage at most
BELOW = 0.5  # descent stops where the sample's gradient is that much of its noise
ROOM = 4  # a stage whose noise is below goal / ROOM lets the next look certify
ITERATIONS = 300  # of a stage; ten times as many where it is the last one
FAR = 1e6  # from x1, in units of 1 + |x1|: F has no minimum


class Wanted(NamedTuple):
    """What was asked of a solve."""

    tol: float
    atol: float | None
    level: float
    budget_seconds: float | None = None
    constraint: Callable[[X], X] | None = None


class OutOfTime(Exception):
    """Inside an evaluation: the point that it was for is given up."""


class Interrupted(Exception):
    """Likewise by Ctrl-C or SIGTERM: the stage is given up."""


def quiet(row: Row, x: X) -> None:
    """Nobody is told."""


class Solving:
    """x, what is known of curvature, the next sample's size, and all looks so far."""

    def __init__(
        self,
        problem: Problem,
        x1: X,
        key: Key,
        wanted: Wanted,
        told: Callable[[Row, X], None] = quiet,
        place: Any = None,
    ) -> None:
        self.problem, self.x1, self.key, self.wanted, self.told, self.place = problem, x1, key, wanted, told, place
        self.x = self.begin = flat(x1)
        project = wanted.constraint
        self.project = project and (lambda vector: flat(project(self.tree_of(vector))))
        self.known = no_curvature(self.x.size)
        self.m, self.n, self.debias = self.first_size(), SAMPLES, False
        self.first = 0.0  # |grad F| at x1, once it is told from zero
        self.reason: str | None = None
        self.look: Look | None = None
        self.tails: Tails | None = None  # where too few of the last look's contexts carry the noise
        self.unsolved = 0.0  # share of contexts without an answer, where it was last looked at
        self.stages: list[Stage] = []
        self.history: list[Row] = []
        self.cost, self.evaluations, self.iterations = Cost(), 0, 0
        self.before, self.started = 0.0, time.perf_counter()  # seconds of an earlier process; of this one
        self.look_seconds = self.compile_seconds = 0.0
        self.interrupted: Callable[[], Any] = lambda: False

    def tree_of(self, vector: np.ndarray) -> X:
        return jax.tree.map(jnp.asarray, unflat(vector, self.x1))

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    @property
    def goal(self) -> float:
        return self.wanted.atol or self.wanted.tol * self.first

    @property
    def finite(self) -> int | None:
        """How many contexts there are, where their outcomes are stored: a sample can then be everything."""
        return self.problem.n_contexts if self.problem.support is not None else None

    def first_size(self) -> int:
        return self.finite if self.finite is not None and self.finite <= ALL else LANES

    def sample(self) -> Sample:
        exact = self.finite is not None and self.m >= self.finite
        m = self.finite or 0 if exact else self.m
        return Sample(self.problem, self.x1, self.key, m, self.n, exact, self.place, len(self.stages))

    def hurry(self) -> None:
        if self.interrupted():
            raise Interrupted
        budget = self.wanted.budget_seconds
        if budget is not None and self.stages and self.seconds + self.look_seconds > budget:
            raise OutOfTime

    def late(self) -> bool:
        """Is the time over? A look then makes do with the contexts it has."""
        return self.wanted.budget_seconds is not None and self.seconds > self.wanted.budget_seconds

    def evaluate(self, sample: Sample, x: np.ndarray) -> Point:
        self.evaluations += 1
        point = sample.at(x, self.debias, self.hurry)
        return point.debiased() if self.debias else point

    def seen(self) -> tuple[Sample, Point, Look]:
        """The next sample, first met at x: on fresh draws."""
        sample, began = self.sample(), time.perf_counter()
        point = sample.at(self.x, self.problem.support is None, self.late)
        self.evaluations += 1
        if not np.isfinite(point.F) or not np.isfinite(point.grad).all():
            raise self.stopped(
                "F and its gradient must be finite at x. Usual causes: x outside the domain of f or g, a sampler that "
                "returns no number, or g without a minimum; `check` tells which."
            )
        self.look_seconds = time.perf_counter() - began
        if not self.stages:
            self.compile_seconds = self.look_seconds
        return sample, point, self.judged(point.debiased(), sample)

    def judged(self, point: Point, sample: Sample) -> Look:
        """No certificate of what is not the follower's answer; on a set there always is one."""
        self.tails = None
        self.unsolved = point.unsolved if self.problem.constraint is None else 0.0
        if self.unsolved > MANY:
            raise self.stopped(f"solve needs a follower with an answer. {no_minimum(self.unsolved, 'its contexts')}")
        return look_at(point, sample.m, self.wanted.level, len(self.stages) + 1, self.project, reduced_to(self.problem))

    def advance(self) -> None:
        """One stage; ``reason`` is set where it is the last."""
        began, before = self.seconds, self.evaluations
        sample, point, look = self.seen()
        if not self.first and (look.certificate.low > 0 or sample.exact or self.wanted.atol):
            self.first = look.grad  # before, a goal relative to it means nothing
        if self.first:
            self.record(point.debiased(), look)
        first, steps, ended = look, 0, point
        self.reason = self.verdict(look, sample) if self.first else None
        if self.first and self.reason is None:
            steps, ended = self.descend(sample, point.debiased() if self.debias else point, look)
            look = self.judged(ended, sample) if sample.exact else look  # nothing is random: no fresh draws are needed
            self.reason = self.reason or (self.verdict(look, sample) if sample.exact else None)
        self.look, self.cost = look, self.cost + sample.cost
        self.stages.append(self.stage(sample, first, ended, steps, self.evaluations - before, self.seconds - began))
        if self.reason is None:
            self.resize(look, ended, sample, steps)

    def stage(self, sample: Sample, look: Look, ended: Point, steps: int, evaluations: int, seconds: float) -> Stage:
        kind = "exact" if sample.exact else "debiased" if self.debias else "sampled"
        low, high = look.certificate.low**0.5, look.certificate.norm_high
        left = stationarity(ended, self.project)
        return Stage(
            sample.m, sample.n, kind, steps, evaluations, seconds, look.grad, low, high, left, ended.noise, look.bias
        )

    def verdict(self, look: Look, sample: Sample) -> str | None:
        there = look.certificate.norm_high <= self.goal
        if look.heavy and (look.certificate.n >= ENOUGH or there):
            return "heavy tails"
        if not there or self.misled(look, sample):
            return None
        if not self.rarely_met(sample.m, sample.exact):
            return "certified"
        return "heavy tails" if sample.m >= ENOUGH else None

    def rarely_met(self, m: int, exact: bool) -> bool:
        """Are there contexts so rare that m are too few for an interval? Quick looks at many more tell."""
        stage, x = len(self.stages), self.tree_of(self.x)
        self.tails = None if exact else few_of_sample(self.key, stage, self.problem, x, m, self.quick_draws)
        return self.tails is not None

    @cached_property
    def quick_draws(self) -> int:
        """Of eta in a quick look."""
        return draws_for(work_of_lane(self.problem, self.key) // SAMPLES if self.problem.source is None else 1)

    def misled(self, look: Look, sample: Sample) -> bool:
        """Is the bias of n samples, which halving takes away, so large that what is left of it may count too?

        Before there is a goal: is it what hides the gradient?
        """
        return look.bias > (self.goal or look.noise) and self.n < min(MOST_SAMPLES, SAMPLES * sample.together)

    def descend(self, sample: Sample, point: Point, look: Look) -> tuple[int, Point]:
        """On this sample, until its gradient is below its noise: how many steps, and where they ended."""
        steps, ended = 0, point
        try:
            at = lambda x: self.evaluate(sample, x)
            for ended, known in descent(at, point, self.known, self.project):
                steps, self.x, self.known = steps + 1, ended.x, known
                self.iterations += 1
                self.record(ended, look)
                noise = BELOW * max(look.noise, ended.noise)  # fresh: that of an overfitted sample is too small
                if stationarity(ended, self.project) <= max(noise, self.goal / (1 if sample.exact else ROOM)):
                    return steps, ended
                if np.linalg.norm(self.x - self.begin) > FAR * (1 + np.linalg.norm(self.begin)):
                    self.reason = "unbounded"
                    return steps, ended
                if steps >= ITERATIONS * (10 if sample.exact else 1):
                    self.reason = "slow" if sample.exact else None
                    return steps, ended
            self.reason = self.why_no_descent(sample, ended)
        except OutOfTime:
            self.reason = "budget"
        return steps, ended

    def why_no_descent(self, sample: Sample, point: Point) -> str | None:
        """No step lowers F: rounding, noise that a larger sample shrinks, or a kink."""
        size = stationarity(point, self.project)
        dtype = jnp.result_type(*jax.tree.leaves(self.x1))
        if size <= self.known.rounding(point, float(jnp.finfo(dtype).eps)):
            return "rounding" if sample.exact else None
        return "not smooth" if sample.exact or size > 3 * point.noise else None

    def resize(self, look: Look, ended: Point, sample: Sample, steps: int) -> None:
        """The next sample: as large as the goal asks for, or nearly; a reason to stop where that is too large."""
        if look.bias > self.goal / ROOM:
            self.debias = True
        if self.misled(look, sample):
            self.n *= 4
        noise = max(look.noise, ended.noise)
        wanted = sample.m * (ROOM * noise / self.goal) ** 2 if self.goal else GROWTH * sample.m
        stuck = len(self.stages) > 1 and self.stages[-2].m == sample.m
        least = GROWTH if self.tails is not None else 1 if steps and not stuck else 2
        m = int(np.clip(wanted, sample.m * least, GROWTH * sample.m))
        budget = self.wanted.budget_seconds
        most = MOST_CONTEXTS if budget is None else self.affordable(sample.m)
        if self.finite is not None and 2 * m >= self.finite and (budget is None or self.finite <= most):
            self.m = self.finite
            return
        self.m = min(m, most)
        if budget is None:
            self.reason = "noise" if sample.m >= MOST_CONTEXTS else None
        else:
            self.reason = "budget" if self.m < min(m, 2 * sample.m) else None

    def affordable(self, m: int) -> int:
        """Contexts of a look that leaves as much time again, judged by the last look."""
        budget = self.wanted.budget_seconds or 0.0
        each = max(self.look_seconds - self.compile_seconds * (len(self.stages) == 1), 1e-4) / m
        return int((budget - self.seconds) / (2 * each))

    def record(self, point: Point, look: Look) -> None:
        size, stage = stationarity(point, self.project), len(self.stages) + 1
        row = {"t": self.iterations, "seconds": self.seconds, "stage": stage, "F": point.F, "grad": size}
        told = {"low": look.certificate.low**0.5, "high": look.certificate.norm_high}
        self.history.append({**row, "noise": point.noise, **told, "goal": self.goal})
        self.told(self.history[-1], self.tree_of(point.x))

    def finish(self) -> None:
        """A look where the run ended, unless the last one was there: what the result says is of that x."""
        last = self.stages[-1]
        if last.iterations and last.kind != "exact":
            self.m = last.m
            sample, _, self.look = self.seen()
            self.cost = self.cost + sample.cost
        if self.reason not in ("certified", "heavy tails"):
            self.rarely_met(last.m, last.kind == "exact")
        if self.tails is not None and self.look is not None:
            self.look = without_interval(self.look, rare(self.tails, last.m), self.tails.effective)
        tell("solve", self.unsolved, "its contexts", stacklevel=5)

    def stopped(self, message: str) -> RunStopped:
        x = self.tree_of(self.x)
        manifest = {**environment(), "solve": {"stages": [s._asdict() for s in self.stages]}}
        return RunStopped(message, Result(x, x, x, self.history, self.cost, self.seconds, 0.0, manifest))

    def result(self) -> Solved:
        assert self.look is not None and self.reason is not None
        look, x, wanted = self.look, self.tree_of(self.x), self.wanted
        why = sentence(self.reason, look, self.goal, self.stages, wanted.budget_seconds)
        told = {"reason": self.reason, "why": why, "goal": self.goal, "stages": [s._asdict() for s in self.stages]}
        told |= {"certificate": look.certificate._asdict(), "F": look.F._asdict()}
        key = np.asarray(random.key_data(self.key)).tolist()
        return Solved(
            x=x,
            x_hat=x,
            x_mean=x,
            history=self.history,
            cost=self.cost,
            seconds=self.seconds - self.compile_seconds,
            compile_seconds=self.compile_seconds,
            manifest={**environment(), "key": key, "tol": wanted.tol, "solve": told},
            certificate=look.certificate,
            F=look.F,
            goal=self.goal,
            stages=self.stages,
            reason=self.reason,
            why=why,
            notes=notes(self.reason, look, self.goal, self.known, self.stages[-1].n, self.finite),
        )
