"""Every item of the paper at smoke scale: complete files, resumption, determinism, and the shared pieces."""

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from smoke_checks import CHECKS

import bilevelax as bx
from bilevelax.experiments import _page, _records, _run, catalogue
from bilevelax.experiments._items import VERDICTS, Cell, Claim, Table
from bilevelax.experiments._trajectories import lanes, seed_keys, trajectories

ITEMS = catalogue.names()


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """As a user would run them."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def without_times(rows):
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows]


@pytest.fixture(scope="module", params=ITEMS)
def item(request, tmp_path_factory):
    """(name, folder, what it shows) of an item at smoke scale."""
    out = tmp_path_factory.mktemp("paper")
    return request.param, out, _run.run_item(request.param, scale="smoke", seeds=None, out=out)


def test_an_item_writes_complete_files(item):
    name, out, shown = item
    manifest = json.loads((out / name / "manifest.json").read_text())
    assert manifest["complete"] and manifest["scale"] == "smoke" and manifest["machine"]["cores"] >= 1
    assert manifest["settings_hash"] == _records.fingerprint(manifest["settings"])
    assert not (out / name / "records.jsonl").exists()
    lines = [json.loads(line) for line in gzip.decompress((out / name / "records.jsonl.gz").read_bytes()).splitlines()]
    counts = {row["cell"]: row["done"] for row in lines if "done" in row}
    assert len(shown.records.rows) == sum(counts.values()) > 0
    for cell, count in counts.items():
        assert len(shown.records.where(cell=cell)) == count
    assert shown.rendered.figures or shown.rendered.tables
    for path, caption in shown.rendered.figures:
        assert path.suffix == ".svg" and path.stat().st_size > 1000 and caption
        assert path.with_suffix(".png").stat().st_size > 1000
    for table in shown.rendered.tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    assert shown.claims and all(claim.verdict in VERDICTS and claim.why for claim in shown.claims)


def test_curves_fall_and_counts_are_exact(item):
    name, _, shown = item
    CHECKS[name](shown.records)


def test_an_item_names_its_cells_apart_and_says_what_it_is(item):
    name, _, shown = item
    config = catalogue.load(name)
    assert set(config.scales) == {"smoke", "quick", "full"} and config.title and config.place and config.duration
    assert all(settings["seeds"] >= 1 for settings in config.scales.values())
    for scale in config.scales:
        cells = [cell.name for cell in catalogue.module(name).run(config.settings(scale, None), 2)]
        assert len(set(cells)) == len(cells)
    section = _page.section(shown, _run.Path("docs/reproduction.md"))
    assert f"bilevelax paper {name} --scale smoke" in section and "| claim |" in section


def test_one_cell_again_gives_the_same_records(item):
    """Determinism: another run of the first cell, compiled anew, has the same rows, times excepted."""
    name, _, shown = item
    settings = catalogue.load(name).settings("smoke", None)
    cell = next(iter(catalogue.module(name).run(settings, settings["seeds"])))
    again = [{"cell": cell.name, **row} for row in cell.work()]
    assert without_times(again) == without_times(shown.records.where(cell=cell.name))


def three_cells(log, stop_at=None):
    for i in range(3):

        def work(i=i):
            if i == stop_at:
                raise KeyboardInterrupt
            log.append(i)
            return [{"i": i, "value": i * 10 + j} for j in range(2)]

        yield Cell(f"cell {i}", work)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    settings, log = {"seeds": 1}, []
    with pytest.raises(KeyboardInterrupt):
        _records.collect("toy", tmp_path / "a", "smoke", settings, three_cells(log, stop_at=1))
    with pytest.raises(ValueError, match=r"The records of toy in .* are not complete \(1 cells are\)"):
        _records.read("toy", tmp_path / "a")
    with open(tmp_path / "a" / "records.jsonl", "a") as file:
        file.write('{"cell": "cell 1", "i": 1, "value": 99}\n{"cell": "ce')  # torn by a power cut
    found = _records.collect("toy", tmp_path / "a", "smoke", settings, three_cells(log))
    assert log == [0, 1, 2]
    whole = _records.collect("toy", tmp_path / "b", "smoke", settings, three_cells([]))
    assert found.rows == whole.rows and len(whole.rows) == 6
    _records.collect("toy", tmp_path / "a", "smoke", settings, three_cells(log))
    assert log == [0, 1, 2], "finished cells ran again"
    assert found.values("value", i=2) == [20, 21] and found.distinct("i") == [0, 1, 2]


def test_cells_that_an_item_got_since_are_run(tmp_path):
    settings, log = {"seeds": 1}, []
    _records.collect("toy", tmp_path, "smoke", settings, list(three_cells(log))[:2])
    found = _records.collect("toy", tmp_path, "smoke", settings, three_cells(log))
    assert log == [0, 1, 2] and len(found.rows) == 6 and _records.is_complete(tmp_path)


def test_a_finished_cell_can_be_run_again(tmp_path):
    settings, log = {"seeds": 1}, []
    run = lambda **kw: _records.collect("toy", tmp_path, "smoke", settings, three_cells(log), **kw)
    before = run()
    after = run(again="cell 1")
    assert log == [0, 1, 2, 1]
    assert sorted(after.rows, key=str) == sorted(before.rows, key=str)
    with pytest.raises(
        ValueError, match=r"No finished cell of toy has 'cell 9' in its name\. They are: cell 0; cell 2"
    ):
        run(again="cell 9")
    assert _records.is_complete(tmp_path)


def test_cells_that_say_what_they_depend_on_survive_a_change_of_the_rest(tmp_path):
    """Another constant of one cell, or one cell less: the others are kept, with the days on which they ran."""
    log = []

    def cells(constants):
        for name, value in constants.items():
            yield Cell(name, lambda name=name: log.append(name) or [{"name": name}], {"constant": value})

    run = lambda settings, constants: _records.collect("toy", tmp_path, "full", settings, cells(constants))
    run({"seeds": 2, "grid": [1, 2]}, {"a": 1, "b": 1})
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b'"date": "20', b'"date": "19')))
    after = run({"seeds": 2, "grid": [1]}, {"a": 1, "b": 2})
    assert log == ["a", "b", "b"] and after.settings["grid"] == [1]
    assert [cell["date"][:2] for cell in after.manifest["cells"].values()] == ["19", "20"]
    assert "19" in _page.where_and_when(after.manifest)[:2] and " to 20" in _page.where_and_when(after.manifest)
    assert run({"seeds": 2, "grid": [1]}, {"b": 2}).distinct("name") == ["b"] and len(log) == 3
    with pytest.raises(ValueError, match=r"holds records of toy with other settings \(scale full, 2 seeds\)"):
        run({"seeds": 3, "grid": [1]}, {"b": 2})
    assert _records.is_complete(tmp_path)


def test_records_of_other_settings_are_refused(tmp_path):
    _records.collect("toy", tmp_path, "smoke", {"seeds": 1}, three_cells([]))
    with pytest.raises(ValueError, match=r"holds records of toy with other settings \(scale smoke, 1 seeds\)"):
        _records.collect("toy", tmp_path, "quick", {"seeds": 2}, three_cells([]))
    with pytest.raises(ValueError, match=r"There are no records of toy in .* Run `bilevelax paper toy` first"):
        _records.read("toy", tmp_path / "nothing")


def test_not_a_number_is_no_record(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        _records.append(tmp_path / "rows.jsonl", [{"value": float("nan")}])


def test_trajectories_are_those_of_minimize(quadratic, x):
    estimator, optimizer = bx.rt_mlmc(2), optax.sgd(0.02)
    watch = lambda x: {"square": jnp.sum(x**2)}
    keys, scales = lanes(seed_keys(2), [1.0, 0.5])
    for together in (True, False):
        runs = trajectories(
            quadratic,
            estimator,
            optimizer,
            x,
            keys,
            T=6,
            every=2,
            watch=watch,
            every_step=watch,
            scales=scales,
            together=together,
        )
        alone = [
            bx.minimize(
                quadratic,
                estimator,
                optax.sgd(0.02 * s),
                x,
                key=key,
                T=6,
                every=1,
                metrics=lambda x: {"square": float(jnp.sum(x**2))},
            )
            for key, s in zip(keys, np.asarray(scales), strict=True)
        ]
        np.testing.assert_allclose(runs.x, [run.x for run in alone], rtol=1e-12)
        squares = np.asarray([[row["square"] for row in run.history] for run in alone])
        np.testing.assert_allclose(runs.values["square"], squares[:, ::2], rtol=1e-12)
        np.testing.assert_allclose(runs.means["square"][:, -1], squares[:, :6].mean(1), rtol=1e-12)
        assert runs.t.tolist() == [0, 2, 4, 6]
        assert runs.cost["eta"][:, -1].tolist() == [run.cost.eta for run in alone]
    with pytest.raises(ValueError, match=r"`T` of trajectories must be a multiple of every = 4\. Got 6\."):
        trajectories(quadratic, estimator, optimizer, x, keys, T=6, every=4)


def test_page_escapes_bars_and_breaks_lines():
    assert "| a \\| b |" in _page.markdown(Table("t", ("x",), [("a | b",)]))
    claim = Claim("c", "p", "one: 1; two: 2", 3, "not", "w")
    assert "| one: 1<br>two: 2 |" in _page.markdown(_page.claim_table("", [claim]))
