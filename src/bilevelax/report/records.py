"""Read the folders of runs, finished or still going on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.base.declared import reason_of
from bilevelax.run.records.history import Row


class Record(NamedTuple):
    """One run as its folder tells it."""

    name: str  # the shortest end of its path that no other run shares
    folder: Path
    rows: list[Row]
    manifest: dict[str, Any]


def read_all(runs: Iterable[str | Path]) -> list[Record]:
    """The records of all folders, named apart."""
    folders = list(dict.fromkeys(folder.resolve() for run in runs for folder in _folders(Path(run))))
    if not folders:
        raise ValueError("`runs` of report must name at least one folder of a run. Got none.")
    return [
        Record(name, folder, _rows(folder / "history.jsonl"), _manifest(folder / "manifest.json"))
        for name, folder in zip(_names(folders), folders, strict=True)
    ]


def _folders(folder: Path) -> list[Path]:
    if (folder / "history.jsonl").is_file():
        return [folder]
    holders = {path.parent for path in folder.glob("**/history.jsonl") if path.is_file()}
    found = sorted(each for each in holders if holders.isdisjoint(each.parents))  # not what a run keeps inside
    if not found:
        missing = "has no history.jsonl" if folder.is_dir() else "does not exist"
        raise ValueError(
            f"`runs` of report must be folders of saved runs. Got {str(folder)!r}, which {missing}. "
            "`bilevelax run NAME` and Result.save make such folders."
        )
    return found


def _names(folders: list[Path]) -> list[str]:
    """The last part of each path, and as many parts before it as are needed to tell them apart."""
    parts = {folder: 1 for folder in folders}
    name = lambda folder: "/".join(folder.parts[-parts[folder] :])
    while True:
        times = Counter(name(folder) for folder in folders)
        clashing = [folder for folder in folders if times[name(folder)] > 1]
        if not clashing:
            return [name(folder) for folder in folders]
        for folder in clashing:
            parts[folder] += 1


def _rows(path: Path) -> list[Row]:
    """Complete rows; a run that is still going on may have written half of its last one."""
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} must be UTF-8 text as a run writes it. Got other bytes; save the run again."
        ) from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("t"), int | float):
            raise ValueError(
                f"Line {number} of {path} must be a row of a history with a number `t`. Got {line[:60]!r}; "
                "save the run again."
            )
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no rows yet. Wait for the run's first chunk, or leave this run out.")
    return rows


def _manifest(path: Path) -> dict[str, Any]:
    """Empty for a run that has not saved its manifest yet."""
    if not path.is_file():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must be JSON as Result.save writes it. {reason_of(error)}. Save the run again."
        ) from error
    return manifest if isinstance(manifest, dict) else {}
