"""Personalised federated learning: one client per context, clients of different sizes, unseen clients.

.. math::
    \\min_x E_i \\, f_i(y_i^*(x)), \\quad
    y_i^*(x) = \\arg\\min_y E_{B \\sim D_i} \\, l(y, B) + \\tfrac{\\lambda}{2} |y - x|^2

The leader pays the adapted model's loss on the client's held-out data or, with ``moreau=True``,
the lower level's own value: pFedMe (T Dinh, Tran, Nguyen 2020), for which grad F = E lam (x - y*).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.applications import Application
from bilevelax.applications._softmax import (
    Labelled,
    Tasks,
    adapted_scores,
    centre,
    proximal_problem,
    scaled,
)
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.inverse import none
from bilevelax.core.problem import X

PADDED = 4  # times as many rows with padding as without, at most
ClientRows = tuple[np.ndarray, np.ndarray]  # features (rows, d), labels (rows,)


def synthetic(
    clients: int, classes: int, d: int, least: int, most: int, alpha: float, shift: float, seed: int
) -> list[ClientRows]:
    """Clients that differ in size, in label distribution and in the features of each label.

    Sizes are log-uniform on [least, most], label frequencies are Dirichlet(alpha): below 1 most
    clients see few labels. ``shift`` is the standard deviation of a client's own class means.
    """
    for name, value, smallest in (("classes", classes, 2), ("d", d, 1), ("least", least, 2), ("most", most, least)):
        require_integer(name, "personalized_fl", value, smallest)
    require_positive("alpha", "personalized_fl", alpha)
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, d))
    made = []
    for _ in range(clients):
        rows = round(np.exp(rng.uniform(np.log(least), np.log(most))))
        labels = rng.choice(classes, size=rows, p=rng.dirichlet(np.full(classes, alpha)))
        own = means + shift * rng.normal(size=(classes, d))
        made.append((own[labels] + 1.5 * rng.normal(size=(rows, d)), labels))
    return made


def given(features: Sequence[Any], labels: Sequence[Any] | None) -> list[ClientRows]:
    """The user's clients, checked."""
    if labels is None or len(labels) != len(features):
        raise ValueError(
            f"`labels` of personalized_fl must hold one array for each of the {len(features)} clients of `features`. "
            f"Got {None if labels is None else len(labels)}."
        )
    clients = [(np.asarray(a), np.asarray(b)) for a, b in zip(features, labels, strict=True)]
    for i, (a, b) in enumerate(clients):
        if a.ndim != 2 or b.shape != a.shape[:1] or len(a) < 2 or a.shape[1] != clients[0][0].shape[1]:
            raise ValueError(
                "`features` and `labels` of personalized_fl must be arrays (rows, d) and (rows,) with at least 2 rows, "
                f"d the same for all. Got {a.shape} and {b.shape} for client {i}."
            )
    return clients


def labelled(clients: list[ClientRows], norm: float | None) -> Labelled:
    """All clients' rows: padded with copies of a client's last row while that makes few of them, else packed.

    So memory goes with the rows, one client of 20,000 among 500 of 10 included, and runs that 0.1.0 began on padded
    clients of like sizes go on.
    """
    counts = np.asarray([len(b) for _, b in clients], np.int32)
    longest, starts = int(counts.max()), np.cumsum(counts, dtype=np.int32) - counts
    features, labels = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    packed: dict[str, np.ndarray] = {}
    if longest * len(clients) <= PADDED * len(labels):
        index = starts[:, None] + np.minimum(np.arange(longest), counts[:, None] - 1)
        features, labels = features[index], labels[index]
    else:
        packed = {"starts": starts, "numbers": np.arange(longest, dtype=np.int32)}
    return Labelled(
        scaled(jnp.asarray(features, dtype=float), norm, "personalized_fl"),
        jnp.asarray(labels, jnp.int32),
        jnp.asarray(counts),
        **jax.tree.map(jnp.asarray, packed),
    )


