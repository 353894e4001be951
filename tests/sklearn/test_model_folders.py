"""Models in folders: what is saved is loaded, and nothing that was changed, mixed up or made up gives orders."""

import hashlib
import json
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest
from files_0_1_0 import make
from typer.testing import CliRunner

from bilevelax.cli import app
from bilevelax.sklearn import RobustNewsvendor
from bilevelax.sklearn.persist import load_newsvendor, save_newsvendor

QUICK = dict(policy="linear", conditional="knn", penalty=np.inf, members=2, max_iter=5, n_atoms=4, random_state=0)


@pytest.fixture(scope="module")
def data():
    X = np.random.default_rng(0).normal(size=(40, 2))
    return X, 50 + 3 * X[:, 0]


@pytest.fixture(scope="module")
def models(data):
    """A model, and the same for demands a hundred times as large."""
    X, y = data
    return [RobustNewsvendor(**QUICK).fit(X, scale * y) for scale in (1, 100)]


@pytest.fixture
def folder(models, tmp_path):
    return save_newsvendor(models[0], tmp_path / "model", {})


@pytest.fixture
def older(tmp_path):
    """A model of bilevelax 0.1.0, which knew no digests."""
    return shutil.copytree(make.HERE / "model", tmp_path / "older")


def test_what_is_saved_is_loaded(folder, models, data):
    loaded, record = load_newsvendor(folder)
    np.testing.assert_array_equal(loaded.predict(data[0]), models[0].predict(data[0]))
    assert record["arrays"]["sha256"] == hashlib.sha256((folder / "arrays.npz").read_bytes()).hexdigest()


def test_worst_cases_of_a_loaded_model(data, tmp_path):
    """The distribution of demand is fitted again on the rows that the folder keeps."""
    X, y = data
    model = RobustNewsvendor(**QUICK | {"penalty": 0.5}).fit(X, y)
    place = save_newsvendor(model, tmp_path / "kept", {}, X=X, y=y[:, None])
    loaded = load_newsvendor(place)[0]
    worst = loaded.worst_case_contexts(X)
    np.testing.assert_allclose(worst, model.worst_case_contexts(X), rtol=1e-10)
    assert np.abs(worst - X).max() > 1e-3, "nothing moved: the test has no power"
    without = load_newsvendor(save_newsvendor(model, tmp_path / "without", {}))[0]
    with pytest.raises(ValueError, match="keeps no training rows, so what demand could have been is not known"):
        without.worst_case_contexts(X)


def test_arrays_of_another_model_are_refused(folder, models, tmp_path):
    other = save_newsvendor(models[1], tmp_path / "other", {})
    shutil.copy(other / "arrays.npz", folder / "arrays.npz")
    with pytest.raises(ValueError, match=r"arrays.npz is not the file that .*model.json was saved with"):
        load_newsvendor(folder)


def changed(folder, change):
    record = json.loads((folder / "model.json").read_text())
    change(record)
    (folder / "model.json").write_text(json.dumps(record))


def test_a_changed_value_is_noticed(folder):
    changed(folder, lambda record: record["fitted"].update(unit=record["fitted"]["unit"] * 2))
    with pytest.raises(ValueError, match=r"model.json is damaged .*it was changed after it was written"):
        load_newsvendor(folder)


def test_a_digest_cannot_be_left_out(folder):
    changed(folder, lambda record: [record.pop(name) for name in ("sha256", "arrays")])
    with pytest.raises(ValueError, match=r"model.json is damaged .*that has 'arrays'"):
        load_newsvendor(folder)


def fitted(**parts):
    return lambda record: record["fitted"].update(parts)


def settings(**parts):
    return lambda record: record["settings"].update(parts)


