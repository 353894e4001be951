"""Meta-learning of the experiments: data, methods, how each is tuned, and the rows that a curve leaves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax import trees
from bilevelax.applications import meta_learning
from bilevelax.applications._softmax import cross_entropy, everything
from bilevelax.datasets import load_omniglot, load_tinyimagenet, meta_learning_arrays
from bilevelax.errors import require_choice
from bilevelax.estimate import Estimator
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.maml import maml
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _training as training
from bilevelax.experiments._items import Row
from bilevelax.experiments._trajectories import seed_keys
from bilevelax.inverse import neumann, summed_neumann
from bilevelax.lower import epoch_sgd
from bilevelax.minibatch import minibatch
from bilevelax.problem import Key, Problem, X, Y
from bilevelax.sample_average import newton_solver, of_stack

DATASETS = ("auto", "tinyimagenet", "omniglot", "synthetic")
LAM = 2.0  # the paper's
NORM = 10.0  # length of the features: kappa = 26 at lam = 2; the paper does not give it
ALL_TASKS, SMALL_TASKS = 20, 4  # in a dataset, and at scale smoke
TASKS = 4  # in the minibatch of an upper iteration
IMAGES = 8  # in each draw of a hypergradient, and in each gradient of MAML and BSVRB; EpochSGD draws single images
QUIET = "RT-MLMC, less noise"
GRIDS: dict[
    str, dict[str, list[Any]]
] = {  # step rules that every method tries; the paper's has no scale, t0 = T / part
    "smoke": {"paper": [1.0], "parts": [2, 1], "constant": [0.1], "adam": [0.01]},
    "quick": {"paper": [1.0], "parts": [4, 1], "constant": [0.1], "adam": [0.003]},
    "full": {"paper": [1.0], "parts": [8, 4, 2, 1], "constant": [0.03, 0.1, 0.3], "adam": [0.001, 0.003, 0.01]},
}
TERMS = 60  # N of the Neumann series with step 1/L (Algorithm 4): (1 - lam/L)^60 = 10 % is left out at curvature lam


class Data(NamedTuple):
    """Three problems with the same lower level; they differ in the images that f sees."""

    fit: Problem
    validate: Problem
    test: Problem
    x1: X
    source: str


def features(dataset: str, small: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """(training, test) features of 20 tasks of 10 classes, and what they are.

    ``auto`` is tinyImageNet where its file is there, else the synthetic generator, which ``small`` shrinks.
    """
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
    """Of each class's training images the last go to tuning, as many as the test has; of the others a sixth to f.

    The test images are the dataset's own held-out tenth: nobody sees them in training. Of tinyImageNet's 500 images
    of a class, 333 are for g, 67 for f, 50 for tuning and 50 for the test.
    """
    train, test, source = features(dataset, small)
    n, validation = train.shape[2], test.shape[2]
    upper = max(1, round((n - validation) / 6))
    lower = train[:, :, : n - upper - validation]
    parts = (train[:, :, n - upper - validation : n - validation], train[:, :, n - validation :], test)
    fit, validate, scored = (meta_learning.make(lower, part, lam=LAM, norm=NORM, batch=1) for part in parts)
    one = lambda app: dataclasses.replace(fit.problem, data=app.problem.data)  # equal functions share programs
    return Data(fit.problem, one(validate), one(scored), fit.x1, source)


class Adaptation(NamedTuple):
    """How y is found for scoring: ``adapt(key, problem, x, task, *settings)``; the settings are traced.

    Losses are means over ``draws`` of it, where it is random.
    """

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
    return epoch_sgd()(key, problem, x, i, K).last


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
    estimator: Estimator
    adaptation: Adaptation
    whole: Adaptation | None = None  # the same on all images, where it is not until y*


@functools.cache
def dl(K: int) -> Method:
    estimator = dl_sgd(K, inverse=neumann(N=TERMS, scale=1.0), batch=IMAGES)
    return Method("DL-SGD", f"K = {K}", minibatch(estimator, TASKS, "loop"), Adaptation(by_epochs, (K,)))


@functools.cache
def rt(K: int) -> Method:
    estimator = rt_mlmc(K, inverse=neumann(N=TERMS, scale=1.0), batch=IMAGES)
    return Method("RT-MLMC", f"K = {K}", minibatch(estimator, TASKS, "loop"), Adaptation(by_epochs, (K,)))


@functools.cache
def quiet(K: int) -> Method:
    """RT-MLMC as a user would run it: the whole series along its path of samples (`summed_neumann`), and levels spread
    evenly over the tasks of an iteration (`minibatch(mode="stratified")`). Same mean, less noise."""
    estimator = rt_mlmc(K, inverse=summed_neumann(N=TERMS, scale=1.0), batch=IMAGES)
    return Method(QUIET, f"K = {K}", minibatch(estimator, TASKS), Adaptation(by_epochs, (K,)))


@functools.cache
def steps(m: int, gamma: float) -> Method:
    estimator = minibatch(maml(m, gamma, batch=IMAGES), TASKS)
    name, setting = "MAML" if m == 1 else "m-step MAML", f"m = {m}, gamma = {gamma:g}"
    ways = Adaptation(by_steps, (m, gamma), draws=16), Adaptation(by_whole_steps, (m, gamma))
    return Method(name, setting, estimator, *ways)


@partial(jax.jit, static_argnames=("adapt", "draws"))
def _loss(problem: Problem, x: X, key: Key, settings: Any, adapt: Any, draws: int) -> jax.Array:
    def one(i: jax.Array) -> jax.Array:
        test = everything(problem.data, i).test
        keys = jax.vmap(lambda j: random.fold_in(key, j))(jnp.arange(draws))
        return jnp.mean(lax.map(lambda key: cross_entropy(adapt(key, problem, x, i, *settings), test), keys))

    return jnp.mean(lax.map(one, jnp.arange(problem.n_contexts, dtype=jnp.int32)))


def losses(problem: Problem, xs: Sequence[X], keys: Key, how: Adaptation) -> np.ndarray:
    """Mean loss over tasks of each x, adapted with its own key and scored on all images that f sees."""
    found = [_loss(problem, x, key, how.settings, how.adapt, how.draws) for x, key in zip(xs, keys, strict=True)]
    return np.asarray(jnp.stack(found), np.float64)


def tuner(settings: dict[str, Any]) -> Callable[..., list[training.Trial]]:
    """``trials(method, T)``: every step rule of the grid, by validation loss after the method's own adaptation.

    Each method is tuned once, on ``tuning_seeds`` seeds with all rules of ``grid``.
    """

    @functools.cache
    def trials(method: Method, T: int) -> list[training.Trial]:
        data = load(settings["dataset"], settings["small"])
        key = seed_keys(1, training.ROLE_ADAPT)[0]
        loss = lambda xs: losses(data.validate, xs, [key] * len(xs), method.adaptation)
        rules = training.grid(T, **settings["grid"])
        seeds = settings.get("tuning_seeds", 1)
        times = training.checkpoints_of(T, settings["points"])
        return training.tune(data.fit, data.x1, method.estimator, rules, loss, checkpoints=times, seeds=seeds)

    return trials


def tuning_rows(method: Method, trials: Sequence[training.Trial]) -> list[Row]:
    """Mean validation losses of all rules, and those of each tuning seed."""
    columns = {"kind": "tuning", "method": method.name, "setting": method.setting}
    return [
        {
            **columns,
            "rule": str(trial.rule),
            "of": trial.rule.kind,
            "loss": trial.loss if np.isfinite(trial.loss) else "diverged",
            "losses": [training.finite(loss) for loss in trial.each],
        }
        for trial in trials
    ]


def curve_rows(
    data: Data,
    method: Method,
    trials: Sequence[training.Trial],
    *,
    seeds: int,
    checkpoints: tuple[int, ...],
    tuned_at: str | None = None,
) -> list[Row]:
    """Test losses of a method with both kinds of steps: ``paper`` for the paper's rule and ``other`` for the best
    constant or Adam. ``tuned_at`` is the setting whose trials they are, where it is another one."""
    rules = both_rules(trials)
    rows: list[Row] = []
    for seed, key in enumerate(seed_keys(seeds, training.ROLE_ADAPT)):
        for which, rule in rules.items():
            curve = training.train(data.fit, data.x1, method.estimator, rule, seed=seed, checkpoints=checkpoints)
            columns: Row = {"method": method.name, "setting": method.setting, "steps": which, "rule": str(rule)}
            columns |= {"tuned_at": tuned_at or method.setting, "seed": seed}
            rows += _rows_of(data, method, curve, columns, key, checkpoints)
    return rows


def _rows_of(
    data: Data, method: Method, curve: training.Curve, columns: Row, key: Key, checkpoints: tuple[int, ...]
) -> list[Row]:
    """``own``: test loss after own adaptation at every checkpoint. Of the last x: ``tight`` until y*, ``whole`` after
    MAML's steps on all images, ``validation`` after own adaptation."""
    xs = training.unstack(curve.x)
    own = losses(data.test, xs, [key] * len(xs), method.adaptation)
    rows: list[Row] = []
    for j, t in enumerate(checkpoints):
        calls = {name: int(a[j]) for name, a in curve.cost.asdict().items()}
        rows.append({"kind": "curve", **columns, "t": t, "own": training.finite(own[j]), **calls})
    ways = {"tight": (data.test, UNTIL_Y_STAR), "validation": (data.validate, method.adaptation)}
    ways |= {"whole": (data.test, method.whole)} if method.whole else {}
    last = {name: training.finite(losses(problem, xs[-1:], [key], how)[0]) for name, (problem, how) in ways.items()}
    return [*rows, {"kind": "end", **columns, "t": checkpoints[-1], **last, "data": data.source}]


def both_rules(trials: Sequence[training.Trial]) -> dict[str, training.Rule]:
    """The paper's rule and the best other one."""
    return {"paper": training.best(trials, ("paper",)), "other": training.best(trials, ("constant", "adam"))}
