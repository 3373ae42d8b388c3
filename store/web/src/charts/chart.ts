// SPDX-License-Identifier: Apache-2.0
// The charts as a table, and what each draws from its series: pure.
import type { Column, Gpu } from "../api.ts";
import { bytes, digits } from "../format.ts";
import type { Matcher } from "../match.ts";
import { niceMax, valueTicks } from "../time.ts";
import { across, addAll, isRest, meanOver, type Block, type Curve } from "./block.ts";
import { DEVICE, deviceOf } from "./device.ts";

interface Reading { name: string; label: string; color: string; fill?: "hatch" | "dots"; dash?: number[]; right?: boolean; area?: boolean; help: string; flat?: boolean }
export interface ChartDef {
  id: string; title: string; unit: string; rightUnit?: string; gpu: boolean; extra: boolean; kind: "lines" | "stack" | "share"; readings: Reading[];
  needs?: string; // the sample type without which there is nothing to draw
  aux?: string[]; // asked for, not drawn
  max: "percent" | "nice" | "memory"; value: (v: number) => string; right?: (v: number) => string;
}

const percent = (v: number): string => `${Math.round(v)} %`;
const GIB = 2 ** 30;
export const CHARTS: ChartDef[] = [
  DEVICE,
  {
    id: "activity", title: "Activity", unit: "%", rightUnit: "W", gpu: true, extra: false, kind: "lines", max: "percent", value: percent, right: (v) => `${Math.round(v)} W`,
    readings: [
      { name: "gpu.utilization", label: "GPU busy", color: "--c-sm", help: "Share of time in which any kernel ran (NVML). A busy GPU may still leave most of its SMs idle." },
      { name: "gpu.memory.utilization", label: "memory busy", color: "--c-tensor", dash: [4, 3], help: "Share of time in which device memory was read or written (NVML)." },
      { name: "gpu.power", label: "power", color: "--c-power", right: true, help: "Board power, right axis." },
    ],
  },
  {
    id: "memory", title: "GPU memory", unit: "GiB", gpu: true, extra: false, kind: "lines", max: "memory", value: (v) => bytes(v),
    readings: [
      { name: "gpu.memory.used", label: "used", color: "--c-mem", area: true, help: "Device memory in use by all processes, driver included." },
      { name: "gpu.memory.total", label: "total", color: "--text-3", dash: [4, 3], flat: true, help: "What the device has." },
    ],
  },
  { id: "cpu", title: "CPU", unit: "cores", gpu: false, extra: false, kind: "stack", max: "nice", value: (v) => digits(v, 2), readings: [{ name: "cpu", label: "", color: "", help: "From samples, 100 a second and core." }] },
  {
    id: "temperature", title: "Temperature", unit: "°C", gpu: true, extra: true, kind: "lines", max: "nice", value: (v) => `${Math.round(v)} °C`,
    readings: [{ name: "gpu.temperature", label: "GPU", color: "--k-x", help: "Temperature of the GPU die." }],
  },
  {
    id: "clocks", title: "Clocks", unit: "MHz", gpu: true, extra: true, kind: "lines", max: "nice", value: (v) => `${Math.round(v)} MHz`,
    readings: [
      { name: "gpu.clock.sm", label: "SM", color: "--c-sm", help: "Clock of the multiprocessors." },
      { name: "gpu.clock.memory", label: "memory", color: "--c-tensor", dash: [4, 3], help: "Clock of device memory." },
      { name: "gpu.clock.graphics", label: "graphics", color: "--c-power", help: "" },
      { name: "gpu.clock.video", label: "video", color: "--c-mem", dash: [1, 3], help: "" },
    ],
  },
  {
    id: "pcie", title: "PCIe", unit: "B/s", gpu: true, extra: true, kind: "lines", max: "nice", value: (v) => `${bytes(v)}/s`,
    readings: [
      { name: "gpu.pcie.tx", label: "sent", color: "--c-sm", help: "From the GPU." },
      { name: "gpu.pcie.rx", label: "received", color: "--c-tensor", dash: [4, 3], help: "To the GPU." },
    ],
  },
  {
    id: "processes", title: "GPU memory by process", unit: "GiB", gpu: true, extra: true, kind: "stack", max: "nice", value: (v) => bytes(v),
    readings: [{ name: "gpu.process.memory", label: "", color: "", help: "Device memory each process holds; what it does not use is what others lack." }],
  },
];

