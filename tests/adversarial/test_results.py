"""What is said where a run ends: a bias that nobody could see at x1, and followers without a minimum."""

import warnings

import jax.numpy as jnp
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.diagnostics.recheck import recheck
from bilevelax.run import auto
from bilevelax.testing.adversarial.intervals import instrument

KEY, X1 = random.key(0), jnp.zeros(2)


def run(problem, estimator, **settings):
    return bx.minimize(
        problem, estimator, optax.sgd(0.5), X1, key=KEY, T=64, every=16, progress=False, **{"recheck": True, **settings}
    )


def test_a_bias_that_x1_hides_is_told_at_the_result():
    problem = instrument()
    eight = bx.minibatch(bx.saa(8), 32)
    before = recheck(problem, X1, eight, key=KEY)
    assert before.bias.high < 0.05 and not before.told("saa")  # so `check` and `tune` let it pass
    with pytest.warns(RuntimeWarning, match="bias of the estimator is .* antithetic_mlmc"):
        result = run(problem, eight)
    assert abs(float(result.x[1]) - 2) > 0.5  # wrong by far
    assert result.recheck["bias_low"] > 0.05 and result.recheck["told"]
    assert run(problem, eight, recheck=None).recheck is None  # short runs with a given estimator are left alone
    assert result.recheck["variance"] > 0 and result.recheck["grad2_high"] > 0


@pytest.mark.slow
def test_auto_changes_its_mind_on_the_way(monkeypatch):
    problem = instrument()
    name = "saa(n=8), 32 contexts"
    chosen = bx.minibatch(bx.saa(8), 32), {"choice": name, "devices": 1}
    monkeypatch.setattr(auto, "tuned_now", lambda *a: chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the end may be noisy still
        result = run(problem, "auto", recheck=None)
    table = result.manifest["tuning"]
    assert table["switched_from"] == name and table["choice"].startswith("antithetic_mlmc(")
    assert table["switched_at"] in (16, 32) and result.recheck is not None
    right = run(problem, bx.minibatch(bx.antithetic_mlmc(32, 2, 0.05), 256))  # no warning: those are errors here
    assert abs(float(right.x[1]) - 2) < 0.3 and not right.recheck["told"]
