// SPDX-License-Identifier: Apache-2.0
// The tree by function: self and total, recursion counted once.
import type { Tree } from "./tree.ts";

export interface FunctionRow { fn: number; frame: number; self: number; total: number; nodes: number }

export function functionRows(t: Tree, root = 0): FunctionRow[] {
  const nf = t.frames.example.length, self = new Float64Array(nf), total = new Float64Array(nf), nodes = new Uint32Array(nf);
  const open = new Uint32Array(nf); // how often a function is on the stack of the walk
  const best = new Int32Array(nf).fill(-1), bestValue = new Float64Array(nf);
  const stack = [root];
  const fn = t.frames.fn;
  while (stack.length) {
    const i = stack.pop()!;
    if (i < 0) { open[fn[t.frame[~i]]]--; continue; }
    const f = fn[t.frame[i]];
    self[f] += t.self[i];
    nodes[f]++;
    if (!open[f]) total[f] += t.total[i];
    if (t.total[i] > bestValue[f]) { bestValue[f] = t.total[i]; best[f] = t.frame[i]; }
    open[f]++;
    stack.push(~i);
    for (let c = t.start[i + 1] - 1; c >= t.start[i]; c--) stack.push(c);
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
  const out = new Map<string, number>();
  for (let i = 0; i < t.n; i++) {
    const k = t.frames.kind[t.frame[i]];
    if (k !== "root" && k !== "process" && k !== "thread") out.set(k, (out.get(k) ?? 0) + t.self[i]);
  }
  return out;
}
