"""Locks on files, taken where the platform has them: without `fcntl`, as on Windows, nothing is locked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

THERE_ARE_LOCKS = fcntl is not None


def lock(file: Any) -> bool:
    """Whether this process now holds the open file alone, until it is closed; where there are no locks, always."""
    return _try_lock(file, "LOCK_EX")


def is_locked(path: Path) -> bool:
    """Whether another process holds the file; where there are no locks, nobody does."""
    if not path.is_file():
        return False
    with open(path) as file:
        return not _try_lock(file, "LOCK_SH")


def _try_lock(file: Any, kind: str) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, getattr(fcntl, kind) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
