"""A part added as one file is found: by catalogue, command line, documents and contract tests."""

import importlib
import sys

import pytest
import test_docs
import test_pairs
from cases import exact_pairs, pairs
from typer.testing import CliRunner

from bilevelax import applications, estimators
from bilevelax.cli import app
from bilevelax_paper import items

APPLICATION, ESTIMATOR = test_docs.blocks("docs/extending.md")
ITEM = '''"""Nothing, measured."""

from bilevelax_paper.item import Cell, Config

CONFIG = Config("Nothing", "nowhere", "no time", {scale: {"seeds": 1} for scale in ("smoke", "quick", "full")})


def run(settings, seeds):
    yield Cell("nothing", lambda: [{"value": 0}])
'''
FILES = {"pricing": (applications, APPLICATION), "naive": (estimators, ESTIMATOR), "nothing": (items, ITEM)}


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Each file in a folder that its package looks into as well."""
    for name, (package, code) in FILES.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(code)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    importlib.invalidate_caches()
    yield
    for name, (package, _) in FILES.items():
        sys.modules.pop(f"{package.__name__}.{name}", None)
        vars(package).pop(name, None)


@pytest.mark.parametrize("name", FILES)
def test_the_catalogue_finds_it(name, added):
    package, code = FILES[name]
    assert name in package.catalogue.names() and package.catalogue.load(name)
    assert package.catalogue.summary(name) == code.splitlines()[0].strip('"')


def test_without_the_file_there_is_nothing():
    """Control."""
    assert not any(name in package.catalogue.names() for name, (package, _) in FILES.items())
    with pytest.raises(ValueError, match=r"There is no estimator 'naive'\. Choose from: amortised, antithetic_mlmc, "):
        estimators.catalogue.load("naive")


def test_the_command_line_lists_it(added):
    shown = lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "120"}).output
    assert "pricing" in shown("list") and "naive" in shown("list")
    assert "nothing" in shown("paper", "--list")


def test_the_reference_describes_it(added):
    page = test_docs.reference()
    assert ".. autofunction:: bilevelax.applications.pricing.make" in page
    assert ".. autofunction:: bilevelax.estimators.naive.naive" in page
    assert "* ``nothing``: Nothing, measured." in page


def test_the_contract_tests_run_it(added):
    assert {("naive", "quadratic"), ("saa", "pricing"), ("naive", "pricing")} <= set(pairs())
    assert ("saa", "pricing") in exact_pairs()
    test_pairs.test_single_precision("naive", "pricing")
    test_pairs.test_mean_is_the_gradient("saa", "pricing")