export interface Drawn {
  label: string; color: string; dash: number[]; right: boolean; area: boolean; help: string;
  mean: Column; low: Column | null; high: Column | null; // drawn values
  value: (v: number) => string;
  spread: Curve[]; // the curves behind a mean over GPUs
  filter: Matcher | null;
  fill?: "hatch" | "dots";
  base?: number; // where the stack it belongs to begins
}
export interface Chart {
  id: string; title: string; unit: string; kind: "lines" | "stack" | "share"; grid: Pick<Block, "t0" | "step" | "n">;
  drawn: Drawn[]; legend?: Drawn[]; max: number; ticks: number[]; tick: (v: number) => string;
  right: { max: number; ticks: number[]; unit: string } | null;
  canSplit: boolean; apart: boolean; leftOut: number; missing: string;
}

const STACK = ["--c-cpu1", "--c-cpu2", "--c-cpu4", "--c-cpu5"];
const LEGEND_ROWS = 5;
const topOf = (c: Column): number => c.reduce<number>((a, v) => (v !== null && v > a ? v : a), 0);
const GPU_COLORS = ["--c-sm", "--c-tensor", "--c-mem", "--k-x", "--k-g", "--c-power", "--k-m", "--c-cpu1"];

export interface Picked { gpus: Gpu[]; gpu: string; apart: boolean; by: string; cores: number }

const NOTHING: Block = { unit: "", step: 1000, t0: 0, n: 0, curves: [], leftOut: 0 };
/** Before its first answer a chart has its place already, so that nothing below moves when the data comes. */
export function chartOf(def: ChartDef, blocks: Map<string, Block>, p: Picked): Chart {
  const first = def.readings.map((r) => blocks.get(r.name)).find((b) => b !== undefined) ?? NOTHING;
  if (def.kind === "share") return deviceOf(def, blocks, first, p);
  return def.kind === "stack" ? stackOf(def, first, p) : linesOf(def, blocks, first, p);
}

function stackOf(def: ChartDef, b: Block, p: Picked): Chart {
  const weight = (c: Curve) => c.mean.reduce<number>((a, v) => a + (v ?? 0), 0);
  const named = b.curves.filter((c) => !isRest(c.labels)).sort((x, y) => weight(y) - weight(x));
  const rest = b.curves.filter((c) => isRest(c.labels));
  const room = rest.length || named.length > LEGEND_ROWS ? LEGEND_ROWS - 1 : LEGEND_ROWS;
  const shown = named.slice(0, Math.min(room, STACK.length)), hidden = [...named.slice(shown.length), ...rest];
  const drawn: Drawn[] = shown.map((c, i) => ({ ...plain(def, c), label: nameOf(c, p.by), color: STACK[i], filter: filterOf(c, p.by) }));
  if (hidden.length) {
    const n = named.length - shown.length;
    drawn.push({ ...plain(def, addAll(hidden)), label: rest.length || n !== 1 ? "other" : nameOf(hidden[0], p.by), color: "--c-cpu3", filter: null });
  }
  const sum = b.curves.length ? addAll(b.curves).mean : [];
  const scale = def.id === "processes" ? GIB : 1, max = niceMax(topOf(sum) / scale) * scale;
  return {
    id: def.id, title: def.title, unit: def.id === "cpu" ? `cores of ${p.cores || "?"}` : def.unit, kind: "stack", grid: b, drawn, max,
    ticks: valueTicks(max / scale).map((v) => v * scale), tick: (v) => round(v / scale), right: null, canSplit: false, apart: false, leftOut: b.leftOut, missing: "",
  };
}

const round = (v: number): string => String(Number(v.toPrecision(3)));
/** 0, a round value and its double, the double at most `top`: 79.6 -> 0 40 80 is too high by less than a line, so it counts. */
function halves(top: number): number[] {
  const half = niceMax(top / 2), e = 10 ** Math.floor(Math.log10(half));
  const step = half * 2 <= top * 1.04 ? half : ([8, 6, 5, 4, 3, 2, 1.5, 1].map((m) => m * e).find((m) => m * 2 <= top * 1.04) ?? half / 2);
  return [0, step, step * 2];
}
const plain = (def: ChartDef, c: Curve) => ({ dash: [], right: false, area: true, help: def.readings[0].help, mean: c.mean, low: null, high: null, value: def.value, spread: [] });
function nameOf(c: Curve, by: string): string {
  const l = c.labels;
  if (l["process.executable.name"] || l["process.pid"]) return [l["process.executable.name"], l["process.pid"]].filter(Boolean).join(" ");
  return l[by] || l["script"] || l["comm"] || l["by"] || Object.values(l)[0] || "no name";
}
function filterOf(c: Curve, by: string): Matcher | null {
  const v = c.labels[by];
  return v ? { label: by, op: "=", value: v } : null;
}