def held_out(clients: list[ClientRows], fraction: float, norm: float | None) -> Tasks:
    """Each client's last rows, at least one, are its test set."""
    train, test = [], []
    for a, b in clients:
        n = min(max(1, round(fraction * len(b))), len(b) - 1)
        train.append((a[:-n], b[:-n]))
        test.append((a[-n:], b[-n:]))
    return Tasks(labelled(train, norm), labelled(test, norm))


# for the contract tests
SMALLEST = {"clients": 3, "unseen": 1, "classes": 2, "d": 2, "least": 3, "most": 4, "batch": 1, "norm": 1.0}


def make(
    features: Sequence[Any] | None = None,
    labels: Sequence[Any] | None = None,
    lam: float = 2.0,
    norm: float | None = 5.0,
    batch: int = 8,
    moreau: bool = False,
    test_fraction: float = 0.25,
    clients: int = 60,
    unseen: int = 20,
    classes: int = 10,
    d: int = 32,
    least: int = 8,
    most: int = 200,
    alpha: float = 0.5,
    shift: float = 0.5,
    seed: int = 0,
) -> Application:
    """Personalisation from a shared centre; every training client is equally likely.

    Metrics: ``upper_loss`` and ``upper_accuracy`` of the adapted models on the clients' held-out
    rows, which the upper level trains on (``test_loss`` and ``test_accuracy`` with ``moreau``, where it
    does not), ``unseen_loss`` and ``unseen_accuracy`` of clients that training never meets, adapted
    to their own training rows, and ``centre_loss``.

    Args:
        features, labels: lists of arrays (rows, d) and (rows,), one per client; without them
            `synthetic` makes clients.
        lam: weight of the proximal term.
        norm: length to which every feature vector is scaled; None leaves them alone.
        batch: rows in each of the two samples of eta.
        moreau: pFedMe's upper level, f = g, with Danskin's gradient; held-out rows are metrics only.
        test_fraction: share of each client's rows held out, at least one row.
        clients: synthetic clients in all.
        unseen: how many of the clients, the last ones, are kept from training.
        classes, d, least, most, alpha, shift, seed: of the synthetic clients.
    """
    require_integer("clients", "personalized_fl", clients, 2)
    require_integer("unseen", "personalized_fl", unseen, 1)
    if not 0 < test_fraction < 1:
        raise ValueError(f"`test_fraction` of personalized_fl must lie between 0 and 1. Got {test_fraction!r}.")
    if features is None:
        everyone = synthetic(clients, classes, d, least, most, alpha, shift, seed)
    else:
        everyone = given(features, labels)
    if unseen >= len(everyone):
        raise ValueError(
            f"`unseen` of personalized_fl must leave clients to train on. Got {unseen} of {len(everyone)}."
        )
    classes = 1 + max(int(b.max()) for _, b in everyone) if features is not None else classes
    tasks = held_out(everyone, test_fraction, norm)
    seen = Tasks(*(rows.first(len(everyone) - unseen) for rows in tasks))
    problem = proximal_problem(seen, lam=lam, batch=batch, owner="personalized_fl")
    if moreau:
        problem = problem.replace(f=problem.g, inverse=none())
    part = "test" if moreau else "upper"  # what is trained on is no test
    on_everyone = problem.replace(data=tasks, n_contexts=len(everyone))

    def metrics(x: X) -> dict[str, float]:
        scores = adapted_scores(on_everyone, x)
        known, unknown = (jax.tree.map(lambda a: a[part], scores) for part in (slice(-unseen), slice(-unseen, None)))  # noqa: B023
        return {
            f"{part}_loss": float(known.loss.mean()),
            f"{part}_accuracy": float(known.accuracy.mean()),
            "unseen_loss": float(unknown.loss.mean()),
            "unseen_accuracy": float(unknown.accuracy.mean()),
            "centre_loss": float(known.centre_loss.mean()),
        }

    return Application(problem, centre(classes, everyone[0][0].shape[1]), metrics)
