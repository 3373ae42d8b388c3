// SPDX-License-Identifier: Apache-2.0
// The dictionary of frames of one answer, and for each the function it belongs to.
import type { FlameAnswer, FrameKind } from "../api.ts";

export interface Frames {
  name: string[]; kind: FrameKind[]; module: string[]; file: string[]; line: number[]; reason: string[];
  /** frame -> function: equal name, kind, module, file, and line where the answer tells lines apart (else all are 0) */
  fn: Uint32Array;
  /** function -> one of its frames */
  example: number[];
  /** frame -> hash that stays the same between answers; a process counts without its pids */
  hash: Uint32Array;
}

export function hashText(s: string, seed = 0x811c9dc5): number {
  let h = seed;
  for (let i = 0; i < s.length; i++) h = Math.imul(h ^ s.charCodeAt(i), 0x01000193);
  return h >>> 0;
}

export function framesOf(columns: FlameAnswer["frames"]): Frames {
  const n = columns.name.length, fn = new Uint32Array(n), hash = new Uint32Array(n), example: number[] = [];
  const seen = new Map<string, number>();
  for (let i = 0; i < n; i++) {
    const file = columns.kind[i] === "process" ? /GPU \d+$/.exec(columns.file[i])?.[0] ?? "" : columns.file[i];
    const key = `${columns.name[i]}\0${columns.kind[i]}\0${columns.module[i]}\0${file}\0${columns.line[i]}`;
    let id = seen.get(key);
    if (id === undefined) { id = example.length; seen.set(key, id); example.push(i); }
    fn[i] = id;
    hash[i] = hashText(key);
  }
  return { ...columns, fn, example, hash };
}

export const KIND_ORDER: FrameKind[] = ["python", "native", "kernel", "cuda_api", "cuda", "collective", "copy", "guessed", "reason"];
export const KIND_NAME: Record<FrameKind, string> = {
  root: "all", process: "process", thread: "thread", python: "Python", native: "native", kernel: "OS kernel", cuda_api: "CUDA API",
  cuda: "GPU kernel", collective: "collective", copy: "copy", reason: "not resolved", guessed: "guessed",
};

export const baseName = (path: string): string => path.slice(path.lastIndexOf("/") + 1);

/** A kernel, collective or copy on the device: its `file` is its full name. (Host frames of kind collective have a line or a module.) */
export const onDevice = (f: Frames, i: number): boolean => f.kind[i] === "cuda" || ((f.kind[i] === "collective" || f.kind[i] === "copy") && !f.line[i]);
export const fullName = (f: Frames, i: number): string => (onDevice(f, i) && f.file[i]) || f.name[i];

/** What stands muted beside a name: data.py:88, libc.so.6, train.py, pid 4182. */
export function place(f: Frames, i: number): string {
  const kind = f.kind[i];
  if (kind === "process") return [f.module[i], f.file[i]].filter(Boolean).join(", ");
  if (kind === "python" && f.file[i]) return f.line[i] ? `${baseName(f.file[i])}:${f.line[i]}` : baseName(f.file[i]);
  if (onDevice(f, i)) return f.module[i];
  if (kind === "root" || kind === "thread") return f.module[i] || f.file[i];
  if (f.line[i] && f.file[i]) return `${baseName(f.file[i])}:${f.line[i]}`;
  return f.module[i] || baseName(f.file[i]);
}
