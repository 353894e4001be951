"""NPZ files of plain arrays: shapes, kinds and sizes are known before anything is allocated. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.whole_files import appearing

REASON = 200  # letters of an error's text: zipfile repeats what it found instead of a name


class Header(NamedTuple):
    """What an array says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype


# (headers of the arrays in the file) -> {name: the shape that it must have}
Shapes = Callable[[Mapping[str, Header]], Mapping[str, tuple[int, ...]]]


def read_arrays(
    path: str | Path, required: Sequence[str], optional: Sequence[str] = (), *, shapes: Shapes | None = None
) -> dict[str, np.ndarray]:
    """The named arrays of an npz file; pickled objects are refused, for they can run code.

    Args:
        path: the file.
        required: keys that must be there.
        optional: keys that are read if they are there.
        shapes: of a file of floating-point numbers, stored as `write_arrays` does: which shapes the arrays
            must have. They are compared, and the numbers are required to be finite.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"There is no file {path}: check the path, or write it with np.savez.")
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            headers = {name: _header(archive, name, plain=shapes is not None) for name in _names(archive)}
            wanted = [name for name in (*required, *optional) if name in headers]
            if shapes and set(required) <= set(wanted):
                _compare({name: headers[name] for name in wanted}, shapes(headers))
            arrays = {name: _array(archive, name) for name in wanted}
            if shapes:
                _require_finite(arrays)
    except Exception as error:  # a damaged archive fails in a dozen ways, in zipfile, zlib, ast and NumPy itself
        raise ValueError(_unreadable(path, error)) from error
    if missing := [name for name in required if name not in arrays]:
        held = ", ".join(map(repr, headers)) or "nothing"
        raise ValueError(
            f"{path} has no array {', '.join(map(repr, missing))}; it holds {held}. "
            f"Save it with np.savez(path, {', '.join(f'{name}=...' for name in required)})."
        )
    return arrays


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in dict.fromkeys(archive.namelist()) if name.endswith(".npy")]


def _header(archive: zipfile.ZipFile, name: str, plain: bool) -> Header:
    """Read without the array; its size must be the one that the archive tells."""
    info = archive.getinfo(f"{name}.npy")
    if plain and info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"array {name!r} is compressed, which nobody asked for")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        size = dtype.itemsize * math.prod(shape)
        if not dtype.hasobject and file.tell() + size != info.file_size:
            raise ValueError(f"array {name!r} of {dtype}{list(shape)} does not have the {size} bytes that it needs")
    return Header(shape, dtype)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read()  # to the end, where the checksum is compared
    return array


def _compare(headers: Mapping[str, Header], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, header in headers.items():
        if header.dtype.kind != "f" or header.dtype.itemsize > 8:
            raise ValueError(f"array {name!r} must hold floating-point numbers, but it is of {header.dtype}")
        if name in shapes and header.shape != tuple(shapes[name]):
            raise ValueError(f"array {name!r} must have shape {tuple(shapes[name])}, but it has {header.shape}")


def _require_finite(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"array {name!r} must hold finite numbers, but it holds {_first_odd(array)}")


def _first_odd(array: np.ndarray) -> Any:
    return array[~np.isfinite(array)].ravel()[0].item()


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, ValueError) and "Object arrays" in str(error):
        return f"{path} holds pickled objects, which are refused because they can run code: save plain arrays only."
    reason = str(error).splitlines()[0][:REASON] if str(error) else type(error).__name__
    if isinstance(error, PermissionError):
        return f"{path} may not be read ({reason}): change its permissions."
    return f"{path} is not a readable npz file ({reason}): it is truncated or corrupt, so copy or write it again."


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write an npz file in one step: whoever looks sees the whole file or none. Returns its SHA256."""
    with appearing(path) as (partial,):
        return save_arrays(partial, arrays)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """An npz file as it grows; its SHA256."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return digest_of_file(path)


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
