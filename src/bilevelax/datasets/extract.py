"""Features of any folder of class folders of images: backbone, shards on disk, PCA, one npz file.

Every finished class is a shard in ``OUT.parts``; a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevelax.base.errors import require_integer
from bilevelax.base.npz import read_arrays, write_arrays
from bilevelax.datasets.backbone import Backbone, efficientnet_lite0
from bilevelax.datasets.images import class_names, list_classes, read_image
from bilevelax.datasets.pca import PCA, fit_pca
from bilevelax.datasets.tasks import HELD_OUT, require_split, split
from bilevelax.run.records.progress import Progress

Extracted = Callable[[str], None]


class Extraction(NamedTuple):
    """What was written, and what was left out."""

    path: Path
    images: int
    classes: int
    dim: int
    explained: float  # share of the training part's variance that the components keep
    skipped: tuple[str, ...]  # images that could not be decoded


class Shard(NamedTuple):
    """Where the pooled features of one class are kept, and what they must have been made from."""

    path: Path
    images: list[Path]
    signature: str

    def read(self) -> dict[str, np.ndarray] | None:
        """The stored arrays, or None if they are absent, damaged or of other images."""
        if not self.path.is_file():
            return None
        try:
            arrays = read_arrays(self.path, ["pooled", "skipped", "signature"])
        except ValueError:
            return None
        return arrays if str(arrays["signature"]) == self.signature else None


def extract_features(
    folder: str | Path,
    out: str | Path,
    *,
    backbone: Backbone | None = None,
    dim: int = 512,
    held_out: float = HELD_OUT,
    seed: int | None = None,
    batch: int = 64,
    overwrite: bool = False,
    progress: bool | None = None,
    report: Extracted = print,
) -> Extraction:
    """Write ``out``, an npz file for `load_features`: features (n, dim) float16, labels, names, wnids, train.

    Args:
        folder: holds one folder of images per class, e.g. tiny-imagenet-200/train as it is unpacked.
        out: file to write, ending in .npz; unfinished work is kept beside it in ``out``.parts.
        backbone: images to features; default EfficientNet-Lite0, which needs the extra ``features``.
        dim: principal components kept, fitted on the training part only.
        held_out: share of every class that the components are not fitted on.
        seed: of that split; None holds out the last images of every class.
        batch: images that go through the backbone at once.
        overwrite: replace an existing ``out``.
        progress: a bar with the time left: True, False, or None = in terminals only.
        report: gets one line for every skipped image and every limit that was met.
    """
    path = Path(out).expanduser()
    _require_arguments(path, dim, batch, overwrite)
    require_split("extract_features", held_out, seed)  # now, not after an hour of work
    classes = list_classes(folder)
    backbone = efficientnet_lite0() if backbone is None else backbone
    parts = path.with_name(path.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    shards = [Shard(parts / f"{name}.npz", images, _signature(images, backbone)) for name, images in classes.items()]
    _fill(shards, backbone, batch, progress, report)
    result = _assemble(path, shards, class_names(folder, list(classes)), dim, held_out, seed, report)
    for leftover in (*parts.glob("*.npz"), *parts.glob(".partial.*")):
        leftover.unlink()
    with contextlib.suppress(OSError):  # something else was put there: it is not ours to delete
        parts.rmdir()
    return result


def _require_arguments(path: Path, dim: int, batch: int, overwrite: bool) -> None:
    require_integer("dim", "extract_features", dim, 1)
    require_integer("batch", "extract_features", batch, 1)
    if path.suffix != ".npz":
        raise ValueError(f"`out` of extract_features must end in .npz. Got {str(path)!r}.")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already: give another name, or overwrite it on purpose.")


def _signature(images: list[Path], backbone: Backbone) -> str:
    """Digest of the backbone and of the images' names, sizes and times: another input is another shard."""
    facts = [(image.name, image.stat().st_size, image.stat().st_mtime_ns) for image in images]
    return hashlib.sha256(repr((backbone.name, facts)).encode()).hexdigest()


