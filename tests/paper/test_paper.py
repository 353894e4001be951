"""Every item of the paper at smoke scale: complete files, determinism, and the shared pieces."""

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from smoke_checks import CHECKS

import bilevelax as bx
from bilevelax.base.text_table import as_markdown
from bilevelax.run.records import cells as store
from bilevelax_paper import page as pages
from bilevelax_paper.claims import VERDICTS, Judged, claim_table, measured_tables
from bilevelax_paper.item import Table
from bilevelax_paper.items import catalogue
from bilevelax_paper.training import lanes, seed_keys, trajectories

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
    return request.param, out, pages.run_item(request.param, scale="smoke", seeds=None, out=out)


def test_an_item_writes_complete_files(item):
    name, out, shown = item
    manifest = json.loads((out / name / "manifest.json").read_text())
    assert manifest["complete"] and manifest["scale"] == "smoke" and manifest["machine"]["cores"] >= 1
    assert manifest["settings_hash"] == store.fingerprint(manifest["settings"])
    assert not (out / name / "records.jsonl").exists()
    lines = [json.loads(line) for line in gzip.decompress((out / name / "records.jsonl.gz").read_bytes()).splitlines()]
    counts = {row["cell"]: row["done"] for row in lines if "done" in row}
    assert len(shown.records.rows) == sum(counts.values()) > 0
    for cell, count in counts.items():
        assert len(shown.records.where(cell=cell)) == count
    assert shown.figure.suffix == ".svg" and shown.figure.stat().st_size > 1000 and shown.caption
    assert shown.figure.with_suffix(".png").stat().st_size > 1000 and "{" not in shown.caption
    for table in shown.tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    assert shown.claims and all(claim.verdict in VERDICTS and claim.reading for claim in shown.claims)


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
    section = pages.section(shown, pages.Path("docs/reproduction.md"))
    assert f"bilevelax paper {name} --scale smoke" in section and "| claim |" in section


def test_one_cell_again_gives_the_same_records(item):
    """Determinism: another run of the first cell, compiled anew, has the same rows, times excepted."""
    name, _, shown = item
    settings = catalogue.load(name).settings("smoke", None)
    cell = next(iter(catalogue.module(name).run(settings, settings["seeds"])))
    again = [{"cell": cell.name, **row} for row in cell.work()]
    assert without_times(again) == without_times(shown.records.where(cell=cell.name))


def test_trajectories_are_those_of_minimize(quadratic, x):
    estimator, optimizer = bx.rt_mlmc(2), lambda scale: optax.sgd(0.02 * scale)
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
                optimizer(s),
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
    assert "| a \\| b |" in as_markdown(Table("t", ("x",), [("a | b",)]))
    claim = Judged("c", "p", {"one": {"ours": "1"}, "two": {"ours": "2"}}, 3, "not", "w")
    page = as_markdown(claim_table([claim])) + as_markdown(measured_tables([claim])[0])
    assert "| **not**<br>3 seeds |" in page and "| one | 1 |\n| 1 | two | 2 |" in page
