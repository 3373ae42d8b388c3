# SPDX-License-Identifier: Apache-2.0
"""GPU time, GPU idle, off-CPU, device time and the finding on the page, in real Chromium with data of known shape.

Node web-g, 120 s, 10 % recorded, launches counted. GPU 0 computes 60 % of each of the first 60 s and 20 % of the rest,
idle under `collate` for what is left but 2 % unknown; GPU 1 computes 50 % and is 20 % in AllReduce, then 40 % and 58 %.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder
from tests.page_driver import clean_page, running_browser, start

pytest.importorskip("playwright", reason="pip install playwright")
pytestmark = pytest.mark.browser

MAIN = F("main", "python", "", "/srv/app/train.py", 10)
COLLATE = F("collate", "python", "", "/srv/app/data.py", 88)
LAUNCH = F("cuLaunchKernel", "cuda_api", "libcuda.so.1")
GEMM_NAME = "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_bias_TNT"
GEMM = (F(GEMM_NAME, "cuda", "", "void gemm<192, 192>(float*)"), LAUNCH, MAIN)
NCCL = (
    F("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective"),
    LAUNCH,
    F("torch::autograd::generated::AddmmBackward0::apply", "native", "libtorch_cpu.so"),
)
LOCK = (F("futex_wait_queue", "kernel", "vmlinux"), F("lock", "native", "libc.so.6"), MAIN)
SHARES = {  # (gpu, late) -> parts of a second
    (0, False): {"compute": 0.6, "collective": 0.0, "copy": 0.0, "unknown": 0.02, "idle": 0.38},
    (0, True): {"compute": 0.2, "collective": 0.0, "copy": 0.0, "unknown": 0.02, "idle": 0.78},
    (1, False): {"compute": 0.5, "collective": 0.2, "copy": 0.0, "unknown": 0.02, "idle": 0.28},
    (1, True): {"compute": 0.4, "collective": 0.58, "copy": 0.0, "unknown": 0.02, "idle": 0.0},
}


def process(gpu: int) -> dict[str, str]:
    pid = str(500 + gpu)
    names = {"process.executable.name": "python3", "gpustrobe.process.script": "train.py", "thread.name": "main"}
    return {**names, "process.pid": pid, "thread.id": pid}


def fill(store) -> None:
    profiles, metrics = ProfilesBuilder({"host.name": "web-g"}), MetricsBuilder({"host.name": "web-g"})
    for i in range(120):
        rows: dict[tuple[str, str], list] = {}
        for gpu in range(2):
            parts, labels = SHARES[gpu, i >= 60], {**process(gpu), "gpu.uuid": f"GPU-{gpu}", "gpu.index": str(gpu)}
            for stack, part, launches in ((GEMM, "compute", 50), (NCCL, "collective", 2)):
                if parts[part]:
                    value = round(parts[part] * 1e9)
                    rows.setdefault(("gpu_time", "nanoseconds"), []).append((labels, stack, value))
                    rows.setdefault(("gpu_launches", "count"), []).append((labels, stack, launches))
            if parts["idle"]:
                idle = (labels, (COLLATE, MAIN) if gpu == 0 else (MAIN,), round(parts["idle"] * 1e9))
                rows.setdefault(("gpu_idle", "nanoseconds"), []).append(idle)
            device = {"gpu__uuid": f"GPU-{gpu}", "gpu__index": str(gpu), "gpu__name": "NVIDIA H100"}
            at = store.first + i + 0.99
            for name, share in parts.items():
                metrics.gauge(f"gpu.time.{name}", at, share * 1e9, "ns/s", **device)
            metrics.gauge("gpu.time.recorded", at, 0.1, "1", **device).gauge("gpu.time.counted", at, 1.0, "1", **device)
            metrics.gauge("gpu.utilization", at, 100 * (1 - parts["idle"]), "%", **device)
            holds = {"process__pid": str(500 + gpu), "process__executable__name": "python3", **device}
            metrics.gauge("gpu.process.memory", at, 6e9, "By", **holds)
        rows[("off_cpu", "nanoseconds")] = [(process(0), LOCK, 500_000_000)]
        rows[("samples", "count")] = [(process(0), (COLLATE, MAIN), 40)]
        for kind, samples in rows.items():
            profiles.window(store.first + i, samples, kind, **({} if kind[0] == "samples" else {"period": 1}))
        metrics.books(store.first + i, produced=200, idle=160, delivered=40)
    metrics.gauge("gpustrobe.agent.state", store.first + 119, 1, gpu="ok")
    for name, value in (("system.cpu.logical.count", 4), ("gpustrobe.agent.cpu", 0.004), ("gpustrobe.gpu.duty", 0.1)):
        metrics.gauge(name, store.first + 119, value)
    store.post("/v1development/profiles", profiles.bytes())
    store.post("/v1/metrics", metrics.bytes())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    running = start(tmp_path_factory.mktemp("store") / "data")
    try:
        fill(running)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def browser():
    with running_browser() as running:
        yield running


@pytest.fixture
def page(browser, store):
    with clean_page(browser, store) as ours:
        yield ours


def text(page, selector: str) -> str:
    return re.sub(r"\s+", " ", page.page.locator(selector).first.inner_text())


def legend(page, chart: str) -> list[str]:
    return [re.sub(r"\s+", " ", one) for one in page.page.locator(f"[data-chart={chart}] .leg").all_inner_texts()]


def cells(page, row: int) -> list[str]:
    return [re.sub(r"\s+", " ", one) for one in page.page.locator(f"#kernel-{row} > *").all_inner_texts()]


def span(page, first: int, last: int) -> str:
    return f"sel={(page.store.first + first) * 1000}-{(page.store.first + last) * 1000}"


def test_gpu_time_with_the_kernel_table(page):
    page.open("node=web-g&tab=gpu_time")
    # (0.6 + 0.2 + 0.7 + 0.98) * 60 s of 240
    assert text(page, "#total") == "~62 % of 2 GPUs, 149 s"
    assert re.search(r"s \(95 %\), 12.240 launches counted, 120 windows$", text(page, "#bar span"))
    assert text(page, "#tab-gpu_time") == "GPU time 10 % recorded, scaled"
    assert text(page, "#tab-gpu_idle") == "GPU idle 10 % recorded, 2 % unknown"
    assert [c.strip() for c in page.page.locator("#kernels [role=columnheader]").all_inner_texts()][1:] == [
        "Time ▾", "Share", "Launches", "Mean", "p99", "Queue", "Launched from",
    ]  # fmt: skip
    name, *rest = cells(page, 0)
    assert rest == ["~102 s", "68.5 %", "12 000", "8.50 ms", "–", "–", "train.py:10"]
    assert re.fullmatch(r"GPU kernel ?nvjet_\w+…\w+_TNT", name)
    assert cells(page, 1)[1:3] == ["~46.8 s", "31.5 %"]
    assert cells(page, 1)[-1] == "AddmmBackward0"
    assert "void gemm<192, 192>(float*)" in page.page.locator("#kernel-0").get_attribute("title")
    assert page.colours() > 5
    split = page.page.locator("#split").bounding_box()
    assert page.page.locator("div.table").bounding_box()["width"] / split["width"] == pytest.approx(0.48, abs=0.01)


def test_device_time_adds_up_and_can_be_separated(page):
    page.open("node=web-g&tab=gpu_time")
    assert legend(page, "device") == [
        "compute ~43 % 40–45", "collective ~20 % 0–39", "copy ~0 %", "unknown ~2 %", "idle ~36 % 14–58",
    ]  # fmt: skip
    page.page.locator("[data-chart=device] button.unit").click()
    page.until(lambda: legend(page, "device")[0].startswith("GPU 0"))
    assert legend(page, "device") == [
        "GPU 0 compute ~40 %",
        "GPU 0 idle ~58 %",
        "GPU 1 compute ~45 %",
        "GPU 1 idle ~14 %",
    ]
    page.page.locator("[data-chart=device] h2 button").click()
    assert page.page.locator("aside tbody tr").count() == 120


def test_selection_and_gpu_picker_change_it_all(page):
    page.open(f"node=web-g&tab=gpu_time&{span(page, 70, 90)}")
    assert text(page, "#total") == "~59 % of 2 GPUs, 23.6 s"
    page.page.locator("#gpu").select_option("0")
    page.until(lambda: text(page, "#total") == "~20 % of GPU 0, 4.00 s")
    assert legend(page, "device")[0] == "compute ~20 %"
    page.until(lambda: page.page.locator("[id^=kernel-]").count() == 1)
    assert page.query()["gpu"] == "0"


def test_the_finding_leads_to_the_line(page):
    page.open("node=web-g")
    finding = text(page, "#finding .cut")
    assert (
        finding
        == "GPU 0 was idle ~58 % of this range, 100 % of it under collate, data.py:88. GPU 1 waited for it: ~39 % in AllReduce"
    )
    assert re.search(r"\d+–\d+ % \(95 % interval\), 120 recording windows", text(page, "#finding .ev"))
    page.page.locator("#finding").click()
    page.until(lambda: page.query().get("tab") == "gpu_idle" and page.query().get("focus") == "^collate$")
    page.until(lambda: text(page, "#total") == "~58 % of GPU 0 idle, 69.6 s")
    assert page.query()["gpu"] == "0"
    assert page.page.locator(".trow .code").first.inner_text() == "collate"


def test_hover_links_kernel_and_frame_and_a_click_zooms(page):
    page.open("node=web-g&tab=gpu_time")
    page.page.locator("#kernel-1").wait_for()
    before = page.pixels()
    page.page.locator("#kernel-1").hover()
    page.until(lambda: page.pixels() != before)
    page.page.locator("#kernel-1").click()
    page.until(lambda: page.query().get("zoom"))
    assert page.page.locator(".trow[data-out]").count() == 1  # the other kernel is not below it
    assert page.page.locator(".crumbs").inner_text().endswith("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    page.page.mouse.move(*page.row(5, 0.5))
    tip = page.until(lambda: page.page.locator(".tip").count() and text(page, ".tip"))
    assert "collective" in tip and "~46.8 s" in tip and re.search(r"interval [\d.]+–[\d.]+ s \(95 %\)", tip) and "launches 240" in tip


def test_kernels_by_keyboard_search_and_order(page):
    page.open("node=web-g&tab=gpu_time")
    page.page.locator("#kernel-1").wait_for()
    page.page.locator("#kernels").focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    assert "ncclDevKernel" in page.page.locator("#say").inner_text()
    page.page.locator("#kernels [role=columnheader] button", has_text="Launches").click()
    page.until(lambda: page.query().get("ksort") == "launches")
    page.page.locator("#kernels [role=columnheader] button", has_text="Launches").click()
    page.until(lambda: "nccl" in cells(page, 0)[0])
    page.page.keyboard.press("/")
    page.page.keyboard.type("train.py:10")
    page.until(lambda: page.page.locator("[id^=kernel-]").count() == 1 and "nvjet" in cells(page, 0)[0])
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("nobody")
    page.until(lambda: page.page.get_by_text("No kernel matches.").count())


def test_off_cpu_says_time_and_threads(page):
    page.open("node=web-g&tab=off_cpu")
    assert text(page, "#total") == "60.0 s waited"
    assert text(page, "#bar span") == "0.500 threads waiting on average"
    assert page.page.locator(".trow .code").first.inner_text() == "futex_wait_queue"


def test_rates_are_of_the_seconds_that_were_profiled(page):
    first = page.store.first * 1000
    page.open(f"node=web-g&from={first - 120_000}&to={first + 120_000}")
    assert text(page, "#total") == "0.40 cores"  # 40 samples of 9.973 ms in each profiled second
    assert text(page, "#covered") == "profiled 2 min of 4 min"


def test_processes_without_the_library_are_counted(page):
    def unmeasured(route):
        answer = route.fetch()
        body = answer.json()
        for row in body["rows"]:
            row["gpu_time"] = 0
        route.fulfill(response=answer, json=body)

    def without(route):
        answer = route.fetch()
        body = answer.json()
        for node in body["nodes"]:
            node["types"] = ["cpu"]
        route.fulfill(response=answer, json=body)

    page.page.route("**/api/v1/processes*", unmeasured)
    page.open("node=web-g")
    page.until(lambda: "2 CUDA processes, 0 with device time here." in text(page, "#nodevicetime"))
    page.page.route("**/api/v1/status*", without)
    page.page.reload()
    page.page.wait_for_selector("#nodevicetime")
    page.until(lambda: page.page.locator("[data-chart=device]").count() == 0)
    page.page.keyboard.press("2")
    page.page.wait_for_selector("#needs")
    page.until(lambda: text(page, "#needs h3") == "2 CUDA processes, 0 measured")
    assert "2 CUDA processes, 0 measured." in text(page, "#nodevicetime")
    assert "gpustrobe run -- python train.py" in text(page, "#needs")


def test_full_detail_states_its_cost_before_anything_happens(page):
    page.open("node=web-g&tab=gpu_time")
    assert page.page.locator("#detail").count() == 0  # this node does not offer it
    asked = []

    def offers(route):
        answer = route.fetch()
        body = answer.json()
        body["nodes"][0]["detail"] = {"seconds": 10, "cost": "about 9 % slower for 10 s"}
        route.fulfill(response=answer, json=body)

    def take(route):
        asked.append(json.loads(route.request.post_data))
        route.fulfill(json={})

    page.page.route("**/api/v1/status*", offers)
    page.page.route("**/api/v1/detail", take)
    page.page.reload()
    page.page.locator("#detail").click()
    assert text(page, "#detailcost") == "It costs: about 9 % slower for 10 s."
    assert asked == []
    page.page.locator(".pop .primary").click()
    page.until(lambda: asked == [{"node": "web-g", "seconds": 10}])
    page.until(lambda: page.page.locator("#detailcost").count() == 0)
