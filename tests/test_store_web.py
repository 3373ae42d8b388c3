# SPDX-License-Identifier: Apache-2.0
"""What people do on the page: select, zoom, search, filter, walk by keyboard, share. Data: tests/page_driver.py."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.page_driver import TOTAL, clean_page, running_browser, running_store

pytest.importorskip("playwright", reason="pip install playwright")
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with running_store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with running_browser() as running:
        yield running


@pytest.fixture
def page(browser, store):
    with clean_page(browser, store) as ours:
        yield ours


def test_first_picture(page):
    page.open()
    assert page.samples() == TOTAL
    # 10,200 samples of 9.973013 ms in 120 s
    assert page.page.locator("#total").inner_text() == "0.85 cores"
    assert page.colours() > 5
    assert page.page.locator("#gpu").input_value() == ""
    activity = page.page.locator("[data-chart=activity] .leg").first.inner_text()
    assert re.sub(r"\s+", " ", activity) == "GPU busy 60 % 40–80"
    memory = page.page.locator("[data-chart=memory] .leg").first.inner_text()
    assert "20.0 GiB" in memory
    assert page.page.locator("#status").inner_text().endswith("CPU")
    assert page.page.locator("#nodevicetime").is_visible()
    assert page.page.title() == "web-a · gpustrobe"


def test_selection_changes_everything_and_lets_go(page):
    page.open()
    page.drag(0.1, 0.4)
    page.until(lambda: page.samples() != TOTAL)
    a, b = (int(x) for x in page.query()["sel"].split("-"))
    assert a % 1000 == 0 and b % 1000 == 0
    seconds = [s - page.store.first for s in range(a // 1000, b // 1000)]
    assert page.samples() == sum(60 if s < 60 else 110 for s in seconds)
    assert 30 <= len(seconds) <= 42
    assert "Mean of the selection" in page.page.locator(".axis").inner_text() or page.page.locator(".now").is_visible()
    assert re.search(r"Selected .* s$", page.page.locator("#say").inner_text())

    page.drag(0.2, 0.6, "Shift")  # moves by 40 % of 120 s
    page.until(lambda: page.query()["sel"] != f"{a}-{b}")
    c, d = (int(x) for x in page.query()["sel"].split("-"))
    assert d - c == b - a and abs(c - a - 48_000) <= 2000

    page.page.locator("#over").dblclick(position={"x": 300, "y": 60})
    page.until(lambda: page.samples() == TOTAL)
    assert "sel" not in page.query()


def test_zoom_makes_the_selection_the_range(page):
    page.open()
    page.drag(0.25, 0.45)
    sel = page.until(lambda: page.query().get("sel"))
    page.page.locator("#pill button", has_text="Zoom").click()
    page.until(lambda: "sel" not in page.query())
    assert f"{page.query()['from']}-{page.query()['to']}" == sel
    page.page.keyboard.press("[")
    page.until(lambda: page.query().get("sel") == sel)


def test_search_counts_once_and_filters_the_table(page):
    page.open()
    page.page.keyboard.press("/")
    page.page.keyboard.type("/main|late/")
    out = page.page.locator(".search output")
    # thread and frame `main` hold `late`: all but nginx's 1,200 samples, once
    page.until(lambda: "88.2" in out.inner_text())
    names = page.page.locator(".trow .code").all_inner_texts()
    assert sorted(names) == ["late", "main"]
    page.page.keyboard.press("Enter")
    assert "of all" in page.page.locator("#say").inner_text()
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("/(/")
    page.until(lambda: "no match" not in out.inner_text() and out.get_attribute("class").startswith("bad"))
    page.page.keyboard.press("Escape")
    page.until(lambda: "q" not in page.query())


def test_zoom_lives_in_the_url(page):
    page.open()
    page.page.mouse.click(*page.row(5))
    page.until(lambda: page.query().get("zoom"))
    crumbs = page.page.locator(".crumbs").inner_text()
    assert re.search(r"(early|late)$", crumbs)
    page.page.reload()
    page.page.wait_for_selector(".crumbs")
    assert page.page.locator(".crumbs").inner_text() == crumbs
    page.page.keyboard.press("Escape")
    page.until(lambda: "zoom" not in page.query())


def test_url_restores_the_whole_view(page):
    sel = f"{(page.store.first + 60) * 1000}-{(page.store.first + 70) * 1000}"
    page.open(f"sel={sel}&q=late&theme=dark&gpu=1&tree=1&utc=1&flip=1&match=comm%3D%22python3%22&charts=temperature")
    assert page.samples() == 1000
    assert page.page.locator("#q").input_value() == "late"
    assert page.page.locator("html").get_attribute("data-theme") == "dark"
    assert page.page.locator("#gpu").input_value() == "1"
    assert page.page.locator("[role=treegrid]").is_visible()
    assert page.page.locator("#tz").inner_text() == "UTC"
    assert page.page.locator(".chip").inner_text().startswith("comm=python3")
    assert "80 %" in page.page.locator("[data-chart=activity] .leg").first.inner_text()


def test_share_freezes_relative_times(page):
    page.open("live=&from=-4m&to=now")
    page.page.locator("button[aria-label=Share]").click()
    link = page.page.locator(".sharepanel input").input_value()
    shared = parse_qs(urlsplit(link).query)
    assert int(shared["to"][0]) - int(shared["from"][0]) == 240_000
    assert "live" not in shared and "theme" not in shared


def test_keyboard(page):
    page.open()
    key, query = page.page.keyboard.press, page.query
    key("?")
    assert page.page.locator("aside h3").inner_text() == "Keyboard and pointer"
    key("Escape")
    assert page.page.locator("aside").count() == 0
    theme = page.page.locator("html").get_attribute("data-theme")
    key("t")
    assert page.page.locator("html").get_attribute("data-theme") != theme
    key("2")
    page.page.wait_for_selector("#needs")
    assert "gpustrobe run" in page.page.locator("#needs").inner_text()
    key("1")
    page.page.wait_for_selector("#flame")
    key("f")
    key("r")
    page.until(lambda: query().get("flip") == "1" and query().get("recursion") == "1")
    before = query()["from"]
    key("s")
    page.until(lambda: int(query()["to"]) - int(query()["from"]) == 240_000)
    key("a")
    page.until(lambda: int(query()["from"]) < int(before) - 100_000)
    key("[")
    key("[")
    page.until(lambda: query()["from"] == before)


def test_graph_and_table_by_keyboard(page):
    page.open()
    spoken = page.page.locator("#say")
    page.page.locator("#flame").focus()
    for _ in range(3):
        page.page.keyboard.press("ArrowDown")
    page.until(lambda: spoken.inner_text().startswith("_start, native"))
    page.page.keyboard.press("ArrowUp")
    page.until(lambda: spoken.inner_text().startswith("main, thread"))
    page.page.keyboard.press("Enter")
    page.until(lambda: page.query().get("zoom"))
    page.page.keyboard.press("Escape")
    page.page.locator(".thead button", has_text="tree").click()
    grid = page.page.locator("[role=treegrid]")
    grid.focus()
    for _ in range(2):
        page.page.keyboard.press("ArrowDown")
    rows = grid.get_attribute("aria-rowcount")
    assert page.page.locator(".trow[data-active]").get_attribute("aria-expanded") == "true"
    page.page.keyboard.press("ArrowLeft")
    page.until(lambda: grid.get_attribute("aria-rowcount") != rows)
    assert page.page.locator(".trow[data-active]").get_attribute("aria-expanded") == "false"


def test_menu_focuses_excludes_and_shows_callers(page):
    page.open()
    x, y = page.row(5)  # `late`, the wider of the two
    page.page.mouse.click(x, y, button="right")
    menu = page.page.locator("[role=menu]")
    assert menu.locator("h4").inner_text() == "late"
    menu.get_by_text("Exclude stacks with it").click()
    page.until(lambda: page.samples() == TOTAL - 6000)
    assert page.page.locator(".chip").inner_text().startswith("without late")
    page.page.locator(".chip .x").click()
    page.until(lambda: page.samples() == TOTAL)
    page.page.mouse.click(x, y, button="right")
    menu.get_by_text("Focus this function").click()
    page.until(lambda: page.samples() == 6000)
    page.page.locator(".chip .x").click()
    page.until(lambda: page.samples() == TOTAL)
    page.page.mouse.click(x, y, button="right")
    menu.get_by_text("Callers and callees").click()
    page.until(lambda: page.query().get("fn"))
    assert page.samples() == 6000
    assert sorted(page.page.locator(".trow .code").all_inner_texts()) == ["copy", "late"]
    page.page.keyboard.press("Escape")
    page.until(lambda: page.samples() == TOTAL)


def test_tooltip_says_value_and_shares(page):
    page.open()
    page.page.mouse.move(*page.row(5))
    tip = page.page.locator(".tip")
    text = tip.inner_text().replace("\u202f", " ")
    assert text.startswith("late") and "/srv/app/job.py" in text
    assert "58.8 % of all" in text and "6 000" in text and "(95 %)" in text
    assert page.page.locator(".trow[data-hot] .code").inner_text() == "late"


def test_kinds_filter_and_my_code(page):
    page.open()
    page.page.locator("#kinds button", has_text="OS kernel").click()
    page.until(lambda: page.query().get("off") == "kernel")
    assert "vfs_read" not in page.page.locator(".trow .code").all_inner_texts()
    page.page.keyboard.press("m")
    page.until(lambda: page.query().get("mine") == "1")
    names = page.page.locator(".trow .code").all_inner_texts()
    assert {"early", "late", "main"} <= set(names) and "copy" not in names
    assert page.samples() == TOTAL


def test_losses_have_names(page):
    page.open()
    chip = page.page.locator("#loss")
    assert chip.inner_text().replace("\u202f", " ") == "0.02 % lost"
    assert page.page.locator(".axis .lost").count() == 1
    chip.click()
    text = page.page.locator("[role=dialog]").inner_text()
    assert "ring_full" in text and "Lost here: 2 of" in text
    page.page.keyboard.press("Escape")
    assert page.page.locator("[role=dialog]").count() == 0


def test_filter_by_label(page):
    page.open()
    page.page.locator("#addfilter").click()
    page.page.keyboard.type("ngi")
    page.page.locator(".chooser .option", has_text="nginx").first.wait_for()
    page.page.keyboard.press("Enter")
    page.until(lambda: page.samples() == 1200)
    page.page.locator(".chiptext").click()  # turns it over
    page.until(lambda: page.samples() == TOTAL - 1200)


def test_chart_data_as_a_table(page):
    page.open()
    page.page.locator("[data-chart=cpu] h2 button").click()
    rows = page.page.locator("aside tbody tr")
    assert rows.count() == 120
    assert re.search(r"0\.499\s+0\.0997", rows.first.inner_text())
