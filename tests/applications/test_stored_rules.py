"""Orders from stored arrays in NumPy are those of the rules in JAX, for every name, and need no JAX."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from bilevelax.applications.newsvendor import orders as in_jax
from bilevelax.applications.newsvendor import policies, stored_rules
from bilevelax.applications.newsvendor.prepare import Scaling

COLUMNS, OUTPUTS, MEMBERS = 5, 3, 2
SCALING = Scaling(np.full(COLUMNS, 7.0), np.full(COLUMNS, 2.0), np.full(COLUMNS, 3.0), np.full(COLUMNS, 12.0))


def rule_of(name):
    """(rule, static, arrays away from where they start)"""
    x, static = policies.members_of(policies.make_policy(name, "a test"), COLUMNS, OUTPUTS, MEMBERS, 0)
    rng = np.random.default_rng(1)
    x = jax.tree.map(lambda a: a + rng.normal(size=a.shape).astype(a.dtype), x)
    return x, static, [np.asarray(a) for a in jax.tree.leaves(x)]


def contexts():
    """Some outside the range of the training rows, on both sides."""
    return 7 + 6 * np.random.default_rng(2).normal(size=(40, COLUMNS))


@pytest.mark.parametrize("name", stored_rules.STORED_RULES)
def test_orders_are_those_of_jax(name, monkeypatch):
    x, static, arrays = rule_of(name)
    rule, X = stored_rules.STORED_RULES[name], contexts()
    expected = in_jax.orders(static, x, SCALING, X)
    slack = 50 * np.finfo(arrays[0].dtype).eps * np.abs(expected).max()
    for block in (2**12, 7):
        monkeypatch.setattr(stored_rules, "ORDERED_AT_ONCE", block)
        np.testing.assert_allclose(stored_rules.stored_orders(rule, arrays, SCALING, X), expected, atol=slack)
    wrong = stored_rules.stored_orders(rule, [a[::-1] * 1.001 for a in arrays], SCALING, X)
    assert np.abs(wrong - expected).max() > 10 * slack  # the comparison can fail


@pytest.mark.parametrize("name", stored_rules.STORED_RULES)
def test_shapes_are_those_of_the_rule(name):
    arrays = rule_of(name)[2]
    shapes = stored_rules.STORED_RULES[name].shapes(COLUMNS, OUTPUTS)
    assert [(MEMBERS, *shape) for shape in shapes] == [a.shape for a in arrays]


def test_a_large_activation_has_its_limit():
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(stored_rules._silu(np.array([-2000.0, 0.0, 2000.0])), [0.0, 0.0, 2000.0])


def test_reading_a_model_needs_no_jax():
    code = """
import sys
import bilevelax.sklearn.persist, bilevelax.sklearn.baselines, bilevelax.cli._newsvendor_work, bilevelax.tables.schema
assert "jax" not in sys.modules, "orders from a stored model would wait for it"
from bilevelax.sklearn import MetaClassifier, baselines, compare, shifted
from bilevelax.datasets import ClientStore, split
assert all(map(callable, (MetaClassifier, baselines, compare, shifted, ClientStore, split)))
assert "jax" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
