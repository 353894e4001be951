"""Hierarchical representation learning: tasks adapt from the centre of their group, groups from a shared one.

.. math::
    \\min_x E_a \\, l(w(y_a^*(x); \\eta^{test})), \\quad
    y_a^*(x) = \\arg\\min_y E_{\\eta | a} \\, l(w(y; \\eta^{train})) + \\tfrac{\\lambda}{2} |y - c|^2, \\quad
    w(y; \\eta) = \\arg\\min_w |b - A w|^2 + \\kappa |w - y|^2

A context a is a group of tasks (an alphabet), eta a pair of tasks (characters) of which the lower level reads the first
and the upper level the second. A task is to tell a character from others: few rows A with labels b in {-1, 1}
adapt a classifier w, in closed form, from the group's centre y; the loss l is the squared error on its other rows.
x holds a linear map of features, which are then brought to length ``norm``, and the centre c of groups.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.applications import Application
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.sample_average import newton_cg


class Task(NamedTuple):
    """Rows to adapt on and rows that count, each half positive."""

    A: jax.Array
    b: jax.Array
    query: jax.Array
    answer: jax.Array


class Pair(NamedTuple):
    """eta: a task of the group's training characters and one of its test characters."""

    train: Task
    test: Task


class Groups(NamedTuple):
    """The data leaves: drawings of each group's characters, padded, and those of everybody."""

    rows: jax.Array  # (groups, characters, drawings, d)
    counts: jax.Array  # characters of each group
    others: jax.Array  # (n, d): what negatives are drawn from


def represent(x: X, rows: jax.Array, norm: float) -> jax.Array:
    """Mapped rows of length ``norm``, and a constant."""
    z = rows @ x["map"]
    z = norm * z / jnp.sqrt(jnp.sum(z**2, axis=-1, keepdims=True) + 1e-12)
    return jnp.concatenate([z, jnp.ones((*z.shape[:-1], 1), z.dtype)], axis=-1)


def adapted(x: X, y: Y, task: Task, kappa: float, norm: float) -> jax.Array:
    """w = y + A^T (A A^T + kappa I)^{-1} (b - A y)."""
    A = represent(x, task.A, norm)
    gram = A @ A.T + kappa * jnp.eye(len(A), dtype=A.dtype)
    return y + A.T @ jnp.linalg.solve(gram, task.b - A @ y)


def error(x: X, y: Y, task: Task, kappa: float, norm: float) -> jax.Array:
    """Half the mean squared error of the adapted classifier."""
    return jnp.mean((task.answer - represent(x, task.query, norm) @ adapted(x, y, task, kappa, norm)) ** 2) / 2


def draw_task(key: Key, data: Groups, group: Any, low: Any, high: Any, shots: int) -> Task:
    """A character of [low, high) of the group: ``shots`` of its drawings and as many of anybody, and so many others."""
    key_c, key_p, key_n = random.split(key, 3)
    c = random.randint(key_c, (), low, high)
    picked = random.permutation(key_p, data.rows.shape[2])[: 2 * shots]
    own = data.rows[group, c, picked]
    other = data.others[random.randint(key_n, (2 * shots,), 0, len(data.others))]
    b = jnp.concatenate([jnp.ones(shots, float), -jnp.ones(shots, float)])
    both = lambda part: jnp.concatenate([own[part], other[part]])
    return Task(both(slice(shots)), b, both(slice(shots, None)), b)


@functools.cache
def losses(lam: float, kappa: float, norm: float) -> tuple[Any, Any]:
    """(f, g), the same for the same settings, so that programs are shared."""

    def f(x: X, y: Y, eta: Pair, xi: Xi) -> jax.Array:
        return error(x, y, eta.test, kappa, norm)

    def g(x: X, y: Y, eta: Pair, xi: Xi) -> jax.Array:
        return error(x, y, eta.train, kappa, norm) + lam / 2 * jnp.sum((y - x["centre"]) ** 2)

    return f, g


@functools.cache
def sampler(shots: int) -> Any:
    """Lower and upper level see different halves of a group's characters."""

    def draw(key: Key, xi: Xi, data: Groups) -> Pair:
        key_train, key_test = random.split(key)
        half, count = data.counts[xi] // 2, data.counts[xi]
        train = draw_task(key_train, data, xi, 0, half, shots)
        return Pair(train, draw_task(key_test, data, xi, half, count, shots))

    return draw


def sample_group(key: Key, data: Groups) -> jax.Array:
    return random.randint(key, (), 0, data.counts.shape[0], jnp.int32)


def group_at(i: Any, data: Groups) -> jax.Array:
    return jnp.asarray(i, jnp.int32)


def start(x: X, xi: Xi) -> Y:
    return x["centre"]


def problem_of(data: Groups, *, lam: float, kappa: float, norm: float, shots: int) -> Problem:
    """w moves with y by I - A^T (A A^T + kappa)^{-1} A, which shortens: L_g1 = lam + norm^2 + 1."""
    f, g = losses(lam, kappa, norm)
    return Problem(
        f=f,
        g=g,
        sample_context=sample_group,
        sample_conditional=sampler(shots),
        init_y=start,
        data=data,
        mu_g=lam,
        L_g1=lam + norm**2 + 1,
        n_contexts=int(data.counts.shape[0]),
        context_at=group_at,
    )


