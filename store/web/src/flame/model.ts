// SPDX-License-Identifier: Apache-2.0
// From the store's answer to what graph and table show; each step runs again only when its own input changes.
import { computed, signal } from "@preact/signals";
import type { FlameAnswer } from "../api.ts";
import { cores, digits, interval95, percent, seconds } from "../format.ts";
import { flame, nodeName, view } from "../state.ts";
import { hashText } from "./frames.ts";
import { extent, extentOfSmall, type Window } from "./layout.ts";
import { functionRows, selfByKind } from "./rows.ts";
import { patternOf, search, type Found } from "./search.ts";
import { callees, callers, isMine, isRuntime, reshape } from "./shape.ts";
import { shortName } from "./label.ts";
import { findPath, treeOf, type Tree } from "./tree.ts";

const pick = <K extends "recursion" | "runtime" | "mine" | "fn" | "zoom" | "heap" | "q" | "flip">(k: K) => computed(() => view.value[k]);
const recursion = pick("recursion"), runtime = pick("runtime"), mine = pick("mine"), fnKey = pick("fn"), query = pick("q"), zoomHash = pick("zoom"), heap = pick("heap");
export const flip = pick("flip");
export const off = computed(() => view.value.off.join());

export const answer = computed<FlameAnswer | null>(() => flame.value.value);
export const whole = computed<Tree | null>(() => {
  const a = answer.value;
  if (!a || !a.nodes.parent.length) return null;
  const t = treeOf(a), i = t.frame[0];
  if (!t.frames.module[i]) t.frames.module[i] = nodeName.peek(); // the root says whose picture it is
  return t;
});
/** Half width of the 95 % interval of a stack's total, by path; stacks that the toggles changed have none. */
const halves = computed<Map<number, number> | null>(() => {
  const t = whole.value, half = answer.value?.nodes.half;
  if (!t || !half || half.length !== t.n || !answer.value!.nodes.parent.every((p, i) => p === t.parent[i])) return null;
  return new Map(half.map((h, i) => [t.path[i], h]));
});
export function interval(t: Tree, node: number): [number, number] | null {
  const half = tree.value === t && !scene.value?.callers ? halves.value?.get(t.path[node]) : undefined, total = t.total[node];
  return half === undefined || !(total > 0) ? null : [total / Math.exp(half / total), total * Math.exp(half / total)];
}
const shaped = computed<Tree | null>(() => {
  const t = whole.value;
  if (!t) return null;
  const keep = mine.value ? isMine : runtime.value ? (f: Tree["frames"], i: number) => !isRuntime(f, i) : null;
  return reshape(t, { recursion: recursion.value, keep });
});

export const keyOfFn = (t: Tree, fn: number): string => {
  const f = t.frames, i = f.example[fn];
  return hashText(`${f.name[i]}\0${f.kind[i]}\0${f.module[i]}\0${f.file[i]}\0${f.line[i]}`).toString(16);
};
const fnOfKey = (t: Tree, key: string): number => t.frames.example.findIndex((_, fn) => keyOfFn(t, fn) === key);

export interface Scene { tree: Tree; callers: Tree | null; fn: number }
export const scene = computed<Scene | null>(() => {
  const t = shaped.value;
  if (!t) return null;
  const fn = fnKey.value ? fnOfKey(t, fnKey.value) : -1;
  return fn < 0 ? { tree: t, callers: null, fn: -1 } : { tree: callees(t, fn), callers: callers(t, fn), fn };
});
export const tree = computed<Tree | null>(() => scene.value?.tree ?? null);

export const zoomNode = computed<number>(() => (tree.value && zoomHash.value && !scene.value?.callers ? findPath(tree.value, zoomHash.value) : 0));
export const zoomLost = computed(() => zoomNode.value < 0);
export const root = computed(() => Math.max(0, zoomNode.value));
export const zoomWindow = computed<Window>(() => {
  const t = tree.value;
  if (!t || !(t.total[0] > 0)) return { a: 0, b: 1 };
  const i = root.value, first = t.start[i] + heap.value;
  if (heap.value >= 0 && first < t.start[i + 1]) return extentOfSmall(t, i, first);
  return i ? extent(t, i) : { a: 0, b: 1 };
});

