"""Writing client stores in constant memory: from an iterator, or from a table with a client column."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.base.declared import seal
from bilevelax.base.whole_files import allocate, replace_text, told_if_not_written
from bilevelax.datasets.csv_layout import Layout, layout_of, rows_of, too_long

BATCH = 65536  # rows of a table in memory at once
NUMBERS = "biufc"  # kinds of dtype that a column may have
OFFSETS = "offsets"  # a file of every store, so no column's name
TableBatch = tuple[np.ndarray, dict[str, np.ndarray]]  # client of each row, columns


class ClientWriter:
    """``with ClientWriter(folder) as writer: writer.add({"a": rows, "b": labels})``, once for each client.

    Files grow in ``FOLDER.partial``, which becomes the folder at the end: a store is complete or not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        self.columns: dict[str, _Column] = {}
        self.rows = self.longest = 0
        self.shortest: int | None = None

    def __enter__(self) -> ClientWriter:
        if self.folder.exists():
            raise ValueError(f"`folder` of ClientWriter must not exist yet. Got {str(self.folder)!r}.")
        shutil.rmtree(self.partial, ignore_errors=True)
        with told_if_not_written(self.folder):
            self.partial.mkdir(parents=True)
            self.offsets = _Column(self.partial / f"{OFFSETS}.bin", np.dtype("<i8"), ())
        self.offsets.append(np.zeros(1, np.int64))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None and not self.rows:
                raise ValueError("A client store must hold at least one client. Got none.")
            if kind is None:
                with told_if_not_written(self.folder):
                    described = {name: column.finished() for name, column in self.columns.items()}
                    self._finish(described, self.offsets.finished())
        finally:
            for column in (*self.columns.values(), self.offsets):
                column.close()
            shutil.rmtree(self.partial, ignore_errors=True)  # renamed where it is whole

    def add(self, client: Mapping[str, Any], counts: Any = None) -> None:
        """One more client: columns of equal length, the same names, dtypes and shapes for all clients.

        With ``counts``, many clients at once: their rows one after the other, and how many each has.
        """
        arrays = {name: np.asarray(value) for name, value in client.items()}
        lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
        counts = np.asarray([max(lengths.values(), default=0)] if counts is None else counts, np.int64)
        if not arrays or set(lengths.values()) != {counts.sum()} or counts.min() < 1:
            raise ValueError(
                f"A client must hold columns with one entry for each of its rows, at least one. Got {lengths}."
            )
        if not self.columns:
            for name, a in arrays.items():
                require_plain_column(name, a)
            self.columns = {
                name: _Column(self.partial / f"{name}.bin", a.dtype.newbyteorder("<"), a.shape[1:])
                for name, a in arrays.items()
            }
        if arrays.keys() != self.columns.keys():
            raise ValueError(f"Every client must have the columns {list(self.columns)}. Got {list(arrays)}.")
        with told_if_not_written(self.folder):
            for name, a in arrays.items():
                require_kept_by_jax(name, a, self.offsets.rows - 1, counts)
                self.columns[name].append(a)
            self.offsets.append(self.rows + np.cumsum(counts))
        self.rows += int(counts.sum())
        self.longest = max(self.longest, int(counts.max()))
        self.shortest = min(self.shortest or self.longest, int(counts.min()))

    def _finish(self, columns: dict[str, Any], offsets: dict[str, Any]) -> None:
        manifest = {
            "format": 1,
            "clients": offsets["rows"] - 1,
            "rows": self.rows,
            "longest": self.longest,
            "shortest": self.shortest,
            "columns": columns,
            "offsets": offsets,
        }
        replace_text(self.partial / "manifest.json", json.dumps(seal(manifest), indent=2))
        self.partial.rename(self.folder)


def is_plain(name: Any) -> bool:
    """Whether a column's name is a file's name and nothing else."""
    return isinstance(name, str) and name.isidentifier() and name != OFFSETS


def require_plain_column(name: str, a: np.ndarray) -> None:
    """A plain name, and numbers, at least one in each row."""
    if not is_plain(name) or a.dtype.kind not in NUMBERS or 0 in a.shape[1:]:
        raise ValueError(
            f"A column must have a plain name and numbers as values. Got {name!r} of {a.dtype} with rows of shape "
            f"{a.shape[1:]}."
        )


def require_kept_by_jax(name: str, a: np.ndarray, first: int, counts: np.ndarray) -> None:
    """Numbers that stay what they are in JAX, whose integers have 32 bits by default; ``first``: the first client."""
    if a.dtype.kind in "fc":
        good, rule = np.isfinite(a), "finite numbers"
    elif a.dtype.kind in "iu" and a.dtype.itemsize == 8:
        held = np.iinfo(np.int32 if a.dtype.kind == "i" else np.uint32)
        good, rule = (a >= held.min) & (a <= held.max), f"integers that JAX can hold, in [{held.min}, {held.max}]"
    else:
        return
    if not good.all():
        row = int(np.argmin(good.reshape(len(a), -1).all(axis=1)))
        at = first + int(np.searchsorted(np.cumsum(counts), row, side="right"))
        value = a[row][~good[row]].ravel()[0] if a.ndim > 1 else a[row]
        raise ValueError(
            f"Column {name!r} must hold {rule}. Got {value} for client {at}; leave that row out or mend it."
        )


