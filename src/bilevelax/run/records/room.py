"""Room for a checkpoint, asked for before it is written: a full disk is one sentence, not a hundred lines."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path


def require_room(folder: Path, size: int) -> None:
    """Raise OSError unless a file of this many bytes can be made there; nothing is written into it."""
    if not hasattr(os, "posix_fallocate"):
        return
    probe = folder / f".room.{os.getpid()}"
    try:
        with open(probe, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    finally:
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
    """Its threads log what they then raise: the exception is enough."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
