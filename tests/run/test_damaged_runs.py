"""Folders of runs that were edited, mixed up or cut short: they go on, or one sentence says why not."""

import json
import os
import resource
import shutil
import signal
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import programs
from jax import random
from test_checkpoint import ESTIMATOR, OPTIMIZER, PROBLEM, X1, assert_same_run, minimize, without_seconds

import bilevelax as bx
from bilevelax.run.records.orbax_side import without_late_answers
from bilevelax.run.records.run_folder import runs_in, status_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def whole():
    return minimize()


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    minimize(folder, T=30)
    return folder


@pytest.fixture
def copy(half, tmp_path):
    return shutil.copytree(half, tmp_path / "run")


def test_a_run_whose_history_was_edited_goes_on(copy, whole):
    path = copy / "history.jsonl"
    edited = path.read_text().replace('"t": 0', '"t": 1', 1)
    path.write_text(edited)
    with pytest.warns(RuntimeWarning, match=r"history.jsonl in .* is damaged .*goes on from t = 30 without .* before"):
        result = minimize(copy)
    np.testing.assert_array_equal(result.x, whole.x)
    assert [row["t"] for row in result.history] == [30, 40, 50, 60]
    assert without_seconds(result.history[1:]) == without_seconds(whole.history[-3:])
    assert (copy / "history.jsonl.1").read_text() == edited and not (copy / "damaged-30").exists()
    assert_same_run(minimize(copy), result)


def test_only_late_answers_of_orbax_are_not_heard(monkeypatch):
    """It reads arrays at once: where one fails, the others have nobody to answer; when they say so is a race."""
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    coroutine = lambda file: SimpleNamespace(cr_code=SimpleNamespace(co_filename=file))
    events = [
        SimpleNamespace(exc_value=RuntimeError("Event loop is closed"), object=None),
        SimpleNamespace(exc_value=Exception("Encountered error while reading"), object=coroutine("/lib/orbax/read.py")),
        SimpleNamespace(exc_value=RuntimeError("mine"), object=coroutine("mine.py")),
        SimpleNamespace(exc_value=RuntimeError("mine"), object=None),
    ]
    with without_late_answers():
        for event in events:
            sys.unraisablehook(event)
    assert heard == events[2:] and sys.unraisablehook == heard.append


def test_a_run_that_goes_on_is_not_compiled_again(copy, whole):
    with programs() as names:
        minimize(copy)
    assert "chunk" not in names


def test_a_status_that_cannot_be_written(copy):
    (copy / "status.json").unlink()
    (copy / "status.json").mkdir()
    with pytest.raises(ValueError, match=r"status.json could not be written \(Is a directory\)"):
        minimize(copy)


def test_a_finished_run_whose_history_is_gone(copy):
    (copy / "history.jsonl").unlink()
    with pytest.warns(RuntimeWarning, match="history.jsonl is gone"):
        result = minimize(copy, T=30)
    assert [row["t"] for row in result.history] == [30]


