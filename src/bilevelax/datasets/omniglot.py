"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each (Lake et al., Science 2015; MIT licence)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bilevelax.base.errors import require_choice, require_integer
from bilevelax.base.npz import read_arrays
from bilevelax.datasets.features import Features
from bilevelax.datasets.files import locate
from bilevelax.datasets.pca import fit_pca

OMNIGLOT = "omniglot_28x28.npz"
OMNIGLOT_SHA256 = "ac8e1191fd7943bac469ffdd00ff13466d89663379ff2c442439b9a3b8911f6c"
PIXELS = 28 * 28
PER_IMAGE = ("alphabet", "character", "drawer", "evaluation")
REPRESENTATIONS = ("pixels", "pca", "projection")
SUBSETS = ("all", "background", "evaluation")


def load_omniglot(
    representation: str = "pixels",
    dim: int = 64,
    subset: str = "all",
    seed: int = 0,
    path: str | Path | None = None,
) -> Features:
    """Omniglot as features (32460, d) float32, one class per character, ``groups`` = alphabets.

    Args:
        representation: "pixels" (784 values, ink 1, paper 0), "pca" (``dim`` components fitted on the
            background alphabets only, whatever ``subset`` is) or "projection" (a Gaussian random map to
            ``dim`` values that keeps squared lengths in the mean).
        dim: values of "pca" and "projection".
        subset: "all", "background" (30 alphabets) or "evaluation" (20 alphabets).
        seed: of the random projection.
        path: a file of your own, taken without a checksum: ``images_packed`` (n, 98) = np.packbits of 28 x 28
            drawings; ``alphabet``, ``character``, ``drawer``, ``evaluation`` (n,) integers; ``alphabet_names``.
    """
    require_choice("representation", "load_omniglot", representation, REPRESENTATIONS)
    require_choice("subset", "load_omniglot", subset, SUBSETS)
    require_integer("seed", "load_omniglot", seed, 0)
    require_integer("dim", "load_omniglot", dim, 1)
    if dim > PIXELS:
        raise ValueError(f"`dim` of load_omniglot must be at most {PIXELS}. Got {dim}.")
    if path is None:
        how = "set it to that folder, or pack Omniglot's images yourself, as load_omniglot describes, and give `path`"
        path = locate(OMNIGLOT, OMNIGLOT_SHA256, how)
    arrays = _checked(read_arrays(path, ["images_packed", *PER_IMAGE, "alphabet_names"]), path)
    pixels = np.unpackbits(arrays["images_packed"], axis=1).astype(np.float32)
    background = arrays["evaluation"] == 0
    rows = {"all": np.ones_like(background), "background": background, "evaluation": ~background}[subset]
    features = _represent(pixels, background, rows, representation, dim, seed)
    return _characters(features, arrays, rows, f"Omniglot ({subset}), 28x28, {representation}")


def _represent(
    pixels: np.ndarray, background: np.ndarray, rows: np.ndarray, representation: str, dim: int, seed: int
) -> np.ndarray:
    if representation == "pixels":
        return pixels[rows]
    if representation == "pca":
        return fit_pca([pixels[background]], dim).apply(pixels[rows])
    weights = np.random.default_rng(seed).standard_normal((PIXELS, dim)).astype(np.float32)
    return pixels[rows] @ (weights / np.float32(np.sqrt(dim)))


def _characters(features: np.ndarray, arrays: dict[str, np.ndarray], rows: np.ndarray, source: str) -> Features:
    """One class per character, named after its alphabet."""
    characters, first, labels = np.unique(arrays["character"][rows], return_index=True, return_inverse=True)
    alphabets = arrays["alphabet"][rows][first].astype(np.int32)
    names = tuple(
        f"{arrays['alphabet_names'][a]}/{np.count_nonzero(alphabets[:i] == a) + 1}" for i, a in enumerate(alphabets)
    )
    ids = tuple(f"{c:04d}" for c in characters)
    return Features(features, labels.astype(np.int32), names, source, ids=ids, groups=alphabets)


def _checked(arrays: dict[str, np.ndarray], path: str | Path) -> dict[str, np.ndarray]:
    packed, names = arrays["images_packed"], arrays["alphabet_names"]
    if packed.ndim != 2 or packed.shape[1] * 8 != PIXELS or packed.dtype != np.uint8 or not len(packed):
        raise ValueError(
            f"`images_packed` of {path} must be uint8 of shape (n, {PIXELS // 8}). "
            f"Got {packed.dtype} of {packed.shape}."
        )
    for key in PER_IMAGE:
        values = arrays[key]
        if values.shape != packed.shape[:1] or values.dtype.kind not in "iu":
            raise ValueError(
                f"`{key}` of {path} must be {len(packed)} integers, one per image. "
                f"Got {values.dtype} of {values.shape}."
            )
    if names.ndim != 1 or names.dtype.kind != "U" or not 0 <= arrays["alphabet"].max() < len(names):
        raise ValueError(
            f"`alphabet_names` of {path} must be strings, one per alphabet. Got {names.dtype} of {names.shape}."
        )
    return arrays
