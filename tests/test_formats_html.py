# SPDX-License-Identifier: Apache-2.0
"""The self-contained flame graph: its data, that it asks for nothing, and its behaviour in a real browser."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from gpustrobe.agent.formats import html
from gpustrobe.agent.formats.stacks import Row, Stacks
from gpustrobe.agent.model import Books, Frame

FRAMES = (
    Frame("<module>", "python", "", "/srv/train.py", 214),
    Frame("collate", "python", "", "/srv/data.py", 88),
    Frame("collate", "python", "", "/srv/data.py", 91),
    Frame("at::native::cat<float>(int)", "native", "libtorch_cpu.so"),
    Frame("clear_huge_page", "kernel", "vmlinux"),
    Frame("</script><img src=x onerror=alert(1)>", "native", "evil\u2028.so"),
)


def stacks(rows: tuple[Row, ...] | None = None) -> Stacks:
    labels = {"comm": "python3", "script": "train.py", "pid": "7", "thread": "python3", "tid": "7"}
    if rows is None:
        paths = {(0, 1): 10, (0, 2): 20, (0, 1, 3): 40, (0, 2, 3, 4): 25, (5,): 5}
        rows = tuple(Row(labels, path, value) for path, value in paths.items())
    books = Books(110, 0, 0, 100, {"ring_full": 10})
    return Stacks("cpu", "samples", 10_000_000, 1_760_000_000 * 10**9, 10**9, FRAMES, rows, books, node="node-1")


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="profile">(.*?)</script>', page, re.DOTALL)[1])


def test_the_data_is_the_tree():
    profile = data_of(html.render(stacks(), "python3 train.py").decode())
    assert profile["total"] == 100 and profile["title"] == "python3 train.py" and profile["nodes"]["total"][0] == 100
    assert profile["loss"] == "lost 10 of 110 samples: ring_full 10"
    assert "</script><img src=x onerror=alert(1)>" in profile["frames"]["name"]


def test_no_name_can_leave_the_data_element_and_nothing_is_loaded():
    page = html.render(stacks()).decode()
    assert "<img" not in page and page.count("</script>") == 2 and "\u2028" not in page
    assert (
        re.findall(
            r"""(?:src|href)\s*=\s*["']?[^"'\s>]+|url\(|@import|fetch\(|XMLHttpRequest|WebSocket""",
            page.split('id="profile"')[0],
        )
        == []
    )
    assert "https://" not in re.sub(r"<script type=.*?</script>", "", page, flags=re.DOTALL)
    assert "default-src 'none'" in page


def test_names_that_are_no_text_do_not_break_the_file():
    odd = Stacks("cpu", "samples", 1, 0, 1, (Frame("caf\udce9", "native"),), (Row({"comm": "x"}, (0,), 1),))
    assert data_of(html.render(odd).decode())["frames"]["name"][-1] == "caf?"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, tmp_path):
    """A page with the profile open; fails the test on any script error or request."""
    troubles: list[str] = []
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: troubles.append(request.url) if not request.url.startswith("file:") else None)

    def show(content: Stacks):
        path = tmp_path / "flame.html"
        path.write_bytes(html.render(content))
        page.goto(path.as_uri())
        return page

    yield show
    page.close()
    assert troubles == []


VIEW = "$('view').getBoundingClientRect()"
SMALL = "boxes.find(b => b.i < 0)"


def named(page, name: str) -> str:
    """JavaScript that finds the drawn box of a frame."""
    return f"boxes.find(b => b.i >= 0 && T.F.name[T.frame[b.i]] === {json.dumps(name)})"


def click(page, name: str) -> None:
    page.mouse.click(*page.evaluate(f"((b, r) => [r.left + b.left + 1, r.top + b.y + 5])({named(page, name)}, {VIEW})"))


