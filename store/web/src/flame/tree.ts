// SPDX-License-Identifier: Apache-2.0
// A merged call tree in columns, breadth first: the children of node i are the nodes start[i] .. start[i + 1] - 1, widest first.
import type { FlameAnswer } from "../api.ts";
import { framesOf, type Frames } from "./frames.ts";

export interface Tree {
  frames: Frames;
  n: number;
  parent: Int32Array;
  frame: Uint32Array;
  self: Float64Array;
  total: Float64Array;
  start: Uint32Array; // n + 1
  depth: Uint16Array;
  /** hash of the frames from the root: the same stack has the same in every answer */
  path: Uint32Array;
  maxDepth: number;
}

const mix = (parent: number, frame: number): number => {
  let h = Math.imul(parent ^ 0x9e3779b9, 0x85ebca6b) ^ frame;
  h = Math.imul(h ^ (h >>> 15), 0xc2b2ae35);
  return (h ^ (h >>> 13)) >>> 0;
};

function finish(frames: Frames, parent: Int32Array, frame: Uint32Array, self: Float64Array, total: Float64Array): Tree {
  const n = parent.length, start = new Uint32Array(n + 1), depth = new Uint16Array(n), path = new Uint32Array(n);
  let maxDepth = 0;
  for (let i = 1; i < n; i++) start[parent[i] + 1]++;
  start[0] = 1;
  for (let i = 0; i < n; i++) {
    start[i + 1] += start[i];
    if (i) depth[i] = depth[parent[i]] + 1;
    path[i] = i ? mix(path[parent[i]], frames.hash[frame[i]]) : 1;
    if (depth[i] > maxDepth) maxDepth = depth[i];
  }
  return { frames, n, parent, frame, self, total, start, depth, path, maxDepth };
}

/** True when nodes are breadth first and siblings fall: then the columns are used as they came. */
function ordered(parent: Int32Array, total: Float64Array): boolean {
  for (let i = 2; i < parent.length; i++) {
    if (parent[i] < parent[i - 1]) return false;
    if (parent[i] === parent[i - 1] && total[i] > total[i - 1]) return false;
  }
  return true;
}

/** Columns in any order in which a parent stands before its children -> breadth first, widest first. */
export function arrange(frames: Frames, parent: Int32Array, frame: Uint32Array, self: Float64Array, total: Float64Array): Tree {
  if (ordered(parent, total)) return finish(frames, parent, frame, self, total);
  const n = parent.length, head = new Int32Array(n).fill(-1), next = new Int32Array(n).fill(-1);
  for (let i = n - 1; i > 0; i--) { next[i] = head[parent[i]]; head[parent[i]] = i; }
  const order = new Int32Array(n), p2 = new Int32Array(n);
  p2[0] = -1;
  let end = 1;
  const kids: number[] = [];
  for (let at = 0; at < end; at++) {
    kids.length = 0;
    for (let c = head[order[at]]; c >= 0; c = next[c]) kids.push(c);
    if (kids.length > 1) kids.sort((a, b) => total[b] - total[a] || a - b);
    for (const c of kids) { order[end] = c; p2[end] = at; end++; }
  }
  const f2 = new Uint32Array(n), s2 = new Float64Array(n), t2 = new Float64Array(n);
  for (let i = 0; i < n; i++) { f2[i] = frame[order[i]]; s2[i] = self[order[i]]; t2[i] = total[order[i]]; }
  return finish(frames, p2, f2, s2, t2);
}

export function treeOf(answer: Pick<FlameAnswer, "frames" | "nodes">): Tree {
  const { parent, frame, self, total } = answer.nodes;
  return arrange(framesOf(answer.frames), new Int32Array(parent), new Uint32Array(frame), new Float64Array(self), new Float64Array(total)); // .from() iterates: ten times slower
}

/** What was left out below a node (too small for the answer): part of its total, in no child. */
export function leftOut(t: Tree, i: number): number {
  let rest = t.total[i] - t.self[i];
  for (let c = t.start[i]; c < t.start[i + 1]; c++) rest -= t.total[c];
  return rest > 1e-6 * t.total[i] ? rest : 0;
}

/** Grows a tree node by node; equal frames under one parent become one node. */
export class TreeBuilder {
  private parent: number[] = [-1];
  private frame: number[];
  private self: number[] = [0];
  private rest: number[] = [0];
  private child = new Map<number, number>();
  constructor(private readonly frames: Frames, rootFrame: number) { this.frame = [rootFrame]; }

  /** Frames are few (< 2^21), nodes fewer than 2^32: both fit one exact number. */
  into(parent: number, frame: number): number {
    const key = parent * 2097152 + frame, had = this.child.get(key);
    if (had !== undefined) return had;
    const id = this.parent.length;
    this.parent.push(parent); this.frame.push(frame); this.self.push(0); this.rest.push(0);
    this.child.set(key, id);
    return id;
  }
  add(node: number, self: number, rest = 0): void { this.self[node] += self; this.rest[node] += rest; }
  parentOf(node: number): number { return this.parent[node]; }
  frameOf(node: number): number { return this.frame[node]; }

  build(): Tree {
    const n = this.parent.length, parent = Int32Array.from(this.parent), self = Float64Array.from(this.self);
    const total = new Float64Array(n);
    for (let i = n - 1; i >= 0; i--) {
      total[i] += self[i] + this.rest[i];
      if (i) total[parent[i]] += total[i];
    }
    return arrange(this.frames, parent, Uint32Array.from(this.frame), self, total);
  }
}

export function pathTo(t: Tree, i: number): number[] {
  const out: number[] = [];
  for (let x = i; x >= 0; x = t.parent[x]) out.unshift(x);
  return out;
}
export function findPath(t: Tree, hash: number): number {
  for (let i = 0; i < t.n; i++) if (t.path[i] === hash) return i;
  return -1;
}
