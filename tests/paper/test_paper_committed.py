"""The committed records belong to the present code: the settings and the cells of scale full, each of this digest."""

import json
from pathlib import Path

import pytest

from bilevelax.experiments import _records, catalogue

RESULTS = Path(__file__).parents[1] / "results" / "paper"


@pytest.mark.parametrize("name", catalogue.names())
def test_committed_records_are_those_of_the_code(name):
    """Run `bilevelax paper NAME --scale full --out results/paper` where this fails."""
    settings = catalogue.load(name).settings("full", None)
    records = _records.read(name, RESULTS / name)
    assert records.manifest["scale"] == "full"
    assert records.settings == json.loads(json.dumps(settings))
    assert records.manifest["settings_hash"] == _records.fingerprint(settings)
    cells = list(catalogue.module(name).run(settings, settings["seeds"]))
    found = {cell: done["of"] for cell, done in records.manifest["cells"].items()}
    assert found == {cell.name: _records.digest(cell, settings) for cell in cells}
    assert list((RESULTS / name).glob("*.svg"))
