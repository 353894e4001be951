"""Problems whose contexts are clients in a store on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.errors import require_choice, require_integer
from bilevelax.feed import Fed, Source, find
from bilevelax.problem import Eta, Key, Problem, PyTree, X, Xi, Y

SAMPLING = ("uniform", "rows")


class Client(NamedTuple):
    """A context: one client's rows, padded with copies of its last one. Stacked, a batch of clients."""

    id: Any
    rows: PyTree  # (longest, ...)
    mask: Any  # (longest,), true where there is data


class Clients(Protocol):
    """What is asked of a store: `datasets.ClientStore` is one."""

    digest: str

    def __len__(self) -> int: ...
    def get(self, ids: Any, longest: int | None = None) -> Client: ...
    def draw(self, numbers: np.ndarray, sampling: str) -> np.ndarray: ...


class Resident(NamedTuple):
    """The data leaves outside `minimize`: a sample of clients that stays in memory."""

    clients: Client


def one_row(key: Key, client: Client) -> Eta:
    """A row of the client, all equally likely."""
    j = random.randint(key, (), 0, jnp.sum(client.mask, dtype=jnp.int32))
    return jax.tree.map(lambda a: a[j], client.rows)


def from_clients(
    f: Callable[[X, Y, Eta, Client], jax.Array],
    g: Callable[[X, Y, Eta, Client], jax.Array],
    store: Clients,
    *,
    init_y: Callable[[X, Client], Y],
    draw: Callable[[Key, Client], Eta] | None = None,
    sampling: str = "uniform",
    longest: int | None = None,
    resident: int = 256,
    mu_g: float | None = None,
    L_g1: float | None = None,
) -> Problem:
    """A problem whose contexts are the clients of a store, however many: nothing is kept for each.

    `minimize` reads the clients of a chunk of steps while the chunk before runs. Everything else
    (`check`, `tune`, `certify`, `evaluate`) sees ``resident`` clients that are held in memory. A
    client that training never met is a context like any other: ``respond(problem, x, client)`` with
    ``client`` from ``store.get([i])``, its leading axis removed.

    Args:
        f, g: losses as in `Problem`; xi is a `Client`, eta one of its rows or what ``draw`` makes.
        store: e.g. `bilevelax.datasets.ClientStore`.
        init_y: as in `Problem`.
        draw: ``(key, client) -> eta``; by default one row. Rows where ``client.mask`` is false are padding.
        sampling: ``"uniform"`` over clients, or ``"rows"``: a client as often as it has rows.
        longest: rows taken of each client at most, its first; by default the longest client's number.
        resident: clients in memory for the diagnostics.
        mu_g, L_g1: as in `Problem`.
    """
    require_choice("sampling", "from_clients", sampling, SAMPLING)
    require_integer("resident", "from_clients", resident, 1)
    if longest is not None:
        require_integer("longest", "from_clients", longest, 1)

    def read(numbers: np.ndarray) -> Client:
        return store.get(store.draw(numbers, sampling), longest)

    def sample_context(key: Key, data: Fed | Resident) -> Client:
        if isinstance(data, Fed):
            return find(key, *data)
        i = random.randint(key, (), 0, data.clients.mask.shape[0])
        return jax.tree.map(lambda a: a[i], data.clients)

    def support(xi: Client, data: PyTree) -> tuple[Eta, jax.Array]:
        return xi.rows, xi.mask.astype(float) / jnp.sum(xi.mask, dtype=float)

    numbers = np.random.default_rng(0).integers(0, 2**63, resident).astype(np.uint64)
    return Problem(
        f=f,
        g=g,
        sample_context=sample_context,
        sample_conditional=lambda key, xi, data: (draw or one_row)(key, xi),
        init_y=init_y,
        data=Resident(jax.tree.map(jnp.asarray, read(numbers))),
        mu_g=mu_g,
        L_g1=L_g1,
        support=support if draw is None else None,
        source=Source(read, store.digest),
    )


def client(store: Clients, i: int, longest: int | None = None) -> Xi:
    """Client number i as a context."""
    return jax.tree.map(lambda a: jnp.asarray(a[0]), store.get([i], longest))
