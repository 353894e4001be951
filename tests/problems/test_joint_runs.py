"""Problems of pairs are problems like the others: runs, certificates, stores, meshes, checkpoints, any solver."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, random

import bilevelax as bx
from bilevelax.datasets import ClientStore
from bilevelax.problems import joint
from bilevelax.testing import assert_mean

X0 = jnp.array([0.8, 0.3])
LOSSES = {
    "f": lambda x, y, eta, xi: (y - x[1] * xi) ** 2 / 2 + x[0] ** 2 / 2,
    "g": lambda x, y, eta, xi: (y - x[0] * eta) ** 2 / 2,
}
START = {"init_y": lambda x, xi: jnp.zeros(()), "mu_g": 1.0, "L_g1": 1.0}


def table(n=40):
    rng = np.random.default_rng(0)
    xi = rng.uniform(-1, 1, n)
    return xi, 2 * xi - 1 + 0.2 * rng.normal(size=n)


@pytest.fixture(scope="module")
def pairs():
    return bx.from_joint(rows=table(), **LOSSES, **START)


@pytest.fixture(scope="module")
def affine(pairs):
    """Two functions, 1 and xi."""
    return bx.reduced(pairs, bx.chebyshev(1))


@pytest.fixture(scope="module")
def coefficients():
    """grad F = Q x: least squares of eta are a + b xi, F = mean (x_0 (a + b xi) - x_1 xi)^2 / 2 + x_0^2 / 2."""
    xi, eta = table()
    b, a = np.polyfit(xi, eta, 1)
    columns = np.stack([a + b * xi, -xi], axis=1)
    return columns.T @ columns / len(xi) + np.diag([1.0, 0.0])


def test_solve_and_certify_say_that_the_problem_is_reduced(affine, coefficients, key):
    """F is a quadratic with its minimum at 0: the answer and the certified gradient are known."""
    found = bx.solve(affine, X0, key=key, tol=1e-4, progress=False)
    assert found.certified and np.linalg.norm(found.x) < 1e-3
    assert float(found.F.mean) < 1e-6
    here = bx.certify(affine, X0, key=key, n=32)
    assert here.estimate == pytest.approx(float(np.sum((coefficients @ np.asarray(X0)) ** 2)), rel=1e-6)
    for certificate in (found.certificate, here):
        assert "F of the problem reduced to 2 functions of chebyshev(1)" in str(certificate)
    noisy = bx.certify(affine, X0, key=key, n=32, estimator=bx.saa(2))
    assert "reduced to 2 functions" in str(noisy) and "its bias is not in this interval" in str(noisy)


def test_solve_refuses_pairs_and_names_the_ways_on(pairs, key):
    with pytest.raises(ValueError, match=r"reduced\(problem, basis\), .* amortised\(\), or sklearn.with_conditional"):
        bx.solve(pairs, X0, key=key, progress=False)


def test_certificates_of_what_remembers_are_refused(affine, key):
    with pytest.raises(ValueError, match="must keep no state between calls"):
        bx.certify(affine, X0, key=key, n=32, estimator=bx.amortised(m=2, warm_up=0, width=2))


SMALL = bx.amortised(m=4, steps=1, warm_up=2, width=2)


@pytest.mark.parametrize("way", ["reduced", "amortised"])
def test_runs_go_on_from_checkpoints_to_the_same_bits(way, pairs, affine, key, tmp_path):
    problem, estimator = (affine, bx.saa(4)) if way == "reduced" else (pairs, SMALL)
    run = lambda T, folder: bx.minimize(
        problem,
        estimator,
        optax.sgd(0.1, momentum=0.5),
        X0,
        key=key,
        T=T,
        every=3,
        checkpoint=bx.Checkpoint(tmp_path / folder),
    )
    whole = run(6, "whole")
    run(3, "stopped")
    again = run(6, "stopped")
    assert again.manifest["resumed_at"] == [3]
    np.testing.assert_array_equal(again.x, whole.x)
    assert not np.array_equal(whole.x, X0)


@pytest.mark.parametrize("way", ["reduced", "amortised"])
def test_a_mesh_gives_the_run_of_one_device(way, pairs, affine, key):
    """Of one device here; eight in tests/run/test_devices.py."""
    problem, estimator = (affine, bx.minibatch(bx.saa(4), 2)) if way == "reduced" else (pairs, SMALL)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("contexts",))
    runs = [
        bx.minimize(problem, estimator, optax.sgd(0.1), X0, key=key, T=3, every=3, mesh=each) for each in (None, mesh)
    ]
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-12)


def store_of(folder):
    xi, eta = table()
    parts = [slice(0, 3), slice(3, 12), slice(12, 40)]
    return ClientStore.write(folder, ({"u": xi[each], "a": eta[each], "unused": xi[each]} for each in parts))


def test_a_store_gives_the_gradient_of_its_rows(tmp_path, affine, key):
    rows = bx.from_joint(rows=store_of(tmp_path / "store"), context="u", outcome="a", **LOSSES, **START)
    problem = bx.reduced(rows, bx.chebyshev(1))
    found, wanted = (jax.jit(bx.saa("all").estimate)(key, each, X0, ())[0].grad for each in (problem, affine))
    np.testing.assert_array_equal(found, wanted)


def test_a_store_too_large_for_memory_stays_on_disk(tmp_path, monkeypatch):
    store = store_of(tmp_path / "store")
    make = lambda: bx.from_joint(rows=store, context="u", outcome="a", **LOSSES, **START)
    monkeypatch.setattr(joint, "MOST_BYTES", 40 * 2 * 8)
    assert isinstance(make().data, joint.Rows)
    monkeypatch.setattr(joint, "MOST_BYTES", 40 * 2 * 8 - 1)
    assert isinstance(make().data, joint.OnDisk)


STOCHASTIC = {"rt_mlmc": (bx.rt_mlmc(8), 200), "dl_sgd": (bx.dl_sgd(8), 60)}  # and how many batches show their mean


@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_steps_have_the_mean_of_the_exact_machinery(name, affine, coefficients, key):
    """One joint draw at a time: EpochSGD in W and a Neumann series, no Hessian formed."""
    estimator, draws = STOCHASTIC[name]
    batch = bx.minibatch(estimator, 64)
    estimate = jax.jit(lambda keys: lax.map(lambda key: batch.estimate(key, affine, X0, ())[0].grad, keys))
    wanted = coefficients @ X0
    size = np.linalg.norm(wanted)
    assert_mean(np.asarray(estimate(random.split(key, draws))), wanted, power=0.25 * size, bias=0.03 * size)


def test_the_exact_answer_is_weighted_ridge(key):
    """g = w (y - x eta)^2 / 2 + r (y - 3)^2 / 2 on rows with weights w: W of the normal equations."""
    xi, eta = table()
    w, r = np.random.default_rng(1).uniform(0.1, 2, len(xi)), 0.3
    problem = bx.reduced(
        bx.from_joint(
            f=lambda x, y, eta, xi: y**2,
            g=lambda x, y, eta, xi: eta[1] * (y - x * eta[0]) ** 2 / 2 + r * (y - 3) ** 2 / 2,
            rows=(xi, np.stack([eta, w], axis=1)),
            init_y=lambda x, xi: jnp.asarray(3.0),
        ),
        lambda z: jnp.stack([jnp.ones(()), z[0], z[0] ** 2]),
    )
    x = jnp.asarray(0.7)
    phi = np.stack([np.ones_like(xi), xi, xi**2], axis=1)
    ridge = np.linalg.solve(phi.T @ ((w + r)[:, None] * phi), phi.T @ (w * (0.7 * eta - 3)))
    W = bx.respond(problem, x, problem.nth_context(0), key=key)
    np.testing.assert_allclose(bx.answers(problem, x, W, xi), 3 + phi @ ridge, rtol=1e-8)
