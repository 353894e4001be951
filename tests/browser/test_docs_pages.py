"""The built pages in a real browser: they fit a phone, show their formulas and figures, and ask no network for them."""

from pathlib import Path

import pytest
from webdriver import INSTALL, Browser, missing

BUILT = Path(__file__).parents[2] / "docs" / "_build" / "html"
PAGES = [page for part in ("[a-z]*", "gallery/*", "reproduction/*") for page in sorted(BUILT.glob(f"{part}.html"))]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing(), reason=INSTALL),
    pytest.mark.skipif(not PAGES, reason="There are no pages yet: make docs"),
]
EMPTY = "return [...document.querySelectorAll('article math')].filter(m => m.getBoundingClientRect().width == 0).length"
BROKEN = "return [...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
FOREIGN = "return performance.getEntriesByType('resource').map(e => e.name).filter(name => name.startsWith('http'))"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_and_is_whole(browser, width):
    browser.emulate(width)
    for page in PAGES:
        browser.open(page)
        sizes = browser.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert sizes[0] <= sizes[1], f"{page.name} is wider than {width} pixels"
        assert browser.run(EMPTY) == 0, page.name
        assert browser.run(BROKEN) == [], page.name
        assert browser.run(FOREIGN) == [], page.name
        assert browser.complaints() == [], page.name


def test_every_gallery_page_has_a_figure(browser):
    for page in PAGES:
        if page.name.startswith("plot_"):
            assert page.read_text().count("sphx-glr-single-img") == 1, f"{page.name} was built without its figure"
            browser.open(page)
            assert browser.run("return document.querySelectorAll('article img.sphx-glr-single-img').length") == 1, (
                page.name
            )
