"""An evaluation whose numbers are known by arithmetic, for its page and pictures."""

import numpy as np

from bilevelax.sklearn import WeightedSampleAverage
from bilevelax.sklearn._scored import Outcome
from bilevelax.sklearn.baselines import SampleAverage
from bilevelax.sklearn.compare import tabulate
from bilevelax.sklearn.conditional import Neighbours
from bilevelax.sklearn.evaluation import Evaluated

NAMES = ["lamb", "</script><script>fish"]


class Fixed(SampleAverage):
    """Orders that are given."""

    def predict(self, X):
        return self.orders_


def method(orders, y):
    made = Fixed(1, 9).fit(np.zeros((2, 1)), np.zeros((2, y.shape[1])))
    made.orders_ = orders
    return made


def evaluated(scale=1.0, dates=True, extra=3.0):
    """The rule orders 5 units too many, the plain method ``extra`` too few: 5 h against 9 ``extra`` a product."""
    rng = np.random.default_rng(0)
    X, past = rng.uniform(size=(40, 2)), rng.uniform(size=(60, 2))
    y = scale * (50 + 10 * X + rng.uniform(size=(40, 2)))
    forest = WeightedSampleAverage(1, 9, conditional=Neighbours(k=20)).fit(past, scale * (50 + 10 * past))
    methods = {"robust": method(y + 5 * scale, y), "quantile": method(y - extra * scale, y), "forest": forest}
    outcomes = {name: Outcome.of(each, X, y) for name, each in methods.items()}
    when = np.datetime64("2024-01-01") + np.arange(40) if dates else None
    table = tabulate(outcomes, outcomes["quantile"], "robust")
    return Evaluated(table, methods, X, when, NAMES, ["rain"], np.array([0.0, 1.0]))
