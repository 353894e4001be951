"""The one driver of the study: Algorithm 2 over many seeds, step sizes and step rules, a compiled program for all."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random
from optax import tree

from bilevelax.base.compiling import program
from bilevelax.base.timing import timed
from bilevelax.core.estimate import Cost, Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.run.records.cells import finite
from bilevelax.run.schedules import sqrt_then_linear_size
from bilevelax.run.steps import Carry, Taken, initial_carry, take_steps

Watch = Callable[[X], dict[str, Any]]  # traceable: x -> scalars
OptimizerOf = Callable[[Any], optax.GradientTransformation]  # of numbers that may be traced: lanes can differ in them


def seed_keys(seeds: int, role: int = 0) -> Key:
    """The key of each seed 0, 1, ..., stacked; ``role`` tells apart the uses of a seed."""
    return jax.vmap(lambda seed: random.fold_in(random.key(seed), role))(jnp.arange(seeds))


def lanes(keys: Key, scales: Sequence[float]) -> tuple[Key, jax.Array]:
    """Every seed with every step scale: lane i * len(scales) + j has seed i and scale j."""
    return jnp.repeat(keys, len(scales), axis=0), jnp.tile(jnp.asarray(scales, float), len(keys))


def nothing(x: X) -> dict[str, Any]:
    return {}


class Segments(NamedTuple):
    """What a run leaves behind each stretch of steps, stacked."""

    looked: Any  # ``look`` at the x reached
    cost: Cost  # oracle calls of the stretch
    seen: dict[str, jax.Array]  # sums of ``every_step`` over its iterates


def run_segments(
    problem: Problem,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    x1: X,
    key: Key,
    gaps: jax.Array,
    look: Callable[[X], Any] = lambda x: x,
    every_step: Watch = nothing,
) -> tuple[X, Segments]:
    """Algorithm 2 from x1 for gaps[0], gaps[1], ... steps, a look after each: the last x and what was seen."""
    none = Cost(*(jnp.zeros((), jnp.int32) for _ in dataclasses.fields(Cost))), tree.zeros_like(every_step(x1))

    def keep(sums: Any, taken: Taken) -> Any:
        new = taken.estimate.cost, every_step(taken.x)
        return jax.tree.map(lambda a, b: a + jnp.asarray(b, a.dtype), sums, new)

    def segment(carry: Carry, n: jax.Array) -> tuple[Carry, Segments]:
        carry, sums = take_steps(problem, estimator, optimizer, carry, key, n, keep, lambda _: none)
        return carry, Segments(look(carry.x), *sums)

    carry, segments = lax.scan(segment, initial_carry(problem, estimator, optimizer, x1), gaps)
    return carry.x, segments


class Method(NamedTuple):
    """What is compiled into a program."""

    estimator: Estimator
    optimizer_of: OptimizerOf
    watch: Watch
    every_step: Watch


@program(static_argnames=("method", "chunks", "together"))
def all_lanes(
    problem: Problem, x1: X, keys: Key, scales: jax.Array, every: jax.Array, method: Method, chunks: int, together: bool
) -> Any:
    """All lanes; ``every``, the steps per chunk, is traced: one program serves every length of run."""
    estimator, optimizer_of, watch, every_step = method
    gaps = jnp.full(chunks, every, jnp.int32)

    def lane(pair: tuple[Key, jax.Array]) -> tuple[X, Segments]:
        key, scale = pair
        return run_segments(problem, estimator, optimizer_of(scale), x1, key, gaps, watch, every_step)

    pairs = keys, scales
    return *(jax.vmap(lane)(pairs) if together else lax.map(lane, pairs)), watch(x1), every_step(x1)


class Trajectories(NamedTuple):
    """Arrays of shape (lanes, chunks + 1), entry 0 at x_1; lane i is lane i of ``keys``."""

    t: np.ndarray  # steps taken, (chunks + 1,)
    values: dict[str, np.ndarray]  # of ``watch`` at x_{t+1}
    means: dict[str, np.ndarray]  # of ``every_step`` over x_1..x_t (at entry 0: at x_1)
    cost: dict[str, np.ndarray]  # oracle calls so far
    x: X  # last iterates, stacked
    seconds: float  # of all lanes together, without compilation

    def per_step(self, lane: int, names: Iterable[str]) -> dict[str, float]:
        """Oracle calls of one step, in the mean over a lane's run."""
        return {name: float(self.cost[name][lane, -1] / self.t[-1]) for name in names}


