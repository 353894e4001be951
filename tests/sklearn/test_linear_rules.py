"""A linear rule ends at the minimum of its problem: F against an independent reference in double precision."""

import numpy as np
import pytest
from scipy import optimize, special

from bilevelax.sklearn import RobustNewsvendor

ROWS, BETA, H, B = 120, 20.0, 1.0, 9.0
BATCH, LAST_RATE = 64, 1e-3  # of the defaults: the learning rate 1e-2 falls to a tenth


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 3))
    return X, 20 + X @ [3.0, -2.0, 1.0] + (1 + np.abs(X[:, 0])) * rng.gumbel(size=ROWS)


def rule(table, penalty, **settings):
    fixed = dict(policy="linear", conditional="knn", ambiguity="wasserstein", n_atoms=16, members=1, random_state=0)
    return RobustNewsvendor(H, B, penalty=penalty, **fixed, **settings).fit(*table)


class Reference:
    """eq. (10)-(11) of affine rules w z + c in NumPy, where the adversary's problem has but one variable.

    F(w, c) = mean_i max_s [ mean_j l(w z_i + c + s, d_ij) - s^2 / (2 |r w|^2) ]: a way y costs |y|^2 / 2 and moves the
    order by s = (r w) y, so the cheapest way to s has the length s / |r w|.
    """

    def __init__(self, model):
        rows, self.penalty = model._rows, model.penalty_
        self.z = np.asarray(rows["contexts"][:ROWS], float)
        self.d = np.asarray(rows["atoms"][:ROWS, 0, 0], float)
        self.h, self.b = (float(rows[name][0, 0]) for name in ("holding", "backlog"))
        self.reach = np.asarray(rows["reach"], float)

    def costs(self, order):
        over = order[:, None] - self.d
        return self.h * over + (self.h + self.b) * np.logaddexp(0, -BETA * over) / BETA

    def slopes(self, order):
        """Of the mean cost by the order: first and second, row by row."""
        p = special.expit(-BETA * (order[:, None] - self.d))
        return self.h - (self.h + self.b) * p.mean(1), (self.h + self.b) * BETA * (p * (1 - p)).mean(1)

    def moved(self, v):
        """The adversary's order: Newton on s / |reach w|^2 = slope, a strictly increasing equation."""
        order, far = self.z @ v[:-1] + v[-1], float(np.sum((self.reach * v[:-1]) ** 2))
        s = np.zeros(len(order))
        for _ in range(100):
            slope, bend = self.slopes(order + s)
            s -= (s - far * slope) / (1 - far * bend)
        np.testing.assert_allclose(s, far * self.slopes(order + s)[0], atol=1e-10)
        return order + s, s, far

    def F(self, v):
        order, s, far = self.moved(v)
        return float(np.mean(self.costs(order).mean(1) - (s**2 / (2 * far) if far else 0.0)))

    def gradients(self, v):
        """Row by row; by the envelope theorem y stays: an order w (z + reach y) + c."""
        order, _, _ = self.moved(v)
        slope = self.slopes(order)[0]
        y = slope[:, None] * self.reach * v[:-1]
        return slope[:, None] * np.column_stack([self.z + self.reach * y, np.ones(len(slope))])

    def lowest(self, start):
        done = optimize.minimize(
            self.F, start, jac=lambda v: self.gradients(v).mean(0), method="BFGS", options={"gtol": 1e-9}
        )
        assert np.linalg.norm(done.jac) < 1e-6
        return done.x

    def room(self, v):
        """What Adam's last steps leave at v, four times.

        Near the minimum the square root of Adam's second moment is the deviation sigma_i / sqrt(batch) of coordinate i
        of a batch's gradient. A step a g_i sqrt(batch) / sigma_i on a parabola of curvature h leaves x_i the variance
        a sigma_i / (2 h sqrt(batch)), thus F the excess a sigma_i / (4 sqrt(batch)); these add up. Four times: before
        the last steps the rate was larger, and few batches make one draw of the excess.
        """
        return LAST_RATE * float(self.gradients(v).std(0).sum()) / BATCH**0.5


def found_by(model):
    return np.concatenate([np.ravel(part[0]) for part in model._arrays]).astype(float)


@pytest.mark.parametrize("penalty", [np.inf, 1.0])
def test_a_linear_rule_ends_at_the_minimum_of_its_problem(table, penalty):
    model = rule(table, penalty)
    exact = Reference(model)
    best = exact.lowest(found_by(model))
    numeric = optimize.approx_fprime(best + 0.1, exact.F, 1e-6)
    np.testing.assert_allclose(exact.gradients(best + 0.1).mean(0), numeric, atol=1e-6)
    gap = lambda model: exact.F(found_by(model)) - exact.F(best)
    assert 0 <= gap(model) <= exact.room(best)
    before = rule(table, penalty, learning_rate=3e-3, weight_decay=1.0)
    assert gap(before) > 30 * exact.room(best)  # negative control: what a network needs flattens a line


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            dict(learning_rate=0.0),
            "`learning_rate` of RobustNewsvendor must be 'auto' or a finite number > 0. Got 0.0.",
        ),
        (
            dict(weight_decay=-1.0),
            "`weight_decay` of RobustNewsvendor must be 'auto' or a finite number >= 0. Got -1.0.",
        ),
        (
            dict(weight_decay="none"),
            "`weight_decay` of RobustNewsvendor must be 'auto' or a finite number >= 0. Got 'none'",
        ),
    ],
)
def test_bad_rates(table, bad, words):
    with pytest.raises(ValueError, match=words):
        rule(table, 1.0, **bad)
