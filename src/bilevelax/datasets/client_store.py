"""Ragged clients on disk: columns of values and one file of offsets, memory-mapped, read-only, checksummed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevelax.base.addresses import as_numbers, tag
from bilevelax.base.declared import Undeclared, integer, is_sealed, list_of, map_of, one_of, read_json, record, text
from bilevelax.base.errors import require_choice, require_integer, require_key
from bilevelax.core.problem import Key
from bilevelax.datasets.client_writer import NUMBERS, OFFSETS, ClientWriter, is_plain
from bilevelax.datasets.files import verify
from bilevelax.problems.clients import SAMPLING, Client
from bilevelax.run.records.fingerprint import digest

STORE_FORMAT = 1
BLOCK = 2**18  # offsets checked at once


class ClientStore:
    """Millions of clients with different numbers of rows, none of them loaded.

    ``len(store)`` clients are numbered from 0; ``store.get(ids)`` returns them padded, with a mask;
    ``store.sample(key, n)`` draws n, the same for the same key. Make one with `ClientStore.write`,
    `bilevelax.datasets.from_csv` or `from_parquet`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        manifest = _manifest(self.folder)
        self.rows, self.longest = manifest["rows"], manifest["longest"]
        self.equal = manifest["shortest"] == manifest["longest"]
        self.columns = manifest["columns"]
        self.files = {each["file"]: each["sha256"] for each in (*self.columns.values(), manifest["offsets"])}
        self.digest = digest(json.dumps(self.files, sort_keys=True).encode())
        self.offsets = _map(self.folder, manifest["offsets"], (manifest["clients"] + 1,))
        _require_right_offsets(self.folder / manifest["offsets"]["file"], manifest)
        self.values = {
            name: _map(self.folder, each, (self.rows, *each["shape"])) for name, each in self.columns.items()
        }

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @staticmethod
    def write(folder: str | Path, clients: Iterable[Mapping[str, Any]]) -> ClientStore:
        """A new store from an iterable of clients, each a dict of arrays with one row per row; any number of them.

        Memory does not grow with their number. The folder appears when all of them are written.
        """
        with ClientWriter(folder) as writer:
            for each in clients:
                writer.add(each)
        return ClientStore(folder)

    def get(self, ids: Any, longest: int | None = None) -> Client:
        """These clients, stacked; each is padded with copies of its last row to ``longest`` rows."""
        ids = self._known(ids)
        longest = min(longest or self.longest, self.longest)
        start = self.offsets[ids]
        counts = np.minimum(self.offsets[ids + 1] - start, longest)
        number = np.arange(longest)
        if self.equal:
            rows = {name: a.reshape(len(self), -1, *a.shape[1:])[ids, :longest] for name, a in self.values.items()}
        else:
            index = start[:, None] + np.minimum(number, counts[:, None] - 1)
            rows = {name: a[index] for name, a in self.values.items()}
        return Client(ids.astype(np.int32), rows, number < counts[:, None])

    def pack(self, ids: Any, longest: int | None = None) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """(first row, number of rows) of each of these clients among the rows of all, which are there once."""
        different, which = np.unique(self._known(ids), return_inverse=True)
        first, counts = self._extent(different, longest)
        start = np.cumsum(counts) - counts
        index = np.repeat(first - start, counts) + np.arange(int(counts.sum()))
        return start[which], counts[which], {name: a[index] for name, a in self.values.items()}

    def room(self, ids: Any, longest: int | None = None) -> int:
        """Rows that `pack` gives for these clients; only the offsets are looked at."""
        return int(self._extent(np.unique(self._known(ids)), longest)[1].sum())

    def _extent(self, ids: np.ndarray, longest: int | None) -> tuple[np.ndarray, np.ndarray]:
        first = self.offsets[ids]
        return first, np.minimum(self.offsets[ids + 1] - first, longest or self.longest)

    def _known(self, ids: Any) -> np.ndarray:
        ids = np.asarray(ids, np.int64).reshape(-1)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
            raise ValueError(f"`ids` of ClientStore.get must lie in [0, {len(self)}). Got {ids.min()} to {ids.max()}.")
        return ids

    def draw(self, numbers: np.ndarray, sampling: str = "uniform") -> np.ndarray:
        """Clients of random 64-bit numbers: all equally likely, or each as often as it has rows."""
        require_choice("sampling", "ClientStore.draw", sampling, SAMPLING)
        if sampling == "uniform":
            return (numbers % np.uint64(len(self))).astype(np.int64)
        return np.searchsorted(self.offsets, (numbers % np.uint64(self.rows)).astype(np.int64), side="right") - 1

    def sample(self, key: Key, n: int, sampling: str = "uniform") -> Client:
        """n clients with replacement, client j of them addressed by (key, j)."""
        require_key("ClientStore.sample", key)
        require_integer("n", "ClientStore.sample", n, 1)
        keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(np.arange(n, dtype=np.int32))
        return self.get(self.draw(as_numbers(jax.vmap(tag)(keys)), sampling))

    def verify(self) -> None:
        """Read every file and compare its checksum; opening a store reads the offsets and compares sizes of columns."""
        for name, sha256 in self.files.items():
            verify(self.folder / name, sha256)


