"""``bilevelax solve``: one command, an answer, an exit code."""

import json

import pytest
from typer.testing import CliRunner

from bilevelax.applications import personalized_fl
from bilevelax.cli import app
from bilevelax.cli import solve as solving
from bilevelax.run.records.result import Result

SMALL = ["-a", "d_x=2", "-a", "d_y=2", "-a", "d_xi=1"]


def invoke(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})


@pytest.mark.parametrize("words", [["solve", "personalized_fl"], ["run", "personalized_fl", "--solve"]])
def test_solve_answers_and_saves(words, tmp_path):
    small = [word for name, value in personalized_fl.SMALLEST.items() for word in ("-a", f"{name}={value}")]
    done = invoke(*words, *small, "--out", str(tmp_path / "run"), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["reason"] == "certified" and told["certificate"]["high"] <= told["goal"] ** 2
    saved = Result.load(tmp_path / "run")
    assert saved.manifest["solve"]["why"] == told["why"] and saved.history


def test_what_is_not_reached_exits_with_one(tmp_path):
    done = invoke("solve", "quadratic", *SMALL, "--tol", "1e-9", "--budget", "0.5", "--out", str(tmp_path / "run"))
    assert done.exit_code == 1 and "Out of time after 0.5 s" in done.output


@pytest.mark.parametrize(("words", "seconds"), [([], 90), (["--budget", "7"], 7)])
def test_run_with_solve_has_a_budget(words, seconds, monkeypatch):
    asked = {}
    monkeypatch.setattr(solving, "solve", lambda name, **settings: asked.update(settings))
    assert invoke("run", "quadratic", "--solve", *words).exit_code == 0
    assert asked["budget"] == seconds


@pytest.mark.parametrize(
    "words", [["--estimator", "saa"], ["--T", "5"], ["-e", "n=3"], ["--spread"], ["--devices", "2"]]
)
def test_run_with_solve_refuses_what_it_would_not_read(words):
    """Each was ignored without a word."""
    done = invoke("run", "quadratic", "--solve", *words)
    option = {"-e": "--est"}.get(words[0], words[0])
    assert f"`--solve` chooses for itself and does not read {option}." in str(done.exception)
