"""What `check` must say of problems that mislead it, and where it must not raise an alarm."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import bilevelax as bx
from bilevelax.testing.adversarial.case import KEY, SMALL, Case, alone, plain, rows_of

DIFFERENCES = "gradient against finite differences"


def checked(problem: bx.Problem, x: Any = None, estimator: Any = None, **settings: Any) -> str:
    x = jnp.ones(2) if x is None else x
    return rows_of(bx.check(problem, x, key=KEY(0), estimator=estimator or bx.saa(8), **{**SMALL, **settings}))


def two_leaves(stopped: str) -> str:
    """x has a layer and a bias; the gradient of one is stopped."""
    from bilevelax.diagnostics.part_errors import finite_differences

    x = {"W": jnp.full((20, 2), 0.1), "b": jnp.asarray([0.3])}

    def used(x: Any) -> Any:
        x = {name: lax.stop_gradient(a) if name == stopped else a for name, a in x.items()}
        return x["W"].sum(0) / 4 + x["b"]

    problem = plain(g=lambda x, y, eta, xi: jnp.sum((y - used(x) - eta) ** 2) / 2)
    return f"contradicts along {finite_differences(KEY(0), problem, x, 4, 16).leaves}"


def step() -> str:
    """A step of size one in f: its gradient is zero everywhere, and F moves with the share of contexts beyond."""
    f = lambda x, y, eta, xi: jnp.sum(jax.nn.sigmoid(1e7 * lax.stop_gradient(0.0 * y)) + lax.stop_gradient(y))
    return checked(plain(f=f))


def constant(size: float) -> str:
    """A large constant in f in single precision: rounding of f is no wrong gradient."""
    f = lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2 + size
    return checked(plain(f=f, dtype=jnp.float32), jnp.ones(2, jnp.float32))


def backwards() -> str:
    """Terms of size 40 that cancel in the mean: a bias that is small against them turns the gradient around."""

    def wrong_way(key: Any, problem: bx.Problem, x: Any) -> bx.Estimate:
        right = bx.saa(2).estimate(key, problem, x, ())[0]
        return right._replace(grad=right.grad - 3.0)

    problem = plain(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2 + 40 * jnp.sign(xi[0]) * jnp.sum(y),
        sample_context=lambda key, data: jnp.where(jax.random.bernoulli(key), 1.0, -1.0) * jnp.ones(2),
        n_contexts=2,
        context_at=lambda i, data: jnp.where(i == 0, 1.0, -1.0) * jnp.ones(2),
    )
    right = bx.minibatch(bx.saa(2), 2, contexts="spread")
    wrong = bx.minibatch(bx.stateless(wrong_way, contexts=bx.saa(2).contexts), 2, contexts="spread")
    return checked(problem, jnp.full(2, 3.0), {"right": right, "wrong": wrong})


def started_far() -> str:
    """Contexts of +-40 that cancel, and answers far from y*: a bias small against their mean square turns the sign."""
    problem = plain(
        d=1,
        sample_context=lambda key, data: jnp.where(jax.random.bernoulli(key), 40.0, -40.0)[None],
        n_contexts=2,
        context_at=lambda i, data: jnp.where(i == 0, 40.0, -40.0)[None],
        init_y=lambda x, xi: jnp.full(1, -6.0),
        mu_g=1.0,
        L_g1=1.0,
    )
    return checked(problem, jnp.ones(1), bx.dl_sgd(1), n=256)


def bent(curvature: float) -> str:
    """200 dimensions, one of them with this curvature."""
    bend = jnp.ones(200).at[0].set(curvature)
    problem = plain(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2),
        g=lambda x, y, eta, xi: jnp.sum(bend * (y - x[0] - eta[0]) ** 2),
        init_y=lambda x, xi: jnp.zeros(200),
    )
    return checked(problem, jnp.ones(1), bx.saa(2))


def far(used: Any = lambda x: x, scale: float = 1.0) -> str:
    """x of size 1e5 in single precision: a step of 1e-3 would be lost in its rounding."""
    x = jnp.full(2, 1e5, jnp.float32)
    f = lambda x, y, eta, xi: scale * jnp.sum((y - xi) ** 2) / 2
    g = lambda x, y, eta, xi: jnp.sum((y - used(x) - eta) ** 2) / 2
    return checked(plain(f, g, dtype=jnp.float32), x)


def barrier(start: float = 1.0, used: Any = lambda x: x) -> str:
    """g has a domain, y > 0, and y* = x e^-5 lies near its end: a full Newton step from 1 leaves it."""
    g = lambda x, y: jnp.exp(5.0) * y[0] - used(x)[0] * jnp.log(y[0])
    return checked(alone(lambda x, y: jnp.sum((y - 1) ** 2), g, [start]), jnp.asarray([1.5]))


@jax.custom_jvp
def lying(y: Any) -> Any:
    """A square whose derivative says half of it."""
    return jnp.sum(y**2)


lying.defjvp(lambda primals, tangents: (lying(*primals), jnp.sum(primals[0] * tangents[0])))


@jax.custom_vjp
def scaled_by(r: Any, xi: Any) -> Any:
    """A square whose derivative says 1 + xi / 2 of it: right on average, where xi has mean zero."""
    return jnp.sum(r**2) / 2


scaled_by.defvjp(
    lambda r, xi: (scaled_by(r, xi), (r, xi)),
    lambda kept, ct: (ct * kept[0] * (1 + kept[1] / 2), jnp.zeros_like(kept[1])),
)


def well(r: Any) -> Any:
    """Convex where |r| < 1, and concave beyond."""
    beyond = jnp.maximum(jnp.abs(r), 1.0)
    return jnp.where(jnp.abs(r) < 1, r**2 / 2, 1.5 - 1 / beyond)


def given(**constants: Any) -> str:
    """Constants that the problem does not have: g's curvature is 1."""
    return checked(plain(**constants))


