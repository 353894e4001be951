"""Splits, groups and arrays of tasks are exact, balanced and repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from bilevelax.datasets import Features, group_classes, meta_learning_arrays, split
from bilevelax.datasets.pca import fit_pca

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
