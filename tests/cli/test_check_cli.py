"""`bilevelax check` on a problem of one's own."""

import sys
from types import SimpleNamespace

import pytest
import typer
from diagnosed import X, plain_problem, pull

from bilevelax import applications
from bilevelax.cli import check as command


def test_the_command_prints_the_table_and_fails(monkeypatch, capsys):
    app = applications.Application(plain_problem(bend=3.5, mu_g=None), X, lambda x: {})
    monkeypatch.setitem(sys.modules, "my_problem", SimpleNamespace(app=app))
    with pytest.raises(typer.Exit) as left:
        command.check("my_problem:app", seed=0)
    assert left.value.exit_code == 1
    assert capsys.readouterr().out.startswith("my_problem:app: FAILED: 1 of ")


@pytest.mark.parametrize("make", [lambda pair: pair, lambda pair: lambda: pair])
def test_the_command_takes_a_problem_with_its_x(make, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "my_problem", SimpleNamespace(pair=make((pull(), X))))
    command.check("my_problem:pair", estimator="saa", seed=0)
    assert capsys.readouterr().out.startswith("my_problem:pair: OK: ")


def test_the_command_says_that_an_x_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_problem", SimpleNamespace(problem=pull()))
    with pytest.raises(ValueError, match=r"must be an Application, a pair \(problem, x\) or an Estimator. Got Problem"):
        command.check("my_problem:problem", seed=0)
