r"""Linear quantile regression of many rows by the dual program: constraints for columns, not for rows.

.. math::
    \min_{c, w} \sum_i \rho_q(y_i - c - x_i^\top w) + n \alpha |w|_1
    \;=\; \max_a \; y^\top a \quad \text{subject to} \quad
    \sum_i a_i = 0, \quad |X^\top a| \le n \alpha, \quad q - 1 \le a_i \le q

The constant and the coefficients are the prices of the constraints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import QuantileRegressor

MANY = 2_000  # rows; with fewer, scikit-learn's program takes tenths of a second


class LongQuantileRegressor(QuantileRegressor):
    """scikit-learn's estimator, that solves the dual program where there are many rows: the same minimum, sooner."""

    def fit(self, X: Any, y: Any) -> LongQuantileRegressor:
        """Fit a line to rows (n, columns) without weights."""
        if len(X) <= MANY:
            super().fit(X, y)
            return self
        line = prices(np.asarray(X, float), np.asarray(y, float), self.quantile, self.alpha)
        self.intercept_, self.coef_, self.n_features_in_ = line[0], line[1:], np.shape(X)[1]
        return self


def prices(X: np.ndarray, y: np.ndarray, level: float, alpha: float) -> np.ndarray:
    """(constant, coefficients) of the line, from the dual program."""
    from scipy.optimize import linprog

    n, d = X.shape
    sums = np.vstack([np.ones(n), X.T])
    slack = np.vstack([np.zeros(d), np.eye(d)])  # -X^T a
    bounds = [(level - 1, level)] * n + [(-n * alpha, n * alpha)] * d
    gains = np.concatenate([-y, np.zeros(d)])
    found = linprog(gains, A_eq=np.hstack([sums, slack]), b_eq=np.zeros(d + 1), bounds=bounds, method="highs")
    if found.status != 0:
        raise ValueError(f"The linear quantile could not be fitted to {n} rows: {found.message}")
    return -np.asarray(found.eqlin.marginals)
