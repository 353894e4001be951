"""The documents against the package: every public name has an entry, every link a target."""

import importlib
import itertools
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(name):
    """The Python that a page shows."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def reference():
    """docs/api.md as Sphinx reads it."""
    return runpy.run_path(str(ROOT / "docs" / "parts.py"))["expand"]((ROOT / "docs" / "api.md").read_text())


@pytest.mark.parametrize("module", ["bilevelax", "bilevelax.sklearn", "bilevelax.datasets", "bilevelax.report"])
def test_the_reference_has_every_public_name(module):
    entries = set(re.findall(r"^\.\. auto\w+:: (\S+)", reference(), re.MULTILINE))
    named = {name if name.startswith("bilevelax.") else f"bilevelax.{name}" for name in entries}
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__ if name != "__version__"}
    assert not public - named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page):
    """Sphinx sees to links between its pages; README and CONTRIBUTING are read elsewhere too."""
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    local = [link.partition("#")[0] for link in links if not link.startswith(("http", "#"))]
    missing = [link for link in local if not (page.parent / link).exists() and not link.startswith("gallery/")]
    assert not missing


def test_every_command_is_described():
    from bilevelax.cli import find_commands

    text = (ROOT / "docs" / "commands.md").read_text()
    assert all(f"| `bilevelax {name}" in text for name in find_commands())


def test_pages_begin_with_a_sentence():
    """What the reader gets, before any heading, table or code."""
    for page in PAGES[2:]:
        title, first = [line for line in page.read_text().splitlines() if line.strip()][:2]
        assert title.startswith(("# ", "```{include}")), page.name
        assert not first.startswith(("##", "|", "```")) or title.startswith("```"), page.name


def test_every_erratum_is_shown():
    """The page's own lines, and that each row but the last, which is measured, has one."""
    (code,) = blocks("docs/errata.md")
    exec(compile(code, "docs/errata.md", "exec"), {})
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "errata.md").read_text(), re.MULTILINE)
    assert set(rows[:-1]) <= set(re.findall(r"# (\d+)", code))


@pytest.fixture
def measurements(monkeypatch):
    """The module that writes the tables of what was measured."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("page")


def test_what_was_measured_is_what_the_pages_say(measurements):
    """The other way round, a record that differs is seen."""
    readme, page = (path.read_text() for path in (measurements.README, measurements.PAGE))
    sections, records = measurements.sections_of(page), measurements.kept(("",))
    for record in records:
        assert sections[record["title"]] == measurements.section(record), record["title"]
        changed = {**record, "rows": [{**row, "another": 1.0} for row in record["rows"]]}
        assert sections[record["title"]] != measurements.section(changed)
    assert records and measurements.headlines(readme) in readme and measurements.headlines(readme) in page


def test_rolling_origins_are_those_of_the_record(monkeypatch):
    """The table of docs/newsvendor.md; a record that differs is seen."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    rolling = importlib.import_module("newsvendor_rolling")
    page, cells = (ROOT / "docs" / "newsvendor.md").read_text(), json.loads(rolling.RECORD.read_text())
    assert "\n".join(rolling.table(cells)) in page
    changed = {place: {**cell, "ours": 1.1 * cell["ours"]} for place, cell in cells.items()}
    assert "\n".join(rolling.table(changed)) not in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_leave_no_level_out(page):
    """Sphinx refuses the page where they do, minutes later."""
    levels = [1, *map(len, re.findall(r"^(#+) ", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.M))]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
