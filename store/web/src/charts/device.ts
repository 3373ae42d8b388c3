// SPDX-License-Identifier: Apache-2.0
// Device time, stacked to 100 %: what each GPU did with every second; pure. Several GPUs: their mean, or a lane for each.
import type { Column } from "../api.ts";
import { across, blank, meanOver, type Block, type Curve } from "./block.ts";
import type { Chart, ChartDef, Drawn, Picked } from "./chart.ts";

const PERCENT = 1e7; // ns per second -> %
const WHOLE = 0.9995; // a second of which more was recorded is no estimate
export const RECORDED = "gpu.time.recorded", UNKNOWN = "gpu.time.unknown";

export const DEVICE: ChartDef = {
  id: "device", title: "Device time", unit: "%", gpu: true, extra: false, needs: "gpu_time", aux: [RECORDED], kind: "share", max: "percent", value: (v) => `${v > 0 && v < 0.5 ? "<1" : Math.round(v)} %`,
  readings: [
    { name: "gpu.time.compute", label: "compute", color: "--k-g", help: "Kernels that work." },
    { name: "gpu.time.collective", label: "collective", color: "--k-x", help: "NCCL and its like. A rank that spins in a collective waits for another." },
    { name: "gpu.time.copy", label: "copy", color: "--k-m", help: "Copies and memsets while nothing else ran." },
    { name: UNKNOWN, label: "unknown", color: "--d-unknown", fill: "dots", help: "Not covered by records, so neither busy nor idle may be said." },
    { name: "gpu.time.idle", label: "idle", color: "--idle", fill: "hatch", help: "Nothing ran, on no stream." },
  ],
};

/** Share of launches recorded over from .. to, mean of the picked GPUs; null where the agent does not tell. */
export function shareOver(b: Block | undefined, p: Pick<Picked, "gpu">, from: number, to: number, scale = 1): number | null {
  const each = (b?.curves ?? []).filter((c) => p.gpu === "" || c.labels["gpu_index"] === p.gpu).map((c) => meanOver(b!, c.mean, from, to)).filter((v) => v !== null);
  return each.length ? each.reduce((a, v) => a + v, 0) / each.length / scale : null;
}

const inPercent = (c: Column): Column => c.map((v) => (v === null || v === undefined ? null : v / PERCENT));
const LANE_GAP = 12; // of 100

export function deviceOf(def: ChartDef, blocks: Map<string, Block>, grid: Block, p: Picked): Chart {
  const recorded = blocks.get(RECORDED), whole = recorded !== undefined && recorded.curves.length > 0 && recorded.curves.every((c) => c.mean.every((v) => v === null || v >= WHOLE));
  const value = (v: number): string => `${whole ? "" : "~"}${def.value(v)}`;
  const curves = def.readings.map((r) => (blocks.get(r.name)?.curves ?? []).filter((c) => p.gpu === "" || c.labels["gpu_index"] === p.gpu).map((c): Curve => ({ labels: c.labels, mean: inPercent(c.mean), min: inPercent(c.min), max: inPercent(c.max) })));
  const several = curves[0].length > 1, apart = p.apart && several;
  const one = (i: number, label: string, mean: Column, spread: Curve[], base: number): Drawn => {
    const r = def.readings[i];
    return { label, color: r.color, fill: r.fill, dash: [], right: false, area: true, help: r.help, mean, low: null, high: null, value, spread, filter: null, base };
  };
  const drawn: Drawn[] = [], legend: Drawn[] = [];
  const n = curves[0].length, pitch = 100 + LANE_GAP;
  if (apart) {
    curves[0].forEach((c, lane) => {
      const index = c.labels["gpu_index"] ?? String(lane);
      def.readings.forEach((_, i) => { const mine = curves[i].find((x) => x.labels["gpu_index"] === c.labels["gpu_index"]); drawn.push(one(i, `GPU ${index} ${def.readings[i].label}`, mine?.mean ?? blank(grid.n), [], (n - 1 - lane) * pitch)); });
      const mine = drawn.slice(-def.readings.length);
      legend.push(...(n <= 2 ? [mine[0], mine[mine.length - 1]] : [mine[0]]));
    });
  } else {
    def.readings.forEach((r, i) => { if (curves[i].length) drawn.push(one(i, r.label, across(curves[i], grid.n).mean, several ? curves[i] : [], 0)); });
  }
  return {
    id: def.id, title: def.title, unit: def.unit, kind: "share", grid, drawn, legend: apart ? legend : drawn, max: apart ? n * pitch - LANE_GAP : 100,
    ticks: apart ? curves[0].map((_, lane) => (n - 1 - lane) * pitch + 50) : [0, 50, 100],
    tick: (v) => (apart ? curves[0][n - 1 - Math.round((v - 50) / pitch)]?.labels["gpu_index"] ?? "" : String(v)),
    right: null, canSplit: several && p.gpu === "", apart, leftOut: 0, missing: "",
  };
}
