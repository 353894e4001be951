"""Sinkhorn DRO against integrals by SciPy, Gauss and Hermite, and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random
from scipy.integrate import quad

import bilevelax as bx
from bilevelax.applications import sinkhorn_dro
from bilevelax.applications._robust_linear import LOSSES, Rows, empirical, sinkhorn, wasserstein
from bilevelax.applications.sinkhorn_dro import linear_problem_of, moved_most, problem_of
from bilevelax.base.compiling import program
from bilevelax.testing import assert_mean

RNG = np.random.default_rng(0)
A, LABEL = RNG.normal(size=(5, 3)), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
TARGET = RNG.normal(size=5)
X = {"w": jnp.array([0.8, -0.5, 0.3]), "b": jnp.asarray(0.2)}
ROWS = {"logistic": Rows(A, LABEL, np.full(5, 0.2)), "squared": Rows(A, TARGET, np.full(5, 0.2))}
NUMPY = {"logistic": lambda s, label: np.logaddexp(0, -label * s), "squared": lambda s, label: (s - label) ** 2 / 2}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("rt_mlmc", "antithetic_mlmc", "saa")]


def by_scipy(lam, eps, loss):
    """The definition: one adaptive integral a row, scaled by its largest value so that SciPy sees no overflow."""
    tau, w, spread = lam * eps, np.asarray(X["w"]), np.sqrt(eps) * np.linalg.norm(X["w"])

    def one(a, label):
        of = lambda z: NUMPY[loss](a @ w + float(X["b"]) + spread * z, label) / tau - z**2 / 2
        grid = np.linspace(-60, 60, 2001)
        top = of(grid).max()
        inner = grid[of(grid) > top - 60]
        value = quad(lambda z: np.exp(of(z) - top), inner[0], inner[-1], limit=500)[0]
        return tau * (top + np.log(value / np.sqrt(2 * np.pi)))

    return np.mean([one(*row) for row in zip(A, ROWS[loss].label, strict=True)])


@pytest.mark.parametrize(
    ("loss", "lam", "eps"), [("logistic", 2.0, 0.5), ("logistic", 0.5, 0.02), ("squared", 3.0, 0.5)]
)
def test_the_exact_cost_is_the_integral(loss, lam, eps):
    """Also where exp(loss / (lam eps)) would overflow single precision: e^(1.5 / 0.01)."""
    cost = program(static_argnames="loss")(sinkhorn)(X, ROWS[loss], lam, eps, loss=loss)
    assert float(cost) == pytest.approx(by_scipy(lam, eps, loss), rel=1e-6)
    assert float(cost) > float(empirical(X, ROWS[loss], 0.0, loss)) + 1e-3


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_gradients_of_the_problem_are_exact_on_nodes(loss):
    """Through the lower level, by eq. (6), at Gauss-Hermite nodes; against the derivative of the exact cost."""
    rows, lam, eps = ROWS[loss], 6.0, 0.3
    problem = linear_problem_of(loss, A, rows.label, lam, eps, 24)
    batch = bx.minibatch(bx.saa("all"), 5, contexts="spread")
    found = program()(lambda x: batch.estimate(random.key(0), problem, x, batch.init(problem, x))[0].grad)(X)
    wanted = program()(jax.grad(lambda x: sinkhorn(x, rows, lam, eps, loss)))(X)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    without = jax.grad(lambda x: empirical(x, rows, 0.0, loss))(X)
    assert np.abs(without["w"] - wanted["w"]).max() > 1e-2, "robustness changes nothing: the test has no power"


@pytest.mark.parametrize("name", SLOW)
def test_estimators_have_that_mean(name):
    """Noise in all columns: its law along the score is that of one normal variable. A bias 2^-K or 1/n is left."""
    lam, eps = 6.0, 0.3
    problem = problem_of(lambda x, a, b: LOSSES["logistic"].of(a @ x["w"] + x["b"], b), A, LABEL, lam, eps)
    estimator = {"rt_mlmc": bx.rt_mlmc(9), "antithetic_mlmc": bx.antithetic_mlmc(4, levels=6), "saa": bx.saa(512)}[name]
    one = lambda key: estimator.estimate(key, problem, X, estimator.init(problem, X))[0].grad["w"]
    # one after the other: vmapped, every lane would be as long as the deepest level
    grads = program()(lambda keys: lax.map(one, keys))(random.split(random.key(1), 20_000 if name != "saa" else 4_000))
    wanted = jax.grad(lambda x: sinkhorn(x, ROWS["logistic"], lam, eps, "logistic"))(X)["w"]
    assert_mean(grads, wanted, power=0.05)


def test_single_precision_does_not_overflow():
    """Losses of 1e3 lam eps; the plain exponential, m = 0, is the negative control."""
    problem = problem_of(lambda x, a, b: LOSSES["logistic"].of(a @ x["w"] + x["b"], b), A, LABEL, 50.0, 2e-4)
    problem = jax.tree.map(lambda a: a.astype(jnp.float32), problem)
    x = {"w": jnp.full(3, 4.0, jnp.float32), "b": jnp.asarray(-9.0, jnp.float32)}
    xi = problem.nth_context(0)
    etas = problem.conditionals(random.key(0), xi, 64).astype(jnp.float32)
    mean = jnp.mean(jax.vmap(lambda eta: jax.grad(problem.g, argnums=1)(x, jnp.ones((), jnp.float32), eta, xi))(etas))
    assert np.isfinite(mean) and np.isfinite(jax.grad(problem.f)(x, 1 - mean, etas[0], xi)["w"]).all()
    value = float(LOSSES["logistic"].of(xi.a @ x["w"] + x["b"], xi.label) / (xi.lam * xi.eps))
    assert value > 200 and np.isinf(jnp.exp(jnp.asarray(value, jnp.float32)))


def test_the_wasserstein_costs_are_worst_cases():
    """Every row moved by the radius to the steepest side: of no law within it, the squared loss is larger."""
    radius, w = 0.3, float(jnp.linalg.norm(X["w"]))
    rows = ROWS["squared"]
    r = np.asarray(A @ X["w"] + X["b"] - TARGET)
    share = np.abs(r) / np.sqrt(np.mean(r**2))  # moves in proportion to the residuals have W_2 distance `radius`
    moved = rows._replace(a=A + radius * (np.sign(r) * share)[:, None] * np.asarray(X["w"] / w)[None, :])
    assert float(empirical(X, moved, 0.0, "squared")) == pytest.approx(float(wasserstein(X, rows, radius, "squared")))
    evenly = rows._replace(a=moved_most(X, rows, radius, "squared"))
    assert float(empirical(X, evenly, 0.0, "squared")) < float(wasserstein(X, rows, radius, "squared")) - 1e-6
    far, rows = 1e4, ROWS["logistic"]  # one row far away, the others stay: W_1 distance radius, in the limit
    moved_row = rows.a - far * LABEL[:, None] * np.asarray(X["w"] / w)[None, :]
    share = rows.weight * radius / far
    both = Rows(
        np.vstack([rows.a, moved_row]), np.tile(LABEL, 2), np.concatenate([rows.weight * (1 - radius / far), share])
    )
    assert float(empirical(X, both, 0.0, "logistic")) == pytest.approx(
        float(wasserstein(X, rows, radius, "logistic")), rel=1e-3
    )


def test_the_application_solves_and_tells_bad_settings():
    app = sinkhorn_dro.make(n=20, d=2, nodes=8, test_rows=100)
    solved = bx.solve(app.problem, app.x1, key=random.key(0), tol=1e-3)
    assert solved.certified
    before, after = app.metrics(app.x1), app.metrics(solved.x)
    assert after["robust_cost"] < before["robust_cost"] and after["moved_cost"] > after["test_cost"]
    for wrong, message in (
        ({"lam": 0.0}, "`lam` of sinkhorn_dro"),
        ({"loss": "hinge"}, "one of 'logistic', 'squared'"),
    ):
        with pytest.raises(ValueError, match=message):
            sinkhorn_dro.make(**wrong)
