// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import { across, addAll, blockOf, meanOver, splice } from "../charts/block.ts";
import { chartOf, CHARTS, readout } from "../charts/chart.ts";
import { bytes, cores, count, digits, percent, seconds, span } from "../format.ts";
import { formatMatch, parseMatch } from "../match.ts";
import { flatLines, treeLines } from "../table/lines.ts";
import { functionRows } from "../flame/rows.ts";
import { chartStep, formatDuration, niceMax, parseDuration, parseTime, rangeText, tickStep, timeTicks, valueTicks } from "../time.ts";
import { frozen, rangeOf, START, urlOf, viewOf, type View } from "../view.ts";
import { node, tree } from "./stacks.ts";

const NOW = Date.UTC(2026, 2, 12, 14, 32, 30);

test("times as typed", () => {
  assert.equal(parseTime("now", NOW, true), NOW);
  assert.equal(parseTime("-1h30m", NOW, true), NOW - 5400e3);
  assert.equal(parseTime("now-90s", NOW, true), NOW - 90e3);
  assert.equal(parseTime("14:31", NOW, true), Date.UTC(2026, 2, 12, 14, 31));
  assert.equal(parseTime("23:00:05", NOW, true), Date.UTC(2026, 2, 11, 23, 0, 5));
  assert.equal(parseTime("2026-03-12 14:31:34", NOW, true), Date.UTC(2026, 2, 12, 14, 31, 34));
  assert.equal(parseTime("2026-03-12T14:31:34+02:00", NOW, true), Date.UTC(2026, 2, 12, 12, 31, 34));
  assert.equal(parseTime(String(NOW), NOW, true), NOW);
  for (const bad of ["", "5m", "-5", "25:00", "yesterday", "2026-13-45"]) assert.equal(parseTime(bad, NOW, true), null, bad);
  assert.equal(parseDuration("1h30m"), 5400e3);
  assert.equal(formatDuration(5400e3), "1h30m");
});

test("ranges show dates only when they are not today's", () => {
  assert.equal(rangeText(NOW - 180e3, NOW, NOW, true), "14:29:30 to 14:32:30");
  assert.equal(rangeText(NOW - 86400e3, NOW - 86300e3, NOW, true), "2026-03-11 14:32:30 to 14:34:10");
});

test("ticks are round and far enough apart", () => {
  assert.equal(tickStep(180e3, 1100), 15);
  const ticks = timeTicks(NOW - 180e3, NOW, 1100, true);
  assert.ok(ticks.every((t) => t % 15e3 === 0) && ticks.length === 13);
  assert.deepEqual(valueTicks(niceMax(6.3)), [0, 4, 8]);
  assert.deepEqual(valueTicks(niceMax(2.7)), [0, 1.5, 3]);
  for (const v of [0.003, 0.7, 1, 9.9, 37, 101, 6e9]) { const m = niceMax(v), t = valueTicks(m); assert.ok(m >= v && t[t.length - 1] === m, String(v)); }
  assert.equal(chartStep(300e3, 1140), 1000);
  assert.equal(chartStep(86400e3, 1140) % 1000, 0);
  assert.ok(86400e3 / chartStep(86400e3, 1140) <= 1140 / 3);
});

test("numbers as people read them", () => {
  assert.equal(cores(3.2), "3.20 cores");
  assert.equal(digits(0.0412), "0.0412");
  assert.equal(count(41230118), "41\u202f230\u202f118");
  assert.equal(percent(0.106), "10.6\u202f%");
  assert.equal(percent(0.00001), "<\u202f0.1\u202f%");
  assert.equal(percent(1), "100\u202f%");
  assert.equal(seconds(0.0042), "4.20 ms");
  assert.equal(bytes(65 * 2 ** 30), "65.0 GiB");
  assert.equal(span(5400), "90 min");
});

test("matchers survive being written and read", () => {
  const list = parseMatch('comm="python3", pod!="x",script=~"train.*",thread!~"a\\"b,c"')!;
  assert.equal(list.length, 4);
  assert.equal(list[3].value, 'a"b,c');
  assert.deepEqual(parseMatch(formatMatch(list)), list);
  assert.deepEqual(parseMatch("comm=python3"), [{ label: "comm", op: "=", value: "python3" }]);
  assert.equal(parseMatch('comm="python'), null);
});

