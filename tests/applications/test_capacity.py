"""The best split against a linear program that knows nothing of prices."""

import numpy as np
import pytest
from scipy.optimize import linprog

from bilevelax.applications.newsvendor.capacity import split


def mean_cost(q, atoms, h, b):
    over = q[:, None] - atoms
    return float((h[:, None] * over.clip(0) + b[:, None] * (-over).clip(0)).mean(axis=1).sum())


def program(atoms, h, b, capacity, size):
    """min sum of h o + b u with o >= q - d, u >= d - q for each demand, and sum s q <= C."""
    n, k = atoms.shape
    cost = np.concatenate([np.zeros(n), np.repeat(h / k, k), np.repeat(b / k, k)])
    pick = np.repeat(np.eye(n), k, axis=0)
    over = np.hstack([pick, -np.eye(n * k), np.zeros((n * k, n * k))])
    under = np.hstack([-pick, np.zeros((n * k, n * k)), -np.eye(n * k)])
    fits = np.concatenate([size, np.zeros(2 * n * k)])
    d = atoms.ravel()
    done = linprog(cost, np.vstack([over, under, fits]), np.concatenate([d, -d, [capacity]]))
    return done.fun


@pytest.mark.parametrize("size", [None, np.array([0.5, 3.0, 1.0, 7.5])], ids=["units", "sizes"])
@pytest.mark.parametrize("capacity", [0.0, 5.0, 17.0, 40.0, 60.0, 1000.0])
def test_the_split_is_optimal(capacity, size):
    rng = np.random.default_rng(3)
    atoms = np.sort(rng.integers(1, 40, (4, 7)).astype(float), axis=1)
    h, b = np.array([1.0, 2.0, 1.0, 0.5]), np.array([9.0, 3.0, 4.0, 2.5])
    best = np.array([a[int(np.ceil(len(a) * level - 1e-9)) - 1] for a, level in zip(atoms, b / (b + h), strict=True)])
    found = split(best, atoms, h, b, np.zeros(4, int), np.array([capacity]), size=size)
    size = np.ones(4) if size is None else size
    assert size @ found <= capacity + 1e-9 and (found >= 0).all()
    assert mean_cost(found, atoms, h, b) == pytest.approx(program(atoms, h, b, capacity, size), abs=1e-6)
    shares = best * min(1.0, capacity / (size @ best))  # the control: everyone gives the same share
    if 0 < capacity < size @ best:
        assert mean_cost(shares, atoms, h, b) > mean_cost(found, atoms, h, b) + 0.1


def test_days_do_not_share_and_a_rule_keeps_its_distance():
    atoms = np.tile(np.arange(1.0, 11.0), (4, 1))
    one = np.ones(4)
    found = split(np.array([8.0, 8.0, 8.0, 8.0]), atoms, one, 3 * one, np.array([0, 0, 1, 1]), np.array([10.0, 99.0]))
    np.testing.assert_allclose(found, [5, 5, 8, 8])
    rule = np.array([9.5, 7.0])  # one above its quantile, one below
    found = split(rule, atoms[:2], one[:2], 3 * one[:2], np.zeros(2, int), np.array([12.0]))
    assert found.sum() == pytest.approx(12) and found[0] - found[1] == pytest.approx(2.5, abs=1.0)


def test_no_order_falls_below_the_least():
    atoms = np.tile(np.arange(1.0, 11.0), (3, 1))
    h, b = np.ones(3), np.array([9.0, 9.0, 1.0])
    wanted = np.array([9.0, 9.0, 5.0])
    day = np.zeros(3, int)
    free = split(wanted, atoms, h, b, day, np.array([15.0]))
    kept = split(wanted, atoms, h, b, day, np.array([15.0]), 4.0)
    assert free[2] < 4.0 and kept[2] == pytest.approx(4.0) and kept.sum() == pytest.approx(15.0)
    np.testing.assert_allclose(split(wanted, atoms, h, b, day, np.array([12.0]), 4.0), 4.0)
