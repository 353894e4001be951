"""One gradient estimate, level by level (Lemma 2): bias, variance, cost and memory, and what their records say."""

import functools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax import Cost, Estimator, LowerSolver, Problem, dl_sgd, epoch_sgd, hypergradient, neumann, rt_mlmc
from bilevelax.base.compiling import program
from bilevelax.base.statistics import Interval, mean
from bilevelax.core.inverse import InverseHessian
from bilevelax.core.problem import Key
from bilevelax.estimators.rt_mlmc import level_probabilities
from bilevelax_paper.item import Cell, Records, Row
from bilevelax_paper.stationarity import L_G1, known_quadratic, matrices, start
from bilevelax_paper.training import seed_keys

MAKERS: dict[str, Any] = {"RT-MLMC": rt_mlmc, "DL-SGD": dl_sgd}
STEP_SIZES = {"1/mu": 1.0, "1/(4 mu)": 0.25}  # mu = 1
PRODUCTS = ("first_first", "first_change", "change_change", "last_last")


@program(static_argnames=("lower", "inverse", "n"))
def moments(
    keys: Key, problem: Problem, x: jax.Array, k: jax.Array, *, lower: LowerSolver, inverse: InverseHessian, n: int
) -> dict[str, jax.Array]:
    """Sample moments of v^1, v^{k+1} and D_k = v^{k+1} - v^k for each key, from n estimates that share their draws.

    RT-MLMC is v^1 + D_k / p_k, DL-SGD is v^{k+1}: these moments give mean and variance of both, without drawing k.
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
        parts = {"first": v[:, 0], "change": v[:, 2] - v[:, 1], "last": v[:, 2]}
        dot = lambda a, b: jnp.mean(jnp.sum(parts[a] * parts[b], axis=1))
        counts = {"grad_g": cost.grad_g, "n_hat": cost.hess_g}
        return {
            **{name: part.mean(0) for name, part in parts.items()},
            **{name: dot(*name.split("_")) for name in PRODUCTS},
            **{name: jnp.mean(count.astype(float)) for name, count in counts.items()},
        }

    return lax.map(group, keys)


def level_cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    """Moments of every level, for both step sizes, and against N."""
    problem, x = known_quadratic().problem, jnp.asarray(start(matrices()), float)
    levels, n = list(range(1, settings["levels"] + 1)), settings["n"]
    lower_of, inverse_of = functools.cache(partial(epoch_sgd, cap=math.inf)), functools.cache(neumann)

    def rows(part: str, beta0: float, N: int, levels: list[int]) -> Iterator[Row]:
        lower, inverse = lower_of(beta0), inverse_of(N)  # the same objects share a program
        for k in levels:
            keys = jax.vmap(partial(random.fold_in, data=k))(seed_keys(seeds))
            found = jax.tree.map(np.asarray, moments(keys, problem, x, k, lower=lower, inverse=inverse, n=n))
            for i in range(seeds):
                values = {name: a[i].tolist() for name, a in found.items()}
                yield {"part": part, "beta0": beta0, "N": N, "k": k, "seed": i, **values}

    def cell(name: str, *of: Any) -> Cell:
        named = dict(zip(("part", "beta0", "N", "levels"), of, strict=True))
        return Cell(f"levels, {name}", partial(rows, *of), {**named, "n": n})

    for name, beta0 in STEP_SIZES.items():
        yield cell(f"beta0 = {name}", "levels", beta0, settings["N"], levels)
    for N in settings["Ns"]:
        yield cell(f"N = {N}", "N", 1.0, N, levels[:6])


def size_cells(dims: list[int], Ks: list[int]) -> Iterator[Cell]:
    """Bytes of an estimate against d, for few and many levels; operations of a Hessian-vector product against d."""
    sizes = [{"method": method, "K": K, "d": d} for method in MAKERS for K in Ks for d in dims]
    size = lambda of: memory(MAKERS[of["method"]](of["K"]), of["d"])
    memory_rows = lambda: ({"part": "memory", **of, "bytes": size(of)} for of in sizes)
    yield Cell("memory", memory_rows, {"part": "memory", "dims": dims, "memory_K": Ks})
    flops = lambda: ({"part": "arithmetic", "d": d, "flops": product_flops(d)} for d in dims)
    yield Cell("arithmetic", flops, {"part": "arithmetic", "dims": dims})


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


def memory(estimator: Estimator, d: int) -> int:
    """Bytes that the compiled estimate needs at its peak, arguments and result included."""
    problem, x = separable(d), jnp.zeros(d, float)
    one = jax.jit(lambda key, x: estimator.estimate(key, problem, x, ())[0].grad)
    used: Any = one.lower(random.key(0), x).compile().memory_analysis()
    return int(used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes)


def product_flops(d: int) -> float:
    """Floating-point operations of one Hessian-vector product, as the compiler counts them."""
    problem, v = separable(d), jnp.ones(d, float)
    compiled: Any = jax.jit(lambda r: problem.hess_g(v, v, v, v, r)).lower(v).compile()
    return float(compiled.cost_analysis()["flops"])


class Levels:
    """What follows from the rows of one setting; arrays have the seeds first."""

    def __init__(self, records: Records, **where: Any) -> None:
        rows = records.where(**where)
        self.ks = sorted({row["k"] for row in rows})
        at = lambda name: np.asarray([[row[name] for row in rows if row["k"] == k] for k in self.ks]).swapaxes(0, 1)
        self.at = {name: at(name) for name in ("first", "change", "last", *PRODUCTS, "grad_g", "n_hat")}

    def dl_variance(self) -> np.ndarray:
        """Total variance of DL-SGD(K), of shape (seeds, K)."""
        return self.at["last_last"] - np.sum(self.at["last"] ** 2, axis=-1)

    def rt_mean(self, K: int) -> np.ndarray:
        """E v^1 + sum_{k <= K} E D_k, of shape (seeds, d_x)."""
        return self.at["first"][:, :K].mean(1) + self.at["change"][:, :K].sum(1)

    def rt_variance(self) -> np.ndarray:
        """Total variance of RT-MLMC(K), of shape (seeds, K)."""
        return np.stack([self._rt_variance(K) for K in self.ks], axis=1)

    def _rt_variance(self, K: int) -> np.ndarray:
        """E|v^1|^2 + sum_k 2 E v^1 D_k + E|D_k|^2 / p_k - |mean|^2."""
        p = level_probabilities(K)
        square = self.at["first_first"][:, :K] @ p + 2 * self.at["first_change"][:, :K].sum(1)
        square = square + self.at["change_change"][:, :K] @ (1 / p)
        return square - np.sum(self.rt_mean(K) ** 2, axis=-1)

    def rt_steps(self) -> list[float]:
        """Expected gradients of g of RT-MLMC(K) for each K, from the counts of each level."""
        return [float((self.at["grad_g"][:, :K] @ level_probabilities(K)).mean()) for K in self.ks]


def by_level(records: Records, beta0: float = 1.0) -> Levels:
    return Levels(records, part="levels", beta0=beta0)


def against_N(records: Records) -> dict[str, np.ndarray]:
    """(seeds, N) variances at the largest K of that sweep."""
    each = [Levels(records, part="N", N=N) for N in records.settings["Ns"]]
    of = {"DL-SGD": Levels.dl_variance, "RT-MLMC": Levels.rt_variance}
    return {method: np.stack([variance(swept)[:, -1] for swept in each], axis=1) for method, variance in of.items()}


def expected(records: Records, K: int, beta0: float) -> tuple[np.ndarray, np.ndarray]:
    """E v^{K+1} in closed form, and its bias: less grad F."""
    found, x = matrices(), start(matrices())
    there = found.expected_v_k(x, K + 1, beta0=beta0, N=records.settings["N"], L=L_G1)
    return there, there - found.grad_F(x)


def biases(records: Records, beta0: float) -> list[float]:
    """|E v^{K+1} - grad F| in closed form, for K = 1, 2, ... of the sweep."""
    return [float(np.linalg.norm(expected(records, K, beta0)[1])) for K in range(1, records.settings["levels"] + 1)]


def neumann_bias(N: int) -> float:
    """The same at y*: what the series cut at N leaves."""
    found, x = matrices(), start(matrices())
    y = found.y_star(x, np.zeros(found.C.shape[1]))
    return float(np.linalg.norm(found.expected_v(x, y, N, L_G1) - found.grad_F(x)))


def mean_error(records: Records) -> Interval:
    """Of RT-MLMC's and DL-SGD's common mean at the largest K, along the closed form's bias, less that bias."""
    there, bias = expected(records, records.settings["levels"], 1.0)
    return mean((by_level(records).rt_mean(len(by_level(records).ks)) - there) @ (bias / float(np.linalg.norm(bias))))