def _identifier(name: Any, where: str) -> None:
    if not is_plain(name):
        raise Undeclared(where, "a plain identifier", name)


COUNT = integer(1, 2**62)
FILE = {
    "file": text(),
    "dtype": text(rf"[<|][{NUMBERS}]\d{{1,2}}", "the dtype of a number, such as '<f8'"),
    "shape": list_of(integer(1, 2**40), most=16),
    "rows": COUNT,
    "sha256": text("[0-9a-f]{64}", "a SHA256"),
}
MANIFEST = record(
    {
        "format": one_of(STORE_FORMAT),
        "clients": COUNT,
        "rows": COUNT,
        "longest": COUNT,
        "shortest": COUNT,
        "columns": map_of(_identifier, record(FILE), least=1, most=10**4),
        "offsets": record({**FILE, "dtype": one_of("<i8"), "shape": list_of(COUNT, most=0)}),
        "sha256": FILE["sha256"],
    }
)


def _manifest(folder: Path) -> dict[str, Any]:
    """What the folder says of itself; only files of the folder itself are named."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(f"There is no client store in {folder}: write one with ClientStore.write.")

    def check(stored: Any, where: str) -> None:
        MANIFEST(stored, where)
        if not is_sealed(stored):
            raise ValueError("it was changed after it was written")
        for name, each in [*stored["columns"].items(), (OFFSETS, stored["offsets"])]:
            place = name if each is stored["offsets"] else f"columns.{name}"
            one_of(f"{name}.bin")(each["file"], f"{place}.file")

    return read_json(path, check, "write it again")


def _map(folder: Path, each: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """A file as a read-only array."""
    path, dtype = folder / each["file"], np.dtype(each["dtype"])
    if path.is_symlink():
        raise ValueError(f"{path} must be a file of its own. Got a link to {path.readlink()}: copy the file there.")
    wanted, size = dtype.itemsize * math.prod(shape), path.stat().st_size if path.is_file() else None
    if size != wanted:
        raise ValueError(
            f"{path} must have {wanted} bytes. Got {'no file' if size is None else size}: it is truncated or missing, "
            "so copy or write the store again."
        )
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))


def _require_right_offsets(path: Path, manifest: dict[str, Any]) -> None:
    """They grow from 0 to the number of rows, by as much as the manifest tells; read in blocks, not through the map."""
    verify(path, manifest["offsets"]["sha256"])
    before, steps = 0, {manifest["shortest"], manifest["longest"]}
    seen: set[int] = set()
    with open(path, "rb") as file:
        good = np.fromfile(file, "<i8", 1)[0] == 0
        while good and len(block := np.fromfile(file, "<i8", BLOCK)):
            sizes = np.diff(block, prepend=before)
            seen |= {int(sizes.min()), int(sizes.max())}
            before = int(block[-1])
            good = min(seen) >= 1
    if not good or before != manifest["rows"]:
        raise ValueError(f"{path} must grow from 0 to {manifest['rows']}, a client at a time: write the store again.")
    if {min(seen), max(seen)} != steps:
        raise ValueError(
            f"{path} holds clients of {min(seen)} to {max(seen)} rows, but the manifest's shortest and longest have "
            f"{manifest['shortest']} and {manifest['longest']}: write the store again."
        )