def test_a_folder_of_a_saved_result_is_not_written_over(whole, tmp_path):
    whole.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"`folder` of Checkpoint must be of this run alone. Got .*history.jsonl"):
        minimize(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"} == before
    assert_same_run(minimize(tmp_path, resume="restart"), whole)


@pytest.mark.filterwarnings("error")
def test_a_full_disk_is_told_in_one_sentence(tmp_path, capfd):
    """Files may grow to 2,000 bytes: rows fit, a checkpoint of 4,000 numbers does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    problem = bx.stochastic(lambda x, xi: jnp.sum((x - xi) ** 2) / 2, lambda key, data: random.normal(key, (4000,)))
    fill = lambda row, x: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(
            bx.RunStopped, match=r"could not be saved in .*\(File too large\); there is none yet"
        ) as stop:
            minimize(tmp_path, problem=problem, estimator=bx.maml(), x1=jnp.zeros(4000), callbacks=[fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert len(str(stop.value).splitlines()) == 1
    assert capfd.readouterr().err == ""


def test_a_terminal_that_closes_saves_and_stops(whole, tmp_path):
    hang_up = lambda row, x: os.kill(os.getpid(), signal.SIGHUP) if row["t"] == 30 else None
    before = signal.signal(signal.SIGHUP, lambda *a: None)
    try:
        with pytest.raises(SystemExit, match=r"Stopped at t = 30, saved in") as stop:
            minimize(tmp_path, callbacks=[hang_up])
        assert stop.value.code == 128 + signal.SIGHUP
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup, where nothing is to be saved or stopped
        assert_same_run(minimize(tmp_path, callbacks=[hang_up]), whole)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_more_steps_than_can_be_counted():
    with pytest.raises(ValueError, match=r"`T` of minimize must be an integer in \[1, 2147483647\]. Got 2147483648."):
        bx.minimize(PROBLEM, ESTIMATOR, OPTIMIZER, X1, key=random.key(0), T=2**31)


@pytest.fixture
def saved(whole, tmp_path):
    whole.save(tmp_path / "saved")
    return tmp_path / "saved"


def edited(name, old, new, count=1):
    def damage(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, count))

    return damage


def written(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def other_arrays(folder):
    with np.load(folder / "arrays.npz") as stored:
        arrays = {name: 100 * a for name, a in stored.items()}
    np.savez(folder / "arrays.npz", **arrays)


def without_digests(folder):
    """As 0.1.0 wrote it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("files", "sha256"):
        del manifest[name]
    (folder / "manifest.json").write_text(json.dumps(manifest))


DAMAGED = {
    "a value": (
        edited("manifest.json", '"seconds": ', '"seconds": 1'),
        r"manifest.json .*changed after it was written",
    ),
    "digests of another name": (edited("manifest.json", '"files"', '"filed"'), r"manifest.json .*changed after it was"),
    "no JSON": (written("manifest.json", b"{"), r"manifest.json is damaged"),
    "no text": (written("manifest.json", b"\xff\xfe"), r"manifest.json is damaged"),
    "a list": (written("manifest.json", b"[]"), r"manifest.json is damaged"),
    "deep": (written("manifest.json", b"[" * 10**5), r"manifest.json is damaged .*nested too deeply"),
    "other arrays": (other_arrays, r"arrays.npz is not the file that .*manifest.json was saved with"),
    "no arrays": (written("arrays.npz", b"PK\x03\x04"), r"arrays.npz is not the file that"),
    "a row": (edited("history.jsonl", '"t": 10', '"t": 11'), r"history.jsonl is not the file that"),
    "half a row": (written("history.jsonl", b'{"t"'), r"history.jsonl is not the file that"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_result_is_told_in_one_sentence(name, saved):
    damage, message = DAMAGED[name]
    damage(saved)
    with pytest.raises(ValueError, match=message) as told:
        bx.Result.load(saved)
    assert len(str(told.value).splitlines()) == 1


OLDER = {
    "a structure": (edited("manifest.json", '"x": 0', '"x": "0"'), r"`structure.x` must be"),
    "an array that is not there": (edited("manifest.json", '"x": 0', '"x": 77'), r"arrays.npz has no array '77'"),
    "a negative number": (edited("manifest.json", '"x": 0', '"x": -1'), r"`structure.x` must be"),
    "a kind of structure": (edited("manifest.json", '"x": 0', '"x": {"set": [0]}'), r"`structure.x` must be"),
    "no result": (edited("manifest.json", '"result"', '"reslt"'), r"that has 'result'"),
    "a cost": (edited("manifest.json", '"xi": 60', '"xi": "many"'), r"`result.cost.xi` must be an integer"),
    "no arrays": (written("arrays.npz", b"PK\x03\x04"), r"arrays.npz is not a readable npz file"),
    "half a row": (written("history.jsonl", b'{"t"'), r"Line 1 of .*history.jsonl must be a row"),
    "a row that is none": (written("history.jsonl", b"[1]\n"), r"Line 1 of .*history.jsonl must be a row"),
    "no text": (written("history.jsonl", b"\xff\xfe\n"), r"history.jsonl is damaged"),
}


@pytest.mark.parametrize("name", OLDER)
def test_a_damaged_result_of_0_1_0(name, saved):
    without_digests(saved)
    damage, message = OLDER[name]
    damage(saved)
    with pytest.raises(ValueError, match=message) as told:
        bx.Result.load(saved)
    assert len(str(told.value).splitlines()) == 1


def test_a_result_beside_a_history_that_grew(saved, whole):
    """The run went on and was stopped: the rows of the result are still the first ones."""
    with open(saved / "history.jsonl", "a") as file:
        file.write('{"t": 70, "seconds": 1.0}\n')
    assert bx.Result.load(saved).history == whole.history
    assert bx.Result.load(saved).manifest == whole.manifest


@pytest.mark.parametrize("text", ["[]", "3", "{", '{"state": 1}', "[" * 10**5, '{"state": "running", "T": "x"}'])
def test_a_status_that_is_none_is_no_run(text, copy):
    assert len(runs_in(copy)) == 1
    (copy / "status.json").write_text(text)
    assert runs_in(copy) == []
    with pytest.raises(ValueError, match=r"status.json is damaged"):
        status_of(copy)
