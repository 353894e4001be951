"""Ragged clients on disk: columns of values and one file of offsets, memory-mapped, read-only, checksummed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevelax.clients import SAMPLING, Client
from bilevelax.datasets.client_writer import ClientWriter
from bilevelax.datasets.files import verify
from bilevelax.errors import require_choice, require_integer, require_key
from bilevelax.feed import as_numbers, tag
from bilevelax.fingerprint import digest
from bilevelax.problem import Key

FORMAT = 1


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
        ids = np.asarray(ids, np.int64).reshape(-1)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
            raise ValueError(f"`ids` of ClientStore.get must lie in [0, {len(self)}). Got {ids.min()} to {ids.max()}.")
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
        """Read every file and compare its checksum; opening a store compares sizes only."""
        for name, sha256 in self.files.items():
            verify(self.folder / name, sha256)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(f"There is no client store in {folder}: write one with ClientStore.write.")
    stored = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps({name: value for name, value in stored.items() if name != "sha256"}, sort_keys=True)
    if stored.get("format") != FORMAT or hashlib.sha256(text.encode()).hexdigest() != stored.get("sha256"):
        raise ValueError(
            f"{path} is not a manifest of a client store of format {FORMAT}, or was changed: write it again."
        )
    return stored


def _map(folder: Path, each: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """A file as a read-only array."""
    path, dtype = folder / each["file"], np.dtype(each["dtype"])
    wanted, size = dtype.itemsize * int(np.prod(shape)), path.stat().st_size if path.is_file() else None
    if size != wanted:
        raise ValueError(
            f"{path} must have {wanted} bytes. Got {'no file' if size is None else size}: it is truncated or missing, "
            "so copy or write the store again."
        )
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))
