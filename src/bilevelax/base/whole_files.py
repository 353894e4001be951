"""Files that appear whole: whoever looks, kills or fills the disk finds the old ones or the new."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class NotWritten(OSError, ValueError):
    """What could not be written, and why; what was there before is there still."""


@contextlib.contextmanager
def told_if_not_written(path: Path) -> Iterator[None]:
    """A full disk, a folder in the way or a missing right: one sentence."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        told = NotWritten(
            f"{path} could not be written ({error.strerror or error}), and what was there before is as it was. Make "
            "room, or name another place."
        )
        told.errno = error.errno
        raise told from error


@contextlib.contextmanager
def appearing(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Other names to write these files under; they appear, in this order, when all of them are on the disk."""
    partial = tuple(path.with_name(f".partial.{os.getpid()}.{path.name}") for path in paths)  # endings stay
    try:
        with told_if_not_written(paths[-1]):
            yield partial
            for each in partial:
                with open(each, "rb+") as file:
                    os.fsync(file.fileno())
            for each, path in zip(partial, paths, strict=True):
                each.replace(path)
    finally:
        for each in partial:
            each.unlink(missing_ok=True)


def replace_text(path: str | Path, text: str) -> None:
    """Write a file in one step."""
    with appearing(Path(path)) as (partial,):
        partial.write_text(text, encoding="utf-8", newline="")


def require_room(folder: Path, size: int) -> None:
    """Raise OSError unless a file of this many bytes can be made there; nothing is written into it."""
    probe = folder / f".room.{os.getpid()}"
    try:
        with open(probe, "wb") as file:
            allocate(file.fileno(), size)
    finally:
        probe.unlink(missing_ok=True)


def allocate(file: int, size: int) -> None:
    """Give an open file its bytes now, where the platform can: a map of it beyond them would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
