"""Bias, variance, cost and memory of one gradient estimate, level by level (Lemma 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.applications.quadratic import Quadratic
from bilevelax.estimate import Cost, Estimator
from bilevelax.estimators.rt_mlmc import level_probabilities
from bilevelax.experiments._items import Row
from bilevelax.experiments._trajectories import seed_keys
from bilevelax.hypergradient import hypergradient
from bilevelax.inverse import InverseHessian
from bilevelax.lower import LowerSolver
from bilevelax.problem import Key, Problem


@partial(jax.jit, static_argnames=("lower", "inverse", "n"))
def moments(
    keys: Key, problem: Problem, x: jax.Array, k: jax.Array, *, lower: LowerSolver, inverse: InverseHessian, n: int
) -> dict[str, jax.Array]:
    """Sample moments of v^1, v^{k+1} and D_k = v^{k+1} - v^k for each key, from n estimates that share their draws.

    The estimates of RT-MLMC at level k are v^1 + D_k / p_k, that of DL-SGD is v^{k+1}: with the
    known p_k these moments give mean and variance of both for every K, without drawing levels.
    k is traced: one program serves all levels.
    """

    def one(key: Key) -> tuple[jax.Array, Cost]:
        key_xi, _, key_y, key_v = random.split(key, 4)
        xi = problem.context(key_xi)
        y = lower(key_y, problem, x, xi, k)
        points = jnp.stack([y.first, y.prev, y.last])
        v, costs = jax.vmap(lambda y: hypergradient(key_v, problem, x, y, xi, inverse))(points)
        return v, y.cost + jax.tree.map(lambda a: a[0], costs)

    def group(key: Key) -> dict[str, jax.Array]:
        v, cost = jax.vmap(lambda i: one(random.fold_in(key, i)))(jnp.arange(n))
        first, last, change = v[:, 0], v[:, 2], v[:, 2] - v[:, 1]
        dot = lambda a, b: jnp.mean(jnp.sum(a * b, axis=1))
        return {
            "first": first.mean(0),
            "change": change.mean(0),
            "last": last.mean(0),
            "first_first": dot(first, first),
            "first_change": dot(first, change),
            "change_change": dot(change, change),
            "last_last": dot(last, last),
            "grad_g": jnp.mean(cost.grad_g.astype(float)),
            "n_hat": jnp.mean(cost.hess_g.astype(float)),
        }

    return lax.map(group, keys)


def level_rows(
    problem: Problem, x: jax.Array, levels: list[int], lower: LowerSolver, inverse: InverseHessian, n: int, seeds: int
) -> list[Row]:
    """One row for each level and seed."""
    rows = []
    for k in levels:
        keys = jax.vmap(partial(random.fold_in, data=k))(seed_keys(seeds))
        found = jax.tree.map(np.asarray, moments(keys, problem, x, k, lower=lower, inverse=inverse, n=n))
        rows += [
            {"k": k, "seed": seed, **{name: a[seed].tolist() for name, a in found.items()}} for seed in range(seeds)
        ]
    return rows


class Levels:
    """What follows from the rows of one setting; arrays have the seeds first."""

    def __init__(self, rows: list[Row]) -> None:
        self.ks = sorted({row["k"] for row in rows})
        at = lambda name: np.asarray([[row[name] for row in rows if row["k"] == k] for k in self.ks]).swapaxes(0, 1)
        self.at = {name: at(name) for name in rows[0] if name not in ("cell", "k", "seed", "beta0", "N", "part")}

    def dl_variance(self) -> np.ndarray:
        """Total variance of DL-SGD(K), of shape (seeds, K)."""
        return self.at["last_last"] - np.sum(self.at["last"] ** 2, axis=-1)

    def rt_mean(self, K: int) -> np.ndarray:
        """E v^1 + sum_{k <= K} E D_k, of shape (seeds, d_x)."""
        return self.at["first"][:, :K].mean(1) + self.at["change"][:, :K].sum(1)

    def rt_variance(self, K: int) -> np.ndarray:
        """Total variance of RT-MLMC(K) for each seed: E|v^1|^2 + sum_k 2 E v^1 D_k + E|D_k|^2 / p_k - |mean|^2."""
        p = level_probabilities(K)
        square = self.at["first_first"][:, :K] @ p + 2 * self.at["first_change"][:, :K].sum(1)
        square = square + self.at["change_change"][:, :K] @ (1 / p)
        return square - np.sum(self.rt_mean(K) ** 2, axis=-1)

    def rt_steps(self, K: int) -> np.ndarray:
        """Expected gradients of g of RT-MLMC(K), from the counts of each level."""
        return self.at["grad_g"][:, :K] @ level_probabilities(K)


def bias(matrices: Quadratic, x: np.ndarray, K: int, *, beta0: float, N: int, L: float) -> float:
    """|E v^{K+1} - grad F|, in closed form."""
    return float(np.linalg.norm(matrices.expected_v_k(x, K + 1, beta0=beta0, N=N, L=L) - matrices.grad_F(x)))


def neumann_bias(matrices: Quadratic, x: np.ndarray, N: int, L: float) -> float:
    """The same at y*: what the series cut at N leaves."""
    y = matrices.y_star(x, np.zeros(matrices.C.shape[1]))
    return float(np.linalg.norm(matrices.expected_v(x, y, N, L) - matrices.grad_F(x)))


def separable(d: int) -> Problem:
    """A quadratic of d_x = d_y = d whose derivatives cost O(d): what is left is the estimator's own memory."""
    draw = lambda key: random.normal(key, (d,), float)
    return Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2 + jnp.sum(x**2) / 4,
        g=lambda x, y, eta, xi: jnp.sum((1 + jnp.tanh(eta) / 2) * y**2) / 2 - y @ (x + xi + eta),
        sample_context=lambda key, data: draw(key),
        sample_conditional=lambda key, xi, data: draw(key),
        init_y=lambda x, xi: jnp.zeros_like(x),
        mu_g=0.5,
        L_g1=1.5,
    )


def memory(estimator: Callable[[], Estimator], d: int) -> int:
    """Bytes that the compiled estimate needs at its peak, arguments and result included."""
    problem, made = separable(d), estimator()
    x = jnp.zeros(d, float)
    compiled: Any = jax.jit(lambda key, x: made.estimate(key, problem, x, ())[0].grad).lower(random.key(0), x).compile()
    used = compiled.memory_analysis()
    return int(used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes)


def arithmetic_rows(dims: list[int]) -> list[Row]:
    """Floating-point operations of one Hessian-vector product against d, as the compiler counts them."""
    return [{"part": "arithmetic", "d": d, "flops": product_flops(d)} for d in dims]


def product_flops(d: int) -> float:
    problem, v = separable(d), jnp.ones(d, float)
    compiled: Any = jax.jit(lambda r: problem.hess_g(v, v, v, v, r)).lower(v).compile()
    return float(compiled.cost_analysis()["flops"])
