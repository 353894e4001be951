"""1,000 followers with polyhedral constraints at once, against qpax and jaxopt: seconds, and errors of gradients.

``pip install qpax==0.1.4 jaxopt==0.8.5`` for the peers; without them ours is measured alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import installed, median, publish

import bilevelax as bx
from bilevelax.base.compiling import program
from bilevelax.base.timing import timed
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on

SIZES = ((10, 20), (50, 100))  # d_y, constraints
PROGRAMS, FEW, ROUNDS = 1000, 100, 5
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


def degenerate() -> dict[str, tuple[jax.Array, ...]]:
    """Followers y'Qy / 2 + q'y whose active rows are dependent or hardly hold, each stacked as one."""
    rng, eye = np.random.default_rng(1), np.eye(2)
    corner = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    fan, inward = rng.normal(size=(8, 4)), rng.uniform(size=8)
    root = rng.normal(size=(4, 4))
    Q, A = root @ root.T / 4 + 0.1 * np.eye(4), rng.normal(size=(5, 4))
    cases = {
        "a row given twice": (eye, [-2.0, -0.5], corner[[0, 0]], [1.0, 1.0]),
        "three rows at a vertex of the plane": (eye, [-3.0, -3.0], corner, [1.0, 1.0, 2.0]),
        "eight rows at a vertex, d_y = 4": (Q, -Q @ np.ones(4) - fan.T @ inward, fan, fan @ np.ones(4)),
        "random rows, each given twice": (Q, 3 * rng.normal(size=4), np.vstack([A, A]), np.full(10, 0.3)),
        "one row inactive by 1e-9": (eye, [-0.5, -0.5], corner[:1], [0.5 + 1e-9]),
        "a kink: multiplier and slack zero": (eye, [-0.5, -0.5], corner[:1], [0.5]),
        "a kink on a row given twice": (eye, [-0.5, -0.5], corner[[0, 0]], [0.5, 0.5]),
    }
    return {name: tuple(jnp.asarray(a, float)[None] for a in case) for name, case in cases.items()}


def by_enumeration(Q: Any, q: Any, A: Any, b: Any) -> Any:
    """NumPy: the gradient of |y*|^2 in q, by trying every independent set of active rows."""
    d = len(q)
    for rows in itertools.chain.from_iterable(itertools.combinations(range(len(b)), k) for k in range(d + 1)):
        J, k = A[list(rows)], len(rows)
        if k and np.linalg.matrix_rank(J) < k:
            continue
        system = np.block([[Q, J.T], [J, np.zeros((k, k))]])
        found = np.linalg.solve(system, np.concatenate([-q, b[list(rows)]]))
        if (A @ found[:d] <= b + 1e-13).all() and (found[d:] >= 0).all():
            return -np.linalg.solve(system, np.concatenate([2 * found[:d], np.zeros(k)]))[:d]
    raise AssertionError("no active set is right")


def one_sided(data: tuple[jax.Array, ...], points: int = 8) -> Any:
    """The gradients at points q nearby, where they are unique: at a kink, those of its sides."""
    Q, q, A, b = (np.asarray(a)[0] for a in data)
    moves = 1e-11 * np.random.default_rng(0).normal(size=(points, len(q)))
    return np.unique(np.round([by_enumeration(Q, q + move, A, b) for move in moves], 9), axis=0)


def degenerate_rows(found: dict[str, Way]) -> list[dict[str, Any]]:
    """How far each way's gradient is from the nearest of the one-sided gradients."""
    rows = []
    for name, data in degenerate().items():
        wanted = one_sided(data)
        off = {way: float(np.abs(np.asarray(run(*data)[1]) - wanted).max(axis=1).min()) for way, run in found.items()}
        rows.append({"case": name, "gradients": len(wanted), **{f"error of {way}": v for way, v in off.items()}})
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
        "CPU ms": 1e3 * spent,
        "violation": violation,
        "gradient error": off,
    }


def by_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """(ms, ms of CPU) of each call, medians; the second is fair on a machine that is shared."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in calls.items():
            cpu = time.process_time()
            seconds, _ = timed(call)
            spent[name].append((1e3 * seconds, 1e3 * (time.process_time() - cpu)))
    return {name: (median([a for a, _ in each]), median([b for _, b in each])) for name, each in spent.items()}


def measured(found: dict[str, Way], d: int, m: int, n: int, quick: bool) -> list[dict[str, Any]]:
    """n programs of one size at once, by turns."""
    data, rows = quadratic_programs(d, m, n), []
    calls = {way: lambda run=run: run(*data) for way, run in found.items()}
    for way, (ms, cpu) in by_turns(calls, 3 if quick else ROUNDS).items():
        violation, off = errors(found[way], data, found["ours"](*data)[0])
        row = {"way": way, "d_y": d, "constraints": m, "programs": n, "ms": ms, "CPU ms": cpu}
        rows.append({**row, "violation": violation, "gradient error": off})
    return rows


def run(quick: bool = False) -> None:
    jax.config.update("jax_enable_x64", True)
    rows, found = [], ways()
    notes = ["Errors against NumPy, which tries every active set at points nearby; at a kink, to the nearest side."]
    publish("constraints_degenerate", "Gradients at degenerate points", degenerate_rows(found), notes)
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
