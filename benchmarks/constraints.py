"""1,000 followers with polyhedral constraints at once, against qpax and jaxopt: seconds, and errors of gradients.

``pip install qpax==0.1.4 jaxopt==0.8.5`` for the peers; without them ours is measured alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import installed, interleaved, median, publish

import bilevelax as bx
from bilevelax.base.compiling import program
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on

SIZES = ((10, 20), (50, 100))  # d_y, constraints
PROGRAMS, FEW = 1000, 100
JAXOPT = "jaxopt OSQP, tol 1e-6"  # at the larger size 1,000 together take minutes, so it gets a tenth of them

Way = Callable[..., Any]  # (Q, q, A, b), stacked -> answers and gradients of |y|^2 in q


def quadratic_programs(d: int, m: int, n: int) -> tuple[jax.Array, ...]:
    """Q, q, A, b of n random followers; about two thirds of d constraints are active."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n, d, d))
    A = rng.normal(size=(n, m, d))
    A /= np.linalg.norm(A, axis=-1, keepdims=True)
    Q, q = root @ root.transpose(0, 2, 1) / d + 0.1 * np.eye(d), 3 * rng.normal(size=(n, d))
    return tuple(map(jnp.asarray, (Q, q, A, rng.uniform(0.1, 1.0, size=(n, m)))))


