"""What the command line says, to whom, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bilevelax import cli
from bilevelax.base.errors import RunStopped
from bilevelax.cli import _terminal, app, find_commands, main
from bilevelax_paper import command


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def run_main(words, monkeypatch, capsys):
    """(exit code, standard output, standard error) of the program."""
    monkeypatch.setattr("sys.argv", ["bilevelax", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code or 0, *capsys.readouterr()


def test_without_a_command_it_says_where_to_start():
    done = invoke()
    assert done.exit_code == 0
    for words in ("bilevelax demo", "bilevelax check", "bilevelax report", "bilevelax features", "bilevelax --help"):
        assert words in done.output
    assert max(map(len, done.output.splitlines())) <= 110


@pytest.mark.parametrize("words", ["", "--help", "--version", "list", *(f"{name} --help" for name in find_commands())])
def test_help_does_not_wait_for_jax(words):
    code = f"""
import sys
sys.argv = ["bilevelax", *{words.split()!r}]
from bilevelax.__main__ import run
try:
    run()
finally:
    print("jax" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "False\n") and done.stdout


def test_every_file_that_describes_a_command_is_one():
    files = [*Path(cli.__file__).parent.glob("*.py"), Path(command.__file__)]  # the study brings its own
    described = [path for path in files if '"""``bilevelax ' in path.read_text()]
    assert len(described) == len(find_commands()) >= 6
    for name in find_commands():
        assert f"bilevelax {name}" in invoke(name, "--help").output


def test_results_for_programs(tmp_path):
    listed = json.loads(invoke("list", "--json").output)
    assert "quadratic" in listed["applications"] and "rt_mlmc" in listed["estimators"]
    words = "run quadratic --estimator maml --T 2 --every 1 --optimizer sgd -a d_x=2 --json --out"
    ran = invoke(*words.split(), str(tmp_path / "run"))
    told = json.loads(ran.stdout)
    assert told["folder"] == str(tmp_path / "run") and told["last"]["t"] == 2 and told["cost"]["xi"] == 2
    assert ran.stderr == ""  # quiet where nobody watches
    page = json.loads(invoke("report", told["folder"], "--json", "--out", str(tmp_path / "a.html")).output)
    assert Path(page["report"]).is_file()


def test_check_for_programs(monkeypatch):
    monkeypatch.setattr("bilevelax.testing.check_estimator", lambda *arguments, **options: None)
    told = json.loads(invoke("check", "bilevelax:saa", "--json").output)
    assert told == {"target": "bilevelax:saa", "ok": True, "on": "quadratic"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("frobnicate", 2, "Error: No such command 'frobnicate'. See: bilevelax --help"),
        ("runn", 2, "Error: No such command 'runn'. Did you mean 'run', 'runs'? See: bilevelax --help"),
        ("run", 2, "See: bilevelax run --help"),
        ("run quadratic --devices 0", 2, "'--devices'"),
        ("demo --T 0", 2, "'--T'"),
        ("sweep c.toml --processes 0", 2, "'--processes'"),
        ("run quadratic --frobnicate", 2, "See: bilevelax run --help"),
        ("run quadratic --T three", 2, "'--T'"),
        ("report nowhere", 1, "Error: `runs` of report must be folders of saved runs. Got 'nowhere'"),
    ],
)
def test_errors_are_one_line_with_a_next_step(words, code, message, monkeypatch, capsys):
    found, out, error = run_main(words.split(), monkeypatch, capsys)
    assert (found, out, error.count("\n")) == (code, "", 1)
    assert message in error


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (KeyError("depth"), "Error: KeyError: 'depth'. This was not foreseen: `--debug` shows where it happened.\n"),
        (ModuleNotFoundError("No module named 'torch'"), "pip install 'bilevelax[all]'.\n"),
        (OSError(28, "No space left on device"), "No space left on device\n"),
        (
            NotADirectoryError(20, "Not a directory", "a/b"),
            "Error: Not a directory: 'a/b'. Name another place, or see whether it may be written.\n",
        ),
        (RunStopped("x became non-finite at t = 1.", None), "Error: x became non-finite at t = 1.\n"),
        (ValueError("two\nlines"), "Error: two lines\n"),
    ],
)
def test_what_was_not_foreseen_is_one_line_too(raised, message, monkeypatch, capsys):
    def fail(name):
        raise raised

    monkeypatch.setattr(cli, "load", fail)
    code, _, error = run_main(["list"], monkeypatch, capsys)
    assert code == 1 and error.endswith(message) and error.count("\n") == 1
    monkeypatch.setattr("sys.argv", ["bilevelax", "list", "--debug"])  # after the command, too
    with pytest.raises(type(raised)):
        main()


def test_interrupting_is_no_error(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", interrupted)
    code, _, error = run_main(["list"], monkeypatch, capsys)
    assert code == 130 and "Traceback" not in error


def test_no_color(monkeypatch):
    colours = []
    monkeypatch.setattr(typer, "secho", lambda text, color=None, **options: colours.append(color))
    monkeypatch.delenv("NO_COLOR", raising=False)
    _terminal.complain("red in a terminal")
    monkeypatch.setenv("NO_COLOR", "1")
    _terminal.complain("plain")
    assert colours == [None, False]


@pytest.mark.parametrize("watched", [True, False])
def test_only_who_watches_is_told(watched, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: watched, raising=False)
    _terminal.say("working")
    with _terminal.busy("thinking"):
        pass
    out, error = capsys.readouterr()
    assert out == "" and ("working" in error) == watched