function linesOf(def: ChartDef, blocks: Map<string, Block>, grid: Block, p: Picked): Chart {
  const drawn: Drawn[] = [];
  let several = false;
  const missing: string[] = [];
  for (const r of def.readings) {
    const b = blocks.get(r.name);
    const curves = (b?.curves ?? []).filter((c) => p.gpu === "" || c.labels["gpu_index"] === p.gpu || p.gpus.some((g) => g.uuid === c.labels["gpu"]));
    if (!b || !curves.length) { missing.push(r.label); continue; }
    several ||= curves.length > 1;
    const value = r.right && def.right ? def.right : def.value;
    const line = { dash: r.dash ?? [], right: r.right ?? false, area: r.area ?? false, help: r.help, value, filter: null };
    if (p.apart && curves.length > 1 && !r.flat) {
      if (r !== def.readings[0]) continue; // one quantity, a line per GPU
      curves.forEach((c, i) => { const index = c.labels["gpu_index"] ?? String(i); drawn.push({ ...line, label: `GPU ${index}`, color: GPU_COLORS[i % GPU_COLORS.length], dash: [], area: false, mean: c.mean, low: null, high: null, spread: [] }); });
      continue;
    }
    const a = across(curves, b.n);
    drawn.push({ ...line, label: r.label, color: r.color, mean: a.mean, low: r.flat || r.right || r.dash ? null : a.low, high: r.flat || r.right || r.dash ? null : a.high, spread: curves.length > 1 && !r.flat ? curves : [] });
  }
  const left = drawn.filter((d) => !d.right), right = drawn.filter((d) => d.right);
  const top = Math.max(...left.flatMap((d) => [topOf(d.mean), d.high ? topOf(d.high) : 0]), 0), scale = def.id === "memory" ? GIB : 1;
  const tickUnit = def.id === "pcie" ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, top)) / Math.log(1024))) : scale;
  const max = def.max === "percent" ? 100 : def.max === "memory" ? top * 1.1 || 1 : niceMax(top / tickUnit) * tickUnit;
  const rmax = right.length ? niceMax(Math.max(...right.map((d) => topOf(d.mean)))) : 0;
  return {
    id: def.id, title: def.title + (p.apart && several ? `, ${def.readings[0].label}` : ""), unit: def.rightUnit ? `${def.unit} · ${def.rightUnit}` : def.id === "pcie" ? `${bytes(tickUnit).split(" ")[1]}/s` : def.unit, kind: "lines", grid, drawn, max,
    ticks: def.max === "percent" ? [0, 50, 100] : def.max === "memory" ? halves(top / scale).map((v) => v * scale) : valueTicks(max / tickUnit).map((v) => v * tickUnit),
    tick: (v) => round(v / tickUnit),
    right: rmax && right.some((d) => topOf(d.mean) > 0) ? { max: rmax, ticks: [0, rmax / 2, rmax], unit: def.rightUnit ?? "" } : null,
    canSplit: several && p.gpu === "", apart: p.apart && several, leftOut: 0,
    missing: drawn.length && missing.length ? `Not reported by this device: ${missing.join(", ")}` : "",
  };
}

export interface Readout { value: string; spread: string }
/** A legend line for from .. to: mean, and over GPUs the least and greatest mean. */
export function readout(chart: Chart, d: Drawn, from: number, to: number): Readout {
  const m = meanOver(chart.grid, d.mean, from, to);
  if (m === null) return { value: "no data", spread: "" };
  const each = d.spread.map((c) => meanOver(chart.grid, c.mean, from, to)).filter((v) => v !== null).map((v) => bare(d.value(v)));
  const sorted = each.sort((a, b) => a - b), ends = [sorted[0], sorted[sorted.length - 1]].map((v) => (v >= 10 ? String(Math.round(v)) : digits(v, 2)));
  return { value: d.value(m), spread: sorted.length > 1 && ends[0] !== ends[1] ? ends.join("–") : "" };
}
/** The number in a readout, in the readout's unit. */
const bare = (s: string): number => Number(s.replace(/\u202f/g, "").replace(/^[~<]+/, "").replace(/[^\d.-].*$/, ""));
