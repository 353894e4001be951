"""MetaClassifier and PersonalizedModel: rows, masks, intercepts and folders, each as it is said to be."""

import json
import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import bilevelax as bx
from bilevelax.applications import meta_learning, personalized_fl
from bilevelax.base.declared import seal
from bilevelax.run.run import CHUNKS
from bilevelax.sklearn import MetaClassifier, PersonalizedModel, meta

QUICK = dict(lam=0.5, max_iter=20, K=1, batch_size=2, random_state=0)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 16)
    y = np.where(rng.random(64) < 0.5, "no", "yes")
    X = np.where(y == "yes", 1.0, -1.0)[:, None] * np.array([1.0, 0.3]) + 0.5 * rng.normal(size=(64, 2))
    return X, y, groups


@pytest.fixture(scope="module")
def fitted(clients):
    return PersonalizedModel(**QUICK).fit(*clients)


def test_a_mask_of_integers_is_refused(fitted, clients):
    X, y, groups = clients
    half = np.arange(64) % 2
    with pytest.raises(ValueError, match=r"`support` of PersonalizedModel must be a boolean mask .* Got int64"):
        fitted.scores(X, y, groups, half)
    with pytest.raises(ValueError, match=r"one entry for each of the 64 rows. Got bool of shape \(3,\)"):
        fitted.scores(X, y, groups, np.array([True, False, True]))
    assert len(fitted.scores(X, y, groups, half == 1)) == 2


@pytest.mark.parametrize("lam", [0.5, "learned"])
def test_a_second_fit_compiles_nothing(lam, clients):
    fit = lambda: PersonalizedModel(**{**QUICK, "lam": lam, "max_iter": 2}).fit(*clients)
    steps_compiled = lambda: sum(program._cache_size() for program in CHUNKS.values())
    first, before = fit(), steps_compiled()
    np.testing.assert_array_equal(fit().centre_, first.centre_)
    assert steps_compiled() == before


def test_every_row_is_learnt_from(clients):
    """Labels of the last quarter of each client's rows change the centre."""
    X, y, groups = clients
    turned = np.where(np.arange(64) % 16 >= 12, np.where(y == "yes", "no", "yes"), y)
    a, b = (PersonalizedModel(**QUICK).fit(X, labels, groups) for labels in (y, turned))
    assert a.tasks_["train"]["counts"].tolist() == [16] * 4
    assert not np.allclose(a.centre_, b.centre_)
    adapted = a.adapt(X[groups == 2], y[groups == 2])
    np.testing.assert_allclose(a.personalize([2])[2].W, adapted.W, atol=1e-6)


def test_one_long_client_costs_its_own_rows(monkeypatch):
    """500 clients of 10 rows and one of 20,000: what is kept and trained on is 25,000 rows, not 10 million."""
    sizes = [10] * 500 + [20_000]
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(501), sizes)
    X, y = rng.normal(size=(len(groups), 2)), np.arange(len(groups)) % 2
    shuffled = rng.permutation(len(groups))
    trained_on = []
    monkeypatch.setattr(
        meta, "minimize", lambda problem, *a, **kw: trained_on.append(problem) or SimpleNamespace(x=a[2])
    )
    for kind in (MetaClassifier, PersonalizedModel):
        model = kind(**QUICK).fit(X[shuffled], y[shuffled], groups[shuffled])
        kept = {a.ctypes.data: a.size for part in model.tasks_.values() for a in part.values()}
        held = {a.unsafe_buffer_pointer(): a.size for a in jax.tree.leaves(trained_on.pop().data)}
        assert sum(kept.values()) <= 5 * len(X) >= sum(held.values())  # 3 columns, a label, and a number of the longest
    mine = groups == 7
    found, adapted = model.personalize([7, 500]), model.adapt(X[mine], y[mine])
    np.testing.assert_allclose(found[7].W, adapted.W, atol=1e-6)
    assert found[500].converged


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.2, None, "half", float("nan")])
def test_a_share_is_a_share(share, clients):
    with pytest.raises(ValueError, match=r"`test_fraction` of MetaClassifier must lie between 0 and 1. Got"):
        MetaClassifier(**QUICK, test_fraction=share).fit(*clients)


def test_columns_are_called_what_they_are():
    """What the upper level trains on is no test."""
    small = {**personalized_fl.SMALLEST}
    assert {"upper_loss", "upper_accuracy"} <= set(bx_metrics(personalized_fl.make(**small)))
    assert {"test_loss", "test_accuracy"} <= set(bx_metrics(personalized_fl.make(**small, moreau=True)))
    assert "test_loss" not in bx_metrics(personalized_fl.make(**small))
    assert set(bx_metrics(meta_learning.make(**meta_learning.SMALLEST))) == {
        "upper_loss",
        "upper_accuracy",
        "centre_loss",
    }


def bx_metrics(made):
    return made.metrics(made.x1)


