"""BSVRB against its update rule line by line, and against the exact minimiser."""

import jax
import numpy as np
import optax
import pytest
from jax import random
from jax.flatten_util import ravel_pytree
from small_problems import M, final, once

import bilevelax as bx
from bilevelax.estimators._blocks import draw_blocks
from bilevelax.exact.context_rows import take


@pytest.mark.parametrize("version", [1, 2])
def test_bsvrb_without_randomness_finds_the_minimiser_to_rounding(version, multi_block):
    _, noiseless, x1, x_star = multi_block
    x = final(noiseless, bx.bsvrb(version, blocks=M), optax.sgd(0.1), x1, 600)
    np.testing.assert_allclose(x, x_star, rtol=0, atol=1e-12)


def by_hand(version, problem, key, T, n, a, b, tau, alpha):
    """BSVRB on the noiseless quadratics, line by line: the iterates x^2..x^{T+1}."""
    A, B, shift, q = (np.asarray(problem.data.contexts[name]) for name in ("A", "B", "b", "q"))
    c = (M - n) / (n * (1 - a)) + (1 - a)
    x = x_prev = w = np.zeros(2)
    y = y_prev = s = v = v_prev = u = np.zeros((M, 3))
    H, seen, xs = np.zeros((M, 3, 3)), np.zeros(M, bool), []
    slope = lambda i, x, y: A[i] @ y[i] - B[i] @ x - shift[i]
    adjoint = lambda i, y, v: A[i] @ v[i] - (y[i] - q[i])
    G = lambda rows, x, r: x / 2 + np.mean([B[i].T @ each for i, each in zip(rows, r, strict=True)], 0)
    for t in range(T):
        rows = np.asarray(draw_blocks(random.fold_in(key, t), problem, M, n).rows)
        track = lambda i, old, now, before: (1 - a) * old + a * now + c * (now - before) if seen[i] else now
        s, u, H, H_prev = s.copy(), u.copy(), H.copy(), H.copy()
        for i in rows:
            s[i] = track(i, s[i], slope(i, x, y), slope(i, x_prev, y_prev))
            u[i] = track(i, u[i], adjoint(i, y, v), adjoint(i, y_prev, v_prev))
            H[i] = track(i, H[i], A[i], A[i])
            H_prev[i] = H_prev[i] if seen[i] else H[i]
        solve = lambda H, y: [np.linalg.solve(H[i], y[i] - q[i]) for i in rows]  # noqa: B023 (called at once)
        now, then = (solve(H, y), solve(H_prev, y_prev)) if version == 1 else (v[rows], v_prev[rows])
        w = (0 if t == 0 else 1 - b) * (w - G(rows, x_prev, then)) + G(rows, x, now)
        seen[rows] = True
        x, x_prev, y, y_prev, v, v_prev = x - alpha * w, x, y - tau * s, y, v - tau * u, v
        xs.append(x)
    return np.array(xs)


@pytest.mark.parametrize("version", [1, 2])
def test_bsvrb_is_its_update_rule(version, multi_block, key):
    _, problem, x, _ = multi_block
    T, n, settings = 12, 2, {"a": 0.3, "b": 0.4, "tau": 0.1}
    estimator = bx.bsvrb(version, blocks=n, tau_v=0.1, **settings)
    step, state, xs = jax.jit(estimator.estimate), estimator.init(problem, x), []
    for t in range(T):
        est, state = step(random.fold_in(key, t), problem, x, state)
        x = {"p": x["p"] - 0.1 * est.grad["p"]}
        xs.append(x["p"])
    np.testing.assert_allclose(xs, by_hand(version, problem, key, T, n, alpha=0.1, **settings), rtol=1e-9)


def test_bsvrb_touches_the_trackers_of_sampled_blocks_only(multi_block, key):
    problem, _, x, _ = multi_block
    _, state = once(bx.bsvrb(2, blocks=2), key, problem, x)
    rows = set(np.asarray(draw_blocks(key, problem, M, 2).rows).tolist())
    assert len(rows) == 2
    assert set(np.flatnonzero(state.seen).tolist()) == rows
    for tracker_of in (state.s, state.memory.u):
        assert set(np.flatnonzero(np.abs(tracker_of["u"]).sum(1)).tolist()) == rows


def test_adjoints_are_bounded_by_R(multi_block, key):
    problem, _, x, _ = multi_block
    _, state = once(bx.bsvrb(2, blocks=M, R=0.1), key, problem, x)
    norms = [np.linalg.norm(ravel_pytree(take(state.memory.v, i))[0]) for i in range(M)]
    np.testing.assert_allclose(norms, 0.1, rtol=1e-12)  # all would be longer
