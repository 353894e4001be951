"""Regression with instrumental variables (applications/instrumental_variables.py) as a scikit-learn estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.applications.instrumental_variables import Observed, pairs
from bilevelax.base.declared import integer, number
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.problems.bases import Basis, Given
from bilevelax.problems.reduced import reduced
from bilevelax.problems.smooth import leading
from bilevelax.run.solve import solve
from bilevelax.sklearn._first_stage import (
    FirstStage,
    first_stages,
    is_exogenous,
    orthonormal,
    standard_errors,
    unexplained,
    warn_of_weakness,
)
from bilevelax.sklearn._structural import Functions, Ridge
from bilevelax.sklearn.conditional import CONDITIONALS, Conditional, make_conditional
from bilevelax.sklearn.joint import with_conditional
from bilevelax.sklearn.model_folder import require
from bilevelax.sklearn.persist_rules import KeptInFolder, require_above_zero

STRUCTURES = ("linear", "kernel", "network")
METHODS = ("moments", "control")
PENALTIES = 10.0 ** np.arange(-10, 1.5, 0.5)  # tried for outcomes and functions of unit size
NETWORK_PENALTY = 1e-4
UNPENALISED = 100.0  # deviations of a column of unit weight: the penalty of so large a one is nothing
SMALLEST_BASIS = 3  # rows for each function of the instrument
DECLARED = {"functions": integer(0, 10**6), "alpha": number(0), "centre": number(), "scale": number(1e-300)}


class IVRegressor(RegressorMixin, KeptInFolder, BaseEstimator):
    r"""What X does to y, where shocks that nobody recorded move both, from instruments Z that move X alone.

    .. math::
        \min_h E_z \big( E[y - h(X) \mid Z = z] \big)^2

    With a straight line and the instruments as they are, this is two-stage least squares, with its standard errors.
    Columns of X that affect y by themselves (controls) belong into X and into Z.

    Instruments that move a column of X leave a part of it unexplained, and shocks act through that part. With
    ``method="control"`` it stands beside h in one regression, y on h(X) + gamma (X - E[X | Z]) (Newey, Powell and Vella
    1999). This uses all that X varies and errs much less, where its assumption holds: what shocks do to y follows the
    unexplained part in a straight line, wherever z is. For straight lines the two methods are one.

    Args:
        structural: h is ``"linear"``, ``"kernel"`` (smooth functions of the columns and of their products, straight
            beyond the data) or ``"network"`` (one hidden layer, by `solve`).
        method: ``"moments"``, the mean above, which assumes nothing else; or ``"control"``, not for a network, with
            ``conditional="joint"``: a noisy conditional mean would hide a part of the shocks.
        conditional: how E[. | Z = z] is found: ``"joint"`` (least squares on functions of z: straight lines for a
            linear h, else smooth ones), or weights on rows: ``"knn"``, ``"forest"``, ``"kernel"`` or one of the classes
            behind these.
        alpha: penalty of h for columns and outcomes of unit size. By default 0 for a linear h, chosen by generalised
            cross-validation for a kernel, 1e-4 for a network.
        components: functions of the instrument, at most a third of the rows; a kernel has twice as many of X.
        width: hidden units of a network.
        random_state: seed of a forest and of a network's first weights.

    Attributes:
        coef\_, intercept\_: of a linear h.
        stderr\_, robust_stderr\_: standard errors of ``coef_``, errors of equal variance and of any (HC1); of linear h
            by ``"joint"`` without penalty.
        first_stage\_: for each column of X that is no combination of Z, its first-stage F. Below 10 a warning tells so.
        alpha\_: the penalty that was used.
        shock\_: gamma of ``method="control"``, for each column of X that is no combination of Z: near 0 where plain
            regression would do.
    """

    _declared = DECLARED
    weights_: Any  # of the functions, or the parts of a network

    def __init__(
        self,
        structural: str = "linear",
        *,
        method: str = "moments",
        conditional: Any = "joint",
        alpha: float | None = None,
        components: int = 300,
        width: int = 32,
        random_state: Any = None,
    ) -> None:
        self.structural = structural
        self.method = method
        self.conditional = conditional
        self.alpha = alpha
        self.components = components
        self.width = width
        self.random_state = random_state

    def fit(self, X: Any, y: Any, Z: Any = None) -> IVRegressor:
        """Fit h to treatments X, outcomes y and instruments Z, one row each.

        Without Z the columns of X are their own instruments: plain regression.
        """
        self._require_settings()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        Z = X if Z is None else self._instruments(Z, X)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        smooth = self.structural != "linear"
        most = max(1, min(self.components, len(X) // SMALLEST_BASIS))
        of_z = Functions.of(Z, most if smooth else None)
        phi = of_z(Z)
        Q = orthonormal(phi)
        exogenous = is_exogenous(X, orthonormal(Functions.of(Z, None)(Z)))
        self._require_enough(X, exogenous, Q, smooth)
        theirs = is_exogenous(Z, orthonormal(Functions.of(X, None)(X)))  # instruments that are in X too
        self.first_stage_: list[FirstStage] = first_stages(X, exogenous, Q, phi[:, of_z.of_columns(theirs)])
        warn_of_weakness(self.first_stage_, type(self).__name__)
        self.centre_, self.scale_ = float(y.mean()), float(y.std()) or 1.0
        target = (y - self.centre_) / self.scale_
        if self.structural == "network":
            return self._fit_network(X, target, Z, phi)
        self.functions_ = Functions.of(X, 2 * most if smooth else None)
        psi = self.functions_(X)
        if self.method == "control" and not exogenous.all():
            self._fit_control(psi, target, self._unexplained(X[:, ~exogenous], phi))
        else:
            self._fit_ridge(psi, target, self._averages(X, y, Z, Q))
        return self if smooth else self._straight(X, y, Q)

    def _require_settings(self) -> None:
        owner = type(self).__name__
        require_choice("structural", owner, self.structural, STRUCTURES)
        require_choice("method", owner, self.method, METHODS)
        for name, least in {"components": 1, "width": 1}.items():
            require_integer(name, owner, getattr(self, name), least)
        if self.alpha != 0:
            require_positive("alpha", owner, self.alpha, optional=True)
        if not isinstance(self.conditional, Conditional):
            require_choice("conditional", owner, self.conditional, ("joint", *CONDITIONALS[:3]))
        if self.method == "control" and (self.structural == "network" or self.conditional != "joint"):
            raise ValueError(
                f"`method` of {owner} is 'control', which takes `structural` 'linear' or 'kernel' and `conditional` "
                f"'joint'. Got {self.structural!r} and {self.conditional!r}; leave `method` at 'moments'."
            )

    def _instruments(self, Z: Any, X: np.ndarray) -> np.ndarray:
        Z = check_array(Z, dtype=np.float64, input_name="Z", ensure_2d=False)
        Z = Z[:, None] if Z.ndim == 1 else Z
        check_consistent_length(X, Z)
        return np.asarray(Z)

    def _require_enough(self, X: np.ndarray, exogenous: np.ndarray, Q: np.ndarray, smooth: bool) -> None:
        """A linear h needs an instrument for each column."""
        moved = int((~exogenous).sum())
        spare = Q.shape[1] - 1 - np.linalg.matrix_rank(X[:, exogenous] - X[:, exogenous].mean(axis=0))
        if not smooth and spare < moved:
            raise ValueError(
                f"`Z` of {type(self).__name__} must hold, beside the columns of X that are exogenous, at least one "
                f"instrument for each of the other {moved}. Got {max(spare, 0)}; add instruments, or put exogenous "
                "columns of X into Z too."
            )

    def _fit_control(self, psi: np.ndarray, target: np.ndarray, rest: np.ndarray) -> None:
        """One regression on the functions of X and, without penalty, on what the instruments leave of its columns.

        The functions have the penalty of plain regression, for which shocks are noise: where the rest explains nearly
        all, cross-validation would smooth hardly at all, and h err where few rows are.
        """
        size = np.where(rest.std(axis=0) > 0, rest.std(axis=0), 1.0)
        self._fit_ridge(psi, target, None)
        self._fit_ridge(np.column_stack([psi, UNPENALISED * rest / size]), target, None, self.alpha_)
        functions = psi.shape[1]
        self.shock_ = self.scale_ * UNPENALISED * self.weights_[functions:] / size
        self.weights_ = self.weights_[:functions]

    def _unexplained(self, moved: np.ndarray, phi: np.ndarray) -> np.ndarray:
        """X - E[X | Z] at the rows: smooth conditional means have the penalty that cross-validation chooses."""
        if self.structural == "linear":
            return unexplained(orthonormal(phi), moved)
        left = []
        for column in moved.T:
            path = Ridge.of(phi, column, len(column), float(len(column)))
            alpha = float(min(PENALTIES, key=path.cross_validation))
            left.append(path.r - path.A @ path.weights(alpha))
        return np.column_stack(left)

    def _averages(self, X: np.ndarray, y: np.ndarray, Z: np.ndarray, Q: np.ndarray) -> Any:
        """A matrix: rows to conditional means at the instruments, up to a rotation; None where these are the rows."""
        if Z is X:
            return None
        if self.conditional == "joint":
            return Q.T
        seen = np.column_stack([X, y])
        fitted = make_conditional(self.conditional, type(self).__name__).fit(Z, seen, self.seed_)
        weights = fitted.weights(Z, own=np.arange(len(Z)))
        return weights if fitted.n_rows_ == len(Z) else _spread(weights, fitted.rows_, len(Z))

    def _fit_ridge(self, psi: np.ndarray, target: np.ndarray, averages: Any, alpha: float | None = None) -> None:
        A, r = (psi, target) if averages is None else (averages @ psi, averages @ target)
        means = len(target) if averages is None else averages.power(2).sum() if sparse.issparse(averages) else len(r)
        path = Ridge.of(np.asarray(A), np.asarray(r), len(target), float(means))
        alpha = self.alpha if alpha is None else alpha
        if alpha is None:
            smooth = self.structural == "kernel"
            alpha = float(min(PENALTIES, key=path.cross_validation)) if smooth else 0.0
        self.alpha_ = float(alpha)
        rest = path.weights(self.alpha_)
        one = np.asarray(A)[:, 0]
        first = one @ (np.asarray(r) - np.asarray(A)[:, 1:] @ rest) / (one @ one)
        self.weights_ = np.concatenate([[first], rest])

    def _straight(self, X: np.ndarray, y: np.ndarray, Q: np.ndarray) -> IVRegressor:
        """Coefficients in the units of the columns, and their standard errors."""
        functions = self.functions_
        self._tell()
        if self.method == "moments" and self.conditional == "joint" and self.alpha_ == 0:
            scaled = functions(X)
            errors = standard_errors(scaled, Q, y - self._values(X))
            self.stderr_, self.robust_stderr_ = (each[1:] / functions.width for each in errors)
        return self

    def _tell(self) -> None:
        self.coef_ = self.scale_ * self.weights_[1:] / self.functions_.width
        self.intercept_ = float(self.centre_ + self.scale_ * self.weights_[0] - self.coef_ @ self.functions_.low)

    def _fit_network(self, X: np.ndarray, target: np.ndarray, Z: np.ndarray, phi: np.ndarray) -> IVRegressor:
        """`solve` on the problem of the application: in functions of the instrument, or with weights on rows."""
        self.alpha_ = NETWORK_PENALTY if self.alpha is None else float(self.alpha)
        self.functions_ = Functions.of(X, None)
        scaled = self.functions_(X)[:, 1:]
        if self.conditional == "joint" or Z is X:
            basis = Basis("functions of the instrument", lambda z: Given(lambda each: each), redundant=True)
            problem = reduced(pairs(network, Observed(scaled, target, phi), self.alpha_), basis)
        else:
            joint = pairs(network, Observed(scaled, target, Z), self.alpha_)
            problem = with_conditional(joint, self.conditional, random_state=self.seed_)
        start = first_network(X.shape[1], self.width, random.key(self.seed_))
        self.solved_ = solve(problem, start, key=random.key(self.seed_), tol=3e-3, progress=False)
        self.weights_ = jax.tree.map(np.asarray, self.solved_.x)
        return self

    def _kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Standard errors and first stages belong to the fit: they are not kept."""
        functions, weights = self.functions_, self.weights_
        arrays = {"low": functions.low, "width": functions.width}
        arrays |= weights if isinstance(weights, dict) else {"weights": weights}
        many = 0 if functions.which is None else len(functions.which)
        return {"functions": many, "alpha": self.alpha_, "centre": self.centre_, "scale": self.scale_}, arrays

    def _shapes(self, fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        d, shapes = self.n_features_in_, {"low": (self.n_features_in_,), "width": (self.n_features_in_,)}
        if self.structural == "network":
            return shapes | {k: a.shape for k, a in first_network(d, self.width, random.key(0)).items()}
        return shapes | {"weights": (fitted["functions"] if self.structural == "kernel" else 1 + d,)}

    def _restore(self, fitted: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> None:
        many = fitted["functions"]
        require((many > 0) == (self.structural == "kernel"), path, "fitted.functions", "those of a kernel", many)
        low, width = arrays.pop("low"), arrays.pop("width")
        require_above_zero(path, "width", width)
        self.functions_ = Functions(low, width, leading(self.n_features_in_, many) if many else None)
        self.alpha_, self.centre_, self.scale_ = fitted["alpha"], fitted["centre"], fitted["scale"]
        self.weights_ = arrays if self.structural == "network" else arrays["weights"]
        if self.structural == "linear":
            self._tell()

    def predict(self, X: Any) -> np.ndarray:
        """h(X): what y is on average where X is set, not merely seen."""
        check_is_fitted(self, "weights_")
        return self._values(validate_data(self, X, reset=False, dtype=np.float64))

    def _values(self, X: np.ndarray) -> np.ndarray:
        if self.structural == "network":
            scaled = jnp.asarray(self.functions_(X)[:, 1:], float)
            value = np.asarray(jax.vmap(network, (None, 0))(self.weights_, scaled), np.float64)
        else:
            value = self.functions_(X) @ self.weights_
        return np.asarray(self.centre_ + self.scale_ * value)


def first_network(columns: int, width: int, key: Any) -> dict[str, jax.Array]:
    """A straight line of zero, and tanh units of random directions whose weights are zero."""
    key_w, key_b = random.split(key)
    return {
        "line": jnp.zeros(columns, float),
        "constant": jnp.zeros((), float),
        "directions": random.normal(key_w, (width, columns), float) / np.sqrt(columns),
        "shifts": random.normal(key_b, (width,), float),
        "heights": jnp.zeros(width, float),
    }


def network(x: dict[str, jax.Array], z: jax.Array) -> jax.Array:
    """A straight line and one hidden layer."""
    hidden = jnp.tanh(x["directions"] @ z + x["shifts"])
    value: jax.Array = x["constant"] + x["line"] @ z + x["heights"] @ hidden
    return value


def _spread(weights: Any, columns: np.ndarray, n: int) -> Any:
    """Weights on some rows as weights on all."""
    place = sparse.csr_matrix((np.ones(len(columns)), (np.arange(len(columns)), columns)), shape=(len(columns), n))
    return weights @ place
