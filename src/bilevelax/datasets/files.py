"""Files of arrays on disk: where they are, whether they are whole, how they are read and written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

VARIABLE = "BILEVELAX_DATA"


def locate(name: str, sha256: str, obtain: str) -> Path:
    """The file ``name`` of the folder BILEVELAX_DATA, its checksum verified.

    Args:
        name: file name inside the folder.
        sha256: the digest that the file must have.
        obtain: how to get the file, the end of the sentence shown when it is absent.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise ValueError(f"{name} needs the environment variable {VARIABLE}, the folder that holds it: {obtain}.")
    path = Path(folder).expanduser() / name
    if not path.is_file():
        raise ValueError(f"{name} is not in {folder}, the folder that {VARIABLE} names: {obtain}.")
    verify(path, sha256)
    return path


def verify(path: Path, sha256: str) -> None:
    """Raise unless the file has this digest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{path} is not the expected file: its SHA256 is {digest[:12]}..., not {sha256[:12]}...; "
            "it is truncated or another version, so copy it again."
        )


def read_arrays(path: str | Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of an npz file; pickled objects are refused, for they can run code.

    Args:
        path: the file.
        required: keys that must be there.
        optional: keys that are read if they are there.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"There is no file {path}: check the path, or write it with np.savez.")
    try:
        with path.open("rb") as file:  # opened here, for np.load leaves a damaged file open
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise ValueError("a single array, as np.save writes it")
            present = list(stored.files)
            arrays = {key: stored[key] for key in (*required, *optional) if key in present}
    except Exception as error:  # a damaged archive fails in a dozen ways, in zipfile, zlib, ast and NumPy itself
        raise ValueError(_unreadable(path, error)) from error
    if missing := [key for key in required if key not in arrays]:
        held = ", ".join(map(repr, present)) or "nothing"
        raise ValueError(
            f"{path} has no array {', '.join(map(repr, missing))}; it holds {held}. "
            f"Save it with np.savez(path, {', '.join(f'{key}=...' for key in required)})."
        )
    return arrays


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, ValueError) and "Object arrays" in str(error):
        return f"{path} holds pickled objects, which are refused because they can run code: save plain arrays only."
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, PermissionError):
        return f"{path} may not be read ({reason}): change its permissions."
    return f"{path} is not a readable npz file ({reason}): it is truncated or corrupt, so copy or write it again."


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file in one step: whoever looks sees the whole file or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