def groups_of(alphabets: list[np.ndarray]) -> Groups:
    """Arrays (characters, drawings, d), one a group, padded with zeros that are never drawn."""
    most = max(map(len, alphabets))
    padded = [np.concatenate([a, np.zeros((most - len(a), *a.shape[1:]))]) for a in alphabets]
    everybody = np.concatenate([a.reshape(-1, a.shape[2]) for a in alphabets])
    counts = jnp.asarray([len(a) for a in alphabets], jnp.int32)
    return Groups(jnp.asarray(np.stack(padded), float), counts, jnp.asarray(everybody, float))


class Accuracies(NamedTuple):
    """Of each group: shares of right signs after adaptation."""

    group: jax.Array  # from the group's centre
    one: jax.Array  # from the shared centre
    alone: jax.Array  # from nothing


@program(static_argnames=("tasks", "kappa", "norm"))
def accuracies(problem: Problem, x: X, key: Key, tasks: int, kappa: float, norm: float) -> Accuracies:
    """A group's centre from so many drawn tasks of one half of its characters, judged on as many of the other half."""

    def one(i: jax.Array) -> Accuracies:
        etas = problem.conditionals(random.fold_in(key, i), i, tasks)
        y = newton_cg(problem.averaged(tasks), x, i, etas, problem.start(x, i), tol=1e-5).y

        def share(centre: Y) -> jax.Array:
            def right(eta: Pair) -> jax.Array:
                w = adapted(x, centre, eta.test, kappa, norm)
                return jnp.mean((represent(x, eta.test.query, norm) @ w > 0) == (eta.test.answer > 0), dtype=float)

            return jnp.mean(jax.vmap(right)(etas))

        return Accuracies(share(y), share(x["centre"]), share(0 * y))

    return jax.lax.map(one, jnp.arange(problem.n_contexts or 0, dtype=jnp.int32))


def synthetic(groups: int, characters: int, drawings: int, d: int, seed: int) -> list[np.ndarray]:
    """Groups around centres of their own."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(groups):
        centre = rng.normal(size=d) + 0.7 * rng.normal(size=(characters, 1, d))
        made.append(centre + 0.7 * rng.normal(size=(characters, drawings, d)))
    return made


SMALLEST = {"groups": 2, "characters": 2, "drawings": 2, "d": 2, "dim": 1, "shots": 1, "norm": 1.0, "tasks": 2}


def make(
    alphabets: Any = None,
    test_alphabets: Any = None,
    lam: float = 0.3,
    kappa: float = 1.0,
    norm: float = 3.0,
    shots: int = 2,
    dim: int = 16,
    tasks: int = 64,
    groups: int = 12,
    characters: int = 12,
    drawings: int = 8,
    d: int = 24,
    seed: int = 0,
) -> Application:
    """The map and the centre from which groups, and then their tasks, adapt best.

    Metrics, on groups that were not trained on: accuracy of the adapted classifiers from the ``group``'s centre, from
    the ``one_centre`` and ``alone``.

    Args:
        alphabets: list of arrays (characters, drawings, d), one a group; without them synthetic ones.
        test_alphabets: other groups, for the metrics; by default the last quarter.
        lam: how much a group's centre is held at the shared one.
        kappa: how much a task's classifier is held at its group's centre.
        norm: length of mapped rows.
        shots: drawings of a task's character to adapt on, and as many of anybody.
        dim: coordinates that features are mapped to.
        tasks: drawn for each group in the metrics.
        groups, characters, drawings, d: of the synthetic ones.
        seed: of these and of the metrics' tasks.
    """
    sizes = {"groups": groups, "characters": characters, "drawings": drawings, "d": d, "dim": dim, "shots": shots}
    for name, value in {**sizes, "tasks": tasks}.items():
        require_integer(name, "hierarchical", value, 2 if name in ("groups", "characters", "drawings", "tasks") else 1)
    for name, positive in {"lam": lam, "kappa": kappa, "norm": norm}.items():
        require_positive(name, "hierarchical", positive)
    made = synthetic(groups, characters, drawings, d, seed) if alphabets is None else list(alphabets)
    held = max(1, len(made) // 4)
    train, test = (made[:-held], made[-held:]) if test_alphabets is None else (made, list(test_alphabets))
    columns, most = train[0].shape[2], train[0].shape[1]
    if 2 * shots > most or dim > columns:
        raise ValueError(
            f"`shots` of hierarchical must be at most half of {most} drawings and `dim` at most {columns} columns. "
            f"Got {shots} and {dim}."
        )
    settings: dict[str, Any] = {"lam": lam, "kappa": kappa, "norm": norm, "shots": shots}
    problem, judged = problem_of(groups_of(train), **settings), problem_of(groups_of(test), **settings)

    def metrics(x: X) -> dict[str, float]:
        found = accuracies(judged, x, random.key(seed), tasks, kappa, norm)
        return {"group": float(found.group.mean()), "one_centre": float(found.one.mean())} | {
            "alone": float(found.alone.mean())
        }

    x1 = {"map": jnp.eye(columns, dim, dtype=float), "centre": jnp.zeros(dim + 1, float)}
    return Application(problem, x1, metrics)