def test_a_small_lam_tells_what_it_costs(clients):
    with pytest.warns(UserWarning, match=r"`lam` of MetaClassifier is small: .* up to [\d,]+ terms"):
        MetaClassifier(**{**QUICK, "lam": 1e-3, "max_iter": 1}).fit(*clients)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MetaClassifier(**QUICK).fit(*clients)


def test_what_overflows_is_told(clients):
    X, y, groups = clients
    with pytest.raises(ValueError, match=r"Rows of X of MetaClassifier must be so short .* Got a length of .* row 4"):
        MetaClassifier(**QUICK, norm=None).fit(np.where(np.arange(64)[:, None] == 3, 1e200, X), y, groups)
    with pytest.raises(ValueError, match=r"Rows of X of MetaClassifier must be so short"):
        MetaClassifier(**QUICK).fit(np.where(np.arange(64)[:, None] == 3, 1e200, X), y, groups)


def test_an_intercept(clients):
    """Rows that say nothing: only an intercept knows that most are yes."""
    (X, _, groups), y = clients, np.where(np.arange(64) % 16 < 13, "yes", "no")
    X = 0 * X
    without = PersonalizedModel(**QUICK, fit_intercept=False).fit(X, y, groups)
    with_one = PersonalizedModel(**QUICK).fit(X, y, groups)
    assert without.centre_.shape == (2, 2) and with_one.centre_.shape == (2, 3)
    np.testing.assert_allclose(without.predict_proba(X), 0.5)
    assert (with_one.predict(X) == "yes").all()
    assert with_one.adapt(X, y).predict_proba(X)[0, 1] > 0.6


LABELS = {
    "text": lambda y: y,
    "objects": lambda y: y.astype(object),
    "numbers": lambda y: np.where(y == "yes", 7, 3),
    "yes or no": lambda y: y == "yes",
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("kind", [MetaClassifier, PersonalizedModel])
def test_saved_and_loaded_without_pickle(kind, name, clients, tmp_path):
    X, y, groups = clients
    y = LABELS[name](y)
    model = kind(**QUICK).fit(X, y, groups)
    loaded = kind.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.adapt(X[:9], y[:9]).W, model.adapt(X[:9], y[:9]).W)
    assert loaded.classes_.dtype.kind == model.classes_.dtype.kind and loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_folders_that_are_not_whole(fitted, clients, tmp_path):
    X, y, groups = clients
    folder = fitted.save(tmp_path / "model")
    loaded = PersonalizedModel.load(folder)
    assert len(loaded.scores(X, y, groups, np.arange(64) % 2 == 0)) == 2
    with pytest.raises(ValueError, match="was loaded without its clients' rows: give them to `adapt`"):
        loaded.personalize([0])
    with pytest.raises(ValueError, match=r"`kind` must be one of 'MetaClassifier'. Got 'PersonalizedModel'"):
        MetaClassifier.load(folder)
    record = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**record, "settings": {**record["settings"], "lam": 9.0}}))
    with pytest.raises(ValueError, match=r"model.json is damaged .*changed after it was written"):
        PersonalizedModel.load(folder)
    far = seal({**record, "settings": {**record["settings"], "norm": 10**30}})
    (folder / "model.json").write_text(json.dumps(far))
    with pytest.raises(ValueError, match=r"`settings.norm` must be a number in"):
        PersonalizedModel.load(folder)
    (folder / "model.json").write_text(json.dumps(record))
    np.savez(folder / "arrays.npz", centre=np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match=r"arrays.npz is not the file that"):
        PersonalizedModel.load(folder)
    with pytest.raises(ValueError, match="cannot be saved as JSON"):
        MetaClassifier(**{**QUICK, "random_state": np.random.RandomState(0)}).fit(X, y, groups).save(tmp_path / "odd")
    assert bx.__version__ == record["version"]


@pytest.fixture(scope="module")
def learned(clients):
    return MetaClassifier(max_iter=2, batch_size=2, random_state=0).fit(*clients)


def test_what_was_learned_is_saved(learned, clients, tmp_path):
    X, y, _ = clients
    loaded = MetaClassifier.load(learned.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict_proba(X), learned.predict_proba(X))
    again, before = loaded.adapt(X[:9], y[:9]), learned.adapt(X[:9], y[:9])
    np.testing.assert_array_equal(again.W, before.W)
    np.testing.assert_array_equal(again.offset, before.offset)
    assert before.score(X, y) > 0.8
    with pytest.raises(ValueError, match="`lam` of MetaClassifier must be one of 'learned'"):
        MetaClassifier(lam="leaned").fit(*clients)


def test_labels_never_shown_keep_the_centre(learned, clients):
    """A client with one label: the other's weights are the centre's, its logit has the learned offset."""
    X, y, _ = clients
    one = learned.adapt(X[y == "yes"][:5], y[y == "yes"][:5])
    np.testing.assert_allclose(one.W[0], learned.centre_[0], rtol=1e-6)
    np.testing.assert_allclose(one.offset, [learned.learned_["absent"], 0], rtol=1e-6)
    assert not np.allclose(one.W[1], learned.centre_[1])
