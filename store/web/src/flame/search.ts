// SPDX-License-Identifier: Apache-2.0
// Search over frames; a match's share counts a stack once, however often it matches.
import { place, type Frames } from "./frames.ts";
import type { Tree } from "./tree.ts";

export interface Pattern { test: (f: Frames, i: number) => boolean; error: string }

/** Text (case ignored, in name or place) or /regex/ (in the name; case ignored unless it holds a capital). Null when empty. */
export function patternOf(query: string): Pattern | null {
  const q = query.trim();
  if (!q) return null;
  if (q.length > 1 && q.startsWith("/") && (q.endsWith("/") || q.endsWith("/i"))) {
    const body = q.slice(1, q.lastIndexOf("/"));
    if (!body) return null;
    try {
      const re = new RegExp(body, /[A-Z]/.test(body) && !q.endsWith("i") ? "" : "i");
      return { test: (f, i) => re.test(f.name[i]), error: "" };
    } catch (e) {
      return { test: () => false, error: e instanceof Error ? e.message.replace(/^Invalid regular expression: /, "") : "bad pattern" };
    }
  }
  const low = q.toLowerCase();
  return { test: (f, i) => f.name[i].toLowerCase().includes(low) || `${place(f, i)} ${f.module[i]}`.toLowerCase().includes(low), error: "" };
}

export interface Found { frames: Uint8Array; nodes: number[]; value: number }

/** Matching frames, the nodes that show them in drawing order of a depth-first walk, and their value without counting twice. */
export function search(t: Tree, p: Pattern): Found {
  const frames = new Uint8Array(t.frames.name.length);
  for (let i = 0; i < frames.length; i++) frames[i] = t.frames.kind[i] !== "root" && p.test(t.frames, i) ? 1 : 0;
  const under = new Uint8Array(t.n), nodes: number[] = [];
  let value = 0;
  for (let i = 0; i < t.n; i++) {
    const above = i ? under[t.parent[i]] : 0, hit = frames[t.frame[i]];
    under[i] = above | hit;
    if (hit) {
      nodes.push(i);
      if (!above) value += t.total[i];
    }
  }
  return { frames, nodes, value };
}
