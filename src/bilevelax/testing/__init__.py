"""Checks for problems and estimators, ours and other people's: raise AssertionError, or pass silently."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import program
from bilevelax.base.errors import require_key
from bilevelax.core.estimate import Cost, Estimate, Estimator
from bilevelax.core.problem import Eta, Key, Problem, X, Xi
from bilevelax.exact.curvature import LANCZOS_STEPS, extreme_curvatures
from bilevelax.problems.validate import alike, as_arrays, check_shapes, describe

EXACT = 256  # largest d_y whose spectra are exact


def check_problem(problem: Problem, x: X, *, key: Key, draws: int = 8) -> None:
    """Shapes, deterministic samplers, and per-sample Hessians of g within [mu_g, L_g1] where these are given.

    Hessians are looked at in ``draws`` random points (x, y_1^0 + noise, eta, xi): in full for
    d_y up to 256, by 32 steps of Lanczos above that.
    """
    require_key("check_problem", key)
    x = as_arrays("x", "check_problem", x)
    check_shapes(problem, x)
    (xi, eta), (xi_again, eta_again) = _drawn(key, problem), _drawn(key, problem)
    _same(xi, xi_again, "sample_context gave two different xi for one key")
    _same(eta, eta_again, "sample_conditional gave two different eta for one key")
    if problem.mu_g is None and problem.L_g1 is None:
        return
    low, high = _curvature(problem, x, key, draws)
    slack = 1e-3 * max(abs(low), abs(high))
    if problem.mu_g is not None:
        assert low >= problem.mu_g - slack, (
            f"g has curvature {low:g} in y at some sample, below mu_g = {problem.mu_g:g}."
        )
    if problem.L_g1 is not None:
        assert high <= problem.L_g1 + slack, (
            f"g has curvature {high:g} in y at some sample, above L_g1 = {problem.L_g1:g}."
        )


def _drawn(key: Key, problem: Problem) -> tuple[Xi, Eta]:
    """A context and an outcome by a program of their own: what samplers do beside JAX is done anew in every call."""

    @program("at once")
    def draw(key: Key, problem: Problem) -> tuple[Xi, Eta]:
        xi = problem.context(key)
        return xi, problem.conditional(key, xi)

    return draw(key, problem)


def _curvature(problem: Problem, x: X, key: Key, draws: int) -> tuple[float, float]:
    """Smallest and largest curvature of g in y seen at random points."""

    @program()
    def look(key: Key) -> jax.Array:
        key_xi, key_eta, key_y, key_r = random.split(key, 4)
        xi = problem.context(key_xi)
        eta = problem.conditional(key_eta, xi)
        flat, unravel = ravel_pytree(problem.start(x, xi))
        y = unravel(flat + random.normal(key_y, flat.shape, flat.dtype))
        steps = flat.size if flat.size <= EXACT else LANCZOS_STEPS
        return extreme_curvatures(problem.linear_hess_g(x, y, eta, xi), y, key_r, steps)

    seen = [look(random.fold_in(key, i)) for i in range(draws)]
    return float(min(s.min() for s in seen)), float(max(s.max() for s in seen))


def check_estimator(estimator: Estimator, problem: Problem, x: X, *, key: Key) -> None:
    """The contract of an estimator on a problem.

    The gradient has the structure, shapes and dtypes of x and is finite; costs are counts; the
    state keeps its structure; equal keys give equal estimates, compiled or not, alone or
    vectorised; and new keys, x and states do not retrace.
    """
    require_key("check_estimator", key)
    x = as_arrays("x", "check_estimator", x)
    check_shapes(problem, x)
    state = estimator.init(problem, x)
    traces = 0

    @program()
    def compiled(key: Key, problem: Problem, x: X, state: Any) -> tuple[Estimate, Any]:
        nonlocal traces
        traces += 1
        return estimator.estimate(key, problem, x, state)

    (est, after) = compiled(key, problem, x, state)
    _same_shapes(est.grad, x, "the gradient must look like x")
    _same_shapes(after, state, "the state must keep its structure, shapes and dtypes")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(est.grad)), (
        f"the gradient is not finite: {est.grad}."
    )
    assert isinstance(est.cost, Cost), f"the cost must be a Cost. Got {est.cost!r}."
    for name, count in est.cost.asdict().items():
        assert jnp.issubdtype(jnp.asarray(count).dtype, jnp.integer) and count >= 0, (
            f"cost {name} is no count: {count!r}."
        )
    _same(est, compiled(key, problem, x, state)[0], "one key gave two different estimates")
    compiled(random.fold_in(key, 1), problem, jax.tree.map(lambda a: 0.9 * a, x), after)
    assert traces == 1, f"estimate was traced {traces} times for equal shapes; nothing in it may depend on values."

    keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(3))
    together = program()(jax.vmap(lambda key: estimator.estimate(key, problem, x, state)[0].grad))(keys)
    alone = [compiled(key, problem, x, state)[0].grad for key in keys]
    _close(together, jax.tree.map(lambda *leaves: np.stack(leaves), *alone), "vmap over keys changed the estimates")


def _same_shapes(a: Any, b: Any, message: str) -> None:
    a, b = jax.tree.map(jnp.asarray, (a, b))
    assert alike(a, b), f"{message}. Got {describe(a)}, wanted {describe(b)}."


def _same(a: Any, b: Any, message: str) -> None:
    assert all(np.array_equal(u, v, equal_nan=True) for u, v in zip(*map(jax.tree.leaves, (a, b)), strict=True)), (
        message + "."
    )


def _close(a: Any, b: Any, message: str) -> None:
    for u, v in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        scale = float(np.abs(v).max()) + 1.0
        tol = 1e3 * float(jnp.finfo(v.dtype).eps) * scale
        assert np.allclose(u, v, rtol=0, atol=tol), f"{message}: largest difference {float(np.abs(u - v).max()):g}."


def assert_mean(samples: Any, expected: Any, *, z: float = 5.0, power: float, bias: float = 0.0) -> None:
    """The mean of independent samples (rows) is ``expected``, within z standard errors and a ``bias`` that is granted.

    ``power`` is the smallest deviation that the test has to see: it fails as well if z standard
    errors and the bias exceed it, for then it could not fail.
    """
    samples = np.asarray(samples, np.float64)
    error = samples.mean(0) - np.asarray(expected, np.float64)
    stderr = samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert np.all(z * stderr + bias <= power), (
        f"no power: {z:g} standard errors are {np.max(z * stderr):.3g}, above {power - bias:g}."
    )
    rounding = 1e-12 * (1 + np.abs(samples).max())
    off = np.maximum(np.abs(error) - bias, 0) / np.maximum(stderr, rounding / z)
    assert np.all(off <= z), (
        f"the mean is off by {np.max(off):.2f} standard errors (largest error {np.max(np.abs(error)):.3g})."
    )


def assert_slope(x: Any, y: Any, expected: float, *, tol: float, log2: bool = True) -> float:
    """The least-squares slope of log2(y) (or of y) against x is ``expected`` within tol; returns it."""
    x = np.asarray(x, np.float64)
    values = np.log2(np.asarray(y, np.float64)) if log2 else np.asarray(y, np.float64)
    assert len(x) >= 3, f"a slope needs at least 3 points. Got {len(x)}."
    slope = float(np.polyfit(x, values, 1)[0])
    assert abs(slope - expected) <= tol, f"the slope is {slope:.4f}, not {expected:g} +- {tol:g}."
    return slope
