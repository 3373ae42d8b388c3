// SPDX-License-Identifier: Apache-2.0
// Trees from folded text, "a;b;c 3", and back: what tests read and write.
import type { FrameKind } from "../api.ts";
import { framesOf } from "../flame/frames.ts";
import { pathTo, TreeBuilder, type Tree } from "../flame/tree.ts";

export function tree(text: string, kind: (name: string) => FrameKind = () => "native"): Tree {
  const lines = text.trim().split("\n").map((l) => { const [stack, n] = l.trim().split(" "); return { names: stack.split(";"), n: Number(n) }; });
  const names = ["all", ...new Set(lines.flatMap((l) => l.names))];
  const frames = framesOf({ name: names, kind: names.map((n, i) => (i ? kind(n) : "root")), module: names.map(() => ""), file: names.map(() => ""), line: names.map(() => 0), reason: names.map(() => "") });
  const b = new TreeBuilder(frames, 0);
  for (const l of lines) { let at = 0; for (const n of l.names) at = b.into(at, names.indexOf(n)); b.add(at, l.n); }
  return b.build();
}
export function folded(t: Tree): string[] {
  const out: string[] = [];
  for (let i = 0; i < t.n; i++) if (t.self[i] > 0) out.push(`${pathTo(t, i).slice(1).map((n) => t.frames.name[t.frame[n]]).join(";")} ${t.self[i]}`);
  return out.sort();
}
export const node = (t: Tree, ...path: string[]): number => {
  let at = 0;
  for (const name of path) {
    let next = -1;
    for (let c = t.start[at]; c < t.start[at + 1]; c++) if (t.frames.name[t.frame[c]] === name) next = c;
    if (next < 0) throw new Error(`no ${name} below ${t.frames.name[t.frame[at]]}`);
    at = next;
  }
  return at;
};
