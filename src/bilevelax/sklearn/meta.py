"""Classifiers that adapt to a task or a client from a shared centre (eq. 9)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import optax
from jax import random
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.applications._softmax import centre, proximal_problem
from bilevelax.base.errors import require_integer, require_package, require_positive, require_share
from bilevelax.core.inverse import default_N, none
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Problem
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.run.minimize import minimize
from bilevelax.sklearn._adapting import Adapted, adapted, features_of
from bilevelax.sklearn._clients import clients_of, labels_of, require_short, rows_of, stored, tasks_of

MANY_TERMS = 2000  # of a Neumann series: beyond, a fit takes minutes


class MetaClassifier(ClassifierMixin, BaseEstimator):
    r"""Softmax regression whose centre x is learnt so that adapting from it works well.

    .. math::
        \min_x E_i \, l(y_i^*(x), D^{test}_i), \quad
        y_i^*(x) = \arg\min_y l(y, D^{train}_i) + \tfrac{\lambda}{2} |y - x|^2

    Every task is equally likely. The last ``test_fraction`` of a task's rows are its test part.
    `save` and `load` write and read a folder, without pickle.

    Args:
        lam: how much an adapted classifier is held at the centre.
        norm: length to which every row is scaled; None leaves them alone.
        fit_intercept: a constant beside the scaled columns, held at the centre like their weights.
        test_fraction: share of each task's rows for the upper level, at least one.
        K: deepest level of RT-MLMC.
        max_iter, batch_size, learning_rate: steps, tasks per step (spread evenly over all), and step of Adam.
        random_state: seed.
        verbose: show a progress bar.
    """

    _moreau = False

    def __init__(
        self,
        lam: float = 2.0,
        *,
        norm: float | None = 5.0,
        fit_intercept: bool = True,
        test_fraction: float = 0.25,
        K: int = 4,
        max_iter: int = 300,
        batch_size: int = 8,
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
        require_integer("max_iter", owner, self.max_iter, 1)
        for name in ("lam", "norm", "learning_rate"):
            require_positive(name, owner, getattr(self, name), optional=name == "norm")
        require_share("test_fraction", owner, self.test_fraction)
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        require_short(X, owner)
        self.classes_, labels = labels_of(y, owner)
        features = features_of(X, self.norm, self.fit_intercept)
        self.ids_, clients = clients_of(features, labels, groups, owner)
        self.tasks_ = stored(clients, None if self._moreau else self.test_fraction)
        problem = self.problem_
        warn_of_cost(problem, owner)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        result = minimize(
            problem,
            minibatch(rt_mlmc(self.K), self.batch_size, contexts="spread"),
            optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.max_iter)),
            centre(len(self.classes_), features.shape[1]),
            key=random.key(self.seed_),
            T=self.max_iter,
            progress=bool(self.verbose),
        )
        self.centre_ = np.asarray(result.x["W"])
        self.n_iter_ = self.max_iter
        return self

    @property
    def problem_(self) -> Problem:
        """What was minimised."""
        self._require_rows()
        problem = proximal_problem(tasks_of(self.tasks_), lam=self.lam, batch=8, owner=type(self).__name__)
        return problem.replace(f=problem.g, inverse=none()) if self._moreau else problem

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
        return adapted(self.centre_classifier(), self.lam, rows, labels, steps, type(self).__name__)

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
        """The centre itself, without adaptation."""
        check_is_fitted(self, "centre_")
        return Adapted(self.classes_, self.centre_, self.norm, True, self.fit_intercept)

    def predict(self, X: Any) -> np.ndarray:
        """Labels by the centre, without adaptation; see `adapt`."""
        return self.centre_classifier().predict(self._rows(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities by the centre."""
        return self.centre_classifier().predict_proba(self._rows(X))


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
    """A classifier for each client, held at a shared centre (pFedMe: T Dinh, Tran and Nguyen 2020).

    As `MetaClassifier` with clients for tasks, but the centre minimises the clients' own proximal
    losses on all their rows; ``test_fraction`` is not used. No client's classifier is stored: each is
    recomputed from the centre and its rows.
    """

    _moreau = True

    def personalize(self, ids: Any) -> dict[Any, Adapted]:
        """The classifiers of these clients of the training data, each from its own training rows."""
        self._require_rows()
        made = {}
        for i in np.asarray(ids).tolist():
            at = np.flatnonzero(self.ids_ == i)
            if not at.size:
                raise ValueError(f"`ids` of PersonalizedModel holds {i!r}, which was not in the groups of fit.")
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
                f"`support` of PersonalizedModel must be a boolean mask with one entry for each of the {len(X)} rows. "
                f"Got {support.dtype} of shape {support.shape}."
            )
        found: dict[tuple[str, str], list[float]] = {}
        for i in np.unique(groups):
            learn, test = (groups == i) & support, (groups == i) & ~support
            if not learn.any() or not test.any():
                raise ValueError(f"`support` of PersonalizedModel must leave rows on both sides for client {i}.")
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
