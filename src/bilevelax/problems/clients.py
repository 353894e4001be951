"""Problems whose contexts are clients in a store on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.addresses import find
from bilevelax.base.errors import require_choice, require_integer
from bilevelax.core.problem import Eta, Key, Problem, PyTree, X, Xi, Y
from bilevelax.problems.feed import Fed, Packed, Source

SAMPLING = ("uniform", "rows")
SHOWN = 64  # clients of a step that are named


class Client(NamedTuple):
    """A context: one client's rows, padded with copies of its last one. Stacked, a batch of clients."""

    id: Any
    rows: PyTree  # (longest, ...)
    mask: Any  # (longest,), true where there is data


class Place(NamedTuple):
    """Where a client's rows lie among packed ones."""

    id: Any
    start: Any
    count: Any
    there: Any  # 1.0; not a number for a client that was not read


class Clients(Protocol):
    """What is asked of a store: `datasets.ClientStore` is one."""

    digest: str
    rows: int
    longest: int

    def __len__(self) -> int: ...
    def get(self, ids: Any, longest: int | None = None) -> Client: ...
    def pack(self, ids: Any, longest: int | None = None) -> tuple[np.ndarray, np.ndarray, PyTree]: ...
    def room(self, ids: Any, longest: int | None = None) -> int: ...
    def draw(self, numbers: np.ndarray, sampling: str) -> np.ndarray: ...


class Resident(NamedTuple):
    """The data leaves outside `minimize`: a sample of clients that stays in memory."""

    clients: Packed


def room_of(store: Clients, ids: np.ndarray, longest: int, before: int) -> int:
    """Rows to make room for: as many as before, or half as many again as these clients need."""
    needed = store.room(ids, longest)
    if needed <= before:
        return before
    return max(needed, min(1 << (3 * needed // 2 - 1).bit_length(), len(ids) * longest, store.rows))


def packed(store: Clients, ids: np.ndarray, longest: int, room: int) -> Packed:
    """These clients, each one's rows once, among ``room`` rows.

    Bytes go with rows: one client of 20,000 rows among 500 of 10 costs what it holds.
    """
    start, count, rows = store.pack(ids, longest)
    pad = lambda a: np.concatenate([a, np.zeros((room - len(a), *a.shape[1:]), a.dtype)])[None]
    at, first, many = (np.asarray(a, np.int32) for a in (ids, start, count))
    return Packed(Place(at, first, many, np.ones(len(ids))), jax.tree.map(pad, rows))


def unpacked(place: Place, rows: PyTree, longest: int) -> Client:
    """One client of the only part, as `ClientStore.get` gives it, padded with copies of its last row."""
    number = jnp.arange(longest, dtype=jnp.int32)
    index = place.start + jnp.minimum(number, place.count - 1)

    def pick(a: jax.Array) -> jax.Array:
        found = a[0, index]
        return jnp.where(jnp.isnan(place.there), jnp.nan, found) if jnp.issubdtype(a.dtype, jnp.floating) else found

    return Client(place.id, jax.tree.map(pick, rows), number < place.count)


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

    most = min(longest or store.longest, store.longest)

    def read(numbers: np.ndarray) -> Client:
        return store.get(store.draw(numbers, sampling), longest)

    def pack(numbers: np.ndarray, room: int) -> Packed:
        return packed(store, store.draw(numbers, sampling), most, room)

    def room(numbers: np.ndarray, before: int) -> int:
        return room_of(store, store.draw(numbers, sampling), most, before)

    def sample_context(key: Key, data: Fed | Resident) -> Client:
        if isinstance(data, Resident):
            i = random.randint(key, (), 0, resident)
            return unpacked(jax.tree.map(lambda a: a[i], data.clients.places), data.clients.rows, most)
        if isinstance(data.contexts, Packed):
            return unpacked(find(key, data.tags, data.contexts.places), data.contexts.rows, most)
        return find(key, *data)

    def support(xi: Client, data: PyTree) -> tuple[Eta, jax.Array]:
        return xi.rows, xi.mask.astype(float) / jnp.sum(xi.mask, dtype=float)

    numbers = np.random.default_rng(0).integers(0, 2**63, resident).astype(np.uint64)
    return Problem(
        f=f,
        g=g,
        sample_context=sample_context,
        sample_conditional=lambda key, xi, data: (draw or one_row)(key, xi),
        init_y=init_y,
        data=Resident(jax.tree.map(jnp.asarray, pack(numbers, room(numbers, 0)))),
        mu_g=mu_g,
        L_g1=L_g1,
        support=support if draw is None else None,
        source=Source(
            read,
            store.digest,
            pack,
            room,
            lambda numbers: told(store, store.draw(numbers, sampling)),
            lambda: jax.tree.map(jnp.asarray, read(numbers)),
        ),
    )


def told(store: Clients, ids: np.ndarray) -> str:
    """Which clients a step read, and whose rows are not finite in JAX's precision."""
    read = np.unique(ids).tolist()
    finite = lambda i: all(bool(jnp.isfinite(jnp.asarray(a)).all()) for a in jax.tree.leaves(store.get([i]).rows))
    bad = [i for i in read[:SHOWN] if not finite(i)]
    names = ", ".join(map(str, read[:SHOWN])) + (", ..." if len(read) > SHOWN else "")
    return f" Its clients were {names}." + (f" Client {bad[0]} holds rows that are not finite." if bad else "")


def client(store: Clients, i: int, longest: int | None = None) -> Xi:
    """Client number i as a context."""
    return jax.tree.map(lambda a: jnp.asarray(a[0]), store.get([i], longest))
