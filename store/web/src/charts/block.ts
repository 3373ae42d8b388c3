// SPDX-License-Identifier: Apache-2.0
// Series on a fixed grid of steps: a live chart asks for its tail only and splices it in.
import type { Column, SeriesAnswer } from "../api.ts";

export interface Curve { labels: Record<string, string>; mean: Column; min: Column; max: Column }
/** Point i covers t0 + i * step .. + step, ms. */
export interface Block { unit: string; step: number; t0: number; n: number; curves: Curve[]; leftOut: number }

export const blank = (n: number): Column => new Array<number | null>(n).fill(null);
export const curveKey = (labels: Record<string, string>): string => JSON.stringify(Object.entries(labels).sort());

/** The answer on the grid of `from` .. `to`; what the store did not send is null. */
export function blockOf(answer: SeriesAnswer, from: number, to: number): Block {
  const step = answer.step_ms, t0 = Math.floor(from / step) * step, n = Math.max(1, Math.ceil((to - t0) / step));
  const at = answer.t_ms.map((t) => Math.floor((t - t0) / step + 1e-6));
  const place = (c: Column | undefined): Column => {
    const out = blank(n);
    if (c) at.forEach((i, k) => { if (i >= 0 && i < n) out[i] = c[k]; });
    return out;
  };
  const curves = answer.series.map((s) => { const mean = place(s.mean); return { labels: s.labels, mean, min: s.min ? place(s.min) : mean, max: s.max ? place(s.max) : mean }; });
  return { unit: answer.unit, step, t0, n, curves, leftOut: answer.left_out ?? 0 };
}

/**
 * `old` moved to the grid of `from` .. `to`, with everything from `tail.t0` on taken from `tail`. Curves that only the tail has
 * are added to the curve of the rest where there is one (`other` in CPU charts: its members change), else stand on their own.
 */
export function splice(old: Block, tail: Block, from: number, to: number): Block {
  const step = old.step, t0 = Math.floor(from / step) * step, n = Math.max(1, Math.ceil((to - t0) / step));
  const shift = (t0 - old.t0) / step, cut = Math.min(n, Math.max(0, (tail.t0 - t0) / step));
  const move = (c: Column, fresh: Column | null): Column => {
    const out = blank(n);
    for (let i = Math.max(0, -shift); i < cut && i + shift < c.length; i++) out[i] = c[i + shift];
    if (fresh) for (let i = cut; i < n; i++) out[i] = fresh[i - cut] ?? null;
    return out;
  };
  const byKey = new Map(tail.curves.map((c) => [curveKey(c.labels), c]));
  const known = new Set(old.curves.map((c) => curveKey(c.labels)));
  const strangers = tail.curves.filter((c) => !known.has(curveKey(c.labels)));
  const covered = tail.curves[0]?.mean ?? blank(tail.n); // where the tail has any data a missing curve is zero for stacks
  const curves = old.curves.map((c) => {
    let f = byKey.get(curveKey(c.labels)) ?? null;
    if (isRest(c.labels) && strangers.length) f = addAll([...(f ? [f] : []), ...strangers]);
    else if (!f && old.curves.some((x) => isRest(x.labels))) { const z = covered.map((v) => (v === null ? null : 0)); f = { labels: c.labels, mean: z, min: z, max: z }; }
    return { labels: c.labels, mean: move(c.mean, f?.mean ?? null), min: move(c.min, f?.min ?? null), max: move(c.max, f?.max ?? null) };
  });
  if (!old.curves.some((c) => isRest(c.labels))) {
    for (const s of strangers) curves.push({ labels: s.labels, mean: move([], s.mean), min: move([], s.min), max: move([], s.max) });
  }
  return { unit: tail.unit || old.unit, step, t0, n, curves, leftOut: old.leftOut };
}

export const isRest = (labels: Record<string, string>): boolean => labels["by"] === "other";

export function addAll(curves: Curve[]): Curve {
  const sum = (pick: (c: Curve) => Column): Column => pick(curves[0]).map((_, i) => curves.reduce<number | null>((a, c) => { const v = pick(c)[i]; return v === null || v === undefined ? a : (a ?? 0) + v; }, null));
  return { labels: curves[0].labels, mean: sum((c) => c.mean), min: sum((c) => c.min), max: sum((c) => c.max) };
}

/** Mean of a column over from .. to, each point weighted by how much of it lies inside; null without data. */
export function meanOver(b: Pick<Block, "t0" | "step" | "n">, c: Column, from: number, to: number): number | null {
  let sum = 0, weight = 0;
  const i0 = Math.max(0, Math.floor((from - b.t0) / b.step)), i1 = Math.min(b.n, Math.ceil((to - b.t0) / b.step));
  for (let i = i0; i < i1; i++) {
    const v = c[i];
    if (v === null || v === undefined) continue;
    const w = Math.min(to, b.t0 + (i + 1) * b.step) - Math.max(from, b.t0 + i * b.step);
    sum += v * w; weight += w;
  }
  return weight > 0 ? sum / weight : null;
}

/** Across curves, point by point: mean, least and greatest of those that have a value. */
export function across(curves: Curve[], n: number): { mean: Column; low: Column; high: Column } {
  const mean = blank(n), low = blank(n), high = blank(n), one = curves.length === 1;
  for (let i = 0; i < n; i++) {
    let s = 0, k = 0, lo = Infinity, hi = -Infinity;
    for (const c of curves) {
      const v = c.mean[i];
      if (v === null || v === undefined) continue;
      s += v; k++;
      const a = one ? (c.min[i] ?? v) : v, z = one ? (c.max[i] ?? v) : v;
      if (a < lo) lo = a;
      if (z > hi) hi = z;
    }
    if (k) { mean[i] = s / k; low[i] = lo; high[i] = hi; }
  }
  return { mean, low, high };
}
