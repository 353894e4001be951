"""Samplers that do not draw what the problem says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.testing.adversarial.case import KEY, Case, plain, rows_of


def stored(**changes: Any) -> bx.Problem:
    rng = np.random.default_rng(0)
    problem = bx.from_arrays(
        lambda x, y, eta, xi: jnp.sum((y - xi) ** 2),
        lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2),
        rng.normal(size=(6, 2)),
        rng.normal(size=(6, 9, 2)),
        init_y=lambda x, xi: jnp.zeros(2),
    )
    return problem.replace(**changes)


def halved(xi: Any, data: Any) -> Any:
    etas, weights = stored().outcomes(xi)
    return etas, weights / 2


def negative(xi: Any, data: Any) -> Any:
    etas, weights = stored().outcomes(xi)
    return etas, weights.at[0].add(-0.5).at[1].add(0.5)


def tilted(xi: Any, data: Any) -> Any:
    etas, weights = stored().outcomes(xi)
    rising = jnp.arange(1.0, 1 + len(weights)) ** 2
    return etas, rising / rising.sum()


def lowest(key: Any, data: Any) -> Any:
    """The lower of two numbers: not uniform."""
    return stored().nth_context(random.randint(key, (2,), 0, 6).min())


def forgetful(shape: tuple[int, ...]) -> Any:
    """A sampler that draws from NumPy: once, while it is traced, and again another time."""
    rng = np.random.default_rng(0)
    return lambda key, *rest: jnp.asarray(rng.normal(size=shape))


def tilted_where(xi: Any, data: Any) -> Any:
    """The law of the outcomes is another in half of the contexts."""
    etas, weights = stored().outcomes(xi)
    return jax.tree.map(lambda a, b: jnp.where(xi.row % 2 == 0, a, b), tilted(xi, data), (etas, weights))


MANY = 2000


def many(draw: Any, **changes: Any) -> bx.Problem:
    """2,000 numbered contexts, of which ``draw(key)`` says which is drawn."""
    table = np.random.default_rng(0).normal(size=(MANY, 2))
    at = lambda i, data: jnp.asarray(table)[i]
    sample = lambda key, data: at(draw(key), data)
    return plain(**{"sample_context": sample, "context_at": at, "n_contexts": MANY, **changes})


def below(n: int) -> Any:
    return lambda key: random.randint(key, (), 0, n)


def nan_if(condition: Any) -> Any:
    return jnp.where(condition, jnp.nan, 1.0)


def rows(problem: bx.Problem) -> str:
    """The rows of `check` on samplers alone: one small program."""
    from bilevelax.diagnostics.check_report import Report
    from bilevelax.diagnostics.samplers import sampler_rows

    return rows_of(Report(tuple(sampler_rows(problem, jnp.ones(2), KEY(0)))))


def law(name: str, says: str, **changes: Any) -> Case:
    return Case(name, lambda: rows(stored(**changes)), says, never="^OK" if says.startswith("^FAILED") else "FAILED")


CONTEXTS, OUTCOMES = "sample_context against context_at", "sample_conditional against support"
SAMPLERS = (
    law("samplers that are right", "^OK: 7 checks"),
    law(
        "contexts that ignore their key",
        f"^FAILED: 1 .*{CONTEXTS}",
        sample_context=lambda key, data: stored().nth_context(0),
    ),
    law("contexts of another law than listed", f"^FAILED: 1 .*{CONTEXTS}", sample_context=lowest),
    law(
        "contexts that are not among those listed",
        f"^FAILED: 1 .*{CONTEXTS}.*are not listed",
        context_at=lambda i, data: jax.tree.map(jnp.negative, stored().nth_context(i)),
    ),
    law("weights that sum to one half", "^FAILED: 1 .*weights of support", support=halved),
    law("a negative weight", "^FAILED: .*weights of support", support=negative),
    law("outcomes of another law than listed", f"^FAILED: 1 .*{OUTCOMES}", support=tilted),
    law("outcomes of another law in half of the contexts", f"^FAILED: 1 .*{OUTCOMES}", support=tilted_where),
    Case(
        "the last of forty contexts is never drawn",
        lambda: rows(many(below(39), n_contexts=40)),
        f"^FAILED: 1 .*{CONTEXTS}",
    ),
    Case("2,000 contexts, drawn rightly", lambda: rows(many(below(MANY))), "^OK: ", never="FAILED"),
    Case("2,000 contexts, the first hundred drawn", lambda: rows(many(below(100))), f"^FAILED: 1 .*{CONTEXTS}"),
    Case(
        "2,000 contexts drawn, 600 of them numbered",
        lambda: rows(many(below(MANY), n_contexts=600)),
        f"^FAILED: 1 .*{CONTEXTS}.*are not listed",
    ),
    Case(
        "2,000 contexts, standardised in one of two places",
        lambda: rows(many(below(MANY), context_at=lambda i, data: many(below(MANY)).nth_context(i) / 3)),
        f"^FAILED: 1 .*{CONTEXTS}.*are not listed",
    ),
    Case(
        "a context that is not from its key",
        lambda: rows(plain(sample_context=forgetful((2,)))),
        "^FAILED: 1 .*sample_context is deterministic.*draw from its key only",
    ),
    Case(
        "an outcome that is not from its key",
        lambda: rows(plain(sample_conditional=forgetful((2,)))),
        "^FAILED: 1 .*sample_conditional is deterministic",
    ),
    Case(
        "a start that is not from x and xi",
        lambda: rows(plain(init_y=forgetful((2,)))),
        "^FAILED: 1 .*init_y is deterministic.*the same for equal x and xi",
    ),
    Case(
        "contexts drawn from a key of their own",
        lambda: rows(plain(sample_context=lambda key, data: random.normal(KEY(3), (2,)))),
        "^OK so far: .*undecided: sample_context depends on its key.*n_contexts=1",
    ),
    Case(
        "outcomes drawn from a key of their own",
        lambda: rows(plain(sample_conditional=lambda key, xi, data: random.normal(KEY(3), (2,)))),
        "^OK so far: .*undecided: sample_conditional depends on its key",
    ),
    Case(
        "one context, which is zero",
        lambda: rows(plain(sample_context=lambda key, data: jnp.zeros(2))),
        "^OK: ",
        never="depends on its key",
    ),
    Case(
        "g is not a number in rare contexts",
        lambda: rows(plain(g=lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2) * nan_if(xi[0] > 2.5))),
        "^FAILED: 1 .*g is not in .* of 512",
    ),
    Case(
        "f is not a number in rare contexts",
        lambda: rows(plain(f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) * nan_if(xi[0] > 2.5))),
        "^OK so far: .*undecided: f and g are numbers",
    ),
    Case(
        "f that has no value at the start alone",
        lambda: rows(plain(f=lambda x, y, eta, xi: -jnp.sum(jnp.log(y)))),
        "^OK: ",
        never="undecided",
    ),
)
