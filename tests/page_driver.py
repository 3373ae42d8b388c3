# SPDX-License-Identifier: Apache-2.0
"""Drives the page in real Chromium against a real store process with data of known shape.

Known data, node web-a with two GPUs, 120 s that end 5 s before the fill: in each of the first 60 s `early` 50 samples,
in each of the last 60 s `late` 100 samples, `serve` of nginx 10 samples in all: 120 * 10 + 60 * 50 + 60 * 100 = 10,200.
web-b has no GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
TOTAL = 10_200
GPU_COUNT = 2

COLOURS = """() => {
  const c = document.getElementById("flame"), seen = new Set();
  const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  for (let i = 0; i < d.length; i += 28) seen.add(d[i] << 24 | d[i + 1] << 16 | d[i + 2] << 8 | d[i + 3]);
  return seen.size;
}"""

ROOT = (F("_start", module="app"), F("main", "python", "python3.12", "/srv/app/main.py", 10))
EARLY = (F("early", "python", "python3.12", "/srv/app/job.py", 20), *reversed(ROOT))
LATE = (
    F("copy<int>(int*)", module="libwork.so"),
    F("late", "python", "python3.12", "/srv/app/job.py", 40),
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


@contextmanager
def running_store(folder: Path) -> Iterator[Store]:
    running = start(folder)
    try:
        fill(running)
        yield running
    finally:
        running.stop()


@contextmanager
def running_browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@contextmanager
def clean_page(browser, store: Store, **options) -> Iterator[Page]:
    """A page that must end without console errors, CSP violations and requests to anyone but the store."""
    ours = new_page(browser, store, **options)
    yield ours
    assert ours.problems == []
    assert [a for a in ours.addresses if not a.startswith(store.base)] == []
    ours.page.context.close()


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
        return self.page.evaluate(COLOURS)

    def pixels(self) -> str:
        return self.page.evaluate("() => document.getElementById('flame').toDataURL()")


def new_page(browser, store: Store, width: int = 1440, height: int = 900, **options) -> Page:
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    ours = Page(page, store, [], [])
    page.add_init_script(
        "addEventListener('securitypolicyviolation',"
        " (e) => console.error('CSP ' + e.violatedDirective + ' ' + e.blockedURI + e.sourceFile))"
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
