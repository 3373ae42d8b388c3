# SPDX-License-Identifier: Apache-2.0
"""The page in real Chromium against a real store process with data of known shape.

Known data, node web-a with two GPUs, 120 s that end 5 s before the fill: in each of the first 60 s `early` 50 samples, in each of the
last 60 s `late` 100 samples, `serve` of nginx 10 samples in all. 120 * 10 + 60 * 50 + 60 * 100 = 10,200 samples. web-b has no GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
TOTAL = 10_200
GPU_COUNT = 2

pytestmark = pytest.mark.browser

ROOT = (F("_start", module="app"), F("main", "python", "python3.12", "/srv/app/main.py", 10))
EARLY = (F("early", "python", "python3.12", "/srv/app/work.py", 20), *reversed(ROOT))
LATE = (
    F("copy<int>(int*)", module="libwork.so"),
    F("late", "python", "python3.12", "/srv/app/work.py", 40),
    *reversed(ROOT),
)
SERVE = (F("vfs_read", "kernel", "vmlinux"), F("serve", module="nginx"))
APP = {
    "process.executable.name": "python3",
    "gpustrobe.process.script": "app.py",
    "process.pid": "100",
    "thread.id": "100",
    "thread.name": "main",
}
NGINX = {"process.executable.name": "nginx", "process.pid": "200", "thread.id": "200", "thread.name": "nginx"}


@dataclass
class Store:
    process: subprocess.Popen
    base: str
    data: Path
    first: int  # second of the first window

    def post(self, path: str, body: bytes) -> None:
        request = urllib.request.Request(self.base + path, body, {"content-type": "application/x-protobuf"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def window(self, node: str, second: int, samples: list, lost: int = 0) -> None:
        count = sum(value for _, _, value in samples)
        self.post("/v1development/profiles", ProfilesBuilder({"host.name": node}).window(second, samples).bytes())
        metrics = MetricsBuilder({"host.name": node})
        metrics.books(second, produced=count + lost + 40, idle=40, delivered=count, ring_full=lost)
        self.post("/v1/metrics", metrics.bytes())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


def start(data: Path, http: str = "127.0.0.1:0") -> Store:
    command = [sys.executable, "-m", "gpustrobe.store", "--data", str(data), "--grpc", "127.0.0.1:0", "--http", http]
    process = subprocess.Popen(
        [*command, "--die-with-parent"], stdout=subprocess.PIPE, stderr=(data.parent / "store.log").open("w"), text=True
    )
    line = process.stdout.readline()
    assert line.startswith("ready "), line
    return Store(process, f"http://{json.loads(line[6:])['http']}", data, int(time.time()) - 125)


def fill(store: Store) -> None:
    profiles = ProfilesBuilder({"host.name": "web-a"})
    metrics = MetricsBuilder({"host.name": "web-a"})
    other = ProfilesBuilder({"host.name": "web-b"})
    other_metrics = MetricsBuilder({"host.name": "web-b"})
    for i in range(120):
        at, app = store.first + i, (APP, EARLY, 50) if i < 60 else (APP, LATE, 100)
        profiles.window(at, [app, (NGINX, SERVE, 10)])
        metrics.books(
            at,
            produced=400,
            idle=400 - app[2] - 10 - (2 if i == 30 else 0),
            delivered=app[2] + 10,
            ring_full=2 if i == 30 else 0,
        )
        other.window(at, [(NGINX, SERVE, 20)])
        other_metrics.books(at, produced=200, idle=180, delivered=20)
        for gpu in range(GPU_COUNT):
            labels = {"gpu__uuid": f"GPU-{gpu}", "gpu__index": str(gpu), "gpu__name": "NVIDIA H100"}
            metrics.gauge("gpu.utilization", at, 80.0 if gpu else 40.0, "%", **labels)
            metrics.gauge("gpu.power", at, 500.0, "W", **labels)
            metrics.gauge("gpu.memory.used", at, 20.0 * 2**30, "By", **labels)
            metrics.gauge("gpu.memory.total", at, 80.0 * 2**30, "By", **labels)
    for builder, end in ((metrics, "ok"), (other_metrics, "no NVIDIA driver on this machine")):
        builder.gauge("gpustrobe.agent.state", store.first + 119, 1, gpu=end)
        builder.gauge("system.cpu.logical.count", store.first + 119, 4)
        builder.gauge("gpustrobe.agent.cpu", store.first + 119, 0.004)
        builder.gauge("gpustrobe.agent.bpf", store.first + 119, 0.002)
    for builder in (profiles, other):
        store.post("/v1development/profiles", builder.bytes())
    for builder in (metrics, other_metrics):
        store.post("/v1/metrics", builder.bytes())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    running = start(tmp_path_factory.mktemp("store"))
    fill(running)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@dataclass
class Page:
    page: object
    store: Store
    problems: list
    addresses: list

    def open(self, query: str = "", wait: str = "#total") -> Page:
        first, last = self.store.first * 1000, (self.store.first + 120) * 1000
        if "from=" not in query and "live" not in query:
            query = f"from={first}&to={last}&{query}"
        self.page.goto(f"{self.store.base}/?{query if 'node=' in query else 'node=web-a&' + query}")
        self.page.wait_for_selector(wait)
        self.page.wait_for_selector("[data-chart=cpu] .leg")
        return self

    def samples(self) -> int:
        text = self.page.locator("#bar span").first.inner_text()
        return int(re.match(r"[\d\u202f]+", text)[0].replace("\u202f", ""))

    def query(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(urlsplit(self.page.url).query).items()}

    def until(self, check, seconds: float = 6.0):
        end = time.monotonic() + seconds
        while True:
            value = check()
            if value or time.monotonic() > end:
                assert value, f"not within {seconds} s; at {self.page.url}"
                return value
            self.page.wait_for_timeout(50)

    def drag(self, a: float, b: float, modifiers: str = "") -> None:
        """Over the charts, from share `a` to share `b` of the visible range."""
        box = self.page.locator("#over").bounding_box()
        if modifiers:
            self.page.keyboard.down(modifiers)
        self.page.mouse.move(box["x"] + box["width"] * a, box["y"] + 30)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + box["width"] * b, box["y"] + 30, steps=4)
        self.page.mouse.up()
        if modifiers:
            self.page.keyboard.up(modifiers)

    def row(self, row: int, share: float = 0.1) -> tuple[float, float]:
        """A point on row `row` of the flame graph."""
        box = self.page.locator("#flame").bounding_box()
        return box["x"] + 12 + (box["width"] - 24) * share, box["y"] + 4 + 18 * row + 9

    def colours(self) -> int:
        """How many different colours the flame graph shows, from every 7th pixel."""
        return self.page.evaluate(
            "() => { const c = document.getElementById('flame'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, s = new Set();"
            " for (let i = 0; i < d.length; i += 28) s.add(d[i] << 24 | d[i + 1] << 16 | d[i + 2] << 8 | d[i + 3]); return s.size; }"
        )

    def pixels(self) -> str:
        return self.page.evaluate("() => document.getElementById('flame').toDataURL()")


def new_page(browser, store: Store, width: int = 1440, height: int = 900, **options) -> Page:
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    ours = Page(page, store, [], [])
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => console.error('CSP ' + e.violatedDirective + ' ' + e.blockedURI + e.sourceFile))"
    )
    page.on(
        "console",
        lambda m: (
            ours.problems.append(m.text)
            if m.type in ("error", "warning") and "willReadFrequently" not in m.text
            else None
        ),
    )
    page.on("pageerror", lambda e: ours.problems.append(str(e)))
    page.on("request", lambda r: ours.addresses.append(r.url))

    def strict(route):  # stricter than the store's own: the page needs no inline style at all
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": STRICT})

    page.route(re.compile(r"/(\?.*)?$"), strict)
    return ours


@pytest.fixture
def page(browser, store):
    ours = new_page(browser, store)
    yield ours
    assert ours.problems == []
    assert [a for a in ours.addresses if not a.startswith(store.base)] == []
    ours.page.context.close()


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
    assert text.startswith("late") and "/srv/app/work.py" in text
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


def test_no_gpu_folds_with_reason(page):
    page.open("node=web-b")
    fold = page.page.locator("#nogpu").inner_text()
    assert "No NVIDIA driver on this machine" in fold and "gpustrobe doctor" in fold
    assert page.page.locator("#gpu").count() == 0
    assert page.page.locator("[data-chart]").count() == 1
    page.page.keyboard.press("2")
    page.page.wait_for_selector("#needs")
    assert "No GPU on web-b" in page.page.locator("#needs").inner_text()


def test_empty_range_offers_the_way(page):
    first = page.store.first * 1000
    page.open(f"from={first - 7_200_000}&to={first - 6_900_000}", wait="#empty")
    assert "The first data is from" in page.page.locator("#empty").inner_text()
    page.page.get_by_text("Jump there").click()
    page.page.wait_for_selector("#total")
    assert page.samples() > 0


def test_filters_that_match_nothing_can_be_removed(page):
    page.open("match=comm%3D%22nobody%22", wait="#empty")
    page.page.get_by_text("Remove them").click()
    page.page.wait_for_selector("#total")
    assert page.samples() == TOTAL


def test_too_large_proposes_a_narrower_range(page):
    def refuse(route):
        body = {"error": {"code": "too_large", "message": "7 million stacks", "hint": "Ask for 1 minute."}}
        route.fulfill(status=413, content_type="application/json", body=json.dumps(body))

    page.page.route("**/api/v1/flamegraph*", refuse, times=1)
    page.open(wait="#failed")
    assert "Ask for 1 minute." in page.page.locator("#failed").inner_text()
    page.page.locator("#failed button").click()
    page.page.wait_for_selector("#total")
    assert int(page.query()["to"]) - int(page.query()["from"]) == 60_000
    page.problems[:] = [p for p in page.problems if "413" not in p]  # Chromium's own line about the answer


def test_first_seconds_count_what_arrives(page):
    def young(route):
        answer = route.fetch()
        body = answer.json()
        for node in body["nodes"]:
            node |= {"first_ms": body["now_ms"] - 4000, "live": True}
        route.fulfill(response=answer, json=body)

    page.page.route("**/api/v1/status*", young)
    page.open("live=&from=-5m&to=now", wait="#beginning")
    assert re.match(r"Listening for \d s\.", page.page.locator("#beginning h3").inner_text())
    page.page.unroute("**/api/v1/status*")
    page.page.wait_for_selector("#total")


def big_answer(nodes: int) -> dict:
    """A tree of `nodes` nodes, up to 40 deep, of 4,000 functions; a wide part and thousands of frames below a pixel."""
    frames = {"name": ["all"], "kind": ["root"], "module": [""], "file": [""], "line": [0], "reason": [""]}
    for i in range(1, 4000):
        kind = ("python", "native", "kernel", "native")[i % 4]
        for key, value in (
            ("name", f"space{i % 37}::function_{i}<int>(void*)"),
            ("kind", kind),
            ("module", f"lib{i % 60}.so"),
            ("file", ""),
            ("line", 0),
            ("reason", ""),
        ):
            frames[key].append(value)
    parent, frame, total = [-1], [0], [50_000_000]
    at = 0
    while len(parent) < nodes:
        left, child = int(total[at] * 0.98), 0
        while left > 0 and child < 40 and len(parent) < nodes:
            value = max(1, left * (7 if child == 0 else 3) // 10)
            parent.append(at)
            frame.append(1 + (at * 31 + child * 17) % 3999)
            total.append(value)
            left, child = left - value, child + 1
        at += 1
    own = list(total)
    for i in range(1, nodes):
        own[parent[i]] -= total[i]
    return {
        "type": "cpu", "unit": "samples", "period_ns": 9973013, "from_ms": 0, "to_ms": 0, "seconds": 120, "cores": 4,
        "total": total[0], "samples": total[0], "all_total": total[0], "frames": frames,
        "nodes": {"parent": parent, "frame": frame, "self": own, "total": total}, "merged": {"nodes": 0, "below": 0},
        "books": {"produced": 0, "idle": 0, "filtered": 0, "delivered": 0, "drops": {}},
    }  # fmt: skip


def test_hundred_thousand_nodes(page, capsys):
    body = json.dumps(big_answer(100_000))
    page.page.route("**/api/v1/flamegraph*", lambda route: route.fulfill(content_type="application/json", body=body))
    times = []
    for _ in range(3):
        page.open()
        entry = page.until(
            lambda: page.page.evaluate(
                "() => { const m = performance.getEntriesByName('flame first paint').pop(); return m && [m.duration, m.detail.nodes, m.detail.draw]; }"
            )
        )
        assert entry[1] == 100_000
        times.append((entry[0], entry[2]))
    best = min(times)
    with capsys.disabled():
        print(
            f"\n100,000 nodes: {best[0]:.0f} ms from the answer's bytes to the first paint (bar: 200), of it {best[1]:.0f} ms drawing; all: {[round(t) for t, _ in times]}"
        )
    assert best[0] < 400  # twice the bar: the machine that runs tests is shared
    # a heap of narrow frames opens
    page.page.mouse.move(*page.row(1, 0.5))
    box = page.page.locator("#flame").bounding_box()
    for x in range(int(box["x"] + box["width"]) - 14, int(box["x"]), -2):
        page.page.mouse.move(x, box["y"] + 4 + 18 * 4 + 9)
        if page.page.locator(".tip h4").count() and "smaller" in page.page.locator(".tip h4").inner_text():
            page.page.mouse.click(x, box["y"] + 4 + 18 * 4 + 9)
            break
    page.until(lambda: "." in page.query().get("zoom", ""))
    assert "smaller frames" in page.page.locator(".crumbs").inner_text()


def test_narrow_page_has_two_tabs(browser, store):
    page = new_page(browser, store, 1000, 800)
    page.open()
    assert page.page.locator("#table").count() == 0
    page.page.get_by_role("button", name="Table").click()
    page.page.wait_for_selector("#table")
    assert page.page.locator("#flame").count() == 0
    assert page.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert page.problems == []
    page.page.context.close()


def test_dark_by_the_system(browser, store, tmp_path):
    page = new_page(browser, store, color_scheme="dark")
    page.open()
    page.until(lambda: page.colours() > 5)
    background = page.page.evaluate("() => getComputedStyle(document.querySelector('header')).backgroundColor")
    assert background == "rgb(20, 24, 29)"
    shot = page.page.screenshot(path=str(tmp_path / "dark.png"))
    assert len(shot) > 30_000  # an empty page of this size packs to 6 kB
    page.page.context.close()


def test_live_holds_still_under_the_pointer_then_catches_up(browser, tmp_path):
    store = start(tmp_path)
    fill(store)
    page = new_page(browser, store)
    page.open("live=&from=-5m&to=now")
    page.until(lambda: page.samples() == TOTAL)
    page.page.mouse.move(*page.row(5))
    page.page.wait_for_timeout(200)
    before = page.pixels()
    for i in range(3):
        store.window("web-a", int(time.time()) - 3 + i, [(NGINX, SERVE, 20_000)])
    with page.page.expect_response(lambda r: "/flamegraph" in r.url, timeout=8000):
        pass
    page.page.wait_for_timeout(300)
    assert page.pixels() == before
    assert page.samples() == TOTAL
    page.page.mouse.move(700, 20)
    page.until(lambda: page.samples() == TOTAL + 60_000, 10)
    assert page.pixels() != before
    assert page.problems == []
    page.page.context.close()
    store.stop()


def test_store_gone_leaves_the_picture_and_comes_back(browser, tmp_path):
    store = start(tmp_path)
    fill(store)
    page = new_page(browser, store)
    page.open("live=&from=-5m&to=now")
    page.until(lambda: page.colours() > 5)
    store.stop()
    page.page.wait_for_selector("#stale", timeout=15_000)
    assert "The store does not answer" in page.page.locator("#stale").inner_text()
    assert page.colours() > 5 and page.samples() == TOTAL
    assert page.page.locator("#status").inner_text() == "store gone"
    again = start(tmp_path, urlsplit(store.base).netloc)
    page.page.locator("#stale button").click()
    page.page.wait_for_selector("#stale", state="detached", timeout=15_000)
    page.until(lambda: page.samples() == TOTAL)
    assert all("ERR_" in p for p in page.problems), page.problems  # Chromium's own lines about the refused connection
    page.page.context.close()
    again.stop()
