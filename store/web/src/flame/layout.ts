// SPDX-License-Identifier: Apache-2.0
// Which rectangles a window of the tree shows. Rows never move on a zoom: only the horizontal window changes, ancestors cover it all.
import { leftOut, type Tree } from "./tree.ts";

/** Horizontal window in shares of the root, 0..1. */
export interface Window { a: number; b: number }

export interface Rect {
  node: number; // the frame; for a heap of small ones the parent
  row: number;
  x: number; // px, clipped to the view
  w: number;
  small: number; // how many frames were merged; 0 for a frame
  first: number; // of merged frames: the first child that is merged
  faded: boolean; // an ancestor of what is zoomed into
}

export const LEAST_PX = 1.2; // narrower frames merge

/** Left edge and width of a node, in shares of the root. */
export function extent(t: Tree, node: number): Window {
  let a = 0;
  for (let i = node; i > 0; i = t.parent[i]) for (let c = t.start[t.parent[i]]; c < i; c++) a += t.total[c];
  const all = t.total[0] || 1;
  return { a: a / all, b: (a + t.total[node]) / all };
}

/** The window of the children of `node` from child `first` on: what "n smaller" opens. */
export function extentOfSmall(t: Tree, node: number, first: number): Window {
  const e = extent(t, node), all = t.total[0] || 1;
  let a = e.a * all, w = leftOut(t, node);
  for (let c = t.start[node]; c < t.start[node + 1]; c++) { if (c < first) a += t.total[c]; else w += t.total[c]; }
  return { a: a / all, b: (a + w) / all };
}

/** Rectangles of the window, by row. O(what is visible): subtrees outside the window or too narrow are never entered. */
export function layout(t: Tree, win: Window, width: number, zoomDepth = 0): Rect[][] {
  const rows: Rect[][] = [], all = t.total[0];
  if (!(all > 0) || width <= 0) return rows;
  const px = width / (win.b - win.a) / all, left = win.a * all;
  const put = (r: Rect) => { (rows[r.row] ??= []).push(r); };
  const at: number[] = [0], from: number[] = [0];
  while (at.length) {
    const i = at.pop()!, x0 = from.pop()!, row = t.depth[i];
    const l = (x0 - left) * px, r = l + t.total[i] * px;
    const x = Math.max(0, l), w = Math.min(width, r) - x;
    put({ node: i, row, x, w, small: 0, first: 0, faded: row < zoomDepth });
    let cx = x0, c = t.start[i];
    const end = t.start[i + 1];
    for (; c < end; c++) {
      const cw = t.total[c] * px;
      if (cw < LEAST_PX) break; // widest first: the rest is narrower still
      const cl = (cx - left) * px;
      if (cl < width - 1e-6 && cl + cw > 1e-6) { at.push(c); from.push(cx); }
      cx += t.total[c];
    }
    let rest = leftOut(t, i);
    const first = c;
    for (; c < end; c++) rest += t.total[c];
    const sl = Math.max(0, (cx - left) * px), sr = Math.min(width, (cx - left + rest) * px);
    if (sr - sl >= 1) put({ node: i, row: row + 1, x: sl, w: sr - sl, small: Math.max(1, end - first), first, faded: false });
  }
  for (const row of rows) row?.sort((p, q) => p.x - q.x);
  return rows;
}

export function hit(rows: Rect[][], row: number, x: number): Rect | null {
  const line = rows[row];
  if (!line) return null;
  let lo = 0, hi = line.length - 1;
  while (lo <= hi) {
    const mid = (lo + hi) >> 1, r = line[mid];
    if (x < r.x) hi = mid - 1;
    else if (x >= r.x + r.w) lo = mid + 1;
    else return r;
  }
  return null;
}
