"""Files written by bilevelax 0.1.0 (tests/files_0_1_0, made by the script there) are read, and its runs go on."""

import csv
import hashlib
import json
import shutil

import jax
import numpy as np
import pytest
from files_0_1_0 import make
from typer.testing import CliRunner

import bilevelax as bx
from bilevelax import datasets
from bilevelax.applications import quadratic
from bilevelax.cli import app
from bilevelax.run.records import fingerprint

FILES = make.HERE
RESULT = bx.Result.load(FILES / "result")
EIGENVECTORS = "566be06f0687"  # of the quadratic's A, where its run began: LAPACK's last bits depend on the processor
BEGUN_BEFORE = "ignore:The run in .* was begun by bilevelax 0.1.0"


@pytest.fixture
def copy(tmp_path):
    """The files, where they may be written."""
    return shutil.copytree(FILES, tmp_path / "files")


def invoke(*words):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def goes_on(run):
    """What the run returns with the JAX that began it; with another it is refused, whatever bilevelax it is."""
    found, begun = fingerprint.versions(), RESULT.manifest["versions"]
    if all(found[name] == begun[name] for name in begun if name != "bilevelax"):
        with jax.numpy_dtype_promotion("standard"):  # adam needs it
            return run()
    with pytest.raises(ValueError, match="holds another run: a version changed"):
        run()
    return None


def test_a_result_is_loaded():
    assert RESULT.history[-1]["t"] == make.T and RESULT.cost.xi == 4 * make.T
    assert {name: a.shape for name, a in RESULT.x_hat.items()} == {"w": (2,), "b": (2,)}
    assert RESULT.history[-1]["norm"] == np.sum(RESULT.x["w"] ** 2)
    assert bx.Result.load(FILES / "quadratic").manifest["config"]["name"] == "quadratic"


@pytest.mark.filterwarnings(BEGUN_BEFORE)
def test_an_interrupted_run_goes_on_to_the_same_end(copy):
    if result := goes_on(lambda: make.run(copy / "interrupted")):
        for part in ("x", "x_hat", "x_mean"):
            for name, a in getattr(result, part).items():
                np.testing.assert_allclose(a, getattr(RESULT, part)[name], rtol=1e-12)
        now, before = result.cost.asdict(), RESULT.cost.asdict()
        assert result.manifest["resumed_at"] == [10]
        assert all(now[name] == before[name] for name in ("xi", "eta", "grad_g"))
        # at the first level v^k is v^1: 0.1.0 computed and counted it twice
        assert all(now[name] < before[name] for name in ("grad_f", "hess_g", "cross_g"))
        assert [row["t"] for row in result.history] == [row["t"] for row in RESULT.history]


@pytest.mark.filterwarnings(BEGUN_BEFORE)
def test_a_run_on_clients_goes_on_though_they_are_packed_now(copy):
    if result := goes_on(lambda: make.run_on_clients(copy / "on_clients")):
        np.testing.assert_allclose(result.x, bx.Result.load(FILES / "on_clients_result").x, rtol=1e-12)
        assert result.manifest["resumed_at"] == [make.STOPPED - make.EVERY]


def test_another_store_is_another_run():
    """The negative control: fewer clients in memory, hence other data."""
    meta = json.loads(next((FILES / "on_clients/checkpoints").glob("*/meta/metadata")).read_text())
    before = json.loads(meta["text"])["identity"]
    now = {**before, "generation": 2, "problem": {**before["problem"], "data": "packed", "sample_context": "packed"}}
    assert fingerprint.difference(now, before, lambda: before["problem"]["data"]) is None
    for other in (None, "other clients"):
        told = fingerprint.difference(now, before, lambda other=other: other)
        assert told == "`data`, `sample_context` of the problem changed"


@pytest.mark.filterwarnings(BEGUN_BEFORE)
def test_the_same_command_goes_on(copy):
    further = [{"20": "40"}.get(word, word) for word in make.QUADRATIC]
    again = lambda: invoke(*further, "--out", copy / "quadratic")
    if hashlib.sha256(quadratic.matrices().Q.tobytes()).hexdigest().startswith(EIGENVECTORS):
        output = goes_on(again)
        assert output is None or "Went on from t = 20" in output
    else:  # another g, though by its last bits only
        with pytest.raises(ValueError, match=r"holds another run: (`g` of the problem|a version) changed"):
            again()


def test_another_version_does_not_go_on_in_silence():
    meta = json.loads((FILES / "interrupted/checkpoints/10/meta/metadata").read_text())
    before = json.loads(meta["text"])["identity"]
    by = lambda version, **parts: {**before, "versions": {**before["versions"], "bilevelax": version}, **parts}
    now = by("0.2.0", generation=2, estimator="written otherwise")
    assert fingerprint.difference(now, before) is None
    assert fingerprint.doubt(now, before) == (
        "was begun by bilevelax 0.1.0 and goes on with 0.2.0, whose estimators are written otherwise: only settings "
        "tell that it is the same one."
    )
    assert fingerprint.doubt({**before, "generation": 2}, before) is None
    assert fingerprint.difference(now, by("0.0.9")) == "a version changed: bilevelax is 0.2.0, was 0.0.9"
    assert fingerprint.difference(now, by("0.2.0", generation=2)) == "the estimator changed"


def test_runs_are_listed():
    text = invoke("runs", FILES)
    assert "interrupted" in text and "quadratic" in text and "finished" in text


def test_a_model_orders_as_before(copy):
    invoke("newsvendor", "order", copy / "model", FILES / "demand.csv", "--out", copy / "now.csv")
    files = (copy / "now.csv", FILES / "orders.csv")
    now, before = (list(csv.DictReader(path.read_text().splitlines())) for path in files)
    assert [row["date"] for row in now] == [row["date"] for row in before]
    np.testing.assert_allclose([float(row["order"]) for row in now], [float(row["order"]) for row in before], rtol=1e-6)


def test_a_client_store_is_opened():
    store = datasets.ClientStore(FILES / "clients")
    store.verify()
    for number, rows in enumerate(make.CLIENTS):
        found = store.get([number])
        assert found.mask.sum() == len(rows["b"])
        for name, column in rows.items():
            np.testing.assert_array_equal(found.rows[name][0][: len(column)], column)


def test_records_of_the_study_are_drawn(copy):
    text = invoke("paper", "nonconvex", "--render", "--out", copy / "paper")
    assert "RT-MLMC" in text and (copy / "paper" / "nonconvex" / "nonconvex.svg").is_file()
