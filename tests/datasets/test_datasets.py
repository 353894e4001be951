"""Loaders refuse damaged files with one sentence; splits, groups and extraction are exact and repeatable."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from bilevelax.datasets import features as features_file
from bilevelax.datasets import (
    load_features,
    load_omniglot,
    load_tinyimagenet,
    meta_learning_arrays,
)
from bilevelax.datasets import omniglot as omniglot_file
from bilevelax.datasets.files import locate
from bilevelax.datasets.pca import PCA

WNIDS = np.array(["n03", "n01", "n02"])


def cube(classes: int = 3, images: int = 5, d: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((classes, images, d)).astype(np.float16)


@pytest.fixture
def save(tmp_path: Path):
    def saved(**arrays: np.ndarray) -> Path:
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return path

    return saved


# loaders


def test_load_features_of_classes_by_images(save):
    loaded = load_features(save(features=cube(), wnids=WNIDS, names=np.array(["c", "a", "b"])))
    assert loaded.features.dtype == np.float16
    np.testing.assert_array_equal(loaded.features.reshape(3, 5, 4), cube())
    np.testing.assert_array_equal(loaded.labels, np.repeat([0, 1, 2], 5))
    assert (loaded.names, loaded.ids, loaded.train) == (("c", "a", "b"), ("n03", "n01", "n02"), None)
    assert loaded.source.endswith("data.npz")


@pytest.mark.parametrize(
    ("labels", "extra", "expected", "names"),
    [
        ([7, 3, 7, 9], {}, [1, 0, 1, 2], ("3", "7", "9")),
        (["b", "a", "b", "c"], {}, [1, 0, 1, 2], ("a", "b", "c")),
        ([2, 0, 2, 1], {"wnids": WNIDS}, [2, 0, 2, 1], ("n03", "n01", "n02")),
    ],
)
def test_load_features_with_labels(save, labels, extra, expected, names):
    loaded = load_features(save(features=cube()[0, :4], labels=np.array(labels), **extra))
    np.testing.assert_array_equal(loaded.labels, expected)
    assert loaded.names == names


def test_stored_mask_of_training_rows(save):
    mask = np.arange(5) < 4
    loaded = load_features(save(features=cube(), train=np.tile(mask, (3, 1))))
    np.testing.assert_array_equal(loaded.train, np.tile(mask, 3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(2)}, r"data\.npz has no array 'features'; it holds 'x'"),
        ({"features": np.zeros((2, 3))}, r"data\.npz has no array 'labels'"),
        (
            {"features": np.zeros(3)},
            r"`features` of .*data\.npz must be floats of shape .* Got float64 of shape \(3,\)",
        ),
        ({"features": np.zeros((0, 3))}, r"none of them 0\. Got float64 of shape \(0, 3\)"),
        ({"features": np.zeros((2, 3), int)}, r"must be floats .* Got int64"),
        ({"features": np.full((1, 2, 3), np.nan)}, r"must be finite"),
        ({"features": np.zeros((2, 3)), "labels": np.zeros(5, int)}, r"`labels` .* must be 2 integers .* Got int64"),
        ({"features": np.zeros((2, 3)), "labels": np.zeros(2)}, r"`labels` .* Got float64 of shape \(2,\)"),
        ({"features": np.zeros((1, 2, 3)), "labels": np.zeros(2, int)}, r"`labels` .* must be absent"),
        ({"features": np.zeros((1, 2, 3)), "names": WNIDS}, r"`names` of .* must be 1 strings"),
        ({"features": np.zeros((2, 3)), "labels": np.array([0, 2]), "wnids": WNIDS}, r"Class 1 of .* has no rows"),
        ({"features": np.zeros((1, 2, 3)), "train": np.ones((1, 3), bool)}, r"`train` .* booleans of shape \(1, 2\)"),
        ({"features": np.array([[None]], object)}, r"data\.npz holds pickled objects, which are refused"),
        ({"features": cube(), "names": np.array([{}, {}, {}])}, r"holds pickled objects"),
    ],
)
def test_wrong_content_is_one_sentence(save, arrays, message):
    with pytest.raises(ValueError, match=message):
        load_features(save(**arrays))


def test_damaged_files_are_one_sentence(save, tmp_path):
    whole = save(features=cube(20, 20, 8)).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF  # inside the array: the archive's own checksum must catch it
    np.save(tmp_path / "single.npy", cube())
    damaged = {
        "short": whole[:-30],
        "half": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
        "empty": b"",
        "text": b"not arrays",
        "single": (tmp_path / "single.npy").read_bytes(),
        "long name": whole[:26] + b"\xff\x0f" + whole[28:],  # zipfile repeats 4,095 bytes as the first array's name
    }
    for name, content in damaged.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        says = rf"{name}\.npz is not a readable npz file .*copy or write it again"
        with pytest.raises(ValueError, match=says) as told:
            load_features(tmp_path / f"{name}.npz")
        assert len(str(told.value)) < 600
    with pytest.raises(ValueError, match=r"There is no file .*absent\.npz"):
        load_features(tmp_path / "absent.npz")


def test_locate_says_how_to_obtain_and_verifies(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVELAX_DATA", raising=False)
    for load in (load_tinyimagenet, load_omniglot):
        with pytest.raises(ValueError, match=r"needs the environment variable BILEVELAX_DATA.*set it to that folder"):
            load()
    monkeypatch.setenv("BILEVELAX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"tinyimagenet_lite0_512\.npz is not in .*BILEVELAX_DATA.*bilevelax features"):
        load_tinyimagenet()
    (tmp_path / "a.npz").write_bytes(b"abc")
    assert locate("a.npz", hashlib.sha256(b"abc").hexdigest(), "") == tmp_path / "a.npz"
    (tmp_path / "tinyimagenet_lite0_512.npz").write_bytes(b"abc")
    with pytest.raises(
        ValueError, match=r"tinyimagenet_lite0_512\.npz is not the expected file: its SHA256 is ba7816bf"
    ):
        load_tinyimagenet()


def test_tinyimagenet_marks_the_rows_its_components_saw(monkeypatch, save, tmp_path):
    path = save(features=cube(3, 5, 4), wnids=WNIDS).rename(tmp_path / features_file.TINYIMAGENET)
    monkeypatch.setenv("BILEVELAX_DATA", str(tmp_path))
    monkeypatch.setattr(features_file, "TINYIMAGENET_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match=r"must have shape \(200, 500, 512\)\. Got \(15, 4\)"):
        load_tinyimagenet()
    monkeypatch.setattr(features_file, "TINYIMAGENET_SHAPE", (3, 5, 4))
    monkeypatch.setattr(features_file, "TINYIMAGENET_FITTED", 4)
    np.testing.assert_array_equal(load_tinyimagenet().train, np.tile(np.arange(5) < 4, 3))


# Omniglot


def omniglot_arrays() -> dict[str, np.ndarray]:
    """3 alphabets (the last for evaluation) x 2 characters x 20 drawings."""
    images = np.random.default_rng(1).integers(0, 2, (120, 784), dtype=np.uint8)
    alphabet = np.repeat([0, 1, 2], 40)
    return {
        "images_packed": np.packbits(images, axis=1),
        "alphabet": alphabet,
        "character": np.repeat(np.arange(6), 20),
        "drawer": np.tile(np.arange(1, 21), 6),
        "evaluation": (alphabet == 2).astype(int),
        "alphabet_names": np.array(["Greek", "Latin", "Runes"]),
    }


def test_omniglot_pixels_names_and_alphabets(save):
    arrays = omniglot_arrays()
    loaded = load_omniglot(path=save(**arrays))
    np.testing.assert_array_equal(np.packbits(loaded.features.astype(np.uint8), axis=1), arrays["images_packed"])
    assert loaded.names == ("Greek/1", "Greek/2", "Latin/1", "Latin/2", "Runes/1", "Runes/2")
    np.testing.assert_array_equal(loaded.groups, [0, 0, 1, 1, 2, 2])
    part = load_omniglot(subset="evaluation", path=save(**arrays))
    np.testing.assert_array_equal(part.features, loaded.features[80:])
    assert part.names == ("Runes/1", "Runes/2")
    tasks = meta_learning_arrays(loaded, tasks=3, classes=2, method="groups")
    assert tasks.train.shape == (3, 2, 18, 784) and tasks.test.shape == (3, 2, 2, 784)
    np.testing.assert_array_equal(tasks.classes, [[0, 1], [2, 3], [4, 5]])


def test_omniglot_components_are_fitted_on_background_alphabets(save, monkeypatch):
    fitted = []

    def first_pixels(blocks, k):
        fitted.extend(blocks)
        return PCA(np.zeros(784), np.eye(784)[:, :k], 1.0)

    monkeypatch.setattr(omniglot_file, "fit_pca", first_pixels)
    path = save(**omniglot_arrays())
    pixels = load_omniglot(path=path).features
    for subset, rows in (("all", slice(None)), ("evaluation", slice(80, None))):
        fitted.clear()
        np.testing.assert_array_equal(load_omniglot("pca", 5, subset, path=path).features, pixels[rows, :5])
        np.testing.assert_array_equal(np.concatenate(fitted), pixels[:80])


def test_omniglot_projection_is_seeded_and_linear(save):
    path = save(**omniglot_arrays())
    one, again, other = (load_omniglot("projection", 400, seed=s, path=path).features for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    pixels = load_omniglot(path=path).features
    ratio = (one**2).sum(1) / (pixels**2).sum(1)  # mean 1, standard deviation sqrt(2 / 400) = 0.07
    assert ratio.min() > 0.6 and ratio.max() < 1.4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images_packed": np.zeros((120, 97), np.uint8)}, r"`images_packed` of .* must be uint8 of shape \(n, 98\)"),
        ({"drawer": np.zeros(3, int)}, r"`drawer` of .* must be 120 integers, one per image"),
        ({"alphabet_names": np.array(["Greek"])}, r"`alphabet_names` of .* one per alphabet"),
    ],
)
def test_omniglot_wrong_content(save, change, message):
    with pytest.raises(ValueError, match=message):
        load_omniglot(path=save(**omniglot_arrays() | change))
    for argument in ({"representation": "x"}, {"subset": "x"}, {"dim": 0}, {"dim": 785}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"`{next(iter(argument))}` of load_omniglot"):
            load_omniglot(**argument)


# the real files


@pytest.mark.skipif("BILEVELAX_DATA" not in os.environ, reason="BILEVELAX_DATA does not name a folder of data")
def test_real_tinyimagenet_and_omniglot():
    dataset = load_tinyimagenet()
    assert dataset.features.shape == (100_000, 512) and dataset.features.dtype == np.float16
    arrays = meta_learning_arrays(dataset)
    assert arrays.train.shape == (20, 10, 450, 512) and arrays.test.shape == (20, 10, 50, 512)
    row = list(arrays.classes.ravel()).index(7)
    first = dataset.features[3500:4000].astype(np.float32)
    np.testing.assert_array_equal(arrays.train.reshape(200, 450, 512)[row], first[:450])
    np.testing.assert_array_equal(arrays.test.reshape(200, 50, 512)[row], first[450:])
    place = {
        name.split(",")[0]: task
        for task, members in enumerate(arrays.classes)
        for name in (dataset.names[c] for c in members)
    }
    assert place["sports car"] == place["school bus"] and place["lion"] == place["cougar"]
    assert place["sports car"] != place["lion"]
    drawings = load_omniglot()
    assert drawings.features.shape == (32460, 784) and len(drawings.names) == 1623
    assert meta_learning_arrays(drawings, method="groups").train.shape == (20, 10, 18, 784)
    assert set(load_omniglot(subset="evaluation").groups) == set(range(50)) - set(
        load_omniglot(subset="background").groups
    )
