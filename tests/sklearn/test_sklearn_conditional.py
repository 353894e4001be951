"""Conditional distributions, comparisons and shifts, checked against what can be computed by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bilevelax.applications.newsvendor.weights import weighted_quantiles
from bilevelax.sklearn import SampleAverage, WeightedSampleAverage, compare, evaluate_shift, paired_interval, shifted
from bilevelax.sklearn.compare import Outcome, metrics
from bilevelax.sklearn.conditional import (
    Dirac,
    Forest,
    Groups,
    Kernel,
    Neighbours,
    make_conditional,
)
from bilevelax.sklearn.shift import plot_penalty_curve
from bilevelax.sklearn.stored_forest import Trees


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    return X, np.column_stack([X[:, 0] + 0.1 * rng.normal(size=80), rng.normal(size=80)])


@pytest.mark.parametrize("kind", [Forest, Neighbours, Kernel, Groups, Dirac])
def test_weights_sum_to_one_and_skip_the_row_itself(kind, rows):
    X, y = rows
    model = kind().fit(X, y, random_state=0)
    for own in (None, np.arange(80)):
        W = model.weights(X, own)
        np.testing.assert_allclose(np.asarray(W.sum(axis=1)).ravel(), 1.0)
        assert W.min() >= 0
    diagonal = W.diagonal()
    np.testing.assert_allclose(diagonal, 1.0 if model.votes_for_itself else 0.0, atol=1e-12)
    np.testing.assert_allclose(
        model.effective_sample_size(X), 1 / np.asarray(model.weights(X).power(2).sum(axis=1)).ravel()
    )


def test_forest_weights_are_shared_leaves(rows):
    """The definition, row by row and tree by tree."""
    X, y = rows
    model = Forest(trees=7).fit(X, y, random_state=1)
    new = X[:5] + 0.01
    leaves, at = model.forest_.apply(X), model.forest_.apply(new)
    expected = np.zeros((5, 80))
    for t in range(7):
        same = leaves[None, :, t] == at[:, None, t]
        expected += same / same.sum(axis=1, keepdims=True) / 7
    np.testing.assert_allclose(model.weights(new).toarray(), expected)


def test_stored_trees_weigh_as_the_forest_does(rows):
    """Leaf by leaf, at contexts that lie on thresholds in single precision too; a forest of one leaf each."""
    X, y = rows
    model = Forest(trees=7).fit(X, y, random_state=1)
    on_edges = np.float32(model.trees_.threshold[model.trees_.left >= 0][:20, None]) * np.ones(2)
    new = np.concatenate([X + 0.01, on_edges])
    trees = Trees.read(model.trees_.stored(), 2)
    np.testing.assert_array_equal(trees.apply(new), model.forest_.apply(new) + model.trees_.roots)
    again = Forest.of_trees(trees, X, y)
    np.testing.assert_array_equal(again.weights(new).toarray(), model.weights(new).toarray())
    leaf = Forest(trees=2, min_samples_leaf=80).fit(X, y, random_state=0)
    assert (Trees.read(leaf.trees_.stored(), 2).apply(new) == [0, 1]).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("left", 0.0), ("right", 1e6), ("left", 1.5), ("feature", 2.0), ("feature", -1.0), ("roots", 1e6)],
)
def test_nodes_that_no_forest_has_are_refused(name, value, rows):
    """A child that is its own parent would be walked for ever."""
    stored = Forest(trees=3).fit(*rows, random_state=1).trees_.stored()
    stored[f"forest_{name}"] = stored[f"forest_{name}"].copy()
    stored[f"forest_{name}"][0] = value
    with pytest.raises(ValueError, match="nodes that no forest has"):
        Trees.read(stored, 2)


def test_weighted_quantiles_and_sampling(rows):
    W = sparse.csr_matrix(np.array([[0.1, 0.2, 0.7], [0.0, 0.5, 0.5]]))
    y = np.array([[3.0], [1.0], [2.0]])
    found = weighted_quantiles(W, y, np.array([0.15, 0.2, 0.5, 0.95]))[:, :, 0]
    np.testing.assert_array_equal(found, [[1, 1, 2, 3], [1, 1, 1, 2]])
    X, y = rows
    model = Neighbours(k=4).fit(X, y)
    drawn = model.sample(X[:3], 4000, random_state=0)
    assert drawn.shape == (3, 4000, 2)
    for i in range(3):
        values, counts = np.unique(drawn[i, :, 0], return_counts=True)
        assert len(values) == 4 and np.all(np.abs(counts / 4000 - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000))


def test_atoms_have_the_mean_of_the_distribution(rows):
    X, y = rows
    model = Kernel().fit(X, y)
    atoms = model.atoms(X[:4], 2000)
    np.testing.assert_allclose(atoms.mean(axis=1), model.weights(X[:4]) @ y, atol=5e-3)


def test_groups_of_equal_contexts():
    X = np.repeat(np.array([[0.0], [1.0]]), 3, axis=0)
    y = np.arange(6.0)[:, None]
    model = Groups().fit(X, y)
    np.testing.assert_allclose(model.weights(np.array([[0.2]])).toarray(), [[1 / 3] * 3 + [0] * 3])
    np.testing.assert_allclose(model.effective_sample_size(X), 3.0)


def test_subsample(rows):
    X, y = rows
    model = Forest(trees=3, max_rows=30).fit(X, y, random_state=0)
    assert model.n_rows_ == 30 and model.weights(X, np.arange(80)).shape == (80, 30)


def test_objects_of_the_user():
    with pytest.raises(ValueError, match="or an object with fit"):
        make_conditional(3, "RobustNewsvendor")


def test_metrics_by_hand():
    outcome = Outcome(np.array([[3.0], [1.0]]), np.array([[2.0], [2.0]]), np.array([1.0, 9.0]))
    row = metrics(outcome, Outcome(outcome.orders, outcome.demand, np.array([10.0, 10.0])))
    assert row["mean_cost"] == 5 and row["relative_cost"] == 2.5 and row["service_level"] == 0.5
    assert row["fill_rate"] == 0.75 and row["worst_decile_cost"] == 9 and row["prescriptiveness"] == 0.5


def test_compare(rows):
    X, y = rows
    found = compare(
        {"plain": SampleAverage(1, 4), "near": WeightedSampleAverage(1, 4, conditional="knn")}, X, y[:, 0], cv=3
    )
    assert found.table.loc["plain", "difference"] == 0 and found.table.loc["plain", "prescriptiveness"] == 0
    near = found.table.loc["near"]
    assert near["low"] <= near["difference"] <= near["high"] < 0
    assert len(found.outcomes["near"].costs) == 60 and "near" in str(found)
    searched = GridSearchCV(WeightedSampleAverage(1, 4), {"conditional": ["knn"]}, cv=3)
    both = {"searched": make_pipeline(StandardScaler(), searched), "plain": SampleAverage(1, 4)}
    inside = compare(both, X, y[:, 0], cv=3)
    assert inside.table.loc["searched", "mean_cost"] < inside.table.loc["plain", "mean_cost"]
    with pytest.raises(ValueError, match=r"must know `holding_cost` and `backlog_cost`. Got LinearRegression"):
        compare({"other": LinearRegression()}, X, y[:, 0], cv=3)
    with pytest.raises(ValueError, match="`reference` of compare must be one of"):
        compare({"plain": SampleAverage()}, X, y, reference="other")


def test_paired_interval_covers_the_normal_one():
    rng = np.random.default_rng(1)
    a, b = rng.normal(1.0, 1.0, 400), np.zeros(400)
    low, high = paired_interval(a, b)
    half = 1.96 * a.std() / 20
    assert abs(low - (a.mean() - half)) < 0.3 * half and abs(high - (a.mean() + half)) < 0.3 * half
    assert paired_interval(b, b) == (0, 0)


def test_shifts(rows):
    X, y = rows
    np.testing.assert_allclose(shifted(X, "mean", size=2.0, columns=[0]) - X, [2 * X[:, 0].std(), 0] * np.ones_like(X))
    wide = shifted(pd.DataFrame(X, columns=["a", "b"]), "scale", size=1.0, columns="all")
    np.testing.assert_allclose(wide.std(), 2 * pd.DataFrame(X, columns=["a", "b"]).std())
    for kind in ("noise", "heavy_tails"):
        np.testing.assert_array_equal(shifted(X, kind, columns=[0])[:, 1], X[:, 1])
    model = WeightedSampleAverage(conditional="knn").fit(X, y[:, 0])
    told = evaluate_shift(model, X, y[:, 0], shift="mean", size=3.0)
    assert told["shifted_cost"] > told["cost"] == pytest.approx(model.decision_cost(X, y[:, 0]))
    season = evaluate_shift(model, X, y[:, 0], shift="season", columns=X[:, 0] > 1)
    assert season["shifted_cost"] > season["cost"]
    with pytest.raises(ValueError, match="must be a mask of the rows of the season"):
        evaluate_shift(model, X, y[:, 0], shift="season")
    with pytest.raises(ValueError, match="`shift` of shifted must be one of"):
        shifted(X, "sideways")


def test_plot_of_penalties(tmp_path):
    curve = pd.DataFrame({"penalty": [0.1, np.inf], "cost": [1.0, 1.1], "shifted_cost": [1.2, 1.5]})
    assert plot_penalty_curve(curve, tmp_path / "curve.png").stat().st_size > 5000
