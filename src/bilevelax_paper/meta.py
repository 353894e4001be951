"""Meta-learning of the experiments: data, methods, and how each adapts to a task."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

import bilevelax as bx
from bilevelax.applications import _softmax, meta_learning
from bilevelax.applications._softmax import cross_entropy, everything
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_choice
from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.datasets import load_omniglot, load_tinyimagenet, meta_learning_arrays
from bilevelax.exact.sample_average import Average, newton_solver, of_stack, respond_on

DATASETS = ("auto", "tinyimagenet", "omniglot", "synthetic")
LAM = 2.0  # the paper's
NORM = 10.0  # length of the features: kappa = 26 at lam = 2; the paper does not give it
RAW = "raw"  # features as they are: of tinyImageNet 26 long in the mean, 40 at most
HELD_OUT = 0.2  # share of the images of a class, half for tuning and half for the test
ALL_TASKS, SMALL_TASKS = 20, 4  # in a dataset, and at scale smoke
TASKS = 4  # in the minibatch of an upper iteration
IMAGES = 8  # in each draw of a hypergradient, and in each gradient of MAML and BSVRB; EpochSGD draws single images
QUIET = "RT-MLMC, less noise"
TERMS = 60  # N of the Neumann series with step 1/L (Algorithm 4): (1 - lam/L)^60 = 10 % is left out at curvature lam


class Look(NamedTuple):
    """What is known of an x after exact adaptation to every task, in the mean over tasks."""

    F: Any
    slope: Any  # |grad F|
    tight: Any  # test loss
    accuracy: Any  # on test images


class Data(NamedTuple):
    """Three problems with the same lower level; they differ in the images that f sees: in ``fit`` those of g."""

    fit: Problem
    validate: Problem
    test: Problem
    x1: X
    source: str
    first: Look  # at x1


REAL = {  # datasets, and what their features are
    "tinyimagenet": (functools.cache(load_tinyimagenet), "tinyImageNet, EfficientNet-Lite0 features (not ResNet-18)"),
    "omniglot": (functools.cache(partial(load_omniglot, "pca", dim=64)), "Omniglot, 64 principal components"),
}


def features(dataset: str, small: bool, seed: int) -> tuple[np.ndarray, np.ndarray, str]:
    """(training, other) features of 20 tasks of 10 classes, split and grouped by the seed, and what they are;
    ``auto``: tinyImageNet if it is there."""
    require_choice("dataset", "the meta-learning experiments", dataset, DATASETS)
    if dataset != "synthetic":
        try:
            read, source = REAL["tinyimagenet" if dataset == "auto" else dataset]
            return *meta_learning_arrays(read(), seed=seed, held_out=HELD_OUT)[:2], source
        except ValueError:
            if dataset != "auto":
                raise
    tasks, classes, images, d = (SMALL_TASKS, 3, 20, 6) if small else (ALL_TASKS, 10, 100, 64)
    order, training = np.random.default_rng(seed).permutation(images), round((1 - HELD_OUT) * images)
    made = meta_learning.synthetic(tasks, classes, images, d, seed=0)[:, :, order]
    return made[:, :, :training], made[:, :, training:], f"synthetic features, d = {d}"


def labelled(features: np.ndarray, norm: float | str, parts: int) -> _softmax.Labelled:
    """Tasks (tasks, classes, images, d), each cut into so many with fewer images; features brought to this length."""
    tasks, classes, images, d = features.shape
    each = features[:, :, : images // parts * parts].reshape(tasks, classes, parts, -1, d).swapaxes(1, 2)
    all_of = jnp.asarray(each.reshape(tasks * parts, classes, -1, d), float)
    return meta_learning.labelled(_softmax.scaled(all_of, None if norm == RAW else float(norm), "meta_learning"))


@functools.lru_cache(maxsize=12)
def load(dataset: str = "auto", small: bool = False, seed: int = 0, norm: float | str = NORM, parts: int = 1) -> Data:
    """Of tinyImageNet's 500 images of a class both levels draw from 400; 50 are for tuning and 50 for the test."""
    train, other, source = features(dataset, small, seed)
    half, x1 = other.shape[2] // 2, _softmax.centre(train.shape[1], train.shape[3])
    rows, *others = (labelled(part, norm, parts) for part in (train, other[:, :, :half], other[:, :, half:]))
    longest = max(float(jnp.max(jnp.sum(part.features**2, axis=-1))) for part in (rows, *others))
    on = lambda part: _softmax.proximal_problem(_softmax.Tasks(rows, part), lam=LAM, batch=1, owner="meta_learning")
    # L_g1 of all images is equal for all seeds: they share programs
    fit, validate, test = (on(part).replace(L_g1=LAM + longest / 2) for part in (rows, *others))
    return Data(fit, validate, test, x1, source, look(fit, test, x1))


class Adaptation(NamedTuple):
    """How y is found for scoring: ``adapt(key, problem, x, task, *settings)``, in the mean over ``draws`` of it."""

    adapt: Callable[..., Y]
    settings: tuple[Any, ...] = ()
    draws: int = 1


def on_all(problem: Problem, x: X, i: Any) -> Average:
    """Task i with f and g in the mean over all images that they see."""
    eta = everything(problem.data, i)
    return of_stack(problem, x, i, jax.tree.map(lambda a: a[None], eta), jnp.ones(1), 1)


def tight(key: Key, problem: Problem, x: X, i: Any) -> Y:
    """y* on all training images of the task, to a gradient 7e-5 of the first: the same for all methods."""
    return newton_solver()(on_all(problem, x, i), problem.start(x, i), None).y


@program()
def look(fit: Problem, test: Problem, x: X) -> Look:
    def one(i: jax.Array) -> Look:
        average, sample = on_all(fit, x, i), everything(test.data, i).test
        found = respond_on(average, fit.start(x, i), newton_solver())
        y = found.solution.y
        return Look(average.f(y), found.grad, cross_entropy(y, sample), _softmax.accuracy(y, sample))

    each = lax.map(one, jnp.arange(fit.n_contexts, dtype=jnp.int32))
    means: Look = jax.tree.map(lambda a: jnp.mean(a, 0), each)
    return means._replace(slope=tree.norm(means.slope))


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


dl, rt, quiet = (partial(by_K, name) for name in ("DL-SGD", "RT-MLMC", QUIET))


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
