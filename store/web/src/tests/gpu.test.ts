// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Kernel, KernelsAnswer, Origin } from "../api.ts";
import { blockOf, type Block } from "../charts/block.ts";
import { chartOf, readout } from "../charts/chart.ts";
import { DEVICE, RECORDED, shareOver } from "../charts/device.ts";
import { framesOf, fullName, onDevice, place } from "../flame/frames.ts";
import { cutMiddle, intervalText, kernelTest, kernelTitle, launchText, originText, sortKernels, timeText } from "../table/kernelrows.ts";
import { START, urlOf, viewOf } from "../view.ts";

const PICKED = { gpus: [], gpu: "", apart: false, by: "comm", cores: 4 };
/** Two GPUs, two seconds: GPU 0 computes 60 %, then 20 %; GPU 1 always 50 %. The rest is idle; 2 % unknown. */
function blocks(recorded: number): Map<string, Block> {
  const of = (name: string, a: number[], b: number[], unit = "ns/s") => [name, blockOf({ name, unit, step_ms: 1000, t_ms: [0, 1000], series: [{ labels: { gpu: "A", gpu_index: "0" }, mean: a }, { labels: { gpu: "B", gpu_index: "1" }, mean: b }] }, 0, 2000)] as [string, Block];
  return new Map([of("gpu.time.compute", [6e8, 2e8], [5e8, 5e8]), of("gpu.time.collective", [0, 0], [2e8, 2e8]), of("gpu.time.copy", [0, 0], [0, 0]), of("gpu.time.unknown", [2e7, 2e7], [2e7, 2e7]), of("gpu.time.idle", [3.8e8, 7.8e8], [2.8e8, 2.8e8]), of(RECORDED, [recorded, recorded], [recorded, recorded], "1")]);
}

test("device time: mean of the GPUs, adds up to 100 %, estimates have a tilde", () => {
  const c = chartOf(DEVICE, blocks(0.1), PICKED);
  assert.deepEqual(c.drawn.map((d) => d.label), ["compute", "collective", "copy", "unknown", "idle"]);
  assert.deepEqual(c.drawn.map((d) => readout(c, d, 0, 2000)), [{ value: "~45 %", spread: "40–50" }, { value: "~10 %", spread: "0–20" }, { value: "~0 %", spread: "" }, { value: "~2 %", spread: "" }, { value: "~43 %", spread: "28–58" }]);
  for (const i of [0, 1]) assert.ok(Math.abs(c.drawn.reduce((a, d) => a + (d.mean[i] ?? 0), 0) - 100) < 1e-9);
  assert.equal(c.canSplit, true);
  assert.deepEqual(c.drawn.slice(-2).map((d) => d.fill), ["dots", "hatch"]);
  assert.equal(shareOver(blocks(0.1).get(RECORDED), { gpu: "" }, 0, 2000), 0.1);
  assert.equal(shareOver(undefined, { gpu: "" }, 0, 2000), null);
});

test("device time: what was recorded whole is no estimate; one GPU; a lane for each", () => {
  const whole = chartOf(DEVICE, blocks(1), { ...PICKED, gpu: "0" });
  assert.deepEqual(readout(whole, whole.drawn[0], 0, 1000), { value: "60 %", spread: "" });
  const lanes = chartOf(DEVICE, blocks(0.1), { ...PICKED, apart: true });
  assert.equal(lanes.drawn.length, 10);
  assert.deepEqual([...new Set(lanes.drawn.map((d) => d.base))], [112, 0]);
  assert.deepEqual([lanes.max, lanes.ticks, lanes.ticks.map(lanes.tick)], [212, [162, 50], ["0", "1"]]);
  assert.deepEqual(lanes.legend?.map((d) => `${d.label} ${readout(lanes, d, 0, 2000).value}`), ["GPU 0 compute ~40 %", "GPU 0 idle ~58 %", "GPU 1 compute ~50 %", "GPU 1 idle ~28 %"]);
});

