"""The HTML report: what it groups, what it shows, and that no name can break it."""

import json
import re
from html.parser import HTMLParser

import jax.numpy as jnp
import optax
import pytest
from jax import random
from run_records import HOSTILE, comparison, save
from typer.testing import CliRunner

from bilevelax import minibatch, minimize
from bilevelax.cli import app
from bilevelax.core.estimate import Cost, Estimate, stateless
from bilevelax.report import report
from bilevelax.report.compare import group, metrics_of
from bilevelax.report.records import read_all


class Page(HTMLParser):
    """Elements with their attributes, the text between them, and what stands in each script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.scripts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        inside = self.elements and self.elements[-1][0] in ("script", "style")
        (self.scripts if inside else self.texts).append(data)

    @property
    def data(self):
        return json.loads(next(text for text in self.scripts if text.startswith("{")))


def page_of(runs, tmp_path, **options):
    return Page(report(runs, tmp_path / "out" / "report.html", **options).read_text(encoding="utf-8"))


def test_runs_that_differ_only_in_their_seed_are_one_line(tmp_path):
    groups = group(read_all(comparison(tmp_path)))
    assert [(each.name, len(each.records)) for each in groups] == [
        ("quadratic-rt_mlmc", 3),
        ("quadratic-dl_sgd", 2),
        ("quadratic-saa-0", 1),
    ]
    assert metrics_of(groups) == ["distance", "F_gap", "level"]  # known at x1 first, then what steps leave behind


def test_other_precision_is_another_line_and_the_same_seed_is_no_second_one(tmp_path):
    runs = [save(tmp_path / name, seed=seed, estimator="saa") for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    manifest = json.loads((runs[2] / "manifest.json").read_text())
    assert [len(each.records) for each in group(read_all(runs))] == [2, 1]  # a and c; b repeats a
    (runs[2] / "manifest.json").write_text(json.dumps({**manifest, "x64": True}))
    assert [len(each.records) for each in group(read_all(runs))] == [1, 1, 1]


def test_without_a_config_names_must_agree(tmp_path):
    runs = [save(tmp_path / name, seed=i) for i, name in enumerate(("rt-seed1", "rt-seed2", "dl-1"))]
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest["config"]
        (run / "manifest.json").write_text(json.dumps(manifest))
    assert [each.name for each in group(read_all(runs))] == ["rt", "dl-1"]


def rows_of(folder, rows):
    save(folder, seed=int(folder.name))
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_mean_and_band(tmp_path):
    runs = [
        rows_of(tmp_path / "1", [{"t": 0, "F": 1.0}, {"t": 1, "F": 2.0}, {"t": 2, "F": 9.0}]),
        rows_of(tmp_path / "2", [{"t": 0, "F": 3.0}, {"t": 1, "F": float("nan")}]),
    ]
    (each,) = group(read_all(runs))
    # t = 2 is known of one run only, and NaN has no mean
    assert each.mean == {"t": [0, 1], "F": [2.0, None]}
    assert (each.low, each.high) == ({"F": [1.0, None]}, {"F": [3.0, None]})
    assert each.last("F") == (2.0, 1.0, 3.0)


def test_intervals_widen_the_band(tmp_path):
    row = {"t": 0, "grad2": 2.0, "grad2_low": 1.5, "grad2_high": 4.0}
    (each,) = group(read_all([rows_of(tmp_path / "1", [row])]))
    assert each.last("grad2") == (2.0, 1.5, 4.0)
    assert metrics_of([each]) == []


def test_long_histories_keep_their_ends(tmp_path):
    rows = [{"t": t, "F": 1.0} for t in range(5000)]
    (each,) = group(read_all([rows_of(tmp_path / "1", rows)]))
    assert len(each.mean["t"]) == 400 and each.mean["t"][0] == 0 and each.mean["t"][-1] == 4999


def test_page_holds_every_section(tmp_path):
    runs = comparison(tmp_path / "runs")
    save(runs[0] / "checkpoints" / "100")  # belongs to its run, is none of its own
    page = page_of([tmp_path / "runs"], tmp_path)
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert ids >= {"summary", "curves", "estimator", "certificate", "cost", "levels", "settings", "runs", "environment"}
    (levels,) = (each["levels"] for each in page.data["groups"] if each["name"] == "quadratic-rt_mlmc")
    assert levels == {str(k): 60 * (400 >> k) for k in range(1, 7)}  # 3 seeds, 20 rows
    assert page.data["counts"] == ["xi", "eta", "grad_f", "grad_g", "hess_g", "cross_g"]
    differing = re.findall(r'<tr class="differs">\s*<th scope="row"><span class="text">(\w+)', _text(tmp_path))
    assert differing == ["estimator", "K", "n"]


def _text(tmp_path):
    return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_page_needs_nothing_else(tmp_path):
    page = page_of([save(tmp_path / "run")], tmp_path)
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed"), tag
        assert "src" not in attributes and attributes.get("href", "#").startswith("#")
    assert set(re.findall(r"https?://[^\s\"']+", _text(tmp_path))) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in _text(tmp_path) and "@import" not in _text(tmp_path)


def test_hostile_names_stay_text(tmp_path):
    metrics = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", '" onmouseover="alert(3)')
    runs = [save(tmp_path / name, estimator=name, metrics=metrics, **{"<b>key</b>": "</table>"}) for name in HOSTILE]
    page = page_of(runs, tmp_path, title="</title><script>alert(4)</script>")
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not {tag for tag, _ in page.elements} & {"img", "b"}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert [each["name"] for each in page.data["groups"]] == list(HOSTILE)
    assert page.data["metrics"] == list(metrics)
    shown = "".join(page.texts)
    for text in (*HOSTILE, *metrics, "<b>key</b>", "</table>", "</title><script>alert(4)</script>"):
        assert text in shown


def test_a_run_that_is_going_on_can_be_looked_at(tmp_path):
    run = save(tmp_path / "run")
    (run / "manifest.json").unlink()
    with open(run / "history.jsonl", "a") as file:
        file.write('{"t": 1050, "secon')
    assert page_of([run], tmp_path).data["groups"][0]["mean"]["t"][-1] == 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: (run / "history.jsonl").unlink(),
            r"Got '.*run', which has no history.jsonl. `bilevelax run NAME`",
        ),
        (lambda run: (run / "history.jsonl").write_text(""), r"history.jsonl holds no rows yet. Wait for"),
        (
            lambda run: (run / "history.jsonl").write_text('{"F": 1}\n{"t": 1}\n'),
            r"Line 1 of .* must be a row .* Got '\{",
        ),
        (lambda run: (run / "manifest.json").write_text("{"), r"manifest.json must be JSON as Result.save writes it"),
    ],
)
def test_what_is_not_a_run_is_said(change, message, tmp_path):
    run = save(tmp_path / "run")
    change(run)
    with pytest.raises(ValueError, match=message):
        report([run], tmp_path / "report.html")


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="must name at least one folder"):
        report([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="which does not exist"):
        report([tmp_path / "nothing"], tmp_path / "report.html")
    with pytest.raises(ValueError, match="`out` of report must be a file to write"):
        report([save(tmp_path / "run")], tmp_path)


def test_command(tmp_path):
    done = CliRunner().invoke(app, ["report", str(save(tmp_path / "run")), "--out", str(tmp_path / "a.html")])
    assert done.exit_code == 0, done.output
    assert done.output == f"Report: {tmp_path / 'a.html'}\n"


@pytest.mark.parametrize("m", [1, 3])
def test_histories_count_levels(m, quadratic, x, key, tmp_path):
    def estimate(key, problem, x):
        return Estimate(jnp.zeros_like(x), Cost(), {"level": random.randint(key, (), 1, 3)})

    estimator = stateless(estimate) if m == 1 else minibatch(stateless(estimate), m)
    result = minimize(quadratic, estimator, optax.sgd(1e-3), x, key=key, T=5, every=2)
    counts = [{name: n for name, n in row.items() if name.startswith("level_")} for row in result.history]
    assert [sum(each.values()) for each in counts] == [0, 2 * m, 2 * m, m]
    result.save(tmp_path / "run")
    (each,) = group(read_all([tmp_path / "run"]))
    assert sum(each.levels.values()) == 5 * m and set(each.levels) <= {1, 2}
