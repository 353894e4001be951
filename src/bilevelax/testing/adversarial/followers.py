"""Followers that mislead a solver: units, far starts, domains, no minimum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.testing.adversarial.case import KEY, Case, alone, plain
from bilevelax.testing.adversarial.reports import checked
from bilevelax.testing.adversarial.ridges import RIDGES, ridge

CLOSE = 1e-3  # relative error of a hypergradient that is right


def estimated(problem: bx.Problem, x: Any, estimator: bx.Estimator) -> bx.Estimate:
    found: bx.Estimate = jax.jit(lambda x: estimator.estimate(KEY(0), problem, x, ())[0])(x)
    return found


def compared(problem: bx.Problem, x: Any, estimator: bx.Estimator, exact: Any) -> str:
    found = estimated(problem, x, estimator)
    error = np.max(np.abs(np.asarray(found.grad, float) - exact)) / np.max(np.abs(exact))
    solved = "solved" if float(found.aux["lower_unsolved"]) == 0 else "unsolved"
    return f"{solved}, {'right' if error < CLOSE else 'wrong'}: off by {error:.2g}"


def of_ridge(settings: dict[str, Any]) -> str:
    case = ridge(**settings)
    return compared(case.problem, case.x, bx.saa("all"), case.grad)


def certified_ridge(settings: dict[str, Any]) -> str:
    """The certificate of a ridge, held against linear algebra: it has the gradient, and no other."""
    case = ridge(**settings)
    found = bx.certify(case.problem, case.x, key=KEY(0))
    error = abs(found.estimate / case.grad**2 - 1)
    return f"{'right' if error < 2 * CLOSE else 'wrong'}: off by {error:.2g}. {found}"


BARRIER_X, BARRIER_Y = 1.5, 1.5 * np.exp(-5.0)
BARRIER_SLOPE = 2 * (BARRIER_Y - 1) * np.exp(-5.0)


def with_barrier() -> bx.Problem:
    """g has a domain: y* = x e^-5, and a full Newton step from 1 lands where the logarithm is not a number."""
    g = lambda x, y: jnp.exp(5.0) * y[0] - x[0] * jnp.log(y[0])
    return alone(lambda x, y: jnp.sum((y - 1) ** 2), g, [1.0])


def barrier() -> str:
    return compared(with_barrier(), jnp.asarray([BARRIER_X]), bx.saa(2), np.asarray([BARRIER_SLOPE]))


def answered_barrier() -> str:
    """What `respond` and `certify` say of it, relative to closed forms."""
    problem, x = with_barrier(), jnp.asarray([BARRIER_X])
    y = bx.respond(problem, x, problem.context(KEY(0)), key=KEY(0), n=2)
    found = bx.certify(problem, x, key=KEY(0), n=32)
    return f"respond {float(y[0]) / BARRIER_Y:.4f}, certify {found.estimate / BARRIER_SLOPE**2:.4f} of the truth"


def at_zero() -> str:
    """An answer at zero: nothing to be relative to; rounding ends the solve, and that is no failure."""
    rows = np.random.default_rng(0).normal(size=(1, 64, 3)).astype(np.float32)
    rows -= rows.mean(1, keepdims=True)
    problem = bx.from_arrays(
        lambda x, y, eta, xi: jnp.sum((y - x) ** 2),
        lambda x, y, eta, xi: jnp.sum((y - x + 1 - eta) ** 2),
        np.zeros((1, 1), np.float32),
        rows,
        init_y=lambda x, xi: jnp.full(3, 0.7, jnp.float32),
    )
    return f"unsolved: {float(estimated(problem, jnp.ones(3, jnp.float32), bx.saa('all')).aux['lower_unsolved']):g}"


NO_MINIMUM = {
    "concave": lambda y: -jnp.sum(y**2) / 2 + y[0],
    "linear": lambda y: jnp.sum(y),
    "saddle": lambda y: y[0] ** 2 - y[1] ** 2 + y[1],
    "unbounded": lambda y: jnp.sum(jnp.arctan(y)),
}


def without(name: str, f: Any = None) -> bx.Problem:
    """g without a minimum."""
    g = lambda x, y: NO_MINIMUM[name](y) + 0.1 * jnp.sum(x * y)
    return alone(f or (lambda x, y: jnp.sum((y - x) ** 2)), g, [0.3, 0.3])


def unsolved(name: str, linear: Any) -> str:
    estimator = bx.saa(2, bx.newton_solver(linear=linear()))
    told = estimated(without(name), jnp.ones(2), estimator).aux["lower_unsolved"]
    return f"unsolved: {float(told):g}"


def rarely_concave(curvature: float = -0.1) -> bx.Problem:
    """g is concave in one context of fifty: none of a dozen contexts shows it, and it makes up most of the mean."""
    return plain(
        d=1,
        f=lambda x, y, eta, xi: jnp.sum(jnp.tanh(y) * x),
        g=lambda x, y, eta, xi: jnp.sum(jnp.where(xi > 0, curvature, 1.0) * (y - x - eta) ** 2) / 2,
        sample_context=lambda key, data: jnp.where(random.uniform(key) < 0.02, 1.0, 0.0)[None],
    )


def run(problem: bx.Problem, rate: float = 1e-3) -> Any:
    estimator = bx.minibatch(bx.saa(2), 2)
    return bx.minimize(problem, estimator, optax.sgd(rate), jnp.ones(2), key=KEY(0), T=4, every=2, progress=False).cost


def linear(name: str) -> Any:
    from bilevelax.exact.linear import cg, direct

    return {"direct": direct, "cg": lambda: cg(tol=1e-2)}[name]()


RARELY: dict[str, Any] = {
    "certify": lambda problem, x: bx.certify(problem, x, key=KEY(0), n=256, estimator=bx.saa(2)),
    "evaluate": lambda problem, x: bx.evaluate(problem, x, key=KEY(0), n=256, samples=2),
    "solve": lambda problem, x: bx.solve(problem, x, key=KEY(0), progress=False).why,
}
NAMED = "The follower's problem has no minimum that was found in .* See `check`"
FOLLOWERS = (
    *(
        Case(f"ridge: {name}", lambda settings=settings: of_ridge(settings), "^solved, right")  # type: ignore[misc]
        for name, settings in RIDGES.items()
    ),
    *(
        Case(f"certify, ridge: {name}", lambda name=name: certified_ridge(RIDGES[name]), "^right.*exact")  # type: ignore[misc]
        for name in ("year", "one column times 300", "a far start")
    ),
    Case("a logarithmic barrier", barrier, "^solved, right"),
    Case(
        "respond and certify behind a barrier",
        answered_barrier,
        "^respond 1.0000, certify 1.0000 of the truth",
    ),
    Case("an answer at zero", at_zero, "^unsolved: 0$"),
    *(
        Case(f"{name} g, by {how}", lambda n=name, h=how: unsolved(n, lambda: linear(h)), "^unsolved: 1$")  # type: ignore[misc]
        for name in NO_MINIMUM
        for how in ("direct", "cg")
    ),
    Case("concave g in minimize", lambda: run(without("concave")), f"warned: {NAMED}"),
    *(
        Case(
            f"{name} g in solve",
            lambda name=name: bx.solve(without(name), jnp.ones(2), key=KEY(0), progress=False).why,  # type: ignore[misc]
            f"refused: solve needs a follower with an answer. {NAMED}",
        )
        for name in ("concave", "unbounded")
    ),
    Case("unbounded g in minimize", lambda: run(without("unbounded")), f"warned: {NAMED}"),
    Case(
        "concave g in respond",
        lambda: bx.respond(without("concave"), jnp.ones(2), jnp.zeros(1), key=KEY(0), n=2),
        f"warned: respond gives a number that means nothing. {NAMED}",
    ),
    Case(
        "concave g in evaluate",
        lambda: bx.evaluate(without("concave"), jnp.ones(2), key=KEY(0), n=2, samples=2),
        f"warned: evaluate gives a number that means nothing. {NAMED}",
    ),
    Case(
        "linear g in a run that overflows",
        lambda: run(without("linear", lambda x, y: jnp.sum(jnp.exp(x))), 1e6),
        f"refused: x became non-finite.*{NAMED}",
        never="Neumann",
    ),
    Case(
        "concave g in certify",
        lambda: bx.certify(without("concave"), jnp.ones(2), key=KEY(0), n=32, estimator=bx.saa(2)),
        f"refused: certify needs a follower with an answer. {NAMED}",
    ),
    Case(
        "concave g in tune",
        lambda: bx.tune(without("concave"), jnp.ones(2), key=KEY(0), among={"saa": bx.saa(2)}),
        f"refused: tune needs a follower with an answer. {NAMED}",
    ),
    Case(
        'concave g with "auto"',
        lambda: bx.minimize(without("concave"), "auto", optax.sgd(0.1), jnp.ones(2), key=KEY(0), T=2, progress=False),
        f"refused: tune needs a follower with an answer. {NAMED}",
        slow=True,
    ),
    *(
        Case(
            f"g concave in one context of fifty, {name}",
            lambda ask=ask: ask(rarely_concave(), jnp.ones(1)),  # type: ignore[misc]
            f"warned: {name} gives a number that may be far off. {NAMED}",
            slow=name == "solve",
        )
        for name, ask in RARELY.items()
    ),
    Case(
        "g concave in one context of fifty, check",
        lambda: checked(rarely_concave(), jnp.ones(1)),
        "^FAILED: 1 .*strongly convex in y +FAILED -0.1",
    ),
    Case(
        "mu_g that one context of fifty has not",
        lambda: checked(rarely_concave(0.3).replace(mu_g=1.0), jnp.ones(1)),
        "^FAILED: 1 .*mu_g +FAILED given 1; give Problem.mu_g=0.3. or less",
        slow=True,
    ),
)