@pytest.mark.browser
def test_zoom_search_and_lines(page):
    page = page(stacks())
    assert page.inner_text("#total").startswith("1.00 cores")
    width = page.evaluate("$('view').clientWidth")
    share = page.evaluate(f"(b => b.right - b.left)({named(page, 'collate')})") / width
    assert share == pytest.approx(0.95, abs=0.01), "both lines of collate are one frame"
    click(page, "clear_huge_page")
    assert page.inner_text("#total").startswith("0.25 cores") and "25.0 %" in page.inner_text("#total")
    page.keyboard.press("Escape")
    assert page.inner_text("#total").startswith("1.00 cores")
    page.keyboard.press("l")
    lines = page.evaluate(
        "boxes.filter(b => b.i >= 0 && T.F.name[T.frame[b.i]] === 'collate').map(b => T.F.line[T.frame[b.i]]).sort()"
    )
    assert lines == [88, 91]
    page.keyboard.press("/")
    page.keyboard.type("/cat|huge/")
    assert page.inner_text("#found") == "3 found, 65.0 %", "clear_huge_page under cat counts once"
    assert page.eval_on_selector_all("#list .row", "rows => rows.length") == 2
    page.keyboard.press("Enter")
    assert "cat<float>" in page.inner_text("#say")
    page.keyboard.press("Escape")
    assert page.inner_text("#found") == "/"


@pytest.mark.browser
def test_table_sums_recursion_once_and_names_stay_text(page):
    recursive = tuple(Row({"comm": "x", "thread": "x"}, path, 10) for path in ((0, 3, 3, 3), (0, 3), (5,)))
    page = page(stacks(recursive))
    rows = page.eval_on_selector_all(
        "#list .row", "rows => rows.map(r => [r.title, ...[...r.querySelectorAll('.num')].map(n => n.innerText)])"
    )
    assert ["at::native::cat<float>(int)", "0.20", "0.20"] in rows
    assert any(row[0].startswith("</script>") for row in rows) and page.query_selector("#list img") is None


@pytest.mark.browser
def test_keyboard_theme_and_flip(page):
    page = page(stacks())
    page.focus("#view")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert page.inner_text("#say").startswith("<module>")
    page.keyboard.press("Enter")
    assert "95.0 %" in page.inner_text("#total")
    before = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("t")
    assert {before, page.evaluate("document.documentElement.dataset.theme")} == {"light", "dark"}
    page.keyboard.press("f")
    assert page.evaluate("boxes.find(b => b.i === 0).y > boxes.find(b => T.depth[b.i] === 3).y")


@pytest.mark.browser
def test_a_hundred_thousand_nodes_are_drawn_quickly_and_small_ones_open(page):
    frames = tuple(Frame(f"f{i}", "native", f"lib{i % 9}.so") for i in range(400))
    rows = tuple(
        Row({"comm": "x", "thread": "x"}, (i % 7, i % 350, i // 350, i % 399), 1 + i % 3) for i in range(40_000)
    )
    page = page(Stacks("cpu", "samples", 10_000_000, 0, 10**9, frames, rows))
    assert page.evaluate("T.size") > 80_000
    timing = "(t => { for (let i = 0; i < 5; i++) draw(); return (performance.now() - t) / 5; })(performance.now())"
    assert page.evaluate(timing) < 100
    small = page.evaluate(f"((b, r) => [r.left + b.left + 1, r.top + b.y + 5, b.hi - b.lo])({SMALL}, {VIEW})")
    page.mouse.click(small[0], small[1])
    assert page.evaluate("S.view.hi - S.view.lo") == small[2]


@pytest.mark.browser
def test_a_deep_stack_scrolls_under_a_canvas_that_stays(page):
    frames = tuple(Frame(f"f{i}", "native") for i in range(300))
    page = page(Stacks("cpu", "samples", 10_000_000, 0, 10**9, frames, (Row({"comm": "x"}, tuple(range(300)), 9),)))
    offset = "$('view').getBoundingClientRect().top - $('scroll').getBoundingClientRect().top"
    assert page.evaluate(offset) == 0
    page.evaluate("$('scroll').scrollTop = 1e9")
    page.wait_for_function("boxes.some(b => b.i === T.size - 1)")
    assert page.evaluate(offset) == 0
    assert page.evaluate("Math.max(...boxes.map(b => b.y)) < $('scroll').clientHeight")
    page.keyboard.press("f")
    page.wait_for_function("boxes.some(b => b.i === 0)")


@pytest.mark.browser
def test_nothing_recorded_says_so(page):
    page = page(stacks(()))
    assert page.is_visible("#nothing") and not page.is_visible("#view")