UNITS = (1e-6, 1e6)


def in_units(square: Any) -> str:
    """y in units that differ by 1e12: what is wrong must not look small beside what is large by its unit alone."""
    scaled = lambda y: y / jnp.asarray(UNITS)
    return checked(
        plain(
            f=lambda x, y, eta, xi: square(scaled(y) - xi), g=lambda x, y, eta, xi: jnp.sum((scaled(y) - x - eta) ** 2)
        )
    )


def in_units_of_x(stopped: tuple[float, float]) -> str:
    """x in units that differ by 1e6; of the derivative along each number this share is stopped."""
    units, share = jnp.asarray([1e-3, 1e3]), jnp.asarray(stopped)
    used = lambda x: (share * lax.stop_gradient(x) + (1 - share) * x) / units
    return checked(plain(g=lambda x, y, eta, xi: jnp.sum((y - used(x) - eta) ** 2) / 2), units)


def bent_follower(g: Any, **changes: Any) -> str:
    """g as a function of y - x - eta."""
    return checked(plain(g=lambda x, y, eta, xi: jnp.sum(g(y - x - eta)), **changes))


def kinked(cost: Any, seen: Any = lambda outcome: outcome) -> bx.Problem:
    """y* = x + xi, paid by its distance from an outcome as it is seen."""
    return plain(
        f=lambda x, y, eta, xi: jnp.sum(cost(y - seen(10 * eta))),
        g=lambda x, y, eta, xi: jnp.sum((y - x - xi - eta) ** 2) / 2,
    )


def jumps_in_f(jump: Any) -> Case:
    """f jumps where y is whole or zero, between the answers of contexts; no derivative tells."""
    smooth = kinked(jnp.square)
    problem = smooth.replace(f=lambda x, y, eta, xi: smooth.f(x, y, eta, xi) + 4 * jnp.sum(jump(y)))
    says = "^FAILED: 1 .*f has no jumps in y +FAILED"
    return Case(f"{jump.__name__} of y in f", lambda: checked(problem), says, slow=True)


def not_a_number(key: Any, problem: bx.Problem, x: Any) -> bx.Estimate:
    return bx.Estimate(jnp.full_like(x, jnp.nan), bx.Cost(), {})


def biased(key: Any, problem: bx.Problem, x: Any) -> bx.Estimate:
    right = bx.saa(8).estimate(key, problem, x, ())[0]
    return right._replace(grad=1.3 * right.grad)


def one_estimator(estimate: Any) -> str:
    return checked(plain(), estimator=bx.stateless(estimate, contexts=bx.saa(8).contexts))


