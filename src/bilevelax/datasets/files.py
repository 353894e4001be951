"""Data files on disk: where they are and whether they are whole."""

from __future__ import annotations

import os
from pathlib import Path

from bilevelax.base.npz import digest_of_file

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
    digest = digest_of_file(path)
    if digest != sha256:
        raise ValueError(
            f"{path} is not the expected file: its SHA256 is {digest[:12]}..., not {sha256[:12]}...; "
            "it is truncated or another version, so copy it again."
        )
