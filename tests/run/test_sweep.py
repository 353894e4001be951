"""Sweeps: cells are runs, hopeless ones end early, and a sweep that was stopped goes on."""

import csv
import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from typer.testing import CliRunner

import bilevelax as bx
from bilevelax.cli import app
from bilevelax.cli.sweep_config import groups, read
from bilevelax.run import sweep

X1 = jnp.ones(2)
PROBLEM = bx.stochastic(lambda x, xi: jnp.sum((x - 0.1 * xi) ** 2) / 2, lambda key, data: random.normal(key, (2,)))
NOISY = bx.stateless(lambda key, problem, x: bx.Estimate(x - 0.1 * problem.context(key), bx.Cost(xi=1), {}))
METRICS = lambda x: {"norm": float(jnp.sum(x**2))}


def made(T=40, **kw):
    parts = {"problem": PROBLEM, "estimator": NOISY, "optimizer_of": optax.sgd, "x1": X1, "metrics": METRICS}
    return sweep.Sweep(**{**parts, "metric": "norm", "T": T, "every": 10, **kw})


CELLS = [sweep.Setting(step, seed) for step in (0.2, 0.001, 3.0) for seed in (0, 1, 2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return sweep.run_cells(made(), CELLS, tmp_path_factory.mktemp("sweep") / "all")


def test_a_cell_is_a_run(whole):
    sgd = optax.sgd(0.2)
    for i in (0, 2):
        run = bx.minimize(PROBLEM, NOISY, sgd, X1, key=random.key(CELLS[i].seed), T=40, every=10)
        np.testing.assert_allclose(whole.carry.x[i], run.x, rtol=1e-12)
        np.testing.assert_array_equal(whole.carry.t[i], 40)


def test_hopeless_cells_end_early(whole):
    """Step 0.001 has moved x from 1 by 1 % when step 0.2 has reached the noise; 3.0 diverges as 2^t, but slowly."""
    assert {whole.given_up[str(i)] for i in (3, 4, 5)} == {"hopeless at t = 10"}
    assert {whole.given_up[str(i)] for i in (6, 7, 8)} == {"hopeless at t = 10"}
    assert whole.active == [0, 1, 2]
    assert [row["t"] for row in whole.history if row["cell"] == 0] == [10, 20, 30, 40]
    assert [row["t"] for row in whole.history if row["cell"] == 3] == [10]


def test_finished_groups_are_rivals(tmp_path):
    alone = [cell for cell in CELLS if cell.step == 0.001]
    assert sweep.run_cells(made(), alone, tmp_path / "a").given_up == {}
    assert len(sweep.run_cells(made(), alone, tmp_path / "b", {10: 0.1}).given_up) == 3


def test_a_cell_that_overflows_is_given_up(tmp_path):
    explode = made(T=2000, every=500)
    run = sweep.run_cells(explode, [sweep.Setting(0.1, 0), sweep.Setting(30.0, 0)], tmp_path)
    assert run.given_up == {"1": "not finite at t = 500"} and run.t == 2000


def test_a_stopped_sweep_goes_on(whole, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(run):
        if run.t == 20:
            raise Stop
        forward(run)

    forward = sweep.Cells.advance
    monkeypatch.setattr("bilevelax.run.records.checkpoint.SECONDS", 0.0)
    monkeypatch.setattr(sweep.Cells, "advance", stop)
    with pytest.raises(Stop):
        sweep.run_cells(made(), CELLS, tmp_path)
    monkeypatch.setattr(sweep.Cells, "advance", forward)
    again = sweep.run_cells(made(), CELLS, tmp_path)
    np.testing.assert_array_equal(again.carry.x, whole.carry.x)
    assert again.history == whole.history and again.given_up == whole.given_up
    with pytest.raises(ValueError, match="holds another run: the estimator changed: cells is"):
        sweep.run_cells(made(), CELLS[:3], tmp_path)


CONFIG = """
application = "quadratic"
estimator = "maml"
optimizer = "sgd"
metric = "distance"
T = 8
every = 2
[app]
d_x = 2
[grid]
step = [0.01, 0.1]
seed = [0, 1, 2]
est.gamma = [0.1, 0.2]
"""


def test_sweep_on_the_command_line(tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG)
    words = ["sweep", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert done.exit_code == 0, (done.output, done.exception)
    assert "est.gamma=0.1" in done.output and "standard error" in done.output
    with open(tmp_path / "out" / "cells.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 12 and {cell["settings"] for cell in cells} == {"est.gamma=0.1", "est.gamma=0.2"}
    assert (tmp_path / "out" / "sweep.png").stat().st_size > 5_000
    again = CliRunner().invoke(app, [*words, "--json"])
    told = json.loads(again.stdout)
    assert again.exit_code == 0 and again.stderr == "" and told["cells"] == str(tmp_path / "out" / "cells.csv")
    assert len(told["settings"]) == 4 and told["settings"][0]["mean"] <= told["settings"][-1]["mean"]
    with open(tmp_path / "out" / "cells.csv", newline="") as file:
        assert list(csv.DictReader(file)) == cells


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric = 'a'", "must set application. A sweep needs application ="),
        ("application = 'quadratic'\nmetric = 'a'\ncolour = 1", "has no use for 'colour'. It may set estimator, "),
        ("application = ", "is not TOML"),
        ("application = 'quadratic'\nmetric = 'a'\nT = 'many'", "`T` of .* must be a whole number. Got 'many'."),
        ("application = 'quadratic'\nmetric = 'a'\nT = 0", "`T` of .* must be at least 1. Got 0."),
        ("application = 'quadratic'\nmetric = 'a'\n[grid]\nstep = ['x']", "`step` of .* must be a number. Got 'x'."),
        ("application = 'quadratic'\nmetric = 'a'\ngrid = 3", r"`grid` of .* must be a table: a line \[grid\]"),
        ("application = 'quadratic'\nmetric = 'a'\n[grid]\nseed = []", r"`seed` in \[grid\] of .* at least one value"),
    ],
)
def test_bad_configurations(text, message, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "c.toml")
    with pytest.raises(ValueError, match="There is no file"):
        read(tmp_path / "none.toml")


def test_groups_share_shapes(tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG)
    found = groups(*read(tmp_path / "c.toml"))
    assert [group.name for group in found] == ["est.gamma=0.1", "est.gamma=0.2"]
    assert len(found[0].cells) == 6 and found[1].settings["app.d_x"] == 2
    with pytest.raises(ValueError, match=r"`metric` of a sweep must be one of norm. Got 'size'."):
        sweep.run_cells(made(metric="size"), CELLS[:1], tmp_path / "run")