test("the URL holds the whole view", () => {
  const v: View = {
    ...START, from: String(NOW - 3600e3), to: String(NOW), resume: "-1h", sel: [NOW - 9e3, NOW - 1e3], node: "gpu-node-07", gpu: "1", apart: ["activity"], match: parseMatch('comm="a b&c=d",x=~"y|z"')!, tab: "gpu_idle",
    zoom: 0xdeadbeef, heap: 3, fn: "abc", focus: "^a\\+b$", exclude: ["x;y", "z"], q: "/foo|bar/", flip: true, recursion: true, runtime: true, mine: true, lines: true, off: ["kernel"], sort: "name", up: true, tree: true,
    charts: ["pcie", "clocks"], by: "script", utc: true, theme: "dark", split: 0.412, pane: "table",
  };
  assert.deepEqual(viewOf(urlOf(v)), v);
  assert.equal(urlOf(START), "");
  assert.deepEqual(viewOf("from=garbage&sel=1-2&zoom=xyz&theme=pink&split=7&sort=evil"), START);
});

test("freezing fixes relative times and keeps the way back", () => {
  const r = rangeOf(START, NOW - 2000, NOW), f = frozen(START, r);
  assert.equal(r.to - r.from, 300e3);
  assert.deepEqual([f.from, f.to, f.resume], [String(NOW - 302e3), String(NOW - 2000), "-5m"]);
  assert.deepEqual(rangeOf(f, NOW + 1e6, NOW + 1e6), r);
});

test("series: gaps stay, a tail is spliced in, strangers go to the rest", () => {
  const whole = blockOf({ name: "cpu", unit: "cores", step_ms: 1000, t_ms: [1000, 2000, 4000], series: [{ labels: { comm: "a" }, mean: [1, 2, 4] }, { labels: { by: "other" }, mean: [5, 5, 5] }] }, 1000, 5000);
  assert.deepEqual(whole.curves[0].mean, [1, 2, null, 4]);
  const tail = blockOf({ name: "cpu", unit: "cores", step_ms: 1000, t_ms: [4000, 5000], series: [{ labels: { comm: "a" }, mean: [40, 50] }, { labels: { comm: "new" }, mean: [7, 8] }] }, 4000, 6000);
  const joined = splice(whole, tail, 2000, 6000);
  assert.deepEqual(joined.curves[0].mean, [2, null, 40, 50]);
  assert.deepEqual(joined.curves[1].mean, [5, null, 7, 8]);
  assert.equal(meanOver(joined, joined.curves[0].mean, 4500, 6000), (40 * 0.5 + 50) / 1.5);
  assert.equal(meanOver(joined, joined.curves[0].mean, 3000, 4000), null);
  assert.deepEqual(addAll(joined.curves).mean, [7, null, 47, 58]);
});

test("a mean over GPUs has a band; a missing GPU does not count as zero", () => {
  const c = (mean: (number | null)[]) => ({ labels: {}, mean, min: mean, max: mean });
  assert.deepEqual(across([c([10, null]), c([30, 8])], 2), { mean: [20, 8], low: [10, 8], high: [30, 8] });
});

test("readout: mean of the range, least and greatest GPU", () => {
  const def = CHARTS.find((d) => d.id === "activity")!;
  const b = blockOf({ name: "gpu.utilization", unit: "%", step_ms: 1000, t_ms: [0, 1000], series: [{ labels: { gpu: "A", gpu_index: "0" }, mean: [31, 31] }, { labels: { gpu: "B", gpu_index: "1" }, mean: [73, 73] }] }, 0, 2000);
  const chart = chartOf(def, new Map([["gpu.utilization", b]]), { gpus: [], gpu: "", apart: false, by: "comm", cores: 4 });
  assert.deepEqual(readout(chart, chart.drawn[0], 0, 2000), { value: "52 %", spread: "31–73" });
  assert.match(chart.missing, /memory busy, power/);
  const one = chartOf(def, new Map([["gpu.utilization", b]]), { gpus: [], gpu: "1", apart: false, by: "comm", cores: 4 });
  assert.deepEqual(readout(one, one.drawn[0], 0, 2000), { value: "73 %", spread: "" });
});

test("table lines: sorted, filtered, or the open part of the tree", () => {
  const t = tree("main;b 5\nmain;a 3\nmain;a;c 1"), rows = functionRows(t), names = (l: { frame: number }[]) => l.map((x) => t.frames.name[x.frame]);
  assert.deepEqual(names(flatLines(t, rows, null, [], "self", false)), ["b", "a", "c", "main"]);
  assert.deepEqual(names(flatLines(t, rows, null, [], "total", false)), ["main", "b", "a", "c"]);
  assert.deepEqual(names(flatLines(t, rows, null, [], "name", true)), ["main", "c", "b", "a"]);
  assert.deepEqual(names(flatLines(t, rows, null, ["native"], "self", false)), []);
  const open = new Set([t.path[0], t.path[node(t, "main")]]);
  assert.deepEqual(names(treeLines(t, 0, open, [])), ["all", "main", "b", "a"]);
});
