"""Folders of class folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}


def list_classes(folder: str | Path) -> dict[str, list[Path]]:
    """The images of every class, both in sorted order: ``folder/class/*.png`` or ``folder/class/images/*.JPEG``."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}: give a folder that holds one folder of images per class.")
    found = {path.name: _images(path) for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."}
    classes = {name: images for name, images in found.items() if images}
    if not classes:
        raise ValueError(
            f"{root} holds no class folders with images ({', '.join(sorted(SUFFIXES))}): "
            "give the folder above them, e.g. tiny-imagenet-200/train."
        )
    return classes


def _images(folder: Path) -> list[Path]:
    images = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    deep = [p for p in images if len(p.relative_to(folder).parts) > 2]
    if deep:
        raise ValueError(
            f"{deep[0]} lies too deep to tell its class, which is read as {folder.name!r}: "
            f"give the folder above the class folders, perhaps {folder}."
        )
    return images


def class_names(folder: str | Path, classes: Sequence[str]) -> list[str]:
    """Names from a words.txt beside or above the folder (lines ``wnid<TAB>name``), else the folder names."""
    root = Path(folder).expanduser().resolve()
    for path in (root / "words.txt", root.parent / "words.txt"):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            words = dict(line.split("\t", 1) for line in lines if "\t" in line)
            return [words.get(name, name).strip() for name in classes]
    return list(classes)


def read_image(path: Path, size: int) -> np.ndarray:
    """The image as (size, size, 3) uint8: centre square, bicubic resizing. Raises ValueError if it is damaged."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
        return np.asarray(square)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, DecompressionBombError
        raise ValueError(f"{path} could not be decoded ({error}).") from error
