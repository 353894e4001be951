"""docs/applications.md says what the records in results/applications say."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECORDS = sorted((ROOT / "results" / "applications").glob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_page_has_every_row_of_the_record(path):
    lines = (ROOT / "docs" / "applications.md").read_text().splitlines()
    record = json.loads(path.read_text())
    assert f"`python benchmarks/run.py {path.stem}`, {record['machine']['date'][:10]}." in lines
    for row in record["rows"]:
        cells = [row[name] for name in ("task", "published", "ours", "baseline")]
        assert f"| {' | '.join(cells)} | {row['seconds']:.0f} |" in lines


def test_the_page_is_written_from_the_records(monkeypatch):
    """Byte for byte what ``python benchmarks/run.py --page`` writes."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    published = importlib.import_module("published")
    page = (ROOT / "docs" / "applications.md").read_text()
    assert published.page(page) == page
