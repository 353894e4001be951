"""The committed records belong to the present code: the settings and the cells of scale full, each of this digest."""

import json
from html import escape
from pathlib import Path

import pytest

from bilevelax.base.sentences import text
from bilevelax.base.text_table import as_markdown
from bilevelax.run.records import cells as store
from bilevelax_paper.claims import claim_table, judged, measured_tables
from bilevelax_paper.items import catalogue

ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "results" / "paper", ROOT / "docs" / "reproduction"


@pytest.mark.parametrize("name", catalogue.names())
def test_committed_records_are_those_of_the_code(name):
    """Run `bilevelax paper NAME --scale full --out results/paper` where this fails."""
    settings = catalogue.load(name).settings("full", None)
    records = store.read(name, RESULTS / name)
    assert records.manifest["scale"] == "full"
    assert records.settings == json.loads(json.dumps(settings))
    assert records.manifest["settings_hash"] == store.fingerprint(settings)
    cells = list(catalogue.module(name).run(settings, settings["seeds"]))
    found = {cell: done["of"] for cell, done in records.manifest["cells"].items()}
    assert found == {cell.name: store.digest(cell, settings) for cell in cells}
    assert list((RESULTS / name).glob("*.svg"))


@pytest.mark.parametrize("name", catalogue.names())
def test_the_page_gives_the_verdicts_of_the_committed_records(name):
    """Run `bilevelax paper all --render` where this fails."""
    claims = judged(catalogue.module(name).CLAIMS, store.read(name, RESULTS / name))
    summary = PAGES.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    for claim in claims:
        said = [line for line in summary if f">{name}: {escape(claim.claim)}<" in line]
        assert len(said) == 1 and f">{claim.verdict}<" in said[0] and f">{escape(text(claim.primary))}<" in said[0]
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()
    for table in [claim_table(claims), *measured_tables(claims)]:
        assert set(as_markdown(table).splitlines()[-len(table.rows) :]) <= set(page)
        assert max(len(cell.split()) for row in table.rows for cell in row) <= 30, "cells are short"
