"""The page of orders in a real browser: it draws, products switch, a phone shows all of it, dark charts are dark."""

import pytest
from orders_evaluated import NAMES, evaluated
from webdriver import INSTALL, Browser, missing

from bilevelax.sklearn.evaluation_page import page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing(), reason=INSTALL)]
ORDERS = "return document.querySelector('#orders-chart path.line').getAttribute('d')"
# elements with text that reach beyond the window, or that hide part of what they hold
CUT_OFF = """
return [...document.querySelectorAll('body *')].filter(each => !each.closest('svg, script, style, [hidden]') &&
  (each.getBoundingClientRect().right > innerWidth + 1 ||
   each.clientWidth > 0 && each.scrollWidth > each.clientWidth + 1 &&
   getComputedStyle(each).display !== 'inline')).map(each => each.outerHTML.slice(0, 120))
"""
OUTSIDE = """
return [...document.querySelectorAll('.chart svg')].flatMap(svg => [...svg.querySelectorAll('text')].filter(text =>
  text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1 ||
  text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 1).map(text => text.textContent))
"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("orders") / "orders.html"
    path.write_text(page(evaluated(scale=1000.0), "later.csv", ["a note"]), encoding="utf-8")
    return path


@pytest.fixture(params=[390, 1280])
def opened(request, browser, written):
    browser.emulate(request.param)
    browser.open(written)
    yield browser
    assert browser.complaints() == []


def test_charts_are_drawn_and_nothing_is_cut_off(opened):
    count = "return document.querySelectorAll(arguments[0]).length"
    assert "NaN" not in opened.run(ORDERS)
    assert opened.run(count, "#orders-chart path.band") == 1 and opened.run(count, "#orders-chart circle") >= 30
    assert opened.run(count, "#errors-chart path.line") == 3
    assert opened.run(count, ".bars .fill") == 3
    assert opened.run(CUT_OFF) == [] and opened.run(OUTSIDE) == []
    ticks = opened.run("return [...document.querySelectorAll('#orders-chart text')].map(each => each.textContent)")
    assert any(tick.endswith(("Jan", "Feb")) for tick in ticks) and any("," in tick for tick in ticks)
    assert not any("e+" in tick for tick in ticks)


def test_products_and_spans_switch(opened):
    before = opened.run(ORDERS)
    choose = "const p = find('product'); p.value = arguments[0]; p.dispatchEvent(new Event('change'))"
    opened.run(choose, "2")
    assert opened.run(ORDERS) != before
    assert opened.run("return document.querySelector('#orders-chart .title').textContent") == f"units, {NAMES[1]}"
    opened.click('[data-last="0"]')
    assert opened.run(ORDERS).count("L") == 39
    opened.click('[data-last="30"]')
    assert opened.run(ORDERS).count("L") == 29 and opened.run(CUT_OFF) == []


def test_values_can_be_read_by_keys(opened):
    opened.run("document.querySelector('#orders-chart svg').focus()")
    opened.press("\ue010")  # End
    told = opened.run("return document.querySelector('#orders-chart figcaption').textContent")
    assert told.startswith("Fri 9 Feb 2024: likely demand: ") and "; demand: 1" in told and "; order: 1" in told


def test_dark_charts_are_dark(browser, written):
    browser.emulate(1280, scheme="dark")
    browser.open(written)
    ink = "return getComputedStyle(document.querySelector('#orders-chart circle.dot')).fill"
    assert browser.run(ink) == "rgb(201, 209, 219)"  # light ink
    assert (
        browser.run("return getComputedStyle(document.querySelector('#orders')).backgroundColor") == "rgb(28, 32, 39)"
    )
    browser.click("#theme")
    assert browser.run(ink) == "rgb(58, 67, 79)"
    browser.emulate(1280)
