"""`RobustNewsvendor`: orders from side information, robust to contexts that move (eq. 10-11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bilevelax.errors import require_integer, require_positive
from bilevelax.problem import Problem, X
from bilevelax.sklearn import _problem, _training
from bilevelax.sklearn._columns import dtypes_of, move_scales, names_of
from bilevelax.sklearn._curvature import least_penalty, warn_of_curvature
from bilevelax.sklearn._orders import mean_cost
from bilevelax.sklearn._orders import orders as orders_of
from bilevelax.sklearn._prepare import OWNER, Prepared, Sample, prepare, problem_rows, warn_of_few
from bilevelax.sklearn._search import EVERY, PATH, Choice, Fold, search, splits_of, warn_of_no_choice
from bilevelax.sklearn.costs import ScoredByCost, cost_array
from bilevelax.sklearn.policies import make_policy, members_of

CONTEXTS = 100_000  # rows of the problem; of more, a random subsample
LOOKED = 20_000  # rows, evenly spaced, whose costs make the curves and choose steps and penalty
ANSWER_STEPS = 50  # of the adversary in `worst_case_contexts`


class RobustNewsvendor(ScoredByCost, RegressorMixin, BaseEstimator):
    r"""Orders that stay good when contexts move: Wasserstein DRO with side information.

    .. math::
        \min_\pi E_\xi \max_y E_{\eta|\xi} [ l(\pi(y), \eta) - \lambda |y - \xi|^2 ], \quad
        l(w, \eta) = h (w - \eta)^+ + b (\eta - w)^+

    ``fit`` learns the rule pi from past contexts X and demands y, ``predict`` gives orders.

    Args:
        holding_cost, backlog_cost: h and b per unit; a number or one for each output. For costs
            that differ from row to row give them to ``fit``.
        penalty: lambda, the price of moving a context by one standard deviation of a column, in
            units of (h + b) times the standard deviation of demand. Small is cautious,
            ``inf`` is no robustness; ``"cv"`` tries a path from inf to 0.03, each value started at
            the policy of the one before, and keeps the one with the least validation cost.
        perturb: which columns the adversary may move, and how far: ``"auto"`` (columns with more
            than 12 different values), ``"all"``, ``"none"``, a dtype, names or numbers, a mask,
            factors of the standard deviation, or a dict {name: factor}.
        policy: ``"mlp"``, ``"linear"``, or a function (columns, outputs, key) -> equinox module.
        conditional: how P(demand | context) is estimated: ``"forest"``, ``"knn"``, ``"kernel"``,
            ``"groups"``, ``"dirac"``, or an object of `bilevelax.sklearn.conditional`.
        estimator: how gradients are estimated: ``"auto"`` (exact expectations over the atoms, the
            adversary takes ``ascent_steps`` gradient steps), ``"rt_mlmc"``, ``"dl_sgd"``, ``"saa"``,
            or a `bilevelax.Estimator`.
        n_atoms: demands that stand for the distribution at each context.
        members: independent rules whose mean is the order.
        smoothing: of the loss, in units of 1 / standard deviation of demand; costs that are
            reported are never smoothed.
        max_iter, batch_size, learning_rate, weight_decay, ascent_steps: of the training.
        early_stopping: choose the number of steps, too, by the true cost on held-out rows, ``patience``
            looks without progress, then train on all rows for as long. Few held-out rows stop too early:
            the demands of the conditional are smooth already, and more steps rarely harm.
        cv: what is held out to choose the penalty (and steps). None: the last ``validation_fraction`` of the
            rows; a number of folds of `TimeSeriesSplit`, a scikit-learn splitter, or a list of (train,
            held) row numbers. Rows must be in the order of time.
        random_state: seed.
        verbose: show a progress bar.

    Attributes:
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
        penalty: Any = 0.3,
        perturb: Any = "auto",
        policy: Any = "mlp",
        conditional: Any = "forest",
        estimator: Any = "auto",
        n_atoms: int = 64,
        members: int = 4,
        smoothing: float = 20.0,
        max_iter: int = 800,
        batch_size: int = 64,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.1,
        ascent_steps: int = 4,
        early_stopping: bool = False,
        cv: Any = None,
        validation_fraction: float = 0.2,
        patience: int = 3,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.penalty = penalty
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
        self._check_settings()
        names, dtypes = names_of(X), dtypes_of(X)
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if np.any(weights < 0) or not np.any(weights > 0):
            raise ValueError(
                f"`sample_weight` of {OWNER} must be >= 0 and not all 0. Got a least one of {weights.min():g}."
            )
        self.move_scales_ = move_scales(self.perturb, X, names, dtypes)
        self._flat = y.ndim == 1
        y = np.asarray(y, np.float64).reshape(len(y), -1)
        self.n_outputs_ = y.shape[1]
        given = [(holding_cost, self.holding_cost), (backlog_cost, self.backlog_cost)]
        costs = [
            cost_array(default if row is None else row, name, OWNER, *y.shape)
            for name, (row, default) in zip(("holding_cost", "backlog_cost"), given, strict=True)
        ]
        self.nonnegative_ = bool(np.all(y >= 0))
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._train(Sample(X, y, costs[0], costs[1], weights).take(slice(None) if weights.all() else weights > 0))
        return self

    def _check_settings(self) -> None:
        for name, least in (("n_atoms", 1), ("members", 1), ("max_iter", 1), ("batch_size", 1), ("patience", 1)):
            require_integer(name, OWNER, getattr(self, name), least)
        require_integer("ascent_steps", OWNER, self.ascent_steps, 0)
        for name in ("smoothing", "learning_rate"):
            require_positive(name, OWNER, getattr(self, name))
        if self.penalty != "cv" or not isinstance(self.penalty, str):
            require_positive("penalty", OWNER, self.penalty, infinite=True)

    def _train(self, sample: Sample) -> None:
        penalties = PATH if isinstance(self.penalty, str) else (float(self.penalty),)
        least = _problem.bucket(min(len(sample.y), CONTEXTS))  # one program for folds and all rows
        splits = splits_of(self.cv, self.validation_fraction, sample.X)
        choice = Choice(penalties[0], self.max_iter, {}, [], True)
        if not splits and len(penalties) > 1:
            warn_of_no_choice(len(sample.y))
        if splits and (self.early_stopping or len(penalties) > 1):
            folds = [self._fold(sample.take(train), sample.take(held), least) for train, held in splits]
            choice = search(folds, penalties, self._first(), self._try, self.max_iter, self.early_stopping)
        self.penalty_, self.n_iter_, self.path_, self.validation_curve_, self.converged_ = choice
        self.prepared_ = prepare(sample, self.conditional, self.seed_)
        self.conditional_ = self.prepared_.conditional
        warn_of_few(self.conditional_, sample.X)
        rows = self._rows_of(self.prepared_, sample, least)
        self._rows = _problem.with_penalty(rows, self.move_scales_, self.penalty_)._asdict()
        cost = self._costs(self.prepared_, train=sample)
        done = _training.train(self.problem_, self._first(), self._key(), self._settings(self.n_iter_), cost)
        self._arrays = [np.asarray(a) for a in jax.tree.leaves(done.x)]
        self.loss_curve_ = [row["train"] for row in done.history]
        if not isinstance(self.penalty, str) and np.isfinite(self.penalty_):
            warn_of_curvature(self.least_penalty_, self.penalty_)

    def _rows_of(self, prepared: Prepared, sample: Sample, least: int, known: bool = True) -> _problem.Rows:
        """At most `CONTEXTS` of the rows, chosen at random, as data of the problem."""
        own = np.arange(len(sample.X))
        if known and len(own) > CONTEXTS:
            own = np.sort(np.random.default_rng(self.seed_).choice(own, CONTEXTS, replace=False))
            sample = sample.take(own)
        together = self.estimator == "auto"
        return problem_rows(prepared, sample, self.n_atoms, together, self.seed_, own if known else None, least)

    def _fold(self, train: Sample, held: Sample, least: int) -> Fold:
        prepared = prepare(train, self.conditional, self.seed_)
        return Fold(prepared, self._rows_of(prepared, train, least), train, held)

    def _try(self, fold: Fold, penalty: float, number: int, x: X, T: int) -> _training.Trained:
        """Train on a fold under the path's penalty of that number."""
        rows = _problem.with_penalty(fold.rows, self.move_scales_, penalty)
        problem = _problem.newsvendor_problem(self._losses(), rows)
        cost = self._costs(fold.prepared, train=fold.train, validation=fold.held)
        patience = self.patience if self.early_stopping else 0
        return _training.train(problem, x, random.fold_in(self._key(), number), self._settings(T), cost, patience)

    def _costs(self, prepared: Prepared, **samples: Sample) -> Callable[[X], dict[str, float]]:
        """x -> mean true cost of a row, for each sample."""
        few = {name: sample.thinned(LOOKED) for name, sample in samples.items()}
        return lambda x: {name: mean_cost(self._static(), x, prepared, sample) for name, sample in few.items()}

    def _key(self) -> Any:
        return random.key(self.seed_)

    def _members(self) -> tuple[X, Any]:
        factory = make_policy(self.policy, OWNER)
        return members_of(factory, self.n_features_in_, self.n_outputs_, self.members, self.seed_)

    def _first(self) -> X:
        return self._members()[0]

    def _static(self) -> Any:
        return self._members()[1]

    def _losses(self) -> _problem.Losses:
        return _problem.losses_of(self._static(), float(self.smoothing))

    def _settings(self, T: int) -> _training.Settings:
        return _training.Settings(
            _training.make_estimator(self.estimator, self.batch_size, self.ascent_steps, OWNER),
            _training.make_optimizer(self.learning_rate, self.max_iter, self.weight_decay),
            min(self.max_iter, EVERY),
            T,
            bool(self.verbose),
        )

    @property
    def problem_(self) -> Problem:
        """What was minimised last: all training rows under ``penalty_``."""
        return _problem.newsvendor_problem(self._losses(), _problem.Rows(**self._rows))

    @property
    def settings_(self) -> dict[str, Any]:
        """The other arguments of `bilevelax.minimize` for that."""
        made = self._settings(self.n_iter_)
        kept = {name: getattr(made, name) for name in ("estimator", "optimizer", "every", "T")}
        return {**kept, "x1": self._first(), "key": self._key()}

    @property
    def policy_(self) -> Any:
        check_is_fitted(self, "loss_curve_")
        return eqx.combine(self._x(), self._static())

    @property
    def least_penalty_(self) -> float:
        """See the class; a lower bound of it, from the curvature around 64 training rows."""
        check_is_fitted(self, "loss_curve_")
        return least_penalty(self._losses(), self._rows, self.move_scales_, self.penalty_, self._x(), self._key())

    def _x(self) -> X:
        return jax.tree.unflatten(jax.tree.structure(self._first()), [jnp.asarray(a) for a in self._arrays])

    def predict(self, X: Any) -> np.ndarray:
        """Orders (rows,) or (rows, outputs); never negative where demand never was."""
        check_is_fitted(self, "loss_curve_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        scales = self.prepared_
        orders = scales.demands.back(orders_of(self._static(), self._x(), scales.contexts, X))
        orders = np.maximum(orders, 0.0) if self.nonnegative_ else orders
        return orders[:, 0] if self._flat else orders

    def worst_case_contexts(self, X: Any) -> np.ndarray:
        """Where the adversary moves each context: y* of eq. (11), in the units of X.

        The mean over members. Columns that may not move are as in X.
        """
        check_is_fitted(self, "loss_curve_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        shape = (len(X), self.n_outputs_)
        holding = cost_array(self.holding_cost, "holding_cost", OWNER, *shape)
        backlog = cost_array(self.backlog_cost, "backlog_cost", OWNER, *shape)
        sample = Sample(X, np.zeros(shape), holding, backlog, np.ones(len(X)))
        rows = self._rows_of(self.prepared_, sample, _problem.LEAST_ROWS, known=False)
        rows = _problem.with_penalty(rows, self.move_scales_, self.penalty_)
        problem = _problem.newsvendor_problem(self._losses(), rows)
        y = np.asarray(_training.answers(problem, self._x(), ANSWER_STEPS)).mean(axis=1)[: len(X)]
        return X + self.prepared_.contexts.scale * np.asarray(rows.reach) * y
