"""Saved runs: the same bits after a stop, and one sentence for everything that can be wrong with a folder."""

import dataclasses
import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.run import run
from bilevelax.run.records import checkpoint as checkpoint_file
from bilevelax.run.records import fingerprint
from bilevelax.run.records.run_folder import RunFolder, runs_in, status_of

# orbax drops futures of reads and writes that failed, which Python reports when it collects them
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collected():
    """What a failed read or write leaves behind is collected within its own test."""
    yield
    gc.collect()


X1 = jnp.arange(3.0)
CENTRE = jnp.ones(3)


def loss(x, xi):
    return jnp.sum((x - xi) ** 2) / 2


PROBLEM = bx.stochastic(loss, lambda key, data: data + random.normal(key, (3,)), data=CENTRE)


def remembering(weight=0.5):
    """A cheap estimator with a state of its own, a typed key in it."""

    def estimate(key, problem, x, state):
        moved = random.fold_in(state[0], 1)
        mean = weight * state[1] + (1 - weight) * (x - problem.context(key) + random.normal(moved, (3,)))
        return bx.Estimate(mean, bx.Cost(xi=1), {"level": 2}), (moved, mean)

    return bx.Estimator(lambda problem, x: (random.key(5), jnp.zeros(3)), estimate)


ESTIMATOR, OPTIMIZER = remembering(), optax.sgd(optax.linear_schedule(0.1, 0.0, 100), momentum=0.9)


def minimize(folder=None, *, problem=PROBLEM, estimator=ESTIMATOR, optimizer=OPTIMIZER, x1=X1, seed=0, T=60, **kw):
    kw = {"every": 10, "metrics": lambda x: {"norm": jnp.sum(x**2)}, **kw}
    saved = bx.Checkpoint(folder, every=10) if folder else None
    return bx.minimize(problem, estimator, optimizer, x1, key=random.key(seed), T=T, checkpoint=saved, **kw)


def without_seconds(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_same_run(a, b):
    for part in ("x", "x_hat", "x_mean"):
        np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
    assert without_seconds(a.history) == without_seconds(b.history)
    assert a.cost == b.cost


@pytest.fixture(scope="module")
def whole():
    return minimize()


def test_a_resumed_run_has_the_bits_of_a_whole_one(whole, tmp_path):
    minimize(tmp_path / "even", T=20)
    minimize(tmp_path / "even", T=40)
    result = minimize(tmp_path / "even")
    assert_same_run(result, whole)
    assert result.manifest["resumed_at"] == [20, 40]


def test_a_run_that_ended_within_a_chunk_may_go_on(whole, tmp_path):
    """One row more, where it ended; chunks are in step again after it."""
    minimize(tmp_path, T=35)
    result = minimize(tmp_path)
    np.testing.assert_array_equal(result.x, whole.x)
    np.testing.assert_array_equal(result.x_hat, whole.x_hat)
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["t"] for row in rows] == [0, 10, 20, 30, 35, 40, 50, 60]


def test_a_finished_run_is_not_run_again(whole, tmp_path, monkeypatch):
    first = minimize(tmp_path)
    monkeypatch.setattr(run.Run, "advance", None)
    again = minimize(tmp_path)
    assert_same_run(again, whole)
    assert again.seconds == first.seconds
    with pytest.raises(ValueError, match=r"`T` of minimize must not be less than the 60 steps already saved. Got 50."):
        minimize(tmp_path, T=50)


