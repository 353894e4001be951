"""1,000 followers with polyhedral constraints at once: seconds of answers and gradients, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import interleaved, median, publish

import bilevelax as bx
from bilevelax.base.compiling import program
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on

SIZES = ((10, 20), (50, 100))  # d_y, constraints
PROGRAMS = 1000


def quadratic_programs(d: int, m: int, n: int) -> tuple[jax.Array, ...]:
    """Q, q, A, b of n random followers; about two thirds of d constraints are active."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n, d, d))
    A = rng.normal(size=(n, m, d))
    A /= np.linalg.norm(A, axis=-1, keepdims=True)
    Q, q = root @ root.transpose(0, 2, 1) / d + 0.1 * np.eye(d), 3 * rng.normal(size=(n, d))
    return tuple(map(jnp.asarray, (Q, q, A, rng.uniform(0.1, 1.0, size=(n, m)))))


def ours() -> Callable[..., Any]:
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


def errors(answered: Callable[..., Any], data: tuple[jax.Array, ...]) -> tuple[float, float]:
    """(violation of a constraint, error of the gradient against the KKT system of its active rows), the largest."""
    Q, q, A, b = (np.asarray(a) for a in data)
    ys, grads = (np.asarray(a) for a in answered(*data))
    off = []
    for i in range(len(q)):
        J = A[i][A[i] @ ys[i] - b[i] > -1e-6]
        system = np.block([[Q[i], J.T], [J, np.zeros((len(J), len(J)))]])
        r = np.linalg.lstsq(system, np.concatenate([2 * ys[i], np.zeros(len(J))]), rcond=None)[0][: len(q[i])]
        off.append(np.abs(grads[i] + r).max())
    return float((np.einsum("nmd,nd->nm", A, ys) - b).max()), float(np.max(off))


def run(quick: bool = False) -> None:
    jax.config.update("jax_enable_x64", True)
    rows, answered = [], ours()
    for d, m in SIZES[:1] if quick else SIZES:
        data = quadratic_programs(d, m, PROGRAMS)
        seconds = interleaved({"ours": lambda i, data=data: answered(*data)}, rounds=3 if quick else 5)["ours"]
        violation, off = errors(answered, data)
        row = {"d_y": d, "constraints": m, "seconds": median(seconds), "violation": violation, "gradient error": off}
        rows.append(row)
    notes = [f"{PROGRAMS} programs at once in double precision: answer and gradient."]
    publish("constraints", "1,000 followers with constraints", rows, notes)
