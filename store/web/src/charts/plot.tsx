// SPDX-License-Identifier: Apache-2.0
// One chart's drawing by uPlot; crosshair, selection and marks lie over all charts and are not its business.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Column } from "../api.ts";
import { dots, hatch, palette, type Palette } from "../palette.ts";
import { range } from "../state.ts";
import type { Chart, Drawn } from "./chart.ts";

const TOP = 8, BOTTOM = 7;

export function Plot({ chart }: { chart: Chart }) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null), shape = useRef(""), latest = useRef(chart);
  latest.current = chart;
  const colors = palette.value, r = range.value;
  useEffect(() => {
    const el = box.current!;
    const watch = new ResizeObserver(() => { if (plot.current && el.clientWidth) plot.current.setSize({ width: el.clientWidth, height: el.clientHeight }); });
    watch.observe(el);
    return () => { watch.disconnect(); plot.current?.destroy(); plot.current = null; shape.current = ""; };
  }, []);
  useEffect(() => {
    const el = box.current!, form = JSON.stringify([chart.id, chart.kind, colors.theme, chart.drawn.map((d) => [d.label, d.color, d.right, d.base]), chart.right !== null, colors.px("--ax-l")]);
    const data = dataOf(chart);
    if (!plot.current || form !== shape.current) {
      plot.current?.destroy();
      plot.current = new uPlot(options(chart, colors, el, latest), data, el);
      shape.current = form;
    } else plot.current.setData(data, false);
    const u = plot.current;
    u.batch(() => {
      u.setScale("x", { min: r.from / 1000, max: r.to / 1000 });
      u.setScale("y", { min: 0, max: chart.max });
      if (chart.right) u.setScale("r", { min: 0, max: chart.right.max });
    });
    u.redraw();
  });
  return <div class="plot" ref={box} role="img" aria-label={`${chart.title}; its data as a table opens from its title`} />;
}

/** Lines: low, high and mean of each. Stack: running sums, top first, so that each layer is painted over by those below it. */
function dataOf(c: Chart): uPlot.AlignedData {
  const { t0, step, n } = c.grid, shift = c.kind === "lines" ? step / 2 : 0;
  const x = Array.from({ length: n }, (_, i) => (t0 + i * step + shift) / 1000);
  if (c.kind === "lines") return [x, ...c.drawn.flatMap((d) => [d.low ?? d.mean, d.high ?? d.mean, d.mean])];
  const sums: Column[] = [];
  let below: Column = [], base = 0;
  for (const d of c.drawn) {
    if ((d.base ?? 0) !== base) { base = d.base ?? 0; below = []; } // another GPU's lane
    below = d.mean.map((v, i) => (v === null ? below[i] ?? null : v + (below[i] ?? base)));
    sums.push(below);
  }
  return [x, ...sums.reverse()];
}

const alpha = (color: string, a: number): string => `color-mix(in srgb, ${color} ${a * 100}%, transparent)`;

function options(c: Chart, p: Palette, el: HTMLElement, latest: { current: Chart }): uPlot.Options {
  const font = `11px ${p.get("--sans")}`, text = p.get("--text-3"), axR = p.px("--ax-r");
  const axis = { stroke: text, font, gap: 7, ticks: { show: false } };
  return {
    width: el.clientWidth || 600, height: el.clientHeight || 88, pxAlign: 1, padding: [TOP, c.right ? 0 : axR, BOTTOM, 0],
    cursor: { show: false }, legend: { show: false }, select: { show: false, left: 0, top: 0, width: 0, height: 0 },
    scales: { x: { time: false, auto: false }, y: { auto: false, range: (_u, a, b) => [a ?? 0, b ?? 1] }, r: { auto: false, range: (_u, a, b) => [a ?? 0, b ?? 1] } },
    axes: [
      { show: false },
      { ...axis, scale: "y", size: p.px("--ax-l"), splits: () => latest.current.ticks, values: (_u, v) => v.map((x) => latest.current.tick(x)), grid: { stroke: p.get("--grid"), width: 1 } },
      ...(c.right ? [{
        ...axis, scale: "r", side: 1 as const, size: axR, splits: () => latest.current.right?.ticks ?? [], grid: { show: false },
        values: (_u: uPlot, v: number[]) => v.map((x, i) => `${Math.round(x)}${i === v.length - 1 ? ` ${latest.current.right?.unit ?? ""}` : ""}`),
      }] : []),
    ],
    series: [{}, ...(c.kind !== "lines" ? [...c.drawn].reverse().map((d) => layer(d, p, latest)) : c.drawn.flatMap((d) => lines(d, p)))],
    bands: c.kind === "lines" ? c.drawn.flatMap((d, i) => (d.low ? [{ series: [i * 3 + 2, i * 3 + 1] as [number, number], fill: alpha(p.get(d.color), 0.15) }] : [])) : [],
    hooks: { drawAxes: [(u) => baseline(u, p.get("--edge"))] },
  };
}

function baseline(u: uPlot, color: string): void {
  const y = Math.round(u.valToPos(0, "y", true)) + 0.5, { ctx, bbox } = u;
  ctx.save(); ctx.strokeStyle = color; ctx.lineWidth = Math.max(1, Math.round(devicePixelRatio)); ctx.beginPath();
  ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke(); ctx.restore();
}

function lines(d: Drawn, p: Palette): uPlot.Series[] {
  const color = p.get(d.color), scale = d.right ? "r" : "y", edge: uPlot.Series = { scale, stroke: "transparent", width: 0, points: { show: false } };
  return [edge, edge, {
    scale, stroke: color, width: d.dash.length || d.right ? 1.25 : 1.5, dash: d.dash, fill: d.area ? alpha(color, 0.13) : undefined, points: { show: lonely, size: 3, fill: color },
  }];
}
/** A value between two gaps has no line: it gets a point. */
const lonely = (u: uPlot, s: number): boolean => (u.data[s] as Column).some((v, i, a) => v !== null && v !== undefined && (a[i - 1] ?? null) === null && (a[i + 1] ?? null) === null);

/** Steps: a value covers its whole second; edges lie on whole pixels, so that neighbours touch. */
function layer(d: Drawn, p: Palette, latest: { current: Chart }): uPlot.Series {
  const ratio = devicePixelRatio || 1;
  return {
    scale: "y", fill: d.fill ? (u) => (d.fill === "hatch" ? hatch : dots)(u.ctx, p.get(d.color), p.get("--hatch"), ratio, false) : p.get(d.color), stroke: "transparent", width: 0, points: { show: false },
    paths: (u, s, i0, i1) => {
      const fill = new Path2D(), x = u.data[0], y = u.data[s] as Column, w = latest.current.grid.step / 1000, zero = u.valToPos(d.base ?? 0, "y", true);
      for (let i = Math.max(0, i0 - 1); i <= i1; i++) {
        const v = y[i];
        if (v === null || v === undefined) continue;
        const a = Math.round(u.valToPos(x[i], "x", true)), b = Math.round(u.valToPos(x[i] + w, "x", true)), top = Math.round(u.valToPos(v, "y", true));
        fill.rect(a, top, b - a, Math.round(zero) - top);
      }
      return { stroke: new Path2D(), fill, flags: 1 };
    },
  };
}
