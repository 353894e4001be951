"""Estimators and optimizers in one line."""

import optax
import pytest

import bilevelax as bx
from bilevelax.run.records.described import LONGEST, described, described_optimizer


def mine(strength):
    return bx.stateless(lambda key, problem, x: bx.Estimate(strength * x, bx.Cost(), {}))


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        (bx.saa(8), "saa(f_samples=same, n=8)"),
        (
            bx.minibatch(bx.rt_mlmc(4), 2, contexts="spread"),
            "minibatch(rt_mlmc(K=4, batch=1, base_level=1), m=2, mode=stratified, contexts=spread)",
        ),
        (bx.warm_started(bx.saa(4)), "warm_started(saa(f_samples=same, n=4))"),
        (bx.bsvrb(version=1, blocks=3), "bsvrb(version=1, blocks=3, batch=1, a=0.5, b=0.5, largest=512)"),
        (mine(0.5), "mine(strength=0.5)"),
    ],
)
def test_estimators(estimator, told):
    assert described(estimator) == told


def test_optimizers():
    assert described_optimizer(optax.sgd(0.1)) == "chain(identity(), scale(step_size=-0.1))"
    told = described_optimizer(bx.projected(optax.adam(0.25), lambda x: x))
    assert told.startswith("chain(scale_by_adam(b1=0.9") and told.endswith("scale(step_size=-0.25))")
    assert len(described_optimizer(optax.chain(*[optax.adam(0.1 * i) for i in range(1, 9)]))) == LONGEST


def test_schedules_show_their_settings():
    """That of `exponential_decay` closes over a variable that optax deleted."""
    told = described_optimizer(optax.sgd(bx.sqrt_then_linear(7, 0.5)))
    assert "sqrt_then_linear(scale=0.5, t0=7)" in told
    assert "exponential_decay(decay_rate=0.5, init_value=0.1" in described_optimizer(
        optax.sgd(optax.exponential_decay(0.1, 10, 0.5))
    )
