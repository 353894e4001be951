"""Meta-learning, eq. (9): softmax regression that adapts to each task from a shared centre.

.. math::
    \\min_x E_i \\, E_{D^{test}_i} \\, l(y_i^*(x), D^{test}_i), \\quad
    y_i^*(x) = \\arg\\min_y E_{D^{train}_i} \\, l(y, D^{train}_i) + \\tfrac{\\lambda}{2} |y - x|^2

The paper: 20 tasks of 10 classes of tinyImageNet, d = 512 features, lam = 2. It does not say how
features are scaled, and this decides everything: kappa = 1 + norm^2 / (2 lam), and with unit
norm the follower has almost no room to adapt.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.applications import Application
from bilevelax.applications._softmax import Labelled, Tasks, adapted_scores, centre, proximal_problem, scaled
from bilevelax.base.errors import require_integer
from bilevelax.core.problem import X


def synthetic(tasks: int, classes: int, images: int, d: int, seed: int) -> np.ndarray:
    """Features (tasks, classes, images, d): class means that the tasks share in part, and noise.

    Half of the variance between class means is common to all tasks, so a good centre exists;
    the other half is a task's own, so that adapting pays.
    """
    for name, value, least in (("tasks", tasks, 1), ("classes", classes, 2), ("images", images, 2), ("d", d, 1)):
        require_integer(name, "meta_learning", value, least)
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(1, classes, 1, d))
    own = rng.normal(size=(tasks, classes, 1, d))
    noise = rng.normal(size=(tasks, classes, images, d))
    return (shared + own) / np.sqrt(2) + 3.0 * noise


def split(features: Any, test_features: Any, test_fraction: float) -> tuple[jax.Array, jax.Array]:
    """(training, test) features; without test features the last images of each class are the test set."""
    features = jnp.asarray(features, dtype=float)
    if features.ndim != 4:
        raise ValueError(
            f"`features` of meta_learning must have shape (tasks, classes, images, d). Got {features.shape}."
        )
    if test_features is not None:
        test_features = jnp.asarray(test_features, dtype=float)
        if test_features.ndim != 4 or any(test_features.shape[i] != features.shape[i] for i in (0, 1, 3)):
            raise ValueError(
                "`test_features` of meta_learning must have the tasks, classes and d of `features`, "
                f"{features.shape}. Got {test_features.shape}."
            )
        return features, test_features
    if not 0 < test_fraction < 1:
        raise ValueError(f"`test_fraction` of meta_learning must lie between 0 and 1. Got {test_fraction!r}.")
    images = features.shape[2]
    held_out = max(1, round(test_fraction * images))
    if held_out >= images:
        raise ValueError(
            f"`features` of meta_learning must leave at least one training image per class. Got {images} images with "
            f"test_fraction = {test_fraction:g}."
        )
    return features[:, :, :-held_out], features[:, :, -held_out:]


def labelled(features: jax.Array) -> Labelled:
    """(tasks, classes, images, d) as rows with labels."""
    tasks, classes, images, d = features.shape
    labels = jnp.repeat(jnp.arange(classes, dtype=jnp.int32), images)
    return Labelled(
        features.reshape(tasks, classes * images, d),
        jnp.broadcast_to(labels, (tasks, classes * images)),
        jnp.full(tasks, classes * images, jnp.int32),
    )


SMALLEST = {"tasks": 2, "classes": 2, "images": 3, "d": 2, "batch": 1, "norm": 1.0}  # for the contract tests


def make(
    features: Any = None,
    test_features: Any = None,
    lam: float = 2.0,
    norm: float | None = 5.0,
    batch: int = 8,
    test_fraction: float = 0.1,
    tasks: int = 20,
    classes: int = 10,
    images: int = 50,
    d: int = 64,
    seed: int = 0,
) -> Application:
    """Eq. (9) with metrics after tight adaptation of every task.

    Metrics: ``upper_loss`` and ``upper_accuracy`` of the adapted classifiers and ``centre_loss`` of
    x itself, all on all test data. Accuracy may fall while the loss falls: tasks share label
    indices and pull the centre apart.

    Args:
        features: (tasks, classes, images, d); without them `synthetic` makes some of that shape.
        test_features: images held out for f, same layout; by default the last images of each class.
        lam: weight of the proximal term; the paper takes 2.
        norm: length to which every feature vector is scaled; None leaves them alone.
        batch: images in each of the two samples of eta; 1 is the paper.
        test_fraction: share of each class held out where no ``test_features`` are given.
        tasks, classes, images, d, seed: of the synthetic features.
    """
    features = synthetic(tasks, classes, images, d, seed) if features is None else features
    train, test = (
        labelled(scaled(part, norm, "meta_learning")) for part in split(features, test_features, test_fraction)
    )
    problem = proximal_problem(Tasks(train, test), lam=lam, batch=batch, owner="meta_learning")

    def metrics(x: X) -> dict[str, float]:
        scores = adapted_scores(problem, x)
        return {
            "upper_loss": float(scores.loss.mean()),
            "upper_accuracy": float(scores.accuracy.mean()),
            "centre_loss": float(scores.centre_loss.mean()),
        }

    return Application(problem, centre(int(train.labels.max()) + 1, train.features.shape[-1]), metrics)