CHANGED = {
    "members without end": (settings(members=10**5), r"array 'policy_0' must have shape \(100000, "),
    "members below one": (settings(members=0), "`settings.members` must be an integer in"),
    "columns without end": (fitted(n_features_in_=3 * 10**8), "`fitted.n_features_in_` must be an integer"),
    "a policy that is none": (settings(policy="rm"), "`settings.policy` must be one of 'linear', 'mlp'"),
    "a setting that is none": (settings(evil=1), "`settings` must be a map without 'evil'"),
    "costs of more products": (
        settings(holding_cost=[1, 2]),
        "`settings.holding_cost` must be a number, a list of 1, or one of ",
    ),
    "a cost that is a word": (settings(holding_cost=["1"]), "`settings.holding_cost"),
    "a unit of nothing": (fitted(unit=0), "`fitted.unit` must be a number in"),
    "another unit": (fitted(unit=1.0), "`fitted.unit` must be .*, from the costs and the scale of the demands"),
    "a penalty that is none": (fitted(penalty_="none"), "`fitted.penalty_` must be a positive number as a text"),
    "names of other columns": (fitted(names=["a", "b"]), "`fitted.names` must be a list of 21"),
    "more arrays than there are": (fitted(policy_arrays=10**9), "`fitted.policy_arrays` must be an integer"),
    "fewer arrays": (fitted(policy_arrays=2), "`fitted.policy_arrays` must be 8"),
    "two outputs, flat": (fitted(n_outputs_=2), "`fitted.flat` must be"),
    "no settings": (lambda record: record.pop("settings"), "that has 'settings'"),
    "a kind of column": (
        lambda record: record["schema"]["columns"]["price"].update(kind="code"),
        "`schema.columns.price.kind` must be one of 'number', 'category'",
    ),
    "a fill that is none": (
        lambda record: record["schema"]["columns"]["price"].update(fill="x"),
        "`schema.columns.price.fill` must be a finite number",
    ),
    "a column less": (lambda record: record["schema"]["columns"].pop("price"), "`fitted.names` must be those"),
    "two targets": (lambda record: record["schema"]["targets"].append("b"), "`schema.targets` must be a list of 1"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_values_that_cannot_be(name, older):
    """In a model of 0.1.0, whose values are checked without a digest."""
    change, message = CHANGED[name]
    changed(older, change)
    with pytest.raises(ValueError, match=message):
        load_newsvendor(older)


def test_a_correction_too_large_for_an_integer_of_numpy(older):
    """JSON knows integers without end; an array of them holds objects, which no order can be added to."""
    changed(older, fitted(shift=[10**30]))
    model, _ = load_newsvendor(older)
    assert model.shift_.dtype == float
    rows = pd.DataFrame(np.zeros((2, model.n_features_in_)), columns=model.feature_names_in_)
    np.testing.assert_allclose(model.predict(rows), 1e30)


def rewritten(folder, name, change, **how):
    with np.load(folder / "arrays.npz") as stored:
        arrays = dict(stored)
    arrays[name] = change(arrays[name])
    (np.savez_compressed if how else np.savez)(folder / "arrays.npz", **arrays)


ARRAYS = {
    "not a number": ("policy_0", lambda a: np.where(a == a.flat[0], np.nan, a), "'policy_0' must hold finite numbers"),
    "complex": ("policy_1", lambda a: a + 0j, "'policy_1' must hold floating-point numbers, but it is of complex128"),
    "integers": ("policy_1", lambda a: a.astype(int), "'policy_1' must hold floating-point numbers"),
    "another shape": ("policy_0", lambda a: a[:, :, :1], r"'policy_0' must have shape \(4, 1, 21\), but it has"),
    "a scale of nothing": ("demands_scale", lambda a: 0 * a, "`demands_scale` must be positive"),
    "a negative scale": ("contexts_scale", lambda a: -a, "`contexts_scale` must be positive"),
    "another scale": ("demands_scale", lambda a: 100 * a, "`fitted.unit` must be .*, from the costs and the scale"),
    "a centre outside": ("demands_centre", lambda a: 100 * a, "`demands_centre` must be between"),
    "a range upside down": ("contexts_low", lambda a: a + 1e6, "`contexts_centre` must be between"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_cannot_be(name, older):
    array, change, message = ARRAYS[name]
    rewritten(older, array, change)
    with pytest.raises(ValueError, match=message):
        load_newsvendor(older)


def test_a_small_file_that_would_become_large(older):
    bomb = shutil.copytree(older, older.with_name("bomb"))
    rewritten(bomb, "policy_0", lambda a: np.zeros((4, 10**6)), compressed=True)
    with pytest.raises(ValueError, match=r"array '\w+' is compressed"):
        load_newsvendor(bomb)
    with zipfile.ZipFile(older / "arrays.npz") as archive:
        kept = {each: archive.read(each) for each in archive.namelist()}
    name = "contexts_centre.npy"
    kept[name] = kept[name].replace(b"(21,), }       ", b"(300000000,), }")
    with zipfile.ZipFile(older / "arrays.npz", "w") as archive:
        for each, text in kept.items():
            archive.writestr(each, text)
    with pytest.raises(ValueError, match=r"'contexts_centre' of float64\[300000000\] does not have the .* bytes"):
        load_newsvendor(older)


def test_no_order_is_infinite(older, tmp_path):
    """Numbers that are finite each for itself may overflow together."""
    rewritten(older, "policy_0", lambda a: np.full_like(a, 1e308))
    words = ["newsvendor", "order", older, make.HERE / "demand.csv", "--out", tmp_path / "orders.csv"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 1 and "must be finite" in str(done.exception)
    assert not (tmp_path / "orders.csv").exists()


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"format": 1', "[" * 100_000, '{"format": NaN}', "\x00"])
def test_a_description_that_is_none(text, folder):
    (folder / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model.json is damaged or from another program \(.+\): "):
        load_newsvendor(folder)