def trajectories(
    problem: Problem,
    estimator: Estimator,
    optimizer_of: OptimizerOf,
    x1: X,
    keys: Key,
    *,
    T: int,
    every: int,
    watch: Watch = nothing,
    every_step: Watch = nothing,
    scales: Any = None,
    together: bool = True,
) -> Trajectories:
    """T steps of Algorithm 2 for every key; lane i has the optimizer of ``scales[i]`` (1 by default).

    ``watch`` is evaluated after each chunk of ``every`` steps, ``every_step`` at every iterate and averaged. Lanes are
    vectorised, or (not ``together``) one after another, where random levels differ or to time them. Calls with the
    same objects and as many chunks share a compiled program.
    """
    if T % every:
        raise ValueError(f"`T` of trajectories must be a multiple of every = {every}. Got {T}.")
    method = Method(estimator, optimizer_of, watch, every_step)
    scales = jnp.ones(len(keys), float) if scales is None else jnp.asarray(scales, float)
    call = partial(all_lanes, problem, x1, keys, scales, method=method, chunks=T // every, together=together)
    jax.block_until_ready(call(0))  # no steps: compiles
    seconds, (x, (values, cost, seen), first, first_step) = timed(partial(call, every))
    t = every * np.arange(T // every + 1)
    after = lambda a, rest: np.concatenate([np.broadcast_to(np.asarray(a), (len(keys), 1)), np.asarray(rest)], axis=1)
    return Trajectories(
        t,
        {name: after(first[name], a) for name, a in values.items()},
        {name: after(first_step[name], np.cumsum(np.asarray(a, float), 1) / t[1:]) for name, a in seen.items()},
        {name: after(0, np.cumsum(np.asarray(a, np.int64), axis=1)) for name, a in cost.asdict().items()},
        x,
        seconds,
    )


ROLE_RUN, ROLE_TUNE, ROLE_ADAPT = range(3)  # of a seed: runs that are reported, runs that are not, adaptation
KINDS = ("paper", "constant", "adam")
SOLVED = 0.9  # of the way to the least training cost: a step rule that gets there has trained
Loss = Callable[[list[X]], np.ndarray]


class Rule(NamedTuple):
    """A step rule: the paper's 1/sqrt(t) and after t0 1/t, a constant, or Adam's rate, each times ``scale``."""

    kind: Any
    scale: Any
    t0: Any = 0

    def __str__(self) -> str:
        if self.kind == "paper":
            return f"{'' if self.scale == 1 else f'{self.scale:g} x '}1/sqrt(t) to t0 = {self.t0}, then 1/t"
        return f"{'Adam' if self.kind == 'adam' else 'SGD, constant'} {self.scale:g}"

    def numbers(self) -> "Rule":
        """The same as arrays, so that one program serves every rule."""
        return Rule(*(jnp.asarray(v, float) for v in (KINDS.index(self.kind), self.scale, self.t0)))


def optimizer(rule: Rule) -> optax.GradientTransformation:
    """SGD with the rule's steps, or Adam."""
    adam = optax.scale_by_adam()

    def update(grad: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count, inner = state
        adapted, inner = adam.update(grad, inner, params)
        size = rule.scale * jnp.where(rule.kind == 0, sqrt_then_linear_size(count, rule.t0), 1.0)
        move = lambda g, a: -size.astype(g.dtype) * jnp.where(rule.kind == KINDS.index("adam"), a, g)
        return jax.tree.map(move, grad, adapted), (count + 1, inner)

    return optax.GradientTransformation(lambda x: (jnp.zeros((), jnp.int32), adam.init(x)), update)


class Curve(NamedTuple):
    """What a run leaves at each checkpoint, stacked."""

    x: X
    cost: Cost  # oracle calls so far


def run(problem: Problem, x1: X, key: Key, rule: Rule, gaps: jax.Array, estimator: Estimator) -> Curve:
    """x and the oracle calls so far after gaps[0], gaps[0] + gaps[1], ... iterations."""
    found = run_segments(problem, estimator, optimizer(rule), x1, key, gaps)[1]
    return Curve(found.looked, jax.tree.map(lambda a: jnp.cumsum(a, dtype=a.dtype), found.cost))


run_one = program(static_argnames="estimator")(run)


def checkpoints_of(T: int, n: int) -> tuple[int, ...]:
    """0 and n iterations up to T, ever further apart."""
    return (0, *(max(i, round(T * (i / n) ** 2)) for i in range(1, n + 1)))


def gaps_of(checkpoints: Sequence[int]) -> jax.Array:
    return jnp.diff(jnp.asarray((0, *checkpoints), jnp.int32))


def train(problem: Problem, x1: X, estimator: Estimator, rule: Rule, *, seed: int, checkpoints: Sequence[int]) -> Curve:
    """One method with one rule and seed. Equal estimators and numbers of checkpoints share a compiled program."""
    key = seed_keys(seed + 1, ROLE_RUN)[seed]
    return run_one(problem, x1, key, rule.numbers(), gaps_of(checkpoints), estimator=estimator)


def unstack(xs: X) -> list[X]:
    """The list of x of a stack."""
    leaves, structure = jax.tree.flatten(xs)
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


class Trial(NamedTuple):
    """A rule, the validation loss of its last iterate on each tuning seed, and how far it trains (1: all the way)."""

    rule: Rule
    each: np.ndarray
    fit: float = 1.0

    @property
    def loss(self) -> float:
        return float(np.mean(self.each))


def tune(
    problem: Problem, x1: X, method: Estimator, rules: list[Rule], loss: Loss, *, checkpoints: Sequence[int], seeds: int
) -> list[Trial]:
    """Every rule on seeds that are used for nothing else; one that diverges on any has an infinite loss."""
    run = partial(run_one, problem, x1, gaps=gaps_of(checkpoints), estimator=method)
    last = lambda key, rule: jax.tree.map(lambda a: a[-1], run(key, rule.numbers()).x)
    each = np.stack([loss([last(key, rule) for rule in rules]) for key in seed_keys(seeds, ROLE_TUNE)], axis=1)
    return list(map(Trial, rules, np.where(np.isfinite(each), each, np.inf)))


def best(trials: Sequence[Trial], kinds: Sequence[str]) -> Rule:
    """Of these kinds the rule of least validation loss among those that train; if none does, what trains most."""
    of_kind = [trial for trial in trials if trial.rule.kind in kinds]
    enough = min(SOLVED, max(trial.fit for trial in of_kind))
    return min((trial for trial in of_kind if trial.fit >= enough), key=lambda trial: trial.loss).rule


def both_rules(trials: Sequence[Trial]) -> dict[str, Rule]:
    """The paper's rule and the best other one, of those that were tried."""
    kinds = {"paper": ("paper",), "other": ("constant", "adam")}
    return {name: best(trials, of) for name, of in kinds.items() if any(trial.rule.kind in of for trial in trials)}


def tuning_rows(trials: Sequence[Trial], *more: str, **columns: Any) -> list[dict[str, Any]]:
    """Mean validation losses of all rules, those of each tuning seed, and what ``more`` a trial says."""
    columns = {"kind": "tuning", **columns}
    loss = lambda trial: trial.loss if np.isfinite(trial.loss) else "diverged"
    each = lambda t: {"losses": [finite(v) for v in t.each], **{name: finite(getattr(t, name)) for name in more}}
    return [{**columns, "rule": str(trial.rule), "loss": loss(trial), **each(trial)} for trial in trials]


def grid(
    T: int, paper: Sequence[float], constant: Sequence[float], adam: Sequence[float], parts: Sequence[int] = (4, 1)
) -> list[Rule]:
    """The paper's rule with t0 = T / part for each of ``parts``, a constant step, and Adam, each with these scales."""
    return [
        *(Rule("paper", scale, max(1, T // part)) for part in parts for scale in paper),
        *(Rule("constant", scale) for scale in constant),
        *(Rule("adam", scale) for scale in adam),
    ]