def ours() -> Way:
    def one(Q: jax.Array, q: jax.Array, A: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        problem = bx.Problem(
            f=lambda x, y, eta, xi: jnp.sum(y**2),
            g=lambda x, y, eta, xi: y @ (Q @ y) / 2 + x @ y,
            sample_context=lambda key, data: jnp.zeros(()),
            sample_conditional=lambda key, xi, data: jnp.zeros(()),
            init_y=lambda x, xi: jnp.zeros_like(q),
            constraint=bx.polyhedron(lambda xi: A, lambda x, xi: b),
        )
        average = of_stack(problem, q, jnp.zeros(()), jnp.zeros(1), jnp.ones(1), 1)
        response = respond_on(average, jnp.zeros_like(q), newton_solver(), direct_or_cg())
        return response.solution.y, response.grad

    return program()(jax.vmap(one))


def differentiated(answer: Callable[..., jax.Array]) -> Way:
    """A peer's answer and its gradient by reverse mode."""

    def one(Q: jax.Array, q: jax.Array, A: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        def cost(q: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = answer(Q, q, A, b)
            return jnp.sum(y**2), y

        (_, y), grad = jax.value_and_grad(cost, has_aux=True)(q)
        return y, grad

    return jax.jit(jax.vmap(one))


def qpax(**settings: Any) -> Way:
    import qpax

    def answer(Q: jax.Array, q: jax.Array, A: jax.Array, b: jax.Array) -> jax.Array:
        none = jnp.zeros((0, len(q)), q.dtype)
        solved: jax.Array = qpax.solve_qp_primal(Q, q, none, none[:, 0], A, b, **settings)
        return solved

    return differentiated(answer)


def jaxopt() -> Way:
    import jaxopt

    solver = jaxopt.OSQP(tol=1e-6)

    def answer(Q: jax.Array, q: jax.Array, A: jax.Array, b: jax.Array) -> jax.Array:
        solved: jax.Array = solver.run(params_obj=(Q, q), params_eq=None, params_ineq=(A, b)).params.primal
        return solved

    return differentiated(answer)


def ways() -> dict[str, Way]:
    """Peers with their own settings, and qpax as tight as ours: by default it smooths its gradients (kappa 1e-3)."""
    found = {"ours": ours()}
    if installed("qpax"):
        found |= {"qpax": qpax(), "qpax, tight": qpax(solver_tol=1e-10, target_kappa=1e-10)}
    return found | ({JAXOPT: jaxopt()} if installed("jaxopt") else {})


def errors(answered: Way, data: tuple[jax.Array, ...], exact: Any = None) -> tuple[float, float]:
    """(violation of a constraint, error of the gradient against the KKT system of the active rows), the largest.

    Which rows are active is told by ``exact`` answers: those of a loose solver do not tell it.
    """
    Q, q, A, b = (np.asarray(a) for a in data)
    ys, grads = (np.asarray(a) for a in answered(*data))
    best = ys if exact is None else np.asarray(exact)
    off = []
    for i in range(len(q)):
        J = A[i][A[i] @ best[i] - b[i] > -1e-6]
        system = np.block([[Q[i], J.T], [J, np.zeros((len(J), len(J)))]])
        r = np.linalg.lstsq(system, np.concatenate([2 * best[i], np.zeros(len(J))]), rcond=None)[0][: len(q[i])]
        off.append(np.abs(grads[i] + r).max())
    return float((np.einsum("nmd,nd->nm", A, ys) - b).max()), float(np.max(off))


def degenerate() -> dict[str, tuple[tuple[jax.Array, ...], list[float]]]:
    """Followers (y - x)^2 / 2 with f = |y|^2 and the gradients of |y*(x)|^2: dependent rows, a vertex, a kink."""
    eye = np.eye(2)
    make = lambda x, A, b: tuple(jnp.asarray(a, float)[None] for a in (eye, -np.asarray(x), A, b))
    twice = np.array([[1.0, 0.0], [1.0, 0.0]])
    corner = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    return {
        "a row given twice": (make([2.0, 0.5], twice, [1.0, 1.0]), [0.0, -1.0]),
        "three rows at a vertex of the plane": (make([3.0, 3.0], corner, [1.0, 1.0, 2.0]), [0.0, 0.0]),
        "one row inactive by 1e-9": (make([0.5, 0.5], twice[:1], [0.5 + 1e-9]), [-1.0, -1.0]),
    }


def degenerate_rows(found: dict[str, Way]) -> list[dict[str, Any]]:
    """The gradient in q = -x of each way, and its error."""
    rows = []
    for name, (data, wanted) in degenerate().items():
        off = {way: float(np.abs(np.asarray(run(*data)[1])[0] - wanted).max()) for way, run in found.items()}
        rows.append({"case": name, **{f"error of {way}": value for way, value in off.items()}})
    return rows


def large(d: int, m: int) -> dict[str, Any]:
    """One follower of this size: CPU seconds once compiled, and its errors."""
    data, answered = quadratic_programs(d, m, 1), ours()
    jax.block_until_ready(answered(*data))
    start = time.process_time()
    jax.block_until_ready(answered(*data))
    spent = time.process_time() - start
    violation, off = errors(answered, data)
    return {
        "way": "ours, one alone",
        "d_y": d,
        "constraints": m,
        "programs": 1,
        "ms": 1e3 * spent,
        "violation": violation,
        "gradient error": off,
    }


def measured(found: dict[str, Way], d: int, m: int, n: int, quick: bool) -> list[dict[str, Any]]:
    """n programs of one size at once, by turns."""
    data, rows = quadratic_programs(d, m, n), []
    calls = {way: lambda i, run=run: run(*data) for way, run in found.items()}
    for way, seconds in interleaved(calls, rounds=3 if quick else 15).items():
        violation, off = errors(found[way], data, found["ours"](*data)[0])
        row = {"way": way, "d_y": d, "constraints": m, "programs": n, "ms": 1e3 * median(seconds)}
        rows.append({**row, "violation": violation, "gradient error": off})
    return rows


def run(quick: bool = False) -> None:
    jax.config.update("jax_enable_x64", True)
    rows, found = [], ways()
    for d, m in SIZES[:1] if quick else SIZES:
        slow = {JAXOPT} & set(found) if d > SIZES[0][0] else set()
        rows += measured({way: run for way, run in found.items() if way not in slow}, d, m, PROGRAMS, quick)
        rows += measured({way: found[way] for way in ("ours", *slow)}, d, m, FEW, quick) if slow else []
    rows += [large(100, 100)] if quick else [large(1000, 1000)]
    notes = [
        "Programs at once in double precision: answer and gradient; medians of interleaved rounds.",
        "qpax smooths its gradients by default (kappa = 1e-3), so its errors there are by design.",
    ]
    publish("constraints", "1,000 followers with constraints", rows, notes)
    notes = ["f = |y|^2, g = |y - x|^2 / 2: the gradient is known."]
    publish("constraints_degenerate", "Gradients at degenerate points", degenerate_rows(found), notes)