class _Column:
    """A file of rows, and the checksum of what was written."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape, self.rows = path, dtype, shape, 0
        self.file = open(path, "wb")  # noqa: SIM115 (open as long as rows come)
        self.digest = hashlib.sha256()

    def append(self, rows: np.ndarray) -> None:
        if rows.shape[1:] != self.shape or not np.can_cast(rows.dtype, self.dtype, "same_kind"):
            raise ValueError(
                f"Column {self.path.stem!r} must have rows of shape {self.shape} and dtype {self.dtype}. "
                f"Got {rows.shape[1:]} and {rows.dtype}."
            )
        data = np.ascontiguousarray(rows, self.dtype).tobytes()
        self.file.write(data)
        self.digest.update(data)
        self.rows += len(rows)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what cannot be written is thrown away, or was told
            self.file.close()

    def finished(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        described = {"file": self.path.name, "dtype": self.dtype.str, "shape": list(self.shape), "rows": self.rows}
        return {**described, "sha256": self.digest.hexdigest()}


def from_csv(folder: str | Path, path: str | Path, client: str) -> dict[str, int]:
    """A client store from a CSV file with a header: ``client`` names the column of clients, the others are numbers.

    Rows may come in any order. Returns the number of each client by its name; memory grows with the
    number of clients, not of rows.
    """
    return _from_table(folder, lambda: _csv_batches(Path(path), client))


def from_parquet(folder: str | Path, path: str | Path, client: str) -> dict[str, int]:
    """Likewise from a Parquet file; needs pyarrow."""
    return _from_table(folder, lambda: _parquet_batches(Path(path), client))


def _from_table(folder: str | Path, batches: Callable[[], Iterator[TableBatch]]) -> dict[str, int]:
    """Two passes: how many rows each client has, then every row to its place."""
    numbers: dict[str, int] = {}
    counts: list[int] = []
    kinds: dict[str, np.dtype] = {}
    for names, columns in batches():
        for name, count in zip(*np.unique(names, return_counts=True), strict=True):
            i = numbers.setdefault(str(name), len(numbers))
            if i == len(counts):
                counts.append(0)
            counts[i] += int(count)
        kinds = {name: np.result_type(kinds.get(name, a.dtype), a.dtype) for name, a in columns.items()}
    for name, kind in kinds.items():
        require_plain_column(name, np.empty(0, kind))
    ends = np.cumsum([0, *counts])
    folder = Path(folder).expanduser()
    with told_if_not_written(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.table-", dir=folder.parent))
    try:
        with told_if_not_written(folder):
            maps = {name: _map(work / f"{name}.bin", kind, int(ends[-1])) for name, kind in kinds.items()}
        cursor = ends[:-1].copy()
        for names, columns in batches():
            ids = np.asarray([numbers[str(name)] for name in names])
            order = np.argsort(ids, kind="stable")
            unique, first, count = np.unique(ids[order], return_index=True, return_counts=True)
            place = np.repeat(cursor[unique] - first, count) + np.arange(len(ids))
            cursor[unique] += count
            for name, a in columns.items():
                maps[name][place] = a[order]
        with ClientWriter(folder) as writer:
            for start, end in itertools.pairwise(ends):
                writer.add({name: a[start:end] for name, a in maps.items()})
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return numbers


def _map(path: Path, kind: np.dtype, rows: int) -> np.ndarray:
    """A file as an array, all of whose bytes are there: on a full disk, writing to others would end the process."""
    with open(path, "wb") as file:
        allocate(file.fileno(), rows * kind.itemsize)
    return np.memmap(path, kind, "r+" if path.stat().st_size else "w+", shape=(rows,))


def _csv_batches(path: Path, client: str) -> Iterator[TableBatch]:
    path = path.expanduser()
    layout = layout_of(path)
    _require_column(path, client, [name for name in layout.names if name])
    rows: list[list[str]] = []
    first = 1
    for number, cells in rows_of(path, layout):
        if len(cells) < len(layout.names) or any(cell.strip() for cell in cells[len(layout.names) :]):
            raise too_long(path, number, cells, layout)
        rows.append(cells)
        if len(rows) == BATCH:
            yield _csv_batch(path, rows, client, layout)
            rows, first = [], number + 1
    if rows:
        yield _csv_batch(path, rows, client, layout)
    elif first == 1:
        raise ValueError(f"{path} has no rows below its header. Add one for each row of a client.")


def _csv_batch(path: Path, rows: list[list[str]], client: str, layout: Layout) -> TableBatch:
    columns = {}
    for j, name in enumerate(layout.names):
        if name and name != client:
            try:
                columns[name] = np.asarray([float(row[j].replace(layout.decimal, ".")) for row in rows])
            except ValueError as error:
                raise ValueError(f"{path} must hold numbers in every column but {client!r}: {error}.") from None
    at = layout.names.index(client)
    return np.asarray([row[at].strip() for row in rows]), columns


def _parquet_batches(path: Path, client: str) -> Iterator[TableBatch]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("from_parquet needs pyarrow: pip install pyarrow.") from None
    table = parquet.ParquetFile(path)
    _require_column(path, client, table.schema_arrow.names)
    for batch in table.iter_batches(BATCH):
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
        yield columns.pop(client).astype(str), columns


def _require_column(path: Path, client: str, header: list[str]) -> None:
    if client not in header:
        raise ValueError(f"`client` must name a column of {path}, one of {header}. Got {client!r}.")
    if len(header) < 2:
        raise ValueError(f"{path} has no column beside {client!r}. Add the numbers of each row.")
