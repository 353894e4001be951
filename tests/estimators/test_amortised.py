"""Networks for answers and adjoints, trained along on joint draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import programs
from jax import lax, random

import bilevelax as bx
from bilevelax.diagnostics.bias import relative_bias
from bilevelax.diagnostics.estimates import means_in_a_row
from bilevelax.diagnostics.learned import learned_rows
from bilevelax.diagnostics.reference import reference


class Affine(eqx.Module):
    """What the answers of the problem below are: the network can be right."""

    w: jax.Array
    b: jax.Array

    def __call__(self, z):
        return self.w @ z + self.b


def affine():
    return Affine(jnp.zeros((1, 1)), jnp.zeros(1))


X0 = jnp.array([0.8, 0.3])


@pytest.fixture(scope="module")
def pairs():
    """y* = x_0 E[eta | xi], affine in xi; f pulls it to x_1 xi."""
    rng = np.random.default_rng(0)
    xi = rng.uniform(-1, 1, (200, 1))
    return bx.from_joint(
        f=lambda x, y, eta, xi: jnp.sum((y - x[1] * xi) ** 2),
        g=lambda x, y, eta, xi: jnp.sum((y - x[0] * eta) ** 2) / 2,
        rows=(xi, 2 * xi - 1 + 0.2 * rng.normal(size=(200, 1))),
        init_y=lambda x, xi: jnp.zeros(1),
    )


@pytest.fixture(scope="module")
def wanted(pairs):
    """The gradient of the problem reduced to affine answers."""
    reduced = bx.reduced(pairs, bx.chebyshev(1))
    return np.asarray(jax.jit(bx.saa("all").estimate)(random.key(0), reduced, X0, ())[0].grad)


def gradients(problem, estimator, n):
    """n estimates in a row at one x."""

    def one(state, key):
        estimate, state = estimator.estimate(key, problem, X0, state)
        return state, estimate.grad

    keys = random.split(random.key(1), n)
    return np.asarray(jax.jit(lambda: lax.scan(one, estimator.init(problem, X0), keys)[1])())


def test_its_mean_is_the_gradient_of_the_reduced_problem(pairs, wanted):
    """With affine networks it minimises over the same answers as `reduced` with an affine basis."""
    estimator = bx.amortised(affine(), affine(), m=64, steps=2, rate=0.01, warm_up=600)
    found = gradients(pairs, estimator, 400)
    error = found.std(axis=0) / 20
    assert (5 * error < 0.15 * np.linalg.norm(wanted)).all(), "no power"
    # the weights still move: what they move by in 400 estimates is about a tenth of a standard error of one
    np.testing.assert_allclose(found.mean(axis=0), wanted, atol=float(5 * error.max() + 0.02))


def test_without_training_it_is_wrong(pairs, wanted):
    untrained = gradients(pairs, bx.amortised(affine(), affine(), steps=0, warm_up=0), 50).mean(axis=0)
    assert np.linalg.norm(untrained - wanted) > 0.5 * np.linalg.norm(wanted)


def test_the_first_state_is_made_by_one_program(pairs):
    with programs() as names:
        bx.amortised(affine(), affine(), m=2, warm_up=1).init(pairs, X0)
    assert names == ["_warmed_up"]


def test_it_minimises_a_problem_of_pairs(pairs, key):
    run = bx.minimize(
        pairs, bx.amortised(affine(), affine(), rate=0.02), optax.sgd(0.05), X0, key=key, T=300, every=300
    )
    reduced = bx.reduced(pairs, bx.chebyshev(1))
    F = lambda x: float(bx.evaluate(reduced, x, key=key, n=2).mean)
    assert F(run.x) < 0.2 * F(X0)


def test_check_compares_it_with_exact_responses_where_a_conditional_exists(key):
    """y* = x_0 (2 xi - 1): affine networks that have learnt it, and ones that never do."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - x[1] * xi) ** 2),
        g=lambda x, y, eta, xi: jnp.sum((y - x[0] * eta) ** 2) / 2,
        sample_context=lambda key, data: random.uniform(key, (1,), float, -1.0, 1.0),
        sample_conditional=lambda key, xi, data: 2 * xi - 1 + 0.2 * random.normal(key, (1,), float),
        init_y=lambda x, xi: jnp.zeros(1),
    )
    named = {
        "learnt": bx.amortised(affine(), affine(), m=64, steps=2, rate=0.01, warm_up=600),
        "idle": bx.amortised(affine(), affine(), m=64, steps=0, warm_up=0),
    }
    found = {name: learned_rows(name, each, problem, X0, key, 0.05)[0] for name, each in named.items()}
    assert found["learnt"].ok is True and found["idle"].ok is False
    assert "answers against exact ones" in found["idle"].name and "warm_up" in found["idle"].remedy
    assert learned_rows("saa", bx.saa(2), problem, X0, key, 0.05) == []
    exact = reference(key, problem, X0, 4, 256)
    biases = {}
    for name, each in named.items():
        means, _ = means_in_a_row(key, problem, X0, exact.contexts, estimator=each, batches=8, each=16)
        biases[name] = relative_bias(np.asarray(means) - exact.grad, exact.scale, exact.stderr)
    assert biases["learnt"].low < 0.05 and biases["idle"].low > 0.3


def test_contexts_it_cannot_see_are_refused(key):
    problem = bx.Problem(
        f=lambda x, y, eta, xi: y**2,
        g=lambda x, y, eta, xi: (y - x) ** 2,
        sample_context=lambda key, data: random.randint(key, (), 0, 10),
        sample_conditional=lambda key, xi, data: (),
        init_y=lambda x, xi: jnp.zeros(()),
    )
    with pytest.raises(ValueError, match="amortised needs contexts with floating-point coordinates"):
        bx.amortised().init(problem, jnp.ones(()))


def test_networks_that_cannot_answer_are_refused(pairs):
    with pytest.raises(ValueError, match=r"`network` of amortised must be an equinox module.* Got a Problem"):
        bx.amortised(pairs, affine())
    wide = Affine(jnp.zeros((2, 1)), jnp.zeros(2))
    with pytest.raises(ValueError, match=r"map the 1 coordinates .* 1 numbers of an answer, .* Got \(2,\)"):
        bx.amortised(wide, affine()).init(pairs, X0)


@pytest.mark.parametrize("wrong", [{"m": 0}, {"steps": -1}, {"rate": 0.0}, {"width": 0}])
def test_bad_settings_get_a_sentence(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` of amortised must be"):
        bx.amortised(**wrong)
