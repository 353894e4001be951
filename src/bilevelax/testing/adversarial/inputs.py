"""Input that must be refused with one sentence, before anything is compiled."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.testing.adversarial.case import KEY, Case, plain, rows_of

ONES = (2,)


def certified(problem: Any = None, x: Any = None) -> Any:
    made = plain() if problem is None else problem()
    return bx.certify(made, jnp.ones(ONES) if x is None else x(), key=KEY(0))


def checked(problem: Any, x: Any) -> str:
    return rows_of(bx.check(problem, x, key=KEY(0)))


def changing() -> bx.Problem:
    """A sampler that returns another shape every time."""
    calls: list[int] = []

    def sample_context(key: Any, data: Any) -> Any:
        calls.append(1)
        return random.normal(key, (len(calls),))

    return plain(sample_context=sample_context)


def coarse() -> bx.Problem:
    """Everything in double precision but the start of y."""
    return plain(
        f=lambda x, y, eta, xi: jnp.sum((y.astype(x.dtype) - xi) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y.astype(x.dtype) - x - eta) ** 2) / 2,
        init_y=lambda x, xi: jnp.zeros(2, jnp.float32),
    )


def half(dtype: Any) -> Case:
    name = jnp.dtype(dtype).name
    x = lambda: jnp.ones(ONES, dtype)
    return Case(f"x in {name}", lambda: certified(x=x), rf"`x` of certify must be float32 or float64. Got {name}")


def problem(name: str, says: str, **changes: Any) -> Case:
    return Case(name, lambda: certified(lambda: plain(**changes)), says)


def run(name: str, says: str, **settings: Any) -> Case:
    def ask() -> Any:
        given = {"key": KEY(0), "T": 2, "progress": False, **settings}
        x1 = given.pop("x1", np.ones(ONES))
        return bx.minimize(plain(), bx.saa(2), optax.sgd(0.1), x1, **given)

    return Case(name, ask, says)


def _projected() -> Any:
    make: Any = bx.epoch_sgd
    return make(project=abs)


INPUTS = (
    half(jnp.bfloat16),
    half(jnp.float16),
    problem(
        "init_y in float16",
        r"`init_y` of Problem must be float32 or float64. Got float16; return float32",
        init_y=lambda x, xi: jnp.zeros(2, jnp.float16),
    ),
    problem(
        "f in bfloat16",
        r"`f` of Problem must be float32 or float64. Got bfloat16",
        f=lambda x, y, eta, xi: jnp.sum(y).astype(jnp.bfloat16),
    ),
    Case(
        "float32 init_y in a float64 problem",
        lambda: checked(coarse(), jnp.ones(2, jnp.float64)),
        r"FAILED.*y is float32, x float64.*let init_y return float64",
    ),
    Case("integers in x", lambda: certified(x=lambda: jnp.ones(2, int)), r"must be floating point. Got int"),
    Case("text in x", lambda: certified(x=lambda: {"a": "b"}), r"must be an array. Got 'b'"),
    Case("no array in x", lambda: certified(x=dict), r"must hold at least one array"),
    problem("f returns a vector", r"`f` of Problem must return one floating-point scalar", f=lambda x, y, eta, xi: y),
    problem(
        "g returns an integer",
        r"`g` of Problem must return one floating-point scalar",
        g=lambda x, y, eta, xi: jnp.sum(y).astype(int),
    ),
    problem("init_y returns integers", r"must return floating point. Got int", init_y=lambda x, xi: jnp.zeros(2, int)),
    problem("no follower at all", r"must return at least one array", init_y=lambda x, xi: ()),
    problem("y of another shape than g wants", r"`f` of Problem failed on y", init_y=lambda x, xi: jnp.zeros(3)),
    problem("f that fails", r"`f` of Problem failed", f=lambda x, y, eta, xi: jnp.sum(y @ jnp.ones((3, 3)))),
    problem("an f of two arguments", r"called as f\(x, y, eta, xi\), with 4 arguments", f=lambda x, y: 0.0),
    problem("a sampler without data", r"with 2 arguments", sample_context=lambda key: key),
    problem("a constraint that is a function", r"`constraint` of Problem must be a set", constraint=lambda y: y),
    problem(
        "bounds of another shape than y",
        r"`lower` of box must fit y, which has shape",
        constraint=bx.box(np.zeros(5), np.ones(5)),
    ),
    problem(
        "outcomes unlike those drawn",
        r"`support` of Problem must return stacked outcomes like",
        support=lambda xi, data: (jnp.zeros((3, 7)), jnp.ones(3) / 3),
    ),
    Case("a sampler that changes its shape", lambda: certified(changing), r"on the second call"),
    Case("a projected solver", lambda: _projected(), r"belongs to the problem.*constraint=bx.box"),
    run("a plain number as key", r"`key` of minimize must be one JAX random key", key=0),
    run("no steps", r"`T` of minimize must be an integer", T=0),
    run("half precision in a run", r"`x1` of minimize must be float32 or float64", x1=np.ones(2, np.float16)),
    Case("no samples", lambda: bx.saa(0), r"`n` of saa must be an integer >= 1"),
    Case("a tolerance below zero", lambda: bx.check(plain(), np.ones(2), key=KEY(0), tol=-1), r"must be a positive"),
)
