"""Problems of wrong shapes: their parts return something else than they should; each is refused, or can be traced."""

import warnings

import jax
import jax.numpy as jnp
import mutations as m
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.problems.validate import alike, as_arrays, check_shapes

SHAPES = [(), (1,), *[(2,)] * 8, (3,), (2, 2), (1, 2), (0,), (2, 0), (5, 2), (2, 5), (2, 3, 2)]
DTYPES = [*["float32"] * 9, "float16", "bfloat16", "int32", "bool", "uint8", "complex64"]
ODD = [None, "text", b"bytes", object(), {}, [], (), {1: 2.0}, [None], {"a": "b"}, 3, 2.5, True, 10**30, float("nan")]
SUBSTITUTES = [None, 3, "f", lambda: 0.0, lambda *a: a, lambda *a: None, lambda *a: a[99], lambda *a: 1 / 0]


class Wrong(Exception):
    """A problem that was accepted and cannot be computed with."""


def array(rng):
    return jnp.zeros(m.some(rng, SHAPES), m.some(rng, DTYPES))


def value(rng, depth=2):
    """An array, something that is none, or a structure of such."""
    way = int(rng.integers(8))
    if way == 0:
        return m.some(rng, ODD)
    if way == 1 and depth:
        return {name: value(rng, depth - 1) for name in "ab"[: 1 + int(rng.integers(2))]}
    if way == 2 and depth:
        return [value(rng, depth - 1) for _ in range(int(rng.integers(3)))]
    return array(rng)


def returning(rng):
    """A function that returns what it should not, and takes any arguments."""
    if rng.integers(4) == 0:
        return m.some(rng, SUBSTITUTES)
    odd = value(rng)
    return lambda *given: odd


def rows(rng):
    """What contexts or outcomes may be given as: ragged, of other lengths, no numbers."""
    way = int(rng.integers(6))
    if way == 0:
        return value(rng)
    sizes = [tuple(int(n) for n in rng.integers(0, 4, int(rng.integers(1, 4)))) for _ in range(4)]
    if rng.integers(3):  # as they may be: three contexts, up to three outcomes
        sizes = [(int(n), 2) if way < 4 else m.some(rng, [(3, 2), (3, 1), (3, 4, 2)]) for n in rng.integers(1, 4, 4)]
    kinds = [*["float32"] * 9, "int64", "object", "str", "datetime64[s]"]
    of = lambda i: np.full(sizes[i % 4], i, m.some(rng, kinds))
    if way < 4:
        groups = 3 if rng.integers(2) else int(rng.integers(5))
        return [{"a": of(i), "b": of(i + way)} if rng.integers(20) == 0 else of(i) for i in range(groups)]
    return of(0) if way == 4 else {"a": of(0), "b": of(1)}


class Problems:
    """``one(rng)`` makes a problem, asks for its shapes and, if they are accepted, traces an estimate."""

    def __init__(self, place):
        self.estimator = bx.saa(2)

    def parts(self):
        return {
            "f": lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) + 0 * jnp.sum(x),
            "g": lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2),
            "sample_context": lambda key, data: random.normal(key, (2,)),
            "sample_conditional": lambda key, xi, data: random.normal(key, (2,)),
            "init_y": lambda x, xi: jnp.zeros(2),
        }

    def made(self, rng):
        parts = self.parts()
        if rng.integers(2):
            kept = {name: parts[name] for name in ("f", "g", "init_y")}
            return bx.from_arrays(**kept, contexts=rows(rng), outcomes=rows(rng))
        optional = ["support", "context_at", "n_contexts", "constraint", "mu_g", "L_g1", "data", "guess"]
        names = rng.choice([*parts, *parts, *optional], int(rng.integers(1, 3)), replace=False)
        return bx.Problem(**{**parts, **{name: returning(rng) for name in names}})

    def one(self, rng):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = as_arrays("x", "the fuzzer", jnp.ones(2) if rng.integers(4) else value(rng))
            problem = self.made(rng)
            check_shapes(problem, x)
            estimate = lambda key, problem, x: self.estimator.estimate(key, problem, x, ())[0].grad
            found = jax.eval_shape(estimate, random.key(0), problem, x)
        if not alike(found, x):
            raise Wrong(f"a gradient {found} of x = {x}")
