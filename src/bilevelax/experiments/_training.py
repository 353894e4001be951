"""Training curves: one method from x1 for T upper iterations, seeds and step-size rules as lanes of one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

from bilevelax.estimate import Cost, Estimator
from bilevelax.outer import Carry, initial_carry, step
from bilevelax.problem import Key, Problem, PyTree, X
from bilevelax.schedules import sqrt_then_linear

ROLE_TUNE = 2**20  # seeds of tuning runs begin here: none of them is reported


class Rule(NamedTuple):
    """A step-size rule: the paper's 1/sqrt(t) then 1/t after t0, a constant, or Adam's rate."""

    kind: str
    scale: float
    t0: int = 0

    def size(self, count: Any) -> Any:
        if self.kind == "paper":
            return sqrt_then_linear(self.t0, self.scale)(count)
        return jnp.full((), self.scale, float)

    def __str__(self) -> str:
        if self.kind == "paper":
            factor = "" if self.scale == 1 else f"{self.scale:g} x "
            return f"{factor}1/sqrt(t) to t0 = {self.t0}, then 1/t"
        return f"{'Adam' if self.kind == 'adam' else 'SGD, constant'} {self.scale:g}"


def optimizer(rules: tuple[Rule, ...], chosen: jax.Array) -> optax.GradientTransformation:
    """The rule number ``chosen`` (traced) of several of one family, SGD or Adam."""
    sizes = lambda count: jnp.stack([rule.size(count) for rule in rules])[chosen]
    return optax.adam(sizes) if rules[0].kind == "adam" else optax.sgd(sizes)


class Curves(NamedTuple):
    """What lanes leave at each checkpoint: leading axes (lanes, checkpoints)."""

    x: X
    cost: Cost


@partial(jax.jit, static_argnames=("estimator", "rules", "checkpoints", "together"))
def trajectories(
    problem: Problem,
    x1: X,
    keys: Key,
    chosen: jax.Array,
    *,
    estimator: Estimator,
    rules: tuple[Rule, ...],
    checkpoints: tuple[int, ...],
    together: bool = False,
) -> Curves:
    """x and the oracle calls so far at each checkpoint, for every lane (key, rule).

    Args:
        keys: one for each lane; lanes with equal keys and rules are equal.
        chosen: number of each lane's rule.
        rules: of one family.
        checkpoints: iterations, increasing; 0 is x1.
        together: lanes run vectorised; otherwise one after another, which random levels and a large y prefer.
    """
    gaps = jnp.diff(jnp.asarray((0, *checkpoints), jnp.int32))

    def lane(args: tuple[Key, jax.Array]) -> Curves:
        key, rule = args
        method = optimizer(rules, rule)

        def one(_: Any, state: tuple[Carry, Cost]) -> tuple[Carry, Cost]:
            carry, est = step(problem, estimator, method, state[0], key)
            return carry, jax.tree.map(lambda a, b: a + jnp.asarray(b, jnp.int32), state[1], est.cost)

        def segment(state: tuple[Carry, Cost], n: jax.Array) -> tuple[tuple[Carry, Cost], Curves]:
            state = lax.fori_loop(0, n, one, state)
            return state, Curves(state[0].x, state[1])

        nothing = jax.tree.map(lambda _: jnp.zeros((), jnp.int32), Cost())
        return lax.scan(segment, (initial_carry(problem, estimator, method, x1), nothing), gaps)[1]

    return jax.vmap(lambda *args: lane(args))(keys, chosen) if together else lax.map(lane, (keys, chosen))


def seed_keys(seeds: Sequence[int]) -> Key:
    return jax.vmap(random.key)(jnp.asarray(seeds, jnp.uint32))


def checkpoints_of(T: int, n: int) -> tuple[int, ...]:
    """0 and about n iterations up to T, ever further apart."""
    return tuple(sorted({0, *(round(T * (i / n) ** 2) for i in range(1, n + 1))}))


def train(
    problem: Problem,
    x1: X,
    estimator: Estimator,
    rule: Rule,
    *,
    seeds: Sequence[int],
    checkpoints: tuple[int, ...],
    together: bool = False,
) -> Curves:
    """The curves of one method with one rule, a lane for each seed."""
    chosen = jnp.zeros(len(seeds), jnp.int32)
    return trajectories(
        problem,
        x1,
        seed_keys(seeds),
        chosen,
        estimator=estimator,
        rules=(rule,),
        checkpoints=checkpoints,
        together=together,
    )


def tune(
    problem: Problem,
    x1: X,
    estimator: Estimator,
    rules: Sequence[Rule],
    loss: Callable[[PyTree], np.ndarray],
    *,
    T: int,
    seeds: int = 1,
    together: bool = False,
) -> list[tuple[Rule, float]]:
    """(rule, validation loss of its last iterate), mean over seeds that are used for nothing else.

    ``loss`` maps stacked x to their losses; a rule that diverges gets infinity.
    """
    found = []
    for kind in (False, True):
        family = tuple(rule for rule in rules if (rule.kind == "adam") == kind)
        if not family:
            continue
        keys = jnp.concatenate([seed_keys([ROLE_TUNE + i for i in range(seeds)])] * len(family))
        chosen = jnp.repeat(jnp.arange(len(family), dtype=jnp.int32), seeds)
        curves = trajectories(
            problem, x1, keys, chosen, estimator=estimator, rules=family, checkpoints=(T,), together=together
        )
        losses = loss(jax.tree.map(lambda a: a[:, 0], curves.x)).reshape(len(family), seeds).mean(1)
        found += [(rule, float(v) if np.isfinite(v) else float("inf")) for rule, v in zip(family, losses, strict=True)]
    return found


def best(found: Sequence[tuple[Rule, float]], kinds: Sequence[str]) -> Rule:
    """The rule of least validation loss among these kinds."""
    return min((pair for pair in found if pair[0].kind in kinds), key=lambda pair: pair[1])[0]
