"""The command line as a newcomer would type it."""

import fcntl
import json
import os
import signal

import jax
import pytest
from typer.testing import CliRunner

import bilevelax
from bilevelax import applications, estimators
from bilevelax.cli import app, main
from bilevelax.run import run

runner = CliRunner()


def invoke(*words):
    return runner.invoke(app, list(words), env={"COLUMNS": "120"})


def test_version_and_help():
    assert invoke("--version").output == f"bilevelax {bilevelax.__version__}\n"
    text = invoke("--help").output
    assert all(command in text for command in ("demo", "list", "run", "check"))
    assert "Example: bilevelax run quadratic" in invoke("run", "--help").output


def test_list_shows_every_part():
    text = invoke("list").output
    for name in (*applications.catalogue.names(), *estimators.catalogue.names()):
        assert name in text


def test_run_saves_its_records(tmp_path):
    words = "run quadratic --estimator dl_sgd --K 2 --N 3 --T 20 --every 10 --optimizer sgd --t0 5 -a d_x=2 -e batch=2"
    done = invoke(*words.split(), "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "Saved in" in done.output and "distance" in done.output
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["t"] for row in rows] == [0, 10, 20]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["estimator"] == "dl_sgd" and manifest["config"]["seed"] == 0
    assert rows[-1]["grad_g"] == 20 * 6  # 2^{K+1} - 2 steps a gradient
    assert bilevelax.Result.load(tmp_path / "run").x.shape == (2,)


