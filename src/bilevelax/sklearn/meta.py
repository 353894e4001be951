"""Classifiers that adapt to a task or a client from a shared centre (eq. 9)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.applications._softmax import Labelled, Pair, Sample, Tasks, centre, proximal_problem, scaled
from bilevelax.applications.personalized_fl import held_out, padded
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_package, require_positive, require_share
from bilevelax.core.inverse import default_N, none
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Problem
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.exact.newton import Solution
from bilevelax.exact.sample_average import newton_cg
from bilevelax.run.minimize import minimize

TOLERANCE = 1e-4  # relative error of an adapted classifier
MANY_TERMS = 2000  # of a Neumann series: beyond, a fit takes minutes


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A classifier for one task or client."""

    classes_: np.ndarray
    W: np.ndarray  # (classes, columns), the intercept's last
    norm: float | None
    converged: bool
    intercept: bool = False  # whether the last column of W belongs to a constant

    def decision_function(self, X: Any) -> np.ndarray:
        return _features(X, self.norm, self.intercept) @ self.W.T

    def predict_proba(self, X: Any) -> np.ndarray:
        scores = self.decision_function(X)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[np.argmax(self.decision_function(X), axis=1)]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy."""
        return float(np.mean(self.predict(X) == np.asarray(y)))


def _features(X: Any, norm: float | None, intercept: bool) -> np.ndarray:
    """Rows of length ``norm``, and a constant beside them where there is an intercept."""
    length = None if norm is None else float(norm)  # an integer may be too long for JAX
    rows = np.asarray(scaled(jnp.asarray(np.asarray(X), dtype=float), length, "MetaClassifier"))
    return np.concatenate([rows, np.ones((len(rows), 1), rows.dtype)], axis=1) if intercept else rows


@lru_cache(maxsize=64)
def _proximal(lam: float, owner: str) -> Problem:
    """The losses of the problem without its data: all that adapting needs, the same object for equal lam."""
    empty = Labelled(jnp.zeros((1, 1, 1), float), jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    return proximal_problem(Tasks(empty, empty), lam=lam, batch=1, owner=owner)


@program(static_argnames="steps")
def _adapt(problem: Problem, x: Any, sample: Sample, steps: int) -> Solution:
    at = jnp.zeros((), jnp.int32)
    return newton_cg(problem, x, at, Pair(sample, sample), x, iterations=steps, tol=TOLERANCE)


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
        _require_short(X, owner)
        self.classes_, labels = _labels(y, owner)
        groups = np.zeros(len(X), int) if groups is None else np.asarray(groups)
        if groups.shape != (len(X),):
            raise ValueError(
                f"`groups` of {owner} must name the task of each of the {len(X)} rows. Got {groups.shape}."
            )
        self.ids_ = np.unique(groups)
        features = _features(X, self.norm, self.fit_intercept)
        clients = [(features[groups == i], labels[groups == i]) for i in self.ids_]
        if min(len(rows) for _, rows in clients) < 2:
            alone = self.ids_[np.argmin([len(rows) for _, rows in clients])]
            raise ValueError(f"`groups` of {owner} must give each task at least 2 rows. Got one row for {alone}.")
        self.tasks_ = _tasks(clients, None if self._moreau else self.test_fraction)
        _warn_of_cost(self.problem_, owner)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        result = minimize(
            self.problem_,
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
        tasks = Tasks(*(Labelled(**{k: jnp.asarray(a) for k, a in part.items()}) for part in self.tasks_.values()))
        problem = proximal_problem(tasks, lam=self.lam, batch=8, owner=type(self).__name__)
        return problem.replace(f=problem.g, inverse=none()) if self._moreau else problem

    def adapt(self, X_support: Any, y_support: Any, steps: int = 50) -> Adapted:
        """The classifier of a new task from a few labelled rows; at most ``steps`` Newton steps.

        Its ``converged`` says whether they were enough.
        """
        require_integer("steps", type(self).__name__, steps, 1)
        X = self._rows(X_support)
        check_consistent_length(X, y_support)
        _require_short(X, type(self).__name__)
        return self._adapted(_features(X, self.norm, self.fit_intercept), self._index(y_support), steps)

    def _adapted(self, rows: np.ndarray, labels: np.ndarray, steps: int = 50) -> Adapted:
        """Rows of features are padded to a power of two, so that few programs serve all tasks."""
        n = len(rows)
        size = max(8, 1 << (n - 1).bit_length())
        weights = np.where(np.arange(size) < n, 1 / n, 0.0)
        at = np.minimum(np.arange(size), n - 1)
        dtype = jnp.zeros((), float).dtype
        features = jnp.asarray(rows[at], dtype)
        sample = Sample(features, jnp.asarray(labels[at], jnp.int32), jnp.asarray(weights, dtype))
        problem = _proximal(float(self.lam), type(self).__name__)
        done = _adapt(problem, {"W": jnp.asarray(self.centre_)}, sample, steps)
        W, converged = np.asarray(done.y["W"]), bool(done.error <= TOLERANCE)
        if not np.isfinite(W).all():
            raise ValueError(
                f"Adapting overflowed: {type(self).__name__} has weights that are not finite. Make `lam` larger or "
                "scale the columns of X."
            )
        return Adapted(self.classes_, W, self.norm, converged, self.fit_intercept)

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


def _labels(y: np.ndarray, owner: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.utils.multiclass import check_classification_targets

    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"{owner} needs at least 2 classes; y holds 1 class only, {classes[0]!r}.")
    return classes, labels


def _require_short(X: np.ndarray, owner: str) -> None:
    """Rows whose squared length the default precision can hold: else all that follows is infinite or zero."""
    lengths = np.sqrt(np.sum((X / (np.abs(X).max() or 1.0)) ** 2, axis=1)) * np.abs(X).max()
    most = float(np.sqrt(jnp.finfo(jnp.result_type(float)).max)) / 1e3
    if lengths.max() > most:
        row = int(np.argmax(lengths))
        raise ValueError(
            f"Rows of X of {owner} must be so short that their squares are numbers, at most {most:.3g}. Got a length "
            f"of {lengths[row]:.3g} in row {row + 1}; scale the columns."
        )


def _warn_of_cost(problem: Problem, owner: str) -> None:
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


def _tasks(clients: Sequence[Any], fraction: float | None) -> dict[str, dict[str, np.ndarray]]:
    """Training and test parts as plain arrays, which every way of saving understands; both are all without fraction."""
    rows = list(clients)
    tasks = Tasks(*[padded(rows, None)] * 2) if fraction is None else held_out(rows, fraction, None)
    return {name: {k: np.asarray(v) for k, v in part._asdict().items()} for name, part in tasks._asdict().items()}


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
            train = self.tasks_["train"]
            n = int(train["counts"][at[0]])
            made[i] = self._adapted(train["features"][at[0], :n], train["labels"][at[0], :n])
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
