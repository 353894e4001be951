"""The report in a real browser: it draws, its switches switch, it fits a phone, and no name runs as code."""

import pytest
from run_records import HOSTILE, comparison, save
from webdriver import INSTALL, Browser, missing

from bilevelax.report import report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing(), reason=INSTALL)]
LINES = "return [...document.querySelectorAll('#main-chart path.line')].map(line => line.getAttribute('d'))"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return report(comparison(folder / "runs"), folder / "report.html")


@pytest.fixture(params=[390, 1280])
def opened(request, browser, page):
    browser.emulate(request.param)
    browser.open(page)
    yield browser
    assert browser.complaints() == []


def label(browser, selector):
    return browser.run("return document.querySelector(arguments[0]).textContent", selector)


def fits(browser):
    return browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_curves_are_drawn_and_fit(opened):
    lines = opened.run(LINES)
    assert len(lines) == 3 and all("NaN" not in line and line.count("L") == 20 for line in lines)
    assert opened.run("return document.querySelectorAll('#main-chart path.band').length") == 2  # one run has no band
    assert opened.run("return document.querySelectorAll('#level-chart rect.bar').length") == 6
    assert opened.run("return document.querySelectorAll('.panels svg path.line').length") == 8
    assert fits(opened)


def test_switches(opened):
    before = opened.run(LINES)
    for selector, expected in (
        ('[data-axis="seconds"]', "distance against seconds"),
        ('[data-axis="calls"]', "distance against gradients of g"),
        ('#metrics [data-metric="F_gap"]', "F_gap against gradients of g"),
    ):
        opened.click(selector)
        assert label(opened, "#main-chart title") == expected
        assert opened.run(f"return document.querySelector('{selector}').getAttribute('aria-pressed')") == "true"
        assert opened.run(LINES) != before and fits(opened)
        before = opened.run(LINES)
    opened.click('[data-log="x"]')
    assert opened.run(LINES) != before
    assert "not positive" in label(opened, "#main-chart figcaption")  # t = 0 has cost 0
    opened.click("#legend button")
    assert len(opened.run(LINES)) == 2
    opened.click("#values summary")
    rows = "return document.querySelectorAll('#values tbody tr').length"  # filled by an event of the opened element
    assert opened.awaited(rows, 2 * 21) == 2 * 21
    opened.click('[data-only="settings"]')
    shown = "return [...document.querySelectorAll('#settings tbody tr')].filter(row => row.offsetHeight).length"
    assert opened.run(shown) == 3
    assert fits(opened)


def test_tables_sort(opened):
    order = "return [...document.querySelectorAll('#cost tbody th')].map(cell => cell.textContent)"
    names = ["quadratic-rt_mlmc", "quadratic-dl_sgd", "quadratic-saa-0"]
    assert opened.run(order) == names
    opened.click("#cost th:nth-child(2) button")
    assert opened.run(order) == [names[i] for i in (0, 2, 1)]  # by seconds
    opened.click("#cost th:nth-child(2) button")
    assert opened.run(order) == [names[i] for i in (1, 2, 0)]
    assert opened.run("return document.querySelector('#cost [aria-sort]').getAttribute('aria-sort')") == "descending"


def test_keyboard_alone_is_enough(opened):
    opened.run("document.querySelector('[data-axis=\"seconds\"]').focus()")
    opened.press("\ue007")  # Enter
    assert label(opened, "#main-chart title") == "distance against seconds"
    opened.run("document.querySelector('#main-chart svg').focus()")
    opened.press("\ue014")  # arrow to the right
    assert label(opened, "#main-chart figcaption").startswith("At 0: quadratic-rt_mlmc: ")
    opened.press("\ue010")  # End
    assert not label(opened, "#main-chart figcaption").startswith("At 0:")
    opened.press("\ue004")  # Tab leaves the chart, with a focus that can be seen
    assert opened.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_light_and_dark(opened):
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = opened.run(colour)
    opened.click("#theme")
    dark = opened.run(colour)
    assert light == "rgb(246, 247, 249)" and dark == "rgb(20, 23, 28)"
    opened.click("#theme")
    assert opened.run(colour) == light


def test_follows_the_system(browser, page):
    browser.emulate(1280, scheme="dark")
    browser.open(page)
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert browser.run("return document.querySelector('#theme').getAttribute('aria-pressed')") == "true"


def test_prints_without_controls(browser, page):
    browser.emulate(800, scheme="dark", media="print")
    browser.open(page)
    assert browser.run("return getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    browser.emulate(800)


@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_names_run_nothing(browser, width, tmp_path):
    metrics = ("<img src=x onerror=document.title=1>", "</script><script>document.title=2</script>", "m" * 300)
    runs = [save(tmp_path / name, estimator=name, metrics=metrics, level=3) for name in HOSTILE]
    browser.emulate(width)
    browser.open(report(runs, tmp_path / "report.html", title="Hostile"))
    assert browser.run("return document.title") == "Hostile"
    names = browser.run("return [...document.querySelectorAll('#legend span')].map(span => span.textContent)")
    assert names == list(HOSTILE)
    assert label(browser, "#main-chart title") == f"{metrics[0]} against iterations"
    for i in range(3):
        browser.run("document.querySelectorAll('#metrics button')[arguments[0]].click()", i)
    browser.click("#values summary")
    assert fits(browser)
    assert browser.complaints() == []