def test_the_same_folder_goes_on_and_restart_does_not(tmp_path):
    command = "run quadratic --estimator maml --every 10 --optimizer sgd -a d_x=2"
    words = [*command.split(), "--out", str(tmp_path / "run")]
    assert invoke(*words, "--T", "10").exit_code == 0
    done = invoke(*words, "--T", "20")
    assert done.exit_code == 0 and "Went on from t = 10" in done.output, done.output
    rows = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(row)["t"] for row in rows] == [0, 10, 20]
    refused = invoke(*words, "--T", "20", "--step", "0.5")
    assert "the optimizer (its kind, step or schedule) changed" in str(refused.exception)
    assert invoke(*words, "--T", "20", "--step", "0.5", "--restart").exit_code == 0
    text = invoke("runs", str(tmp_path)).output
    assert text.count("finished") == 2 and "run.1" in text
    told = " ".join(text.split())
    assert "run.1: maml(batch=1" in told and "chain(identity(), scale(step_size=-0.01)), every=10" in told
    listed = json.loads(invoke("runs", str(tmp_path), "--json").output)
    assert "scale(step_size=-0.5)" in listed[0]["about"]["optimizer"] and listed[0]["seconds"] > 0
    with open(tmp_path / "run" / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status = tmp_path / "run" / "status.json"
        status.write_text(status.read_text().replace("finished", "running").replace("20", "40"))
        text = invoke("runs", str(tmp_path)).output
    assert "running" in text and "0:00:00" in text
    assert "killed" in invoke("runs", str(tmp_path)).output  # its lock is free: nobody is there
    assert "There is no run in" in str(invoke("runs", str(tmp_path / "nowhere")).exception)


def test_a_stopped_run_says_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("bilevelax.cli.run.show", lambda *a: None)
    command = "run quadratic --estimator maml --T 10 --every 1 --optimizer sgd -a d_x=2"
    record = run.Run.record
    at_three = lambda run, values: (run.t == 3 and os.kill(os.getpid(), signal.SIGINT), record(run, values))
    monkeypatch.setattr(run.Run, "record", at_three)
    done = invoke(*command.split(), "--out", str(tmp_path / "run"))
    assert done.exit_code == 130
    assert "Stopped at t = 3, saved in" in done.output and "the same command goes on" in done.output
    assert "interrupted" in invoke("runs", str(tmp_path)).output


def test_paper_lists_runs_and_renders(tmp_path):
    text = " ".join(invoke("paper", "--list").output.split())
    assert "nonconvex" in text and "full scale" in text
    words = ["paper", "nonconvex", "--out", str(tmp_path)]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        done = invoke(*words, "--scale", "smoke", "--seeds", "1")
    assert done.exit_code == 0, done.output
    assert "RT-MLMC is SGD" in done.output and "Figure: " in done.output
    (tmp_path / "nonconvex" / "nonconvex.svg").unlink()
    again = invoke(*words, "--render", "--json")
    (item,) = json.loads(again.stdout)["items"]
    assert item["figures"] == [str(tmp_path / "nonconvex" / "nonconvex.svg")] and item["claims"][0]["seeds"] == 1
    assert again.exit_code == 0 and (tmp_path / "nonconvex" / "nonconvex.svg").is_file()


BROKEN = {
    "broken_import": "import nowhere",
    "broken_syntax": "def f(:",
    "broken_factory": "def make(a): ...",
}
SMALL = {
    "wdro_si": "-a test_points=100 -a M=4 -a m=3 -a d=5 -a widths=(4,)",
    "meta_learning": "-a tasks=3 -a classes=2 -a images=5 -a d=4",
    "end_to_end": "-a n=50 -a test_points=50 -a scenarios=4",
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wdro_si", "--estimator rt_mlmc --K 2"),
        ("meta_learning", "--estimator maml -e m=2"),
        ("meta_learning", "--estimator saa --contexts 3 --spread"),
        ("meta_learning", "--estimator auto"),
        ("end_to_end", "--estimator dl_sgd --K 1"),
    ],
)
def test_applications_run_with_their_methods(name, words, tmp_path):
    arguments = f"run {name} {SMALL[name]} {words} --T 2 --every 1 --optimizer sgd".split()
    done = invoke(*arguments, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, (done.output, done.exception)
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 3


def test_demo(tmp_path):
    with jax.numpy_dtype_promotion("standard"):  # optax.adam needs it
        done = invoke("demo", "--T", "5", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "RT-MLMC" in done.output and "DL-SGD" in done.output
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run nothing", "There is no application 'nothing'. Choose from: "),
        ("run quadratic --estimator nothing", "There is no estimator 'nothing'. Choose from: "),
        ("run quadratic -a colour=3", "application quadratic takes no setting 'colour'. It takes: d_x, "),
        ("run quadratic --estimator bsvrb", "bsvrb keeps a row for each context, so it needs finitely many."),
        ("run quadratic --estimator maml --K 3", "estimator maml takes no setting 'K'. It takes: m, gamma"),
        ("run quadratic --estimator auto --K 3 --spread", "chooses its own settings. Leave out --K, --spread."),
        ("run quadratic --contexts 2 --spread", "contexts='spread' of minibatch needs finitely many contexts"),
        ("run quadratic -a d_x", "A setting must read name=value. Got 'd_x'."),
        ("run quadratic --K 0", "`K` of rt_mlmc must be an integer >= 1. Got 0."),
        ("run quadratic --optimizer lion", "`--optimizer` must be one of adam, sgd. Got 'lion'."),
        ("check nothing", "What to check must read module:attribute"),
        ("paper", "`bilevelax paper` needs an item. See `bilevelax paper --list`, or give all."),
        ("paper table9", "There is no item of the paper 'table9'. Choose from: "),
        ("paper table1 --scale huge", "`--scale` of bilevelax paper must be one of 'smoke', 'quick', 'full'."),
        ("paper table1 --seeds 0", "`--seeds` of bilevelax paper must be an integer >= 1. Got 0."),
        ("paper table1 --render --out nowhere", "There are no records of table1 in nowhere/table1."),
        ("paper all --render --out nowhere", "There are no records in nowhere. Run from the repository's root folder"),
        ("check no_such_module:x", "There is no module 'no_such_module' here. Run from the folder that holds it."),
        ("check broken_import:x", "broken_import cannot be imported (ModuleNotFoundError: No module named 'nowhere')."),
        ("check broken_syntax:x", "broken_syntax cannot be imported (SyntaxError: "),
        ("check broken_factory:make", "broken_factory:make cannot be called without arguments (TypeError: make() "),
        ("run quadratic -a mu=abc", "application quadratic cannot be built from mu='abc': "),
        ("run quadratic -a d_x=0", "`d_x` of quadratic must be an integer >= 1. Got 0."),
        ("check bilevelax:__version__", "must be an Application, a pair (problem, x) or an Estimator. Got str."),
    ],
)
def test_errors_are_one_sentence(words, message, monkeypatch, capsys, tmp_path):
    for name, code in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", ["bilevelax", *words.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert message in error and "Traceback" not in error
    assert error.count("\n") == 1


def test_debug_shows_where_an_error_came_from(monkeypatch):
    monkeypatch.setattr("sys.argv", ["bilevelax", "--debug", "run", "nothing"])
    with pytest.raises(ValueError, match="There is no application"):
        main()


def test_an_application_says_how_it_is_run_unless_an_estimator_is_named():
    from bilevelax.cli.run import way_of

    nothing = dict.fromkeys(("T", "contexts", "step"))
    assert way_of("quadratic", estimator=None, **nothing) == ("rt_mlmc", 2000, 1, 1e-2)
    assert way_of("scheduling", estimator=None, **nothing) == ("saa", 300, 16, 1e-4)
    assert way_of("scheduling", estimator="dl_sgd", **nothing) == ("dl_sgd", 2000, 1, 1e-2)
    assert way_of("scheduling", estimator=None, T=5, contexts=2, step=0.5) == ("saa", 5, 2, 0.5)
