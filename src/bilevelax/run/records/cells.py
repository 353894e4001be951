"""An experiment in cells: their rows on disk, as JSONL, with a manifest. Finished cells survive an interruption."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.whole_files import replace_text
from bilevelax.run.records.history import machine
from bilevelax.run.records.progress import Progress

PLAIN, PACKED, MANIFEST = "records.jsonl", "records.jsonl.gz", "manifest.json"
Row = dict[str, Any]  # flat and plain: numbers, strings, lists of them
DONE = "done"  # the last line of a cell holds its number of rows under this name


class Cell(NamedTuple):
    """A part of an experiment that is run as a whole; it counts as long as all that its rows depend on is the same."""

    name: str
    work: Callable[[], Iterable[Row]]
    of: Mapping[str, Any] | None = None


class Records(NamedTuple):
    """The rows of all cells, each with its ``cell``, and how they came about."""

    rows: list[Row]
    manifest: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        return self.manifest["settings"]

    def where(self, **equal: Any) -> list[Row]:
        """The rows that have these values in these columns."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in equal.items())]

    def values(self, column: str, **equal: Any) -> list[Any]:
        """One column, in the order of the rows, of the rows that have these values."""
        return [row[column] for row in self.where(**equal) if column in row]

    def distinct(self, column: str, **equal: Any) -> list[Any]:
        """The values that a column takes, in order of appearance."""
        return list(dict.fromkeys(self.values(column, **equal)))


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Equal for equal settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def digest(cell: Cell, settings: Mapping[str, Any]) -> str:
    """Of all that the rows of a cell depend on: what it names with the number of seeds, or the whole settings."""
    return fingerprint(settings if cell.of is None else {"seeds": settings.get("seeds"), **cell.of})


def finished(folder: Path) -> dict[str, list[Row]]:
    """The rows of the cells that were finished, the last one saying so; packed ones where the plain file is gone."""
    plain, packed = folder / PLAIN, folder / PACKED
    if not plain.is_file() and not packed.is_file():
        return {}
    cells: dict[str, list[Row]] = {}
    for line in (plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())).splitlines():
        with contextlib.suppress(ValueError):  # the machine stopped in the middle of a line
            row = json.loads(line)
            cells.setdefault(row["cell"], []).append(row)
    return {name: rows for name, rows in cells.items() if DONE in rows[-1]}


def manifest_of(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def is_complete(folder: Path) -> bool:
    """Whether the folder holds the records of a finished run."""
    return bool((manifest_of(folder) or {}).get("complete"))


def read(item: str, folder: Path) -> Records:
    """The records of a finished run of an item."""
    manifest = manifest_of(folder)
    if manifest is None:
        raise ValueError(
            f"There are no records of {item} in {folder}. Run `bilevelax paper {item}` first, or give --out."
        )
    cells = finished(folder)
    if not manifest["complete"]:
        raise ValueError(
            f"The records of {item} in {folder} are not complete ({len(cells)} cells are). Run the same command again: "
            "it goes on where it stopped."
        )
    done = {name: stamped(rows[-1], manifest) for name, rows in cells.items()}
    return Records([row for rows in cells.values() for row in rows[:-1]], {**manifest, "cells": done})


def stamped(done: Row, manifest: Mapping[str, Any]) -> Row:
    """The last line of a cell with its digest, date and load; records that have none for each cell have one for all."""
    where = manifest["machine"]
    return {"of": manifest["settings_hash"], "date": where["date"], "load": where["load"], **done}


def begin(item: str, folder: Path, scale: str, settings: dict[str, Any], cells: Iterable[Cell]) -> dict[str, Any]:
    """The manifest of a run, new or taken up again; refuses a folder none of whose records belong to this run."""
    manifest, now = manifest_of(folder), {"settings": settings, "settings_hash": fingerprint(settings)}
    if manifest is None:
        folder.mkdir(parents=True, exist_ok=True)
        return {"item": item, "scale": scale, **now, "complete": False, "seconds": 0.0, "machine": machine()}
    same = manifest["settings_hash"] == now["settings_hash"]
    if not same and not (manifest["scale"] == scale and usable(folder, manifest, settings, cells)):
        raise ValueError(
            f"{folder} holds records of {item} with other settings (scale {manifest['scale']}, "
            f"{manifest['settings'].get('seeds')} seeds). Give another --out, or delete it."
        )
    return manifest


def usable(folder: Path, manifest: Row, settings: Row, cells: Iterable[Cell]) -> dict[str, list[Row]]:
    """The rows of the finished cells that this run would give again: equal digests. Others are forgotten."""
    wanted = {cell.name: digest(cell, settings) for cell in cells}
    found = {name: [*rows[:-1], stamped(rows[-1], manifest)] for name, rows in finished(folder).items()}
    return {name: rows for name, rows in found.items() if rows[-1]["of"] == wanted.get(name)}


def write_manifest(folder: Path, manifest: Row) -> None:
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=1))


