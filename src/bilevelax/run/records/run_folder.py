"""The folder of one run: one writer at a time, and a status that outlives it."""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.history import replace_text

TAIL = 65536  # bytes of the history read to find its last rows


class RunFolder:
    """Holds the lock of a folder and keeps its status.json: running, finished, interrupted or failed."""

    def __init__(self, folder: Path, T: int) -> None:
        self.folder, self.T = folder, T

    def __enter__(self) -> RunFolder:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / "lock", "a")  # held as long as the run
        except OSError as error:
            raise ValueError(
                f"`folder` of Checkpoint must be a folder that can be written. Got {str(self.folder)!r} "
                f"({error.strerror}); name another."
            ) from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise ValueError(
                f"Another process writes in {self.folder}. Wait for it, stop it, or give this run another folder."
            ) from None
        self.started: str | None = None
        return self

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
        replace_text(self.folder / "status.json", json.dumps({**status, "message": message}, indent=2) + "\n")


class Status(NamedTuple):
    """What can be told of a run from outside."""

    folder: Path
    state: str  # running, finished, interrupted, failed or killed
    t: int
    T: int
    seconds: float  # spent in steps
    left: float | None  # seconds, at the pace of the last rows
    message: str


def status_of(folder: Path) -> Status:
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    state = status["state"]
    if state == "running" and not _locked(folder / "lock"):
        state = "killed"
    rows = _last_rows(folder / "history.jsonl")
    t, seconds = (rows[-1]["t"], rows[-1]["seconds"]) if rows else (0, 0.0)
    left = None
    if len(rows) > 1 and t > rows[0]["t"] and state != "finished":
        left = (status["T"] - t) * (seconds - rows[0]["seconds"]) / (t - rows[0]["t"])
    return Status(folder, state, int(t), status["T"], seconds, left, status["message"])


def runs_in(folder: Path) -> list[Status]:
    """Every run in a folder and its sub-folders."""
    found = []
    for path in sorted(folder.rglob("status.json")):
        try:
            found.append(status_of(path.parent))
        except (OSError, ValueError, KeyError):  # another program's status.json
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
    if path.is_dir() and _locked(path / "lock"):
        raise ValueError(f"Another process writes in {path}. Wait for it, stop it, or give this run another folder.")
    path.rename(new)
    return new


def _locked(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


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
            rows.append(json.loads(line))
        except ValueError:  # the first may be cut by the seek, the last not yet written
            continue
    return [row for row in rows if isinstance(row, dict) and "t" in row]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
