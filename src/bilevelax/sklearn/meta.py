"""Classifiers that adapt to a task or a client from a shared centre (eq. 9)."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import optax
from jax import random
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.applications._softmax import centre, proximal_problem
from bilevelax.applications.personalized_fl import ClientRows
from bilevelax.base.errors import require_choice, require_integer, require_package, require_positive, require_share
from bilevelax.core.estimate import Estimator
from bilevelax.core.inverse import default_N, none
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Problem
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.run.minimize import minimize
from bilevelax.sklearn._adapting import Adapted, adapted, adapted_as_learned, features_of
from bilevelax.sklearn._clients import clients_of, labels_of, require_short, rows_of, stored, tasks_of
from bilevelax.sklearn._personal_fit import Fitting, learn

LEARNED = "learned"
STEPS, STEPS_LEARNED = 300, 60  # defaults of max_iter
_NO_INVERSE = none()  # one for all fits, which share programs
MANY_TERMS = 2000  # of a Neumann series: beyond, a fit takes minutes


class MetaClassifier(ClassifierMixin, BaseEstimator):
    r"""Softmax regression that adapts to each task or client from what all of them share (eq. 9).

    .. math::
        \min_x E_i \, l(y_i^*(x), D^{test}_i), \quad
        y_i^*(x) = \arg\min_y l(y, D^{train}_i) + \tfrac{1}{2 n_i} |y - m_i(x)|^2_{\Lambda(x)}

    By default everything of the adapting is learned: the centre, the penalties, how much of a task's class means is in
    m_i, and how rare labels are that a task has not shown. Tasks that are kept back choose and stop. With a number for
    ``lam`` the penalty is :math:`\tfrac{\lambda}{2} |y - x|^2` and only the centre is learned; the last
    ``test_fraction`` of a task's rows are then its test part. Every task is equally likely.
    `save` and `load` write and read a folder, without pickle.

    Args:
        lam: "learned", or how much an adapted classifier is held at the centre.
        norm: length to which every row is scaled; None leaves them alone.
        fit_intercept: a constant beside the scaled columns.
        test_fraction: share of each task's rows for the upper level, at least one.
        K: deepest level of RT-MLMC; of a fixed lam only.
        max_iter: steps of Adam; by default 60, and 300 for a fixed lam.
        batch_size, learning_rate: tasks per step (spread evenly over all), and step of Adam.
        random_state: seed.
        verbose: show a progress bar, for a fixed lam.
    """

    _moreau = False

    def __init__(
        self,
        lam: float | str = "learned",
        *,
        norm: float | None = 5.0,
        fit_intercept: bool = True,
        test_fraction: float = 0.25,
        K: int = 4,
        max_iter: int | None = None,
        batch_size: int = 16,
        learning_rate: float = 3e-2,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.lam = lam
        self.norm = norm
        self.fit_intercept = fit_intercept
        self.test_fraction = test_fraction
        self.K = K
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, groups: Any = None) -> MetaClassifier:
        """Learn the centre from rows X with labels y; ``groups`` says to which task each row belongs.

        Without groups all rows are one task.
        """
        owner = type(self).__name__
        self._require_settings(owner)
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        require_short(X, owner)
        self.classes_, labels = labels_of(y, owner)
        features = features_of(X, self.norm, self.fit_intercept)
        self.ids_, clients = clients_of(features, labels, groups, owner)
        self.tasks_ = stored(clients, None if self._moreau or self.lam == LEARNED else self.test_fraction)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        steps = self.max_iter or (STEPS_LEARNED if self.lam == LEARNED else STEPS)
        self._fit_learned(clients, steps) if self.lam == LEARNED else self._fit_fixed(features.shape[1], steps)
        return self

    def _require_settings(self, owner: str) -> None:
        if self.max_iter is not None:
            require_integer("max_iter", owner, self.max_iter, 1)
        if isinstance(self.lam, str):
            require_choice("lam", owner, self.lam, (LEARNED,))
        for name in ("lam", "norm", "learning_rate"):
            if not isinstance(getattr(self, name), str):
                require_positive(name, owner, getattr(self, name), optional=name == "norm")
        require_share("test_fraction", owner, self.test_fraction)

    def _fit_learned(self, clients: list[ClientRows], steps: int) -> None:
        folds = max(2, round(1 / self.test_fraction))
        parts = (len(self.classes_), self.fit_intercept, folds, steps, self.batch_size, self.learning_rate, self.seed_)
        done = learn(clients, Fitting(*parts))
        self.centre_, self.pooled_ = done.x["W"], done.pooled
        self.learned_, self.spread_ = done.x, done.spread
        self.n_iter_ = max(1, done.steps)

    def _fit_fixed(self, columns: int, steps: int) -> None:
        problem = self.problem_
        warn_of_cost(problem, type(self).__name__)
        result = minimize(
            problem,
            _estimator(self.K, self.batch_size),
            _optimizer(self.learning_rate, steps),
            centre(len(self.classes_), columns),
            key=random.key(self.seed_),
            T=steps,
            progress=bool(self.verbose),
        )
        self.centre_ = np.asarray(result.x["W"])
        self.n_iter_ = steps

    @property
    def problem_(self) -> Problem:
        """What was minimised, with a fixed lam."""
        self._require_rows()
        if self.lam == LEARNED:
            raise AttributeError("`problem_` belongs to a fixed `lam`; with lam='learned' see `learned_`.")
        problem = proximal_problem(tasks_of(self.tasks_), lam=float(self.lam), batch=8, owner=type(self).__name__)
        return problem.replace(f=problem.g, inverse=_NO_INVERSE) if self._moreau else problem

    def adapt(self, X_support: Any, y_support: Any, steps: int = 50) -> Adapted:
        """The classifier of a new task from a few labelled rows; at most ``steps`` Newton steps.

        Its ``converged`` says whether they were enough.
        """
        require_integer("steps", type(self).__name__, steps, 1)
        X = self._rows(X_support)
        check_consistent_length(X, y_support)
        require_short(X, type(self).__name__)
        return self._adapted(features_of(X, self.norm, self.fit_intercept), self._index(y_support), steps)

    def _adapted(self, rows: np.ndarray, labels: np.ndarray, steps: int = 50) -> Adapted:
        owner, like = type(self).__name__, self.centre_classifier()
        if self.lam == LEARNED:
            return adapted_as_learned(like, self.learned_, self.spread_, rows, labels, steps, owner)
        return adapted(like, float(self.lam), rows, labels, steps, owner)

    def save(self, folder: Any) -> Any:
        """Write what adapting and predicting need, without the rows: model.json and arrays.npz. Returns the folder."""
        from bilevelax.sklearn.persist_meta import save_meta

        check_is_fitted(self, "centre_")
        return save_meta(self, folder)

    @classmethod
    def load(cls, folder: Any) -> Any:
        """The model that `save` wrote; nothing is unpickled."""
        from bilevelax.sklearn.persist_meta import load_meta

        return load_meta(cls, folder)

    def _require_rows(self) -> None:
        check_is_fitted(self, "centre_" if not hasattr(self, "tasks_") else "tasks_")
        if not hasattr(self, "tasks_"):
            raise ValueError(
                f"This {type(self).__name__} was loaded without its clients' rows: give them to `adapt`, or fit again."
            )

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "centre_")
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _index(self, y: Any) -> np.ndarray:
        labels = np.searchsorted(self.classes_, np.asarray(y))
        labels = np.minimum(labels, len(self.classes_) - 1)
        if not np.all(self.classes_[labels] == np.asarray(y)):
            new = sorted(set(np.asarray(y).tolist()) - set(self.classes_.tolist()))
            raise ValueError(f"y holds labels that {type(self).__name__} was not fitted on: {new}.")
        return labels

    def centre_classifier(self) -> Adapted:
        """The centre itself, without adaptation; with a learned penalty the pooled model that it started from."""
        check_is_fitted(self, "centre_")
        W = self.pooled_ if self.lam == LEARNED else self.centre_
        return Adapted(self.classes_, W, self.norm, True, self.fit_intercept)

    def predict(self, X: Any) -> np.ndarray:
        """Labels by the centre, without adaptation; see `adapt`."""
        return self.centre_classifier().predict(self._rows(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities by the centre."""
        return self.centre_classifier().predict_proba(self._rows(X))

    def personalize(self, ids: Any) -> dict[Any, Adapted]:
        """The classifiers of these clients of the training data, each from its own training rows."""
        self._require_rows()
        made = {}
        for i in np.asarray(ids).tolist():
            at = np.flatnonzero(self.ids_ == i)
            if not at.size:
                raise ValueError(f"`ids` of {type(self).__name__} holds {i!r}, which was not in the groups of fit.")
            made[i] = self._adapted(*rows_of(self.tasks_, int(at[0])))
        return made

    def scores(self, X: Any, y: Any, groups: Any, support: Any) -> Any:
        """Accuracy of the centre and of the personalised classifiers, on known and new clients, never mixed.

        Args:
            X, y, groups: rows of known and new clients.
            support: boolean mask of the rows that a client's classifier may learn from; it is scored on the
                others.

        Gives a data frame with one row for each (clients, model): mean over clients, mean of the worst
        tenth of them, and their number.
        """
        X, y, groups, support = (np.asarray(a) for a in (X, y, groups, support))
        if support.dtype != bool or support.shape != (len(X),):
            raise ValueError(
                f"`support` of {type(self).__name__} must be a boolean mask with one entry for each of the {len(X)} "
                f"rows. Got {support.dtype} of shape {support.shape}."
            )
        found: dict[tuple[str, str], list[float]] = {}
        for i in np.unique(groups):
            learn, test = (groups == i) & support, (groups == i) & ~support
            if not learn.any() or not test.any():
                raise ValueError(f"`support` of {type(self).__name__} must leave rows on both sides for client {i}.")
            kind = "known" if i in self.ids_ else "new"
            models = {"centre": self.centre_classifier(), "personalised": self.adapt(X[learn], y[learn])}
            for name, model in models.items():
                found.setdefault((kind, name), []).append(model.score(X[test], y[test]))
        rows = [
            {
                "clients": kind,
                "model": name,
                "accuracy": float(np.mean(values)),
                "worst_decile": float(np.mean(np.sort(values)[: max(1, round(0.1 * len(values)))])),
                "n": len(values),
            }
            for (kind, name), values in sorted(found.items())
        ]
        return require_package("pandas", "PersonalizedModel.scores", "sklearn").DataFrame(rows)


@lru_cache(maxsize=64)
def _estimator(K: int, tasks: int) -> Estimator:
    """The same object for equal settings, so that the program of one fit serves the next."""
    return minibatch(rt_mlmc(K), tasks, contexts="spread")


@lru_cache(maxsize=64)
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(learning_rate, steps))


def warn_of_cost(problem: Problem, owner: str) -> None:
    """The Neumann series has L / mu terms, and more the smaller lam is."""
    assert problem.mu_g is not None and problem.L_g1 is not None
    terms = default_N(problem.mu_g, problem.L_g1)
    if problem.inverse is None and terms > MANY_TERMS:
        warnings.warn(
            f"`lam` of {owner} is small: each gradient takes a series of up to {terms:,} terms. A larger `lam`, or a "
            "smaller `norm`, needs fewer.",
            UserWarning,
            stacklevel=3,
        )


class PersonalizedModel(MetaClassifier):
    """`MetaClassifier` with clients for tasks. A fixed ``lam`` is paid for as pFedMe does (T Dinh, Tran, Nguyen 2020).

    That is: the centre minimises the clients' own proximal losses on all their rows, and ``test_fraction`` is not used.
    No client's classifier is stored: each is recomputed from the centre and its rows.
    """

    _moreau = True
