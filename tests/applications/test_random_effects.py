"""Learned penalties where the best one is known: clients y = (c + u_i)' a + noise, u_ij of variance tau_j^2.

Ridge towards c with the penalty sigma^2 / tau_j^2 is then the posterior mean, the best there is. Tolerances are four
standard errors, from the spread of the clients' own gradients: they shrink with the root of the number of clients.
"""

import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx

CLIENTS, ROWS = 300, 6
SIGMA, TAU = 0.7, np.array([1.0, 0.5, 0.25])  # deviations
BEST = np.log(SIGMA**2 / TAU**2)
H = 0.05  # of differences


def standard_errors(each, mean, at):
    """Of argmin of the mean of losses over clients: the roots of the diagonal of H^-1 V H^-1 / clients."""
    steps = H * np.eye(len(at))
    slopes = np.stack([(each(at + h) - each(at - h)) / (2 * H) for h in steps], axis=1)
    curvature = np.stack([(mean(at + h) - mean(at - h)) / (2 * H) for h in steps])
    outer = np.linalg.inv((curvature + curvature.T) / 2)
    return np.sqrt(np.diag(outer @ np.cov(slopes.T) @ outer) / len(slopes))


def clients_of(seed):
    """Rows to adapt on, (clients, rows, 3) with outcomes, and as many that count."""
    rng = np.random.default_rng(seed)
    own = np.array([1.0, -0.5, 0.3]) + TAU * rng.normal(size=(CLIENTS, 3))
    a = rng.normal(size=(CLIENTS, 2 * ROWS, 3))
    b = np.einsum("ijk,ik->ij", a, own) + SIGMA * rng.normal(size=a.shape[:2])
    return a[:, :ROWS], b[:, :ROWS], a[:, ROWS:], b[:, ROWS:]


def ridge_losses(data, x):
    """Held-out losses of ridge towards the centre, by normal equations in NumPy; x = (centre, log-penalties)."""
    a, b, test, truth = data
    left = np.einsum("inj,ink->ijk", a, a) + np.diag(np.exp(x[3:]))
    y = np.linalg.solve(left, np.einsum("inj,in->ij", a, b)[..., None] + (np.exp(x[3:]) * x[:3])[:, None])[..., 0]
    return np.mean((np.einsum("inj,ij->in", test, y) - truth) ** 2, axis=1) / 2


def test_penalties_by_coordinate_approach_those_of_the_law():
    """Centre and log-penalties by `solve` on the clients: the minimum of NumPy's F, and near the law's penalties."""
    data = clients_of(0)
    squares = lambda y, rows: jnp.mean((rows[0] @ y - rows[1]) ** 2) / 2
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: squares(y, eta[2:]),
        g=lambda x, y, eta, xi: squares(y, eta[:2]) + jnp.sum(jnp.exp(x["r"]) * (y - x["c"]) ** 2) / (2 * ROWS),
        contexts=np.zeros(CLIENTS),
        outcomes=tuple(part[:, None] for part in data),
        init_y=lambda x, xi: x["c"],
    )
    found = bx.solve(problem, {"c": jnp.zeros(3), "r": jnp.zeros(3)}, key=random.key(0), tol=1e-4, progress=False)
    assert found.certified
    x = np.concatenate([found.x["c"], found.x["r"]])
    F = lambda x: ridge_losses(data, x).mean()
    slope = lambda x: np.array([(F(x + h) - F(x - h)) / (2e-4) for h in 1e-4 * np.eye(6)])
    assert np.abs(slope(x)).max() < 1e-3 * np.abs(slope(np.zeros(6))).max()
    errors = standard_errors(lambda x: ridge_losses(data, x), slope, x)[3:]
    assert errors.max() < 0.5, "no power"
    assert np.all(np.abs(x[3:] - BEST) < 4 * errors)
    assert np.any(np.abs(x[3:] - BEST[::-1]) > 8 * errors), "another law would pass"
