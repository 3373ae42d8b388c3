// SPDX-License-Identifier: Apache-2.0
// The tree by function: self and total, recursion counted once.
import type { Tree } from "./tree.ts";

export interface FunctionRow { fn: number; frame: number; self: number; total: number; nodes: number }

export function functionRows(t: Tree, root = 0): FunctionRow[] {
  const nf = t.frames.example.length, self = new Float64Array(nf), total = new Float64Array(nf), nodes = new Uint32Array(nf);
  const open = new Uint32Array(nf); // how often a function is on the stack of the walk
  const best = new Int32Array(nf).fill(-1), bestValue = new Float64Array(nf);
  const stack = new Int32Array(2 * t.n + 2); // a node is pushed once to enter and once to leave
  let top = 1;
  stack[0] = root;
  const fn = t.frames.fn;
  while (top) {
    const i = stack[--top];
    if (i < 0) { open[fn[t.frame[~i]]]--; continue; }
    const f = fn[t.frame[i]];
    self[f] += t.self[i];
    nodes[f]++;
    if (!open[f]) total[f] += t.total[i];
    if (t.total[i] > bestValue[f]) { bestValue[f] = t.total[i]; best[f] = t.frame[i]; }
    open[f]++;
    stack[top++] = ~i;
    for (let c = t.start[i + 1] - 1; c >= t.start[i]; c--) stack[top++] = c;
  }
  const out: FunctionRow[] = [];
  for (let f = 0; f < nf; f++) {
    if (!nodes[f]) continue;
    const k = t.frames.kind[t.frames.example[f]];
    if (k !== "root" && k !== "process" && k !== "thread") out.push({ fn: f, frame: best[f] < 0 ? t.frames.example[f] : best[f], self: self[f], total: total[f], nodes: nodes[f] });
  }
  return out;
}

/** Self value by frame kind, for the legend. */
export function selfByKind(t: Tree): Map<string, number> {
  const out = new Map<string, number>(), byFrame = new Float64Array(t.frames.name.length).fill(-1);
  for (let i = 0; i < t.n; i++) { const f = t.frame[i]; byFrame[f] = Math.max(0, byFrame[f]) + t.self[i]; }
  for (let f = 0; f < byFrame.length; f++) {
    const k = t.frames.kind[f];
    if (byFrame[f] >= 0 && k !== "root" && k !== "process" && k !== "thread") out.set(k, (out.get(k) ?? 0) + byFrame[f]);
  }
  return out;
}