export const pattern = computed(() => patternOf(query.value));
export const found = computed<Found | null>(() => (tree.value && pattern.value ? search(tree.value, pattern.value) : null));
export const foundBySize = computed<number[]>(() => {
  const t = tree.value;
  return t && found.value ? [...found.value.nodes].sort((a, b) => t.total[b] - t.total[a]) : [];
});
export const rows = computed(() => (tree.value ? functionRows(tree.value, root.value) : []));
export const kinds = computed(() => (tree.value ? selfByKind(tree.value) : new Map<string, number>()));

/** The frame that keyboard and search stand on: a path hash, so that it outlives a refresh. */
export const cursor = signal(0);
/** The ring shows for keyboard and search only; a pointer needs none. */
export const cursorShown = signal(false);
/** The node the cursor stands on, -1 = none. */
export const cursorNode = computed(() => (tree.value && cursor.value ? findPath(tree.value, cursor.value) : -1));

const shorts = new Map<string, string>();
export function short(name: string): string {
  let s = shorts.get(name);
  if (s === undefined) { if (shorts.size > 200_000) shorts.clear(); s = shortName(name); shorts.set(name, s); }
  return s;
}

// Values: samples and nanoseconds become cores and seconds; samples never pose as time.
export const inCores = (a: FlameAnswer, v: number): number => (v * (a.unit === "nanoseconds" ? 1 : a.period_ns)) / 1e9 / Math.max(1e-9, a.seconds);
/** True where values are scaled up from what was recorded; launches that were counted are not. */
export const isEstimate = (a: FlameAnswer): boolean => a.estimate !== undefined && (a.estimate.recorded === null || a.estimate.windows > 0);
export const tilde = (a: FlameAnswer): string => (isEstimate(a) ? "~" : "");
export function valueText(a: FlameAnswer, v: number): string { return a.type === "cpu" ? cores(inCores(a, v)) : `${v ? tilde(a) : ""}${seconds(v / 1e9)}`; }
/** What a whole profile amounts to: "~41 % of 2 GPUs, 8.2 s". */
export function totalText(a: FlameAnswer, v: number): string {
  const e = a.estimate;
  if (a.type === "off_cpu") return `${seconds(v / 1e9)} waited`;
  if (!e || !(e.gpu_seconds > 0)) return valueText(a, v);
  const share = `${tilde(a)}${percent(v / 1e9 / e.gpu_seconds, 0)} of ${view.value.gpu !== "" ? `GPU ${view.value.gpu}` : e.gpus === 1 ? "1 GPU" : `${e.gpus} GPUs`}`;
  return a.type === "gpu_idle" ? `${share} idle, ${seconds(v / 1e9)}` : `${share}, ${seconds(v / 1e9)}`;
}
/** A cell of the table, without its unit; as many decimals for all as the whole asks for. */
export function cellText(a: FlameAnswer, v: number): string {
  if (a.type !== "cpu") return v === 0 ? "0" : valueText(a, v);
  const all = inCores(a, a.total), c = inCores(a, v), d = all >= 20 ? 1 : all >= 0.5 ? 2 : 3;
  if (v === 0) return "0";
  return c < 0.5 / 10 ** d ? `<\u202f${1 / 10 ** d}` : c.toFixed(d);
}
export function intervalText(a: FlameAnswer, v: number): string {
  const e = interval95(v), lo = inCores(a, Math.max(0, v * (1 - e))), hi = inCores(a, v * (1 + e));
  return `${digits(lo, 2)} to ${digits(hi, 2)} cores`;
}
export const shareText = (v: number, of: number): string => percent(of > 0 ? v / of : 0);
