"""A disk of 1 MB that is really full: every writer says one sentence, leaves nothing behind, and loses nothing."""

import shutil
import subprocess

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from files_0_1_0 import make
from jax import random

import bilevelax as bx
from bilevelax import cli
from bilevelax.base.whole_files import NotWritten
from bilevelax.datasets import ClientStore, from_csv
from bilevelax.sklearn.persist import load_newsvendor, save_newsvendor
from bilevelax.tables.csv_files import write_with

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROBLEM = bx.stochastic(lambda x, xi: jnp.sum((x - xi) ** 2) / 2, lambda key, data: random.normal(key, (4000,)))
ESTIMATOR, OPTIMIZER = bx.maml(), optax.sgd(0.1)


@pytest.fixture
def disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(words, capture_output=True, text=True) if shutil.which("mount") else None
    if done is None or done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip() if done else 'there is no mount'}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk, left=0):
    """Write until nothing more fits, then give back so many bytes."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - left))


def empty(disk):
    (disk / "ballast").unlink()


def found(disk):
    return {path.relative_to(disk): path.read_bytes() for path in disk.rglob("*") if path.is_file()}


def told_in_one_sentence(error, capfd):
    assert len(str(error).splitlines()) == 1 and "No space left on device" in str(error)
    assert capfd.readouterr().err == ""


def run(folder, T=40, **settings):
    saved = bx.Checkpoint(folder, every=10) if folder else None
    how = dict(key=random.key(0), T=T, every=10, checkpoint=saved, progress=False, **settings)
    return bx.minimize(PROBLEM, ESTIMATOR, OPTIMIZER, jnp.zeros(4000), **how)


def test_a_run_whose_disk_fills_goes_on_when_there_is_room(disk, capfd):
    """From the last good checkpoint, with the bits of a run that was never stopped."""
    whole = run(None)
    with pytest.raises(bx.RunStopped, match=r"at t = 30 could not be saved in .*; the last good one is t = 20") as stop:
        run(disk / "run", callbacks=[lambda row, x: fill(disk) if row["t"] == 30 else None])
    told_in_one_sentence(stop.value, capfd)
    assert stop.value.result.history[-1]["t"] == 30
    empty(disk)
    result = run(disk / "run")
    np.testing.assert_array_equal(result.x, whole.x)
    assert result.manifest["resumed_at"] == [20] and [row["t"] for row in result.history] == [0, 10, 20, 30, 40]


def test_a_run_that_begins_on_a_full_disk(disk, capfd):
    fill(disk)
    with pytest.raises(ValueError) as stop:
        run(disk / "run")
    told_in_one_sentence(stop.value, capfd)
    empty(disk)
    assert run(disk / "run", T=10).history[-1]["t"] == 10


@pytest.mark.parametrize("left", [0, 4096, 16 * 4096])
def test_a_saved_result_stays_where_the_next_does_not_fit(left, disk, capfd):
    history = [{"t": t, "seconds": t / 7} for t in range(0, 50, 10)]
    result = lambda n: bx.Result(*[{"w": jnp.full(n, float(n))}] * 3, history, bx.Cost(xi=50), 1.0, 2.0, {"T": 50})
    result(10).save(disk / "saved")
    fill(disk, left)
    before = found(disk)
    with pytest.raises(NotWritten, match=r"manifest.json could not be written") as stop:
        result(10**4).save(disk / "saved")
    told_in_one_sentence(stop.value, capfd)
    assert found(disk) == before and bx.Result.load(disk / "saved").x["w"].size == 10


@pytest.mark.parametrize("left", [0, 2 * 4096])
def test_a_model_stays_where_the_next_does_not_fit(left, disk, capfd):
    model, record = load_newsvendor(make.HERE / "model")
    schema = {"schema": record["schema"]}
    save_newsvendor(model, disk / "model", schema)
    fill(disk, left)
    before = found(disk)
    with pytest.raises(NotWritten, match=r"model.json could not be written") as stop:
        save_newsvendor(model, disk / "model", schema)
    told_in_one_sentence(stop.value, capfd)
    assert found(disk) == before and load_newsvendor(disk / "model")[0].get_params() == model.get_params()


def test_orders_that_do_not_fit_leave_the_table_as_it_was(disk, capfd):
    """In place too: the rows are written anew before the old ones go."""
    table = disk / "t.csv"
    table.write_text("a,b\n" + "1,2\n" * 5000)
    fill(disk, 4096)
    before = found(disk)
    for out in (table, disk / "orders.csv"):
        with pytest.raises(NotWritten, match=rf"{out.name} could not be written") as stop:
            write_with(table, {"order": np.ones(5000)}, out)
        told_in_one_sentence(stop.value, capfd)
        assert found(disk) == before
    assert cli.explain(stop.value) == 1
    assert capfd.readouterr().err.count("\n") == 1


def test_a_store_that_does_not_fit(disk, capfd, tmp_path):
    rows = [{"a": np.ones((500, 2)), "b": np.arange(500)}] * 4
    (tmp_path / "t.csv").write_text("who,v\n" + "".join(f"c{i % 7},{i}\n" for i in range(4000)))
    for left in (0, 4096, 8 * 4096):
        fill(disk, left)
        before = found(disk)
        with pytest.raises(NotWritten, match=r"store could not be written") as stop:
            ClientStore.write(disk / "store", rows)
        told_in_one_sentence(stop.value, capfd)
        with pytest.raises(NotWritten, match=r"store could not be written") as stop:
            from_csv(disk / "store", tmp_path / "t.csv", "who")
        told_in_one_sentence(stop.value, capfd)
        assert found(disk) == before and sorted(path.name for path in disk.iterdir()) == ["ballast"]
    empty(disk)
    assert len(ClientStore.write(disk / "store", rows)) == 4
