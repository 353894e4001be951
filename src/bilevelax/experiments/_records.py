"""Records of an item on disk: JSONL and a manifest. Finished cells survive an interruption."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bilevelax.experiments._items import Cell, Records, Row
from bilevelax.history import machine, replace_text
from bilevelax.progress import Progress

ROWS, PACKED, MANIFEST = "records.jsonl", "records.jsonl.gz", "manifest.json"
DONE = "done"  # the last line of a cell holds its number of rows under this name


def fingerprint(settings: dict[str, Any]) -> str:
    """Equal for equal settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def finished_lines(folder: Path) -> list[str]:
    """The lines of the cells that were finished; the packed file counts only where the plain one is gone."""
    if (folder / ROWS).is_file():
        lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
    elif (folder / PACKED).is_file():
        lines = gzip.decompress((folder / PACKED).read_bytes()).decode().splitlines()
    else:
        return []
    parsed = [_parse(line) for line in lines]
    finished = {row["cell"] for row in parsed if row and DONE in row}
    return [line for line, row in zip(lines, parsed, strict=True) if row and row["cell"] in finished]


def _parse(line: str) -> Row | None:
    try:
        return json.loads(line)
    except json.JSONDecodeError:  # the machine stopped in the middle of a line
        return None


def is_complete(folder: Path) -> bool:
    """Whether the folder holds the records of a finished run."""
    path = folder / MANIFEST
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["complete"]


def read(item: str, folder: Path) -> Records:
    """The records of a finished run of an item."""
    if not (folder / MANIFEST).is_file():
        raise ValueError(
            f"There are no records of {item} in {folder}. Run `bilevelax paper {item}` first, or give --out."
        )
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in finished_lines(folder)]
    if not manifest["complete"]:
        done = sum(DONE in row for row in rows)
        raise ValueError(
            f"The records of {item} in {folder} are not complete ({done} cells are). Run the same command again: "
            "it goes on where it stopped."
        )
    return Records([row for row in rows if DONE not in row], manifest)


def begin(item: str, folder: Path, scale: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a run, new or taken up again; refuses a folder with records of other settings."""
    path = folder / MANIFEST
    if path.is_file():
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["settings_hash"] != fingerprint(settings):
            raise ValueError(
                f"{folder} holds records of {item} with other settings (scale {manifest['scale']}, "
                f"{manifest['settings'].get('seeds')} seeds). Give another --out, or delete it."
            )
        return manifest
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "item": item,
        "scale": scale,
        "settings": settings,
        "settings_hash": fingerprint(settings),
        "complete": False,
        "seconds": 0.0,
        "machine": machine(),
    }
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=1))


def forgotten(item: str, folder: Path, again: str) -> list[str]:
    """The lines of the finished cells that are not to run again."""
    lines = finished_lines(folder)
    names = dict.fromkeys(json.loads(line)["cell"] for line in lines)
    if not any(again in name for name in names):
        raise ValueError(f"No finished cell of {item} has {again!r} in its name. They are: {'; '.join(names)}.")
    return [line for line in lines if again not in json.loads(line)["cell"]]


def collect(
    item: str,
    folder: Path,
    scale: str,
    settings: dict[str, Any],
    cells: Iterable[Cell],
    report: Callable[[str], None] = lambda line: None,
    again: str | None = None,
) -> Records:
    """Run the cells that are not finished yet, also those that an item got since, and pack the records.

    ``again``: finished cells with this in their names are run once more, e.g. to take times alone on a machine.
    """
    manifest = begin(item, folder, scale, settings)
    lines = finished_lines(folder) if again is None else forgotten(item, folder, again)
    taken = {row["cell"]: row["seconds"] for row in map(json.loads, lines) if DONE in row}
    cells = list(cells)
    if manifest["complete"] and all(cell.name in taken for cell in cells):
        return read(item, folder)
    manifest |= {"complete": False, "seconds": round(sum(taken.values()), 3)}
    replace_text(folder / ROWS, "".join(line + "\n" for line in lines))
    write_manifest(folder, manifest)
    todo = [cell for cell in cells if cell.name not in taken]
    if taken:
        report(f"{item}: {len(taken)} cells are finished already")
    with Progress(len(todo), label=item) as bar:
        for number, cell in enumerate(todo, 1):
            bar.note(cell.name)
            run_cell(item, folder, cell, manifest, report)
            bar.update(number, {})
    (folder / PACKED).write_bytes(gzip.compress((folder / ROWS).read_bytes(), mtime=0))
    manifest |= {"complete": True, "machine": machine()}
    write_manifest(folder, manifest)
    (folder / ROWS).unlink()
    return read(item, folder)


def run_cell(item: str, folder: Path, cell: Cell, manifest: dict[str, Any], report: Callable[[str], None]) -> None:
    """Run a cell and write its rows and the seconds so far."""
    started = time.perf_counter()
    rows = [{"cell": cell.name, **row} for row in cell.work()]
    seconds = time.perf_counter() - started
    append(folder / ROWS, [*rows, {"cell": cell.name, DONE: len(rows), "seconds": round(seconds, 3)}])
    manifest["seconds"] = round(manifest["seconds"] + seconds, 3)
    write_manifest(folder, manifest)
    report(f"{item}: {cell.name}, {len(rows)} rows in {seconds:.1f} s")


def append(path: Path, rows: list[Row]) -> None:
    """All rows of a cell in one write, on disk when this returns."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
