"""The folder of one run: one writer at a time, where there are locks, and a status that outlives it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.base.declared import integer, number, one_of, read_json, record, text
from bilevelax.base.whole_files import replace_text
from bilevelax.run.records.locks import THERE_ARE_LOCKS, is_locked, lock

TAIL = 65536  # bytes of the history read to find its last rows


class RunFolder:
    """Holds the lock of a folder and keeps its status.json: running, finished, interrupted or failed."""

    def __init__(self, folder: Path, T: int) -> None:
        self.folder, self.T = folder, T
        self.about: dict[str, Any] = {}  # for who lists runs: estimator, optimizer, every

    def __enter__(self) -> RunFolder:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / "lock", "a")  # held as long as the run
        except OSError as error:
            raise ValueError(
                f"`folder` of Checkpoint must be a folder that can be written. Got {str(self.folder)!r} "
                f"({error.strerror}); name another."
            ) from error
        if not lock(self.lock):
            self.lock.close()
            raise ValueError(taken(self.folder))
        self.started: str | None = None
        try:
            self.require_own()
        except ValueError:
            self.lock.close()
            raise
        return self

    def require_own(self) -> None:
        """Refuse a folder whose history no run in it has written: a saved result, or another program's."""
        history = self.folder / "history.jsonl"
        ours = (self.folder / "status.json").exists() or any((self.folder / "checkpoints").glob("[0-9]*"))
        if not ours and history.exists() and history.stat().st_size:
            raise ValueError(
                f"`folder` of Checkpoint must be of this run alone. Got {str(self.folder)!r}, whose history.jsonl no "
                'run with checkpoints has written. Name another folder, or put it aside with resume="restart".'
            )

    def begin(self) -> None:
        self.started = _now()
        self.write("running")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        state = "finished"
        if kind is not None:
            state = "interrupted" if issubclass(kind, KeyboardInterrupt | SystemExit) else "failed"
        try:
            if self.started:  # a run that was refused leaves the old one's status alone
                self.write(state, str(error or ""))
        except OSError:  # a full disk must not hide the error that is on its way
            if kind is None:
                raise
        finally:
            self.lock.close()

    def write(self, state: str, message: str = "") -> None:
        status = {"state": state, "T": self.T, "pid": os.getpid(), "started": self.started, "updated": _now()}
        status |= {"about": self.about} if self.about else {}
        replace_text(self.folder / "status.json", json.dumps({**status, "message": message}, indent=2) + "\n")


class Status(NamedTuple):
    """What can be told of a run from outside."""

    folder: Path
    state: str  # running, finished, interrupted, failed or, where a lock tells, killed
    t: int
    T: int
    seconds: float  # spent in steps
    left: float | None  # seconds, at the pace of the last rows
    message: str
    about: dict[str, Any]  # estimator, optimizer, every; empty where nobody said


DECLARED = record(  # status.json
    {
        "state": one_of("running", "finished", "interrupted", "failed"),
        "T": integer(1, 2**31),
        "message": text(),
    },
    {"about": record({"estimator": text(), "optimizer": text(), "every": integer(1, 2**31)})},
    others=True,
)
ROW = record({"t": number(0), "seconds": number(0)}, others=True)


def status_of(folder: Path) -> Status:
    status = read_json(folder / "status.json", DECLARED, "remove it, or copy the run again")
    state = status["state"]
    if state == "running" and THERE_ARE_LOCKS and not is_locked(folder / "lock"):
        state = "killed"
    rows = _last_rows(folder / "history.jsonl")
    t, seconds = (rows[-1]["t"], rows[-1]["seconds"]) if rows else (0, 0.0)
    left = None
    if len(rows) > 1 and t > rows[0]["t"] and state != "finished":
        left = (status["T"] - t) * (seconds - rows[0]["seconds"]) / (t - rows[0]["t"])
    return Status(folder, state, int(t), status["T"], seconds, left, status["message"], status.get("about", {}))


def runs_in(folder: Path) -> list[Status]:
    """Every run in a folder and its sub-folders."""
    found = []
    for path in sorted(folder.rglob("status.json")):
        try:
            found.append(status_of(path.parent))
        except (OSError, ValueError):  # another program's status.json
            continue
    return found


def set_aside(path: Path, new: Path | None = None) -> Path | None:
    """Rename a file or folder to a name that is free, ``NAME.1`` and so on; None where there is nothing."""
    if not path.exists():
        return None
    base = new or path.with_name(f"{path.name}.1")
    new, n = base, 1
    while new.exists():
        n += 1
        new = path.with_name(f"{path.name}.{n}") if base.parent == path.parent else Path(f"{base}.{n}")
    if path.is_dir() and is_locked(path / "lock"):
        raise ValueError(taken(path))
    path.rename(new)
    return new


def taken(folder: Path) -> str:
    return f"Another process writes in {folder}. Wait for it, stop it, or give this run another folder."


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows at the end of a history that may be growing."""
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().splitlines(keepends=True)
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
            ROW(row, "")
        except (ValueError, RecursionError):  # the first may be cut by the seek, the last not yet written
            continue
        rows.append(row)
    return rows


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