def shifted(x, xi):
    return loss(x, xi) + 1e-3 * jnp.sum(x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem": bx.stochastic(shifted, PROBLEM.sample_context, data=CENTRE)}, "`f` of the problem changed"),
        ({"problem": dataclasses.replace(PROBLEM, data=CENTRE + 1)}, "`data` of the problem changed"),
        ({"estimator": remembering(0.6)}, "the estimator changed"),
        ({"optimizer": optax.sgd(optax.linear_schedule(0.2, 0.0, 100), momentum=0.9)}, "the optimizer .* changed"),
        ({"x1": X1 + 1}, "the first iterate `x1` changed"),
        ({"seed": 1}, "the `key` changed"),
        ({"every": 5}, "`every` is 5, was 10"),
    ],
    ids=["f", "data", "estimator", "optimizer", "x1", "key", "every"],
)
def test_another_run_is_refused_by_name(change, message, half):
    with pytest.raises(ValueError, match=f"holds another run: {message}.*Set that back, give this run another folder"):
        minimize(half, **change)
    assert status_of(half)[1:4] == ("finished", 30, 30)  # the old run is as it was


def test_settings_and_versions_are_named(tmp_path, monkeypatch):
    problem = bx.stochastic(loss, PROBLEM.sample_context, data=CENTRE)
    minimize(tmp_path, problem=problem, estimator=bx.rt_mlmc(1), T=10)
    with pytest.raises(ValueError, match="the estimator changed: K is 2, was 1"):
        minimize(tmp_path, problem=problem, estimator=bx.rt_mlmc(2), T=10)
    old = fingerprint.versions()
    monkeypatch.setattr(fingerprint, "versions", lambda: {**old, "jax": "9.9"})
    with pytest.raises(ValueError, match=f"a version changed: jax is 9.9, was {old['jax']}"):
        minimize(tmp_path, problem=problem, estimator=bx.rt_mlmc(1), T=10)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_signals_save_and_stop(number, kind, whole, tmp_path):
    def tell(row, x):
        if row["t"] == 30:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(kind, match=r"Stopped at t = 30, saved in .*: the same call goes on") as stop:
        bx.minimize(  # no checkpoint is due before the signal
            PROBLEM,
            ESTIMATOR,
            OPTIMIZER,
            X1,
            key=random.key(0),
            T=60,
            every=10,
            metrics=lambda x: {"norm": jnp.sum(x**2)},
            callbacks=[tell],
            checkpoint=bx.Checkpoint(tmp_path),
        )
    assert number == signal.SIGINT or stop.value.code == 143
    assert signal.getsignal(number) is before
    assert status_of(tmp_path)[1:4] == ("interrupted", 30, 60)
    assert_same_run(minimize(tmp_path), whole)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run of 30 steps with checkpoints at 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("half")
    minimize(folder, T=30)
    return folder


def truncate_arrays(folder):
    for path in (folder / "checkpoints" / "30" / "carry").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def tamper_text(folder):
    path = folder / "checkpoints" / "30" / "meta" / "metadata"
    path.write_text(path.read_text().replace('\\"seconds\\": ', '\\"seconds\\": 1'))


def cut_history(folder):
    path = folder / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-5])


def lose_a_file(folder):
    shutil.rmtree(folder / "checkpoints" / "30" / "carry")


@pytest.mark.parametrize("damage", [truncate_arrays, tamper_text, cut_history, lose_a_file])
def test_a_damaged_checkpoint_gives_way_to_the_previous_one(damage, half, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    damage(folder)
    with pytest.warns(
        RuntimeWarning, match=r"t = 30 .* is damaged \(.+\).* goes on from the previous good one, t = 20"
    ):
        result = minimize(folder)
    assert_same_run(result, whole)
    assert (folder / "damaged-30").is_dir()


def test_changed_arrays_are_noticed(half, tmp_path, monkeypatch):
    """Bytes that orbax reads without complaint are still compared with what was saved."""
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    monkeypatch.setattr(checkpoint_file, "digest_of_arrays", lambda leaves: "other")
    with pytest.raises(ValueError, match=r"No checkpoint in .* can be read \(t = 30: its arrays were changed; t = 20"):
        minimize(folder)


def test_nothing_is_unpickled(half):
    for path in half.rglob("*"):
        if path.is_file():
            assert b"\x80\x04\x95" not in path.read_bytes()  # how a pickle begins


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"`folder` of Checkpoint must be a folder that can be written. Got '.*file/run'"
    ):
        minimize(tmp_path / "file" / "run")
    with RunFolder(tmp_path / "busy", 1), pytest.raises(ValueError, match=r"Another process writes in .*busy"):
        minimize(tmp_path / "busy")
    with RunFolder(tmp_path / "busy", 1), pytest.raises(ValueError, match=r"Another process writes in .*busy"):
        minimize(tmp_path / "busy", resume="restart")
    with pytest.raises(ValueError, match=r"`keep` of Checkpoint must be an integer >= 2. Got 1."):
        bx.Checkpoint(tmp_path, keep=1)
    with pytest.raises(ValueError, match=r"`resume` of minimize must be one of 'auto', 'restart'. Got 'yes'."):
        minimize(tmp_path / "run", resume="yes")


