"""Meta-learning of the experiments: data, methods, and how each adapts to a task."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import bilevelax as bx
from bilevelax.applications import meta_learning
from bilevelax.applications._softmax import cross_entropy, everything
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_choice
from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.datasets import load_omniglot, load_tinyimagenet, meta_learning_arrays
from bilevelax.exact.sample_average import newton_solver, of_stack

DATASETS = ("auto", "tinyimagenet", "omniglot", "synthetic")
LAM = 2.0  # the paper's
NORM = 10.0  # length of the features: kappa = 26 at lam = 2; the paper does not give it
ALL_TASKS, SMALL_TASKS = 20, 4  # in a dataset, and at scale smoke
TASKS = 4  # in the minibatch of an upper iteration
IMAGES = 8  # in each draw of a hypergradient, and in each gradient of MAML and BSVRB; EpochSGD draws single images
QUIET = "RT-MLMC, less noise"
TERMS = 60  # N of the Neumann series with step 1/L (Algorithm 4): (1 - lam/L)^60 = 10 % is left out at curvature lam


class Data(NamedTuple):
    """Three problems with the same lower level; they differ in the images that f sees."""

    fit: Problem
    validate: Problem
    test: Problem
    x1: X
    source: str


def features(dataset: str, small: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """(training, test) features of 20 tasks of 10 classes, and what they are; ``auto``: tinyImageNet if it is there."""
    require_choice("dataset", "the meta-learning experiments", dataset, DATASETS)
    if dataset in ("auto", "tinyimagenet"):
        try:
            arrays = meta_learning_arrays(load_tinyimagenet())
            return arrays.train, arrays.test, "tinyImageNet, EfficientNet-Lite0 features (not ResNet-18)"
        except ValueError:
            if dataset == "tinyimagenet":
                raise
    if dataset == "omniglot":
        arrays = meta_learning_arrays(load_omniglot("pca", dim=64))
        return arrays.train, arrays.test, "Omniglot, 64 principal components"
    tasks, classes, images, d = (SMALL_TASKS, 3, 20, 6) if small else (ALL_TASKS, 10, 100, 64)
    made = meta_learning.synthetic(tasks, classes, images, d, seed=0)
    held_out = images // 10
    return made[:, :, :-held_out], made[:, :, -held_out:], f"synthetic features, d = {d}"


@functools.cache
def load(dataset: str = "auto", small: bool = False) -> Data:
    """Of tinyImageNet's 500 images of a class, 333 are for g, 67 for f, 50 for tuning and 50, its own, for the test."""
    train, test, source = features(dataset, small)
    n, validation = train.shape[2], test.shape[2]
    upper = max(1, round((n - validation) / 6))
    lower = train[:, :, : n - upper - validation]
    parts = (train[:, :, n - upper - validation : n - validation], train[:, :, n - validation :], test)
    fit, validate, scored = (meta_learning.make(lower, part, lam=LAM, norm=NORM, batch=1) for part in parts)
    one = lambda app: dataclasses.replace(fit.problem, data=app.problem.data)  # equal functions share programs
    return Data(fit.problem, one(validate), one(scored), fit.x1, source)


class Adaptation(NamedTuple):
    """How y is found for scoring: ``adapt(key, problem, x, task, *settings)``, in the mean over ``draws`` of it."""

    adapt: Callable[..., Y]
    settings: tuple[Any, ...] = ()
    draws: int = 1


def tight(key: Key, problem: Problem, x: X, i: Any) -> Y:
    """y* on all training images of the task, to a gradient 7e-5 of the first: the same for all methods."""
    eta = everything(problem.data, i)
    average = of_stack(problem, x, i, jax.tree.map(lambda a: a[None], eta), jnp.ones(1), 1)
    return newton_solver()(average, problem.start(x, i), None).y


def by_epochs(key: Key, problem: Problem, x: X, i: Any, K: Any) -> Y:
    """As DL-SGD and RT-MLMC adapt in training: K epochs on single images."""
    return bx.epoch_sgd()(key, problem, x, i, K).last


def by_steps(key: Key, problem: Problem, x: X, i: Any, m: Any, gamma: Any) -> Y:
    """As m-step MAML adapts in training."""
    return _steps(problem.averaged(IMAGES), key, x, i, m, gamma)


def by_whole_steps(key: Key, problem: Problem, x: X, i: Any, m: Any, gamma: Any) -> Y:
    """The steps of MAML on all training images of the task."""
    whole = dataclasses.replace(problem, sample_conditional=lambda key, xi, data: everything(data, xi))
    return _steps(whole, key, x, i, m, gamma)


def _steps(problem: Problem, key: Key, x: X, i: Any, m: Any, gamma: Any) -> Y:
    def step(j: Any, y: Y) -> Y:
        return trees.add_scale(y, -gamma, problem.grad_g(x, y, problem.conditional(random.fold_in(key, j), i), i))

    return lax.fori_loop(0, m, step, problem.start(x, i))


UNTIL_Y_STAR = Adaptation(tight)


class Method(NamedTuple):
    """A method, one of its settings, and how it adapts to a task."""

    name: str
    setting: str
    estimator: bx.Estimator
    adaptation: Adaptation
    whole: Adaptation | None = None  # the same on all images, where it is not until y*


@functools.cache
def by_K(name: str, K: int) -> Method:
    """DL-SGD, RT-MLMC, or QUIET, RT-MLMC as a user would run it: the whole series, and levels spread evenly over tasks.

    Those two have the same mean.
    """
    make = bx.dl_sgd if name == "DL-SGD" else bx.rt_mlmc
    inverse, mode = (bx.summed_neumann, "stratified") if name == QUIET else (bx.neumann, "loop")
    estimator = make(K, inverse=inverse(N=TERMS, scale=1.0), batch=IMAGES)
    return Method(name, f"K = {K}", bx.minibatch(estimator, TASKS, mode), Adaptation(by_epochs, (K,)))


dl, rt, quiet = (functools.partial(by_K, name) for name in ("DL-SGD", "RT-MLMC", QUIET))


@functools.cache
def steps(m: int, gamma: float) -> Method:
    estimator = bx.minibatch(bx.maml(m, gamma, batch=IMAGES), TASKS)
    name, setting = "MAML" if m == 1 else "m-step MAML", f"m = {m}, gamma = {gamma:g}"
    ways = Adaptation(by_steps, (m, gamma), draws=16), Adaptation(by_whole_steps, (m, gamma))
    return Method(name, setting, estimator, *ways)


@program(static_argnames=("adapt", "draws"))
def _loss(problem: Problem, x: X, key: Key, settings: Any, adapt: Any, draws: int) -> jax.Array:
    def one(i: jax.Array) -> jax.Array:
        test = everything(problem.data, i).test
        keys = jax.vmap(lambda j: random.fold_in(key, j))(jnp.arange(draws))
        return jnp.mean(lax.map(lambda key: cross_entropy(adapt(key, problem, x, i, *settings), test), keys))

    return jnp.mean(lax.map(one, jnp.arange(problem.n_contexts, dtype=jnp.int32)))


def losses(problem: Problem, xs: Sequence[X], keys: Key | Sequence[Key], how: Adaptation) -> np.ndarray:
    """Mean loss over tasks of each x, adapted with its own key and scored on all images that f sees."""
    found = [_loss(problem, x, key, how.settings, how.adapt, how.draws) for x, key in zip(xs, keys, strict=True)]
    return np.asarray(jnp.stack(found), np.float64)