def without(item: str, kept: dict[str, list[Row]], again: str) -> dict[str, list[Row]]:
    """All but the cells that are to run again."""
    if not any(again in name for name in kept):
        raise ValueError(f"No finished cell of {item} has {again!r} in its name. They are: {'; '.join(kept)}.")
    return {name: rows for name, rows in kept.items() if again not in name}


def collect(
    item: str,
    folder: Path,
    scale: str,
    settings: dict[str, Any],
    cells: Iterable[Cell],
    report: Callable[[str], None] = lambda line: None,
    again: str | None = None,
) -> Records:
    """Run the cells that are not finished yet, and those with ``again`` in their names, and pack the records."""
    cells = list(cells)
    manifest = begin(item, folder, scale, settings, cells)
    kept = usable(folder, manifest, settings, cells)
    kept = kept if again is None else without(item, kept, again)
    if manifest["complete"] and len(cells) == len(kept) == len(finished(folder)):
        return read(item, folder)
    seconds = round(sum(rows[-1]["seconds"] for rows in kept.values()), 3)
    manifest |= {"settings": settings, "settings_hash": fingerprint(settings), "complete": False, "seconds": seconds}
    replace_text(folder / PLAIN, as_lines(row for rows in kept.values() for row in rows))
    write_manifest(folder, manifest)
    todo = [cell for cell in cells if cell.name not in kept]
    if kept:
        report(f"{item}: {len(kept)} cells are finished already")
    with Progress(len(todo), label=item) as bar:
        for number, cell in enumerate(todo, 1):
            bar.note(cell.name)
            run_cell(item, folder, cell, manifest, report)
            bar.update(number, {})
    (folder / PACKED).write_bytes(gzip.compress((folder / PLAIN).read_bytes(), mtime=0))
    manifest |= {"complete": True, "machine": machine()}
    write_manifest(folder, manifest)
    (folder / PLAIN).unlink()
    return read(item, folder)


def run_cell(item: str, folder: Path, cell: Cell, manifest: dict[str, Any], report: Callable[[str], None]) -> None:
    """Run a cell and write its rows and the seconds so far."""
    started = time.perf_counter()
    rows = [{"cell": cell.name, **row} for row in cell.work()]
    seconds = time.perf_counter() - started
    now = machine()
    done = {"cell": cell.name, DONE: len(rows), "seconds": round(seconds, 3), "of": digest(cell, manifest["settings"])}
    append(folder / PLAIN, [*rows, {**done, "date": now["date"], "load": now["load"]}])
    manifest["seconds"] = round(manifest["seconds"] + seconds, 3)
    write_manifest(folder, manifest)
    report(f"{item}: {cell.name}, {len(rows)} rows in {seconds:.1f} s")


def as_lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def append(path: Path, rows: list[Row]) -> None:
    """All rows of a cell in one write, on disk when this returns."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(as_lines(rows))
        file.flush()
        os.fsync(file.fileno())


def where_and_when(manifest: Mapping[str, Any]) -> str:
    """The days of the cells, the machine, and how busy it was at their ends."""
    machine, cells = manifest["machine"], manifest["cells"].values()
    days = sorted({cell["date"][:10] for cell in cells})
    loads = [cell["load"] for cell in cells if cell["load"] is not None]
    span = lambda first, last: first if first == last else f"{first} to {last}"
    load = f"load {span(*(f'{load:.1f}' for load in (min(loads), max(loads))))}, " if loads else ""
    version = machine["versions"]["jax"]
    return f"{span(days[0], days[-1])}, {machine['cpu']}, {machine['cores']} cores, {load}jax {version}"


def rounded(values: Any, digits: int = 5) -> Any:
    """So many digits of every number, as lists: what records keep of a curve."""
    one = lambda v: float(f"{finite(v):.{digits}g}") if np.ndim(v) == 0 else rounded(v, digits)
    return [one(v) for v in np.asarray(values, np.float64)]


def finite(value: float) -> float:
    """Infinity where a run diverged is not JSON: the largest float32 stands for it."""
    return float(value) if np.isfinite(value) else float(np.finfo(np.float32).max)