def test_a_full_disk_stops_with_the_run_so_far(whole, tmp_path):
    """No file may grow beyond a few bytes from t = 30 on, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(row, x):
        if row["t"] == 30:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))

    try:
        with pytest.raises(
            bx.RunStopped, match=r"The checkpoint at t = 30 could not be saved in .*the last good one is t = 20"
        ) as stop:
            minimize(tmp_path, callbacks=[fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert stop.value.result.history[-1]["t"] == 30
    assert_same_run(minimize(tmp_path), whole)


def test_restart_puts_the_old_run_aside(whole, tmp_path):
    folder = tmp_path / "run"
    minimize(folder, seed=1, T=10)
    minimize(folder, seed=2, T=10, resume="restart")
    assert_same_run(minimize(folder, resume="restart"), whole)
    assert [status_of(tmp_path / f"run.{i}").t for i in (1, 2)] == [10, 10]
    assert {(each.folder.name, each.state) for each in runs_in(tmp_path)} == {
        (name, "finished") for name in ("run", "run.1", "run.2")
    }


def test_what_tune_chose_stays_chosen(tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr("bilevelax.run.auto.tuned_now", lambda *a: chosen.append(1) or (ESTIMATOR, {"choice": "mine"}))
    monkeypatch.setattr(
        "bilevelax.diagnostics.candidates.named_candidate", lambda p, choice, n: {"mine": ESTIMATOR}[choice]
    )
    minimize(tmp_path, estimator="auto", T=10)
    result = minimize(tmp_path, estimator="auto", T=20)
    assert chosen == [1] and result.manifest["tuning"] == {"choice": "mine"}


def test_equal_programs_have_equal_identities():
    """Another process, or another lambda of the same text, is the same run."""
    made = lambda c: bx.stochastic(lambda x, xi: c * jnp.sum((x - xi) ** 2), lambda key, data: random.normal(key, (3,)))
    ids = [fingerprint.identity(made(c), ESTIMATOR, OPTIMIZER, X1, random.key(0), 10) for c in (1.0, 1.0, 2.0)]
    assert fingerprint.difference(ids[0], ids[1]) is None
    assert fingerprint.difference(ids[0], ids[2]) == "`f` of the problem changed"


def kill_and_compare(folder, chunks, kills, seed):
    script = Path(__file__).parents[1] / "kill_loop.py"
    words = [sys.executable, "-W", "ignore", str(script), str(folder), *map(str, (chunks, kills, seed))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    killed, whole = (np.load(folder / f"{name}.npz") for name in ("killed", "whole"))
    for name in whole.files:
        np.testing.assert_array_equal(killed[name], whole[name])
    records = [json.loads((folder / f"{name}.npz.json").read_text()) for name in ("killed", "whole")]
    assert records[0] == records[1]  # no row lost, none doubled, equal bits
    lines = (folder / "run" / "history.jsonl").read_text().splitlines()
    assert without_seconds(map(json.loads, lines)) == records[1]["rows"]
    return int(done.stdout.split()[0])


def test_a_run_that_is_killed_again_and_again(tmp_path):
    assert kill_and_compare(tmp_path, chunks=30, kills=4, seed=1) >= 3


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    assert kill_and_compare(tmp_path, chunks=400, kills=50, seed=2) == 50
