"""The page in a real browser: no error, no request, sorting, filtering, light and dark."""

from __future__ import annotations

import pytest
from browser import PROGRAM, Browser
from results_folder import MARKUP, make

from cojax.report.page import write_report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium found")

NAMES = ["arm-n4-p0.80-s7", "nvdex-k1-easy", MARKUP]
ROWS = "Array.from(document.querySelectorAll('#table-results tbody tr')).filter(r => !r.hidden)"
GAPS = f"{ROWS}.map(r => r.cells[2].dataset.v)"
HEADER = "document.querySelectorAll('#table-results thead th')[{}]"


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(make(tmp_path_factory.mktemp("report") / "results", NAMES))


@pytest.fixture
def page(browser, report):
    browser.open(report)
    return browser


def choose(page, selector, value, kind="input"):
    page.run(
        f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('{kind}', {{bubbles: true}})) }})"
        f"(document.querySelector({selector!r}))"
    )


def test_it_loads_with_no_error_and_asks_for_nothing(page, report):
    assert page.complaints() == []
    assert page.requests() == [report.resolve().as_uri()]
    assert page.run("document.querySelectorAll('img[onerror], main script').length") == 0
    assert page.run("Array.from(document.images).slice(0, 1).every(i => i.naturalWidth > 0)")
    # and could not: the policy of the page refuses
    assert page.run("fetch('data:,x').then(() => 'fetched', () => 'refused')") == "refused"


def test_sorting(page):
    assert len(page.run(GAPS)) == 12
    click = HEADER.format(2) + ".querySelector('button').click()"
    for order, reverse in (("ascending", False), ("descending", True)):
        page.run(click)
        values = [float(v) for v in page.run(GAPS)]
        assert values == sorted(values, reverse=reverse)
        assert values[0 if reverse else -1] == float("inf")
        assert page.run(HEADER.format(2) + ".getAttribute('aria-sort')") == order
    page.run(HEADER.format(1) + ".querySelector('button').click()")
    policies = page.run(f"{ROWS}.map(r => r.cells[1].textContent)")
    assert policies == sorted(policies)
    assert page.run("document.querySelectorAll('#table-results th[aria-sort=none]').length") == 5


def test_filtering(page):
    tools = '.tools[data-table="table-results"] '
    choose(page, tools + "input[type=search]", "NVDEX")
    assert page.run(f"{ROWS}.length") == 4
    choose(page, tools + "select", "ppo")
    assert page.run(f"{ROWS}.map(r => r.cells[0].textContent)") == ["nvdex-k1-easy"]
    said = page.run(f"document.querySelector({tools + '.count'!r}).textContent")
    assert said == "1 of 12 rows"
    choose(page, tools + "input[type=search]", "")
    choose(page, tools + "select", "")
    page.run(f"document.querySelector({tools + 'input[type=checkbox]'!r}).click()")
    assert page.run(f"{ROWS}.map(r => r.cells[5].textContent)") == ["1 of 16"]


def test_light_and_dark(browser, report):
    background = "getComputedStyle(document.body).backgroundColor"
    browser.open(report, dark=True)
    dark = browser.run(background)
    browser.open(report)
    light = browser.run(background)
    assert light != dark
    for expected, pressed in ((dark, "true"), (light, "false")):
        browser.run("document.getElementById('theme').click()")
        assert browser.run(background) == expected
        assert browser.run("document.getElementById('theme').ariaPressed") == pressed


def test_cards_open_from_the_table_and_figures_enlarge(page):
    page.run("document.querySelector('#table-results a').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert page.run("document.querySelector('details[open] .id').textContent") == NAMES[0]
    assert page.run("document.querySelectorAll('details[open] tbody tr').length") > 10
    page.run("document.querySelector('.enlarge').click()")
    assert page.run("document.getElementById('viewer').open")
    assert page.complaints() == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_column_of_the_main_table_is_cut_off(browser, report, width):
    browser.open(report, width)
    table = "document.querySelector('#results .scroll')"
    assert browser.run(f"{table}.scrollWidth <= {table}.clientWidth")
    cells = f"Array.from({table}.querySelectorAll('tbody tr:not([hidden]) > *'))"
    ends = browser.run(f"{cells}.map(c => c.getBoundingClientRect().right)")
    assert len(ends) == 12 * 6
    assert max(ends) <= width
    assert all(browser.run(f"{cells}.map(c => c.innerText)"))


def test_a_row_gives_its_command(page):
    button = "document.querySelector('#table-results button.icon')"
    assert "cojax" in page.run(f"{button}.dataset.copy")
    page.run(f"{button}.click()")
    page.run("new Promise(done => setTimeout(done, 100))")
    assert page.run(f"{button}.textContent") == "Copied"
    page.run("new Promise(done => setTimeout(done, 1700))")
    assert page.run(f"{button}.textContent") == "copy"


def test_every_chart_has_labels_on_its_axes(page):
    charts = "Array.from(document.querySelectorAll('.chart svg')).map(c => c.textContent)"
    texts = page.run(charts)
    assert len(texts) == 4
    assert all("gap, in units of V*" in text for text in texts)
    assert all("environment steps" in text for text in texts[1:])


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(browser, report, width):
    browser.open(report, width)
    assert browser.run("document.documentElement.scrollWidth") <= width
