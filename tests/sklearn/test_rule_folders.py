"""Robust, ranking and instrumental estimators in folders: what is saved is loaded; what does not fit is refused."""

import json

import numpy as np
import pytest

from bilevelax.base.declared import seal
from bilevelax.sklearn import IVRegressor, NDCGRanker, RobustClassifier, RobustRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X @ [1.0, -2.0] + 0.1 * RNG.normal(size=60)
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [-1.0, 1.0])]
MODELS = {
    "classifier": lambda: RobustClassifier(lam=5.0, eps=0.1).fit(X, LABELS),
    "two classes": lambda: RobustClassifier(None, alpha=0.1).fit(X, Y > 0),
    "regressor": lambda: RobustRegressor("wasserstein", radius=0.1).fit(X, Y),
    "ranker": lambda: NDCGRanker(alpha=0.1, max_iter=5).fit(X, Y > 0, qid=np.arange(60) // 10),
    "network ranker": lambda: NDCGRanker(alpha=0.1, scores="mlp", max_iter=2, random_state=1).fit(X, Y > 0),
    "line": lambda: IVRegressor().fit(X, Y, X),
    "kernel": lambda: IVRegressor("kernel", components=8).fit(X, Y, X),
    "network": lambda: IVRegressor("network", components=4, width=2, random_state=0).fit(X, Y, X),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_loaded(name, tmp_path):
    model = MODELS[name]()
    loaded = type(model).load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.get_params() == model.get_params()
    for told in ("coef_", "intercept_", "alpha_", "lam_", "classes_"):
        assert hasattr(loaded, told) == hasattr(model, told)
        np.testing.assert_array_equal(getattr(loaded, told, 0), getattr(model, told, 0))


@pytest.fixture
def folder(tmp_path):
    return MODELS["regressor"]().save(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["settings"].update(ambiguity="guess"), "`settings` must be those of a RobustRegressor"),
        (lambda d: d["fitted"].update(unit=-1.0), "`fitted.unit` must be"),
        (lambda d: d["fitted"].update(sizes={"lam": 1.0}), "`fitted.sizes` must be radius"),
        (lambda d: d["fitted"].update(names=["one"]), "`fitted.names` must be a list of 2 texts"),
        (lambda d: d["fitted"].update(n_features_in_=3), r"must have shape \(3,\), but it has \(2,\)"),
    ],
)
def test_what_does_not_fit_is_refused(folder, change, told):
    path = folder / "model.json"
    document = json.loads(path.read_text())
    document.pop("sha256")
    change(document)
    path.write_text(json.dumps(seal(document)))
    with pytest.raises(ValueError, match=told):
        RobustRegressor.load(folder)


def test_other_kinds_and_objects_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="`kind` must be"):
        RobustClassifier.load(folder)
    with pytest.raises(ValueError, match="whose `cv` is an object cannot be saved"):
        RobustRegressor(None, alpha=0.1, cv=[(X, X)]).fit(X, Y).save(tmp_path / "other")


def test_a_loaded_model_has_no_rows(tmp_path):
    loaded = RobustRegressor.load(RobustRegressor(lam=9.0, eps=0.1).fit(X, Y).save(tmp_path / "model"))
    with pytest.raises(ValueError, match="loaded without its rows"):
        _ = loaded.problem_