REPORTS = (
    Case("nothing stopped in x", lambda: two_leaves(""), r"along \(\)"),
    Case("stop_gradient on a layer", lambda: two_leaves("W"), r"along \(\"\['W'\]\",\)"),
    Case("stop_gradient on a bias", lambda: two_leaves("b"), r"along \(\"\['b'\]\",\)"),
    Case("a 0-1 loss in f", step, f"^FAILED.*{DIFFERENCES} +FAILED", slow=True),
    Case("1e6 added to f, float32", lambda: constant(1e6), "^OK", "FAILED", slow=True),
    Case("a wrong sign among large contexts", backwards, "^FAILED: 1 .*wrong: gradient", slow=True),
    Case(
        "dl_sgd(1) of the wrong sign among large contexts", started_far, "^FAILED.*points the opposite way", slow=True
    ),
    Case("one flat direction in 200", lambda: bent(0.0), "^(FAILED|OK so far: .*undecided)", "^OK: ", slow=True),
    Case("one concave direction in 200", lambda: bent(-0.1), "^(FAILED|OK so far)", "^OK: ", slow=True),
    Case("mu_g given too large", lambda: given(mu_g=3.0), "^FAILED.*mu_g +FAILED.*or less", slow=True),
    Case("L_g1 given too small", lambda: given(L_g1=0.2), "^FAILED.*L_g1 +FAILED.*or more", slow=True),
    Case(
        "a wrong custom derivative in f",
        lambda: checked(plain(f=lambda x, y, eta, xi: lying(y - xi))),
        f"^FAILED.*{DIFFERENCES} +FAILED",
        slow=True,
    ),
    Case(
        "a kink of g at the answer",
        lambda: checked(plain(g=lambda x, y, eta, xi: jnp.sum(jnp.abs(y - x) + (y - x - eta) ** 2))),
        "^(FAILED|OK so far)",
        "^OK: ",
        slow=True,
    ),
    Case("estimates that are not finite", lambda: one_estimator(not_a_number), "^FAILED.*are not finite", slow=True),
    Case("an estimator that is 30 % too long", lambda: one_estimator(biased), "^FAILED: 1 .*gradient", slow=True),
    Case("x of size 1e5, float32", far, "^OK", "FAILED", slow=True),
    Case("x of size 1e5 scaled to 1, float32", lambda: far(lambda x: x / 1e5), "^OK", "FAILED", slow=True),
    Case(
        "stop_gradient on an x of size 1e5",
        lambda: far(lambda x: lax.stop_gradient(x) + 0.5 * (x - lax.stop_gradient(x))),
        f"^FAILED.*{DIFFERENCES} +FAILED",
        slow=True,
    ),
    Case("a logarithmic barrier in check", barrier, "^OK", "FAILED", slow=True),
    Case("a barrier, started outside its domain", lambda: barrier(-1.0), "^FAILED", "^OK", slow=True),
    Case(
        "stop_gradient in a barrier",
        lambda: barrier(used=lambda x: lax.stop_gradient(x) + 0.5 * (x - lax.stop_gradient(x))),
        f"^FAILED.*{DIFFERENCES} +FAILED",
        slow=True,
    ),
    Case("units of y that differ by 1e12", lambda: in_units(lambda e: jnp.sum(e**2)), "^OK", "FAILED", slow=True),
    Case(
        "a wrong custom derivative beside such units",
        lambda: in_units(lying),  # whose values change as its derivative does not say, as at a jump
        f"^FAILED: 2 .*first: {DIFFERENCES}.*{DIFFERENCES} +FAILED.*f has no jumps in y +FAILED",
        slow=True,
    ),
    Case("units of x that differ by 1e6", lambda: in_units_of_x((0.0, 0.0)), "^OK", "FAILED", slow=True),
    *(
        Case(
            f"half a derivative along the {name} of them",
            partial(in_units_of_x, stopped),
            f"^FAILED: 1 .*{DIFFERENCES} +FAILED",
            slow=True,
        )
        for name, stopped in {"smaller": (0.5, 0.0), "larger": (0.0, 0.5)}.items()
    ),
    Case(
        "a custom derivative whose factor is one on average over contexts",
        lambda: checked(plain(f=lambda x, y, eta, xi: scaled_by(y - 1, xi))),
        f"^FAILED: 2 .*{DIFFERENCES} +FAILED.*f has no jumps in y +FAILED",
        slow=True,
    ),
    Case(
        "f picks the largest number of y",
        lambda: checked(
            plain(f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2 + 4.0 * jnp.argmax(y).astype(y.dtype))
        ),
        "^FAILED: 1 .*f has no jumps in y +FAILED",
        slow=True,
    ),
    Case(
        "g convex near its minimum only",
        lambda: bent_follower(well, init_y=lambda x, xi: x + 0.1),
        "^OK so far: .*undecided: strongly convex in y.*another minimum",
        "^OK: ",
        slow=True,
    ),
    Case(
        "g convex, but not strongly",
        lambda: bent_follower(lambda e: e**4, sample_conditional=lambda key, xi, data: jnp.zeros(2)),
        "^OK so far: .*undecided: strongly convex in y.*not told from zero",
        slow=True,
    ),
    Case(
        "a periodic g, started far away",
        lambda: bent_follower(lambda e: 1 - jnp.cos(3 * e), init_y=lambda x, xi: 2 * xi),
        "^FAILED.*strongly convex in y +FAILED",
        slow=True,
    ),
    Case("mu_g given 20 % too large", lambda: given(mu_g=1.2), "^FAILED: 1 .*mu_g +FAILED.*or less", slow=True),
    Case(
        "a hinge in g",
        lambda: checked(plain(g=lambda x, y, eta, xi: jnp.sum(jax.nn.relu(1 - (x + eta) * y)) + jnp.sum(y**2) / 4)),
        f"^FAILED.*{DIFFERENCES} +FAILED",
        slow=True,
    ),
    Case(
        "bfloat16 inside g",
        lambda: bent_follower(lambda e: (e.astype(jnp.bfloat16) ** 2).astype(float)),
        f"^FAILED.*{DIFFERENCES} +FAILED",
        slow=True,
    ),
    Case(
        "outcomes without a mean",
        lambda: checked(plain(sample_conditional=lambda key, xi, data: jax.random.cauchy(key, (2,)))),
        "^(FAILED|OK so far)",
        "^OK: ",
        slow=True,
    ),
    Case(
        "a derivative that where() makes no number",
        lambda: checked(plain(f=lambda x, y, eta, xi: jnp.sum(jnp.where(xi > 0, jnp.log(xi) * y, y)))),
        "^FAILED.*are not finite",
        slow=True,
    ),
    *map(jumps_in_f, (jnp.floor, jnp.round, jnp.sign)),
    Case(
        "floor of y in f, one answer in every context",
        lambda: checked(plain(f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2 + jnp.sum(jnp.floor(y)))),
        "^FAILED: 1 .*f has no jumps in y +FAILED",
        slow=True,
    ),
    Case(
        "floor of y in g",
        lambda: checked(plain(g=lambda x, y, eta, xi: jnp.sum((y - x - xi - eta) ** 2) / 2 + jnp.sum(jnp.floor(y)))),
        "^FAILED.*g has no jumps in y +FAILED",
        slow=True,
    ),
    Case("a kink in f", lambda: checked(kinked(lambda e: jnp.maximum(e, -3 * e))), "^OK", "FAILED", slow=True),
    Case("floor of an outcome in f", lambda: checked(kinked(jnp.square, jnp.floor)), "^OK", "FAILED", slow=True),
    Case(
        "a periodic g, started near a minimum",
        lambda: bent_follower(lambda e: 1 - jnp.cos(3 * e), init_y=lambda x, xi: x + 0.1),
        "^(FAILED|OK so far: .*undecided: strongly convex in y.*another minimum)",
        "^OK: ",
        slow=True,
    ),
    Case(
        "a valley with ripples, started near a minimum",
        lambda: bent_follower(lambda e: e**2 / 2 + 2 * jnp.sin(2 * e) ** 2, init_y=lambda x, xi: x + 0.05),
        "^(FAILED|OK so far: .*undecided: strongly convex in y.*another minimum)",
        "^OK: ",
        slow=True,
    ),
    Case("x is not a number", lambda: checked(plain(), jnp.full(2, jnp.nan)), "^FAILED: 1 .*x is not finite"),
    Case("a problem that is right", lambda: checked(plain(mu_g=1.0, L_g1=1.0)), "^OK: ", "FAILED", slow=True),
)