const origin = (name: string, kind: Origin["kind"], file = "", line = 0): Origin => ({ name, kind, module: "", file, line, share: 0.75, others: 1 });
const kernel = (name: string, time: number, more: Partial<Kernel> = {}): Kernel => ({
  name, full: name, kind: "cuda", module: "", category: "compute", time, interval: null, share: 0.1, launches: 10, mean_ns: time / 10, p99_ns: null, p99_why: "9 launches were recorded here, fewer than 100", queue_ns: null,
  registers: "", grid: "", block: "", shared: "", from: null, ...more,
});
const list = [kernel("b", 5e6, { p99_ns: 7e5 }), kernel("a", 9e6, { full: "void a<128>(float*)", from: origin("step", "python", "/srv/train.py", 30) }), kernel("c", 1e6, { p99_ns: 9e5, from: origin("torch::autograd::generated::MulBackward0::apply", "native") })];
const answer: KernelsAnswer = { kernels: list, count: 3, total: 15e6, launches: 30, seconds: 2, estimate: { recorded: 0.1, counted: true, windows: 20, gpus: 1, gpu_seconds: 2, interval: null }, missing: { queue: "not shipped" } };

test("kernels: sorted either way, what is not known last", () => {
  const names = (by: Parameters<typeof sortKernels>[1], up = false) => sortKernels(list, by, up).map((k) => k.name).join("");
  assert.equal(names("time"), "abc");
  assert.equal(names("time", true), "cba");
  assert.equal(names("name"), "abc");
  assert.equal(names("p99"), "cba");
  assert.equal(names("p99", true), "bca");
  assert.equal(names("queue"), "abc");
  assert.equal(names("from"), "cab");
});

test("kernels: search takes text or a pattern, in full names and origins too", () => {
  const found = (q: string) => list.filter(kernelTest(q)).map((k) => k.name).join("");
  assert.equal(found("FLOAT"), "a");
  assert.equal(found("train.py:30"), "a");
  assert.equal(found("/^[bc]$/"), "bc");
  assert.equal(found("/(/"), "");
});

test("kernels: texts", () => {
  assert.equal(originText(list[1].from!), "train.py:30");
  assert.equal(originText(origin("MulBackward0", "native")), "MulBackward0");
  assert.equal(cutMiddle("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20), "ncclDevKern…_RING_LL");
  assert.equal(cutMiddle("short", 20), "short");
  assert.equal(timeText(answer, 5e6), "~5.00 ms");
  assert.equal(launchText(answer, 41200), "41\u202f200");
  const uncounted = { ...answer, estimate: { ...answer.estimate, counted: false } };
  assert.equal(launchText(uncounted, 41200), "~41\u202f200");
  assert.equal(launchText({ ...uncounted, estimate: { ...uncounted.estimate, recorded: 1, windows: 0 } }, 41200), "41\u202f200");
  assert.equal(launchText(answer, null), "–");
  assert.equal(intervalText([4.01e9, 4.4e9]), "4.01–4.40 s");
  assert.equal(intervalText([148.9e9, 149.1e9]), "148.9–149.1 s");
  assert.match(kernelTitle(answer, list[1]), /^void a<128>\(float\*\)\ncompute\n.*\nlaunched from step, \/srv\/train.py:30: 75\u202f% of its time, 1 more\nno p99: 9 launches.*\nno queue delay: not shipped$/);
});

test("device frames: the full name is the file; processes part by GPU, not by pid", () => {
  const f = framesOf({ name: ["gemm", "ncclAllReduce", "python3", "python3", "python3"], kind: ["cuda", "collective", "process", "process", "process"], module: ["", "libnccl.so.2", "", "", ""], file: ["void gemm<128>(float*)", "", "pid 1, GPU 0", "pid 9, GPU 0", "pid 2, GPU 1"], line: [0, 0, 0, 0, 0], reason: ["", "", "", "", ""] });
  assert.equal(fullName(f, 0), "void gemm<128>(float*)");
  assert.equal(place(f, 0), "");
  assert.equal(place(f, 1), "libnccl.so.2");
  assert.ok(onDevice(f, 0));
  assert.equal(f.hash[2], f.hash[3]);
  assert.notEqual(f.hash[2], f.hash[4]);
});

test("the URL holds the kernel table's order", () => {
  const v = { ...START, ksort: "p99" as const, kup: true };
  assert.deepEqual(viewOf(urlOf(v)), v);
  assert.deepEqual(viewOf("ksort=evil"), START);
});
