"""`RobustNewsvendor`: orders from side information, robust to contexts that move (eq. 10-11).

What needs JAX is imported where it is used: a model that was read from a folder gives orders without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bilevelax.applications.newsvendor.padding import LEAST_ROWS
from bilevelax.applications.newsvendor.prepare import WeightedDemands, problem_rows
from bilevelax.applications.newsvendor.stored_rules import STORED_RULES, stored_orders
from bilevelax.sklearn._candidate import BLEND
from bilevelax.sklearn._kept import KeepsRows
from bilevelax.sklearn._scored import CostColumn, ScoredByCost, costs_of
from bilevelax.tables.columns import OWNER, dtypes_of, move_scales, names_of

if TYPE_CHECKING:
    from bilevelax.core.problem import Problem, X
    from bilevelax.sklearn._training import Training

WITHOUT_JAX = 2**15  # rows; a rule orders for ten times as many in a second by JAX as by NumPy


class RobustNewsvendor(KeepsRows, ScoredByCost, RegressorMixin, BaseEstimator):
    r"""Orders that stay good when contexts move: Wasserstein DRO with side information.

    .. math::
        \min_\pi E_\xi \max_y E_{\eta|\xi} [ l(\pi(y), \eta) - \lambda |y - \xi|^2 ], \quad
        l(w, \eta) = h (w - \eta)^+ + b (\eta - w)^+

    ``fit`` learns the rule pi from past contexts X and demands y, ``predict`` gives orders.

    Args:
        holding_cost, backlog_cost: h and b per unit; a number or one for each output. Costs that differ from
            row to row are a column of X, ``CostColumn(3)``, where they are known when ordering; else give them to
            ``fit``.
        penalty: lambda, the price of moving a context by one standard deviation of a column, in
            units of (h + b) times the standard deviation of demand. Small is cautious,
            ``inf`` is no robustness; ``"auto"`` chooses by validation cost, among few values; ``"cv"``
            tries a path from inf to 0.03, each value started at the policy of the one before.
        ambiguity: what the adversary may do: ``"wasserstein"``, move each context; ``"entropic"``, tilt
            noise around it (a Sinkhorn ball); None, nothing; ``"auto"``, the first.
        noise: standard deviation of the entropic adversary's noise, in those of the columns.
        perturb: which columns the adversary may move, and how far: ``"auto"`` (columns with more
            than 12 different values), ``"all"``, ``"none"``, a dtype, names or numbers, a mask,
            factors of the standard deviation, or a dict {name: factor}.
        policy: ``"mlp"``, ``"soft_forest"`` (trees of oblique soft splits), ``"linear"``, a function (columns,
            outputs, key) -> equinox module; ``"auto"`` is the first.
        conditional: how P(demand | context) is estimated: ``"forest"``, ``"knn"``, ``"kernel"``,
            ``"groups"``, ``"dirac"`` (the rows as they are: any structure that the policy can
            find), an object of `bilevelax.sklearn.conditional`, or ``"auto"``: forest or dirac.
        estimator: how gradients are estimated: ``"auto"`` (exact expectations over the atoms, the
            adversary takes ``ascent_steps`` gradient steps), ``"rt_mlmc"``, ``"dl_sgd"``, ``"saa"``,
            or a `bilevelax.Estimator`.
        n_atoms: demands that stand for the distribution at each context.
        members: independent rules whose mean is the order.
        smoothing: of the loss, in units of 1 / standard deviation of demand; costs that are
            reported are never smoothed.
        max_iter: steps; None: 800 for up to 1,000 rows, up to 2,400 for more.
        batch_size, ascent_steps: of the training.
        learning_rate, weight_decay: of AdamW; "auto": 0.003 and 1, and 0.01 and no decay for a linear rule.
        early_stopping: choose the number of steps, too, by the true cost on held-out rows, ``patience``
            looks without progress, then train on all rows for as long. Few held-out rows stop too early:
            the demands of the conditional are smooth already, and more steps rarely harm.
        cv: what is held out to choose. None: the last ``validation_fraction`` of the rows, for ``"auto"`` also
            as many before them; a number of folds of `TimeSeriesSplit`, a scikit-learn splitter, or a list of (train,
            held) row numbers. Rows must be in the order of time.
        fallback: where something is chosen, a baseline, or the mean of the forest's orders and the rule's, may order
            instead: the cheapest on the rows held out, or a simpler one that these rows cannot tell from it.
        calibrate: where something is chosen, shift orders so that they cover demand as often as they should.
        random_state: seed.
        verbose: show a progress bar.

    Attributes:
        chosen_: policy, conditional, ambiguity, penalty and noise; ``tried_`` has the validation cost of each choice.
        fallback_: name of what orders instead, or None; ``baseline_costs_``, those on the rows held out.
        service_target_, service_achieved_: share of days, for each output, on which demand should be covered, and was
            on held-out days with the correction ``shift_`` from days before; nan where nothing was held out.
            ``service_before_`` is the share without correction.
        penalty_: the penalty used; ``path_`` has the validation cost of each one tried.
        least_penalty_: the least penalty under which the adversary's problem is strongly concave
            around the rows; a smaller one that was given gets a warning.
        n_iter_, loss_curve_, validation_curve_, converged_: of the training.
        conditional_: the fitted conditional distribution.
        policy_: the rule as an equinox module (members stacked), in standardised units.
        problem_, settings_: ``bilevelax.minimize(problem_, **settings_).x`` are the arrays of ``policy_``.
    """

    def __init__(
        self,
        holding_cost: Any = 1.0,
        backlog_cost: Any = 3.0,
        *,
        penalty: Any = "auto",
        ambiguity: Any = "auto",
        noise: float = 0.2,
        perturb: Any = "auto",
        policy: Any = "auto",
        conditional: Any = "auto",
        estimator: Any = "auto",
        n_atoms: int = 64,
        members: int = 4,
        smoothing: float = 20.0,
        max_iter: int | None = None,
        batch_size: int = 64,
        learning_rate: Any = "auto",
        weight_decay: Any = "auto",
        ascent_steps: int = 4,
        early_stopping: bool = False,
        cv: Any = None,
        validation_fraction: float = 0.2,
        patience: int = 3,
        fallback: bool = True,
        calibrate: bool = True,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.penalty = penalty
        self.ambiguity = ambiguity
        self.noise = noise
        self.perturb = perturb
        self.policy = policy
        self.conditional = conditional
        self.estimator = estimator
        self.n_atoms = n_atoms
        self.members = members
        self.smoothing = smoothing
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.ascent_steps = ascent_steps
        self.early_stopping = early_stopping
        self.cv = cv
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.fallback = fallback
        self.calibrate = calibrate
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, holding_cost: Any = None, backlog_cost: Any = None
    ) -> RobustNewsvendor:
        """Learn the rule.

        Args:
            X: contexts (rows, columns), numbers; in the order of time.
            y: demand (rows,) or (rows, outputs).
            sample_weight: how often each row counts.
            holding_cost, backlog_cost: per row (and output), instead of those of the constructor.
        """
        import jax

        from bilevelax.sklearn._learning import learn_newsvendor
        from bilevelax.sklearn._settings import check_settings

        check_settings(self)
        names, dtypes = names_of(X), dtypes_of(X)
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if np.any(weights < 0) or not np.any(weights > 0):
            raise ValueError(
                f"`sample_weight` of {OWNER} must be >= 0 and not all 0. Got a least one of {weights.min():g}."
            )
        self.move_scales_ = move_scales(self.perturb, X, names, dtypes)
        self.move_scales_[self._cost_columns()] = 0.0  # nobody is unsure of a cost
        self._flat = y.ndim == 1
        y = np.asarray(y, np.float64).reshape(len(y), -1)
        self.n_outputs_ = y.shape[1]
        holding, backlog = costs_of(self, X, self.n_outputs_, holding_cost, backlog_cost)
        self.nonnegative_ = bool(np.all(y >= 0))
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        sample = WeightedDemands(X, y, holding, backlog, weights).take(slice(None) if weights.all() else weights > 0)
        plain = holding_cost is None and backlog_cost is None and np.ptp(weights) == 0
        lessons = learn_newsvendor(self, sample, plain)
        learned, self._candidate, self._steps = lessons.learned, lessons.candidate, lessons.steps
        self.chosen_ = lessons.candidate.told()
        self.tried_ = [each.candidate.told() | {"steps": each.steps, "cost": each.cost} for each in lessons.tried]
        self.shift_, self.service_target_, self.service_before_, self.service_achieved_ = lessons.calibration
        self.fallback_, self.baseline_costs_ = lessons.fallback, lessons.rivals
        self._kept = (X, y) if lessons.fallback else None
        self._baseline = None
        self.penalty_, self.n_iter_, self.path_, self.validation_curve_, self.converged_ = learned.choice
        self.prepared_, self._rows = learned.lesson.prepared, learned.rows._asdict()
        self.conditional_ = self.prepared_.conditional
        self._arrays = [np.asarray(a) for a in jax.tree.leaves(learned.done.x)]
        self.loss_curve_ = [row["train"] for row in learned.done.history]
        return self

    def _cost_columns(self) -> list[int]:
        return [each.number for each in (self.holding_cost, self.backlog_cost) if isinstance(each, CostColumn)]

    def _training(self) -> Training:
        """What the settings come to, as chosen."""
        from bilevelax.sklearn._settings import training_of

        return training_of(self, self._candidate, self._steps)

    @property
    def problem_(self) -> Problem:
        """What was minimised last: all training rows under ``penalty_``."""
        from bilevelax.applications.newsvendor.rows import Rows

        return self._training().problem(Rows(**self._rows))

    @property
    def settings_(self) -> dict[str, Any]:
        """The other arguments of `bilevelax.minimize` for that."""
        how = self._training()
        return {
            **{name: getattr(how, name) for name in ("estimator", "optimizer", "every", "x1", "key")},
            "T": self.n_iter_,
        }

    @property
    def policy_(self) -> Any:
        import equinox as eqx

        check_is_fitted(self, "loss_curve_")
        return eqx.combine(*self._rule())

    @property
    def least_penalty_(self) -> float:
        """See the class; a lower bound of it, from the curvature around 64 training rows."""
        from bilevelax.sklearn._curvature import least_penalty

        check_is_fitted(self, "loss_curve_")
        how = self._training()
        return least_penalty(how.losses, self._rows, how.scales, self.penalty_, self._rule()[0], how.key)

    def _rule(self) -> tuple[X, Any]:
        """(x, what the rules share) as fitted; first rules are drawn for a policy of the user only."""
        import jax

        from bilevelax.applications.newsvendor.policies import make_policy, members_of, shape_of_members

        policy, shape = self._candidate.policy, (self.n_features_in_, self.n_outputs_)
        if isinstance(policy, str):
            structure, static = shape_of_members(make_policy(policy, OWNER), *shape)
        else:
            x1, static = members_of(make_policy(policy, OWNER), *shape, 1, self.seed_)
            structure = jax.tree.structure(x1)
        return jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in self._arrays]), static

    def _contexts(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "loss_curve_")
        return validate_data(self, X, reset=False, dtype=np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """Orders (rows,) or (rows, outputs); never negative where demand never was."""
        X = self._contexts(X)
        parts = [self._instead().predict(X).reshape(len(X), -1)] if self.fallback_ else []
        if self.fallback_ in (None, BLEND):
            parts.append(self.prepared_.demands.back(self._standardised_orders(X)))
        orders = sum(parts) / len(parts) + self.shift_
        if not np.isfinite(orders).all():
            row = int(np.argmin(np.isfinite(orders).all(axis=1)))
            raise ValueError(
                f"Orders of {OWNER} must be finite. Got {orders[row].tolist()} in row {row + 1}: the numbers of the "
                "model are too large, so train it again."
            )
        orders = np.maximum(orders, 0.0) if self.nonnegative_ else orders
        return orders[:, 0] if self._flat else orders

    def _standardised_orders(self, X: np.ndarray) -> np.ndarray:
        """A named rule in NumPy, which needs no program; a user's own, and more rows than a program costs, by JAX."""
        policy = self._candidate.policy
        if isinstance(policy, str) and policy in STORED_RULES and len(X) <= WITHOUT_JAX:
            return stored_orders(STORED_RULES[policy], self._arrays, self.prepared_.contexts, X)
        from bilevelax.applications.newsvendor.orders import orders

        x, static = self._rule()
        return orders(static, x, self.prepared_.contexts, X)

    def worst_case_contexts(self, X: Any) -> np.ndarray:
        """Where the adversary moves each context: y* of eq. (11), in the units of X.

        The mean over members. Columns that may not move are as in X. A model that was read from a folder fits the
        distribution of demand again, on the training rows that the folder keeps.
        """
        from bilevelax.sklearn._moved import moves_of

        X = self._contexts(X)
        how, shape = self._training(), (len(X), self.n_outputs_)
        holding, backlog = costs_of(self, X, self.n_outputs_)
        sample = WeightedDemands(X, np.zeros(shape), holding, backlog, np.ones(len(X)))
        rows = problem_rows(self._with_conditional(), sample, how.n_atoms, how.together, how.seed, None, LEAST_ROWS)
        rows = how.under(rows, self.penalty_)
        way = moves_of(how, rows, self._rule()[0], float(self.smoothing))[: len(X)]
        return X + self.prepared_.contexts.scale * way
