"""Compiled programs as files of one user: written whole, read only as they were written, the oldest removed.

An entry is machine code: whoever can write these files is trusted with the processes that read them. Therefore a
folder that others can write is refused. The digest is no defence against such a person; it finds damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ENTRY, UNFINISHED = ".program", ".part"
DIGEST = hashlib.sha256().digest_size
STALE = 3600  # seconds after which an unfinished file is left over from a process that was ended
LEFT = 0.8  # share of the bound that an eviction leaves
RESCAN = 1 / 16  # share of the bound that is written between two looks at the size


class Refused(Exception):
    """Why there is no cache; ``news`` where a user should hear of it without asking."""

    def __init__(self, sentence: str, news: bool = False) -> None:
        super().__init__(sentence)
        self.news = news


class ProgramFile(NamedTuple):
    used: float  # when it was last read or written
    size: int
    path: Path


class ProgramFiles:
    """What JAX asks of a cache: ``get`` and ``put`` by key. Nothing that happens to the files stops a run.

    Args:
        folder: of this build and machine; in ``folder.parent`` those of others, which count towards the bound.
        most: bytes of all entries together.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self.read = self.written = 0  # entries found, entries given to keep
        self.trouble = ""  # why the last entry could not be kept
        self._since_look = most  # bytes written since the size was looked at

    def path(self, key: str) -> Path:
        """A key begins with the name of the user's function: it is no name for a file."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}{ENTRY}"

    def get(self, key: str) -> bytes | None:
        """The entry as it was put, else None: then JAX compiles, and puts it again."""
        path = self.path(key)
        try:
            content = _read_plain_file(path, self.most)
        except OSError:
            return None
        value = content[DIGEST:]
        if content[:DIGEST] != _digest(key, value):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        self.read += 1
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep an entry: under its name it appears whole or not at all, also where two processes write it."""
        self.written += 1
        if len(value) > self.most:
            return
        part = self.folder / f"{uuid.uuid4().hex}{UNFINISHED}"
        try:
            with open(part, "xb", opener=_for_owner_only) as file:
                file.write(_digest(key, value))
                file.write(value)
            os.replace(part, self.path(key))
        except OSError as error:  # a full disk, a folder that was removed: the run goes on
            self.trouble = error.strerror or str(error)
            with contextlib.suppress(OSError):
                part.unlink()
            return
        self._since_look += len(value)
        if self._since_look > RESCAN * self.most:
            self._since_look = 0
            evict(self.folder.parent, self.most)


def _digest(key: str, value: bytes) -> bytes:
    """Of the value under its key: an entry under another one's name is damage too."""
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + value).digest()


def _for_owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read_plain_file(path: Path, most: int) -> bytes:
    """Neither links nor pipes, which could block, nor more than the bound."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    number = os.open(path, flags)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most + DIGEST:
            raise OSError("not an entry")
        with os.fdopen(number, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(number)


def entries(root: Path) -> Iterator[ProgramFile]:
    """All entries of all builds and machines."""
    for path in _ours(root, ENTRY):
        with contextlib.suppress(OSError):
            found = path.lstat()
            yield ProgramFile(found.st_mtime, found.st_size, path)


def _ours(root: Path, ending: str) -> list[Path]:
    try:
        return list(root.glob(f"jax-*/*{ending}"))
    except OSError:
        return []


def evict(root: Path, most: int) -> None:
    """Where the entries are larger than the bound, remove those that were used longest ago."""
    found = sorted(entries(root))
    size = sum(entry.size for entry in found)
    remove = []
    if size > most:
        for entry in found:
            if size <= LEFT * most:
                break
            size -= entry.size
            remove.append(entry.path)
    for path in _ours(root, UNFINISHED):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - STALE:
                remove.append(path)
    for path in remove:
        with contextlib.suppress(OSError):
            path.unlink()


def private_folder(folder: Path) -> Path:
    """The folder, made if need be: `require_private`.

    Raises:
        Refused: or it cannot be made.
    """
    folder = Path(os.path.realpath(folder.parent)) / folder.name
    try:
        for each in (*reversed(folder.parents), folder):
            if not (each.exists() or each.is_symlink()):
                each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}.") from None
    require_private(folder)
    return folder


def require_private(folder: Path) -> None:
    """Nobody else can write there.

    Raises:
        Refused: it is a link, or is or can be written by others.
    """
    if folder.is_symlink():
        raise Refused(f"{folder} is a symbolic link. Name the folder itself.", news=True)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise Refused(f"{folder} is not a folder.")
    if hasattr(os, "getuid"):
        _require_ours(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"{folder} cannot be written.")


def _require_ours(folder: Path) -> None:
    found = folder.lstat()
    if found.st_uid != os.getuid():
        raise Refused(f"{folder} belongs to another user.", news=True)
    if found.st_mode & 0o022:
        raise Refused(f"{folder} can be written by others: chmod go-w {folder}.", news=True)
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise Refused(f"{parent} can be written by everyone, so {folder} can be replaced.", news=True)
