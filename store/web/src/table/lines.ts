// SPDX-License-Identifier: Apache-2.0
// The table's lines, flat or as a tree: pure.
import type { FunctionRow } from "../flame/rows.ts";
import { KIND_ORDER } from "../flame/frames.ts";
import type { Tree } from "../flame/tree.ts";
import type { SortKey } from "../view.ts";

export interface Line { key: number; frame: number; node: number; self: number; total: number; level: number; open: boolean | null }

/** By function, sorted; `found` (per frame) and `off` kinds filter. */
export function flatLines(t: Tree, rows: FunctionRow[], found: Uint8Array | null, off: string[], sort: SortKey, up: boolean): Line[] {
  const f = t.frames, matches = new Set<number>();
  if (found) for (let i = 0; i < found.length; i++) if (found[i]) matches.add(f.fn[i]);
  const kept = rows.filter((r) => (!found || matches.has(r.fn)) && !off.includes(f.kind[r.frame]));
  const by: Record<SortKey, (a: FunctionRow, b: FunctionRow) => number> = {
    self: (a, b) => b.self - a.self || b.total - a.total,
    total: (a, b) => b.total - a.total || b.self - a.self,
    name: (a, b) => f.name[a.frame].localeCompare(f.name[b.frame]),
    kind: (a, b) => KIND_ORDER.indexOf(f.kind[a.frame]) - KIND_ORDER.indexOf(f.kind[b.frame]) || b.self - a.self,
  };
  kept.sort(by[sort]);
  if (up) kept.reverse();
  return kept.map((r) => ({ key: r.fn, frame: r.frame, node: -1, self: r.self, total: r.total, level: 1, open: null }));
}

/** The call tree below `root`, what is open only. Paths that start closed are those not in `open`; the heaviest way down starts open. */
export function treeLines(t: Tree, root: number, open: ReadonlySet<number>, off: string[]): Line[] {
  const out: Line[] = [], stack = [root], base = t.depth[root];
  while (stack.length) {
    const i = stack.pop()!, leaf = t.start[i] === t.start[i + 1], isOpen = open.has(t.path[i]);
    out.push({ key: t.path[i], frame: t.frame[i], node: i, self: t.self[i], total: t.total[i], level: t.depth[i] - base + 1, open: leaf ? null : isOpen });
    if (isOpen) for (let c = t.start[i + 1] - 1; c >= t.start[i]; c--) if (!off.includes(t.frames.kind[t.frame[c]])) stack.push(c);
  }
  return out;
}

/** Paths from the root down the widest child while it holds at least half of its parent. */
export function heaviest(t: Tree, root: number): number[] {
  const out = [t.path[root]];
  let i = root;
  while (t.start[i] < t.start[i + 1] && (i === root || t.total[t.start[i]] >= t.total[i] / 2)) { i = t.start[i]; out.push(t.path[i]); }
  return out;
}
/** The node of a function with the largest total. */
export function largest(t: Tree, fn: number): number {
  let best = -1;
  for (let i = 0; i < t.n; i++) if (t.frames.fn[t.frame[i]] === fn && (best < 0 || t.total[i] > t.total[best])) best = i;
  return best;
}
