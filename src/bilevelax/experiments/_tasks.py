"""Meta-learning data of the experiments: what g, f, tuning and the test each see."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.applications import meta_learning
from bilevelax.applications._softmax import accuracy, cross_entropy, everything
from bilevelax.datasets import load_omniglot, load_tinyimagenet, meta_learning_arrays
from bilevelax.errors import require_choice
from bilevelax.estimators.maml import adapt
from bilevelax.problem import Problem, X
from bilevelax.sample_average import newton_solver, of_stack

DATASETS = ("auto", "tinyimagenet", "omniglot", "synthetic")
NORM = 5.0  # length of the features: kappa = 7.25 at lam = 2; the paper does not give it
LAM = 2.0  # the paper's


class Data(NamedTuple):
    """Three problems with the same lower level; they differ in the images that f sees."""

    fit: Problem
    validate: Problem
    test: Problem
    x1: X
    source: str


def features(dataset: str, small: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """(training, test) features of 20 tasks of 10 classes, and what they are.

    ``auto`` takes tinyImageNet where its file is there, else the synthetic generator, which ``small`` shrinks.
    """
    require_choice("dataset", "the meta-learning experiments", dataset, DATASETS)
    if dataset in ("auto", "tinyimagenet"):
        try:
            arrays = meta_learning_arrays(load_tinyimagenet())
            return arrays.train, arrays.test, "tinyImageNet, EfficientNet-Lite0 features (not ResNet-18), d = 512"
        except ValueError:
            if dataset == "tinyimagenet":
                raise
    if dataset == "omniglot":
        arrays = meta_learning_arrays(load_omniglot("pca", dim=64))
        return arrays.train, arrays.test, "Omniglot, 64 principal components"
    tasks, classes, images, d = (4, 3, 20, 6) if small else (20, 10, 100, 64)
    made = meta_learning.synthetic(tasks, classes, images, d, seed=0)
    held_out = images // 10
    return made[:, :, :-held_out], made[:, :, -held_out:], f"synthetic features, d = {d}"


def load(dataset: str = "auto", small: bool = False) -> Data:
    """Of each class's training images the first 7/9 go to g, the next 1/6 to f, the last 1/18 to tuning.

    The test images are the dataset's own held-out tenth: seen by nobody in training.
    """
    train, test, source = features(dataset, small)
    n = train.shape[2]
    validation, upper = max(1, round(n / 18)), max(1, round(n / 6))
    lower = train[:, :, : n - upper - validation]
    parts = (train[:, :, n - upper - validation : n - validation], train[:, :, n - validation :], test)
    apps = [meta_learning.make(lower, part, lam=LAM, norm=NORM, batch=1) for part in parts]
    return Data(*(app.problem for app in apps), apps[0].x1, source)


class Scores(NamedTuple):
    """Means over tasks."""

    loss: jax.Array
    accuracy: jax.Array


@jax.jit
def adapted(problem: Problem, xs: X) -> Scores:
    """Test loss and accuracy of stacked x, each adapted to every task on all its training images until y*.

    The Newton steps stop at a gradient 7e-5 of the first, which leaves the loss right to four digits.
    """
    solve = newton_solver()

    def one(x: X, i: jax.Array) -> Scores:
        eta = everything(problem.data, i)
        average = of_stack(problem, x, i, jax.tree.map(lambda a: a[None], eta), jnp.ones(1), 1)
        y = solve(average, problem.start(x, i)).y
        return Scores(cross_entropy(y, eta.test), accuracy(y, eta.test))

    return _over_tasks(one, problem, xs)


@partial(jax.jit, static_argnames="m")
def adapted_by_steps(problem: Problem, xs: X, m: int, gamma: Any) -> Scores:
    """The same after the m gradient steps of MAML, here on all training images of the task."""
    whole = dataclasses.replace(problem, sample_conditional=lambda key, xi, data: everything(data, xi))

    def one(x: X, i: jax.Array) -> Scores:
        y = adapt(random.key(0), whole, x, i, m, gamma)  # nothing is drawn
        test = everything(problem.data, i).test
        return Scores(cross_entropy(y, test), accuracy(y, test))

    return _over_tasks(one, problem, xs)


def _over_tasks(one: Callable[[X, jax.Array], Scores], problem: Problem, xs: X) -> Scores:
    tasks = jnp.arange(problem.n_contexts, dtype=jnp.int32)
    return lax.map(lambda x: jax.tree.map(jnp.mean, lax.map(lambda i: one(x, i), tasks)), xs)