def _fill(shards: list[Shard], backbone: Backbone, batch: int, progress: bool | None, report: Extracted) -> None:
    """Write every shard that is not there yet."""
    todo = [shard for shard in shards if not _finished(shard, report)]
    if len(todo) < len(shards):
        report(f"{len(shards) - len(todo)} of {len(shards)} classes were finished earlier.")
    done = skipped = 0
    with Progress(sum(len(shard.images) for shard in todo), progress, label="features") as bar:
        for shard in todo:
            pooled, damaged = [], []
            for start in range(0, len(shard.images), batch):
                paths = shard.images[start : start + batch]
                images, bad = _decoded(paths, backbone.size, report)
                damaged += bad
                if images:
                    pooled.append(np.asarray(backbone.apply(np.stack(images)), np.float32))
                done, skipped = done + len(paths), skipped + len(bad)
                bar.update(done, {"skipped": skipped})
            rows = np.concatenate(pooled) if pooled else np.zeros((0, 0), np.float32)
            arrays = {"pooled": rows, "skipped": np.array(damaged, str), "signature": np.array(shard.signature)}
            write_arrays(shard.path, arrays)


def _finished(shard: Shard, report: Extracted) -> bool:
    """Whether an earlier run wrote it; what that run skipped is reported again."""
    arrays = shard.read()
    if arrays is not None:
        for name in arrays["skipped"]:
            report(f"skipped earlier: {name}")
    return arrays is not None


def _decoded(paths: list[Path], size: int, report: Extracted) -> tuple[list[np.ndarray], list[str]]:
    """The images that can be read, and the names of those that cannot, which are reported."""
    images, bad = [], []
    for path in paths:
        try:
            images.append(read_image(path, size))
        except ValueError as error:
            report(f"skipped: {error}")
            bad.append(str(path))
    return images, bad


def _assemble(
    path: Path, shards: list[Shard], names: list[str], dim: int, held_out: float, seed: int | None, report: Extracted
) -> Extraction:
    """Split, fit the components on the training part, project all shards, write the file."""
    counts: list[int] = []
    skipped: list[str] = []
    for shard in shards:
        arrays = _stored(shard)
        counts.append(len(arrays["pooled"]))
        skipped += map(str, arrays["skipped"])
        if counts[-1] < 2:
            raise ValueError(
                f"Class {shard.path.stem} has {counts[-1]} readable images and a split needs 2: "
                "add images or take its folder away, then run the same command again."
            )
    labels = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
    train = split(labels, held_out, seed)
    parts = np.split(train, np.cumsum(counts)[:-1])
    pca = fit_pca((rows[part] for rows, part in zip(_pooled(shards), parts, strict=True)), dim)
    features = np.concatenate([pca.apply(rows).astype(np.float16) for rows in _pooled(shards)])
    _report_width(pca, dim, int(train.sum()), report)
    arrays = {"features": features, "labels": labels, "train": train, "names": np.array(names, str)}
    write_arrays(path, arrays | {"wnids": np.array([shard.path.stem for shard in shards], str)})
    return Extraction(path, len(features), len(shards), features.shape[1], pca.explained, tuple(skipped))


def _report_width(pca: PCA, dim: int, images: int, report: Extracted) -> None:
    width, kept = pca.components.shape
    if kept < dim:
        limit = f"the {images} training images" if kept < width else f"the backbone's {width} channels"
        report(f"{kept} components instead of {dim}: {limit} allow no more.")


def _stored(shard: Shard) -> dict[str, np.ndarray]:
    arrays = shard.read()
    if arrays is None:
        raise ValueError(f"{shard.path} changed while it was in use: run the same command again.")
    return arrays


def _pooled(shards: list[Shard]) -> Iterator[np.ndarray]:
    """One class at a time: all of them together may not fit in memory."""
    for shard in shards:
        yield _stored(shard)["pooled"]
