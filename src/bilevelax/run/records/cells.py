"""Records of an item on disk: JSONL and a manifest. Finished cells survive an interruption."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bilevelax.experiments._items import Cell, Records, Row
from bilevelax.history import machine, replace_text
from bilevelax.progress import Progress

ROWS, PACKED, MANIFEST = "records.jsonl", "records.jsonl.gz", "manifest.json"
DONE = "done"  # the last line of a cell holds its number of rows under this name


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Equal for equal settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def digest(cell: Cell, settings: Mapping[str, Any]) -> str:
    """Of all that the rows of a cell depend on: what it names with the number of seeds, or the whole settings."""
    return fingerprint(settings if cell.of is None else {"seeds": settings.get("seeds"), **cell.of})


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
    cells = {row["cell"]: stamped(row, manifest) for row in rows if DONE in row}
    return Records([row for row in rows if DONE not in row], {**manifest, "cells": cells})


def stamped(done: Row, manifest: Mapping[str, Any]) -> Row:
    """The last line of a cell with its digest, date and load; records that have none for each cell have one for all."""
    where = manifest["machine"]
    return {"of": manifest["settings_hash"], "date": where["date"], "load": where["load"], **done}


def begin(item: str, folder: Path, scale: str, settings: dict[str, Any], cells: Iterable[Cell]) -> dict[str, Any]:
    """The manifest of a run, new or taken up again; refuses a folder none of whose records belong to this run."""
    path = folder / MANIFEST
    now = {"settings": settings, "settings_hash": fingerprint(settings)}
    if path.is_file():
        manifest = json.loads(path.read_text(encoding="utf-8"))
        same = manifest["settings_hash"] == now["settings_hash"]
        if not same and not (manifest["scale"] == scale and usable(folder, manifest, settings, cells)):
            raise ValueError(
                f"{folder} holds records of {item} with other settings (scale {manifest['scale']}, "
                f"{manifest['settings'].get('seeds')} seeds). Give another --out, or delete it."
            )
        return manifest
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"item": item, "scale": scale, **now, "complete": False, "seconds": 0.0, "machine": machine()}
    write_manifest(folder, manifest)
    return manifest


def usable(
    folder: Path, manifest: Mapping[str, Any], settings: Mapping[str, Any], cells: Iterable[Cell]
) -> dict[str, list[str]]:
    """The lines of the finished cells that this run would give again, by name: equal digests. Others are forgotten."""
    wanted = {cell.name: digest(cell, settings) for cell in cells}
    lines: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for line in finished_lines(folder):
        row = json.loads(line)
        name = row["cell"]
        if DONE in row:
            row = stamped(row, manifest)
            found[name], line = row["of"], json.dumps(row)
        lines.setdefault(name, []).append(line)
    return {name: part for name, part in lines.items() if found[name] == wanted.get(name)}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=1))


def without(item: str, lines: dict[str, list[str]], again: str) -> dict[str, list[str]]:
    """All but the cells that are to run again."""
    if not any(again in name for name in lines):
        raise ValueError(f"No finished cell of {item} has {again!r} in its name. They are: {'; '.join(lines)}.")
    return {name: part for name, part in lines.items() if again not in name}


def collect(
    item: str,
    folder: Path,
    scale: str,
    settings: dict[str, Any],
    cells: Iterable[Cell],
    report: Callable[[str], None] = lambda line: None,
    again: str | None = None,
) -> Records:
    """Run the cells that are not finished yet, also those that an item got or changed since, and pack the records.

    ``again``: finished cells with this in their names are run once more, e.g. to take times alone on a machine.
    """
    cells = list(cells)
    manifest = begin(item, folder, scale, settings, cells)
    kept = usable(folder, manifest, settings, cells)
    lines = kept if again is None else without(item, kept, again)
    nothing_else = sum(map(len, lines.values())) == len(finished_lines(folder))
    if manifest["complete"] and len(lines) == len(cells) and nothing_else:
        return read(item, folder)
    seconds = sum(json.loads(part[-1])["seconds"] for part in lines.values())
    manifest |= {"settings": settings, "settings_hash": fingerprint(settings)}
    manifest |= {"complete": False, "seconds": round(seconds, 3)}
    replace_text(folder / ROWS, "".join(line + "\n" for part in lines.values() for line in part))
    write_manifest(folder, manifest)
    todo = [cell for cell in cells if cell.name not in lines]
    if lines:
        report(f"{item}: {len(lines)} cells are finished already")
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
    now = machine()
    done = {"cell": cell.name, DONE: len(rows), "seconds": round(seconds, 3), "of": digest(cell, manifest["settings"])}
    append(folder / ROWS, [*rows, {**done, "date": now["date"], "load": now["load"]}])
    manifest["seconds"] = round(manifest["seconds"] + seconds, 3)
    write_manifest(folder, manifest)
    report(f"{item}: {cell.name}, {len(rows)} rows in {seconds:.1f} s")


def append(path: Path, rows: list[Row]) -> None:
    """All rows of a cell in one write, on disk when this returns."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
