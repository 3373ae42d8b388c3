// SPDX-License-Identifier: Apache-2.0
// What is being looked at. The URL's query holds all of it (a fragment would be lost at a login proxy); `viewOf` and `urlOf` are inverse.
import { formatMatch, parseMatch, type Matcher } from "./match.ts";
import { formatDuration, isRelative, parseTime } from "./time.ts";

export type Tab = "cpu" | "gpu_time" | "gpu_idle" | "off_cpu";
export const TABS: Tab[] = ["cpu", "gpu_time", "gpu_idle", "off_cpu"];
export type Theme = "" | "light" | "dark";
export type KernelSort = "name" | "time" | "launches" | "mean" | "p99" | "queue" | "from";
const KERNEL_SORTS: KernelSort[] = ["name", "time", "launches", "mean", "p99", "queue", "from"];
export type SortKey = "name" | "kind" | "self" | "total";

export interface View {
  from: string; to: string; // as typed: -5m, now, or milliseconds
  resume: string; // the relative start that Live goes back to, while paused
  sel: [number, number] | null; // ms, whole seconds
  node: string;
  gpu: string; // "" = mean over all, else index
  apart: string[]; // charts with one line per GPU
  match: Matcher[];
  tab: Tab;
  zoom: number; // path hash; 0 = root
  heap: number; // zoomed into the heap of small children of `zoom`: how many wider ones stand before it; -1 = none
  fn: string; // callers and callees of this function key
  focus: string; exclude: string[]; // regular expressions the store applies
  q: string;
  flip: boolean; recursion: boolean; runtime: boolean; mine: boolean; lines: boolean;
  off: string[]; // frame kinds switched off
  sort: SortKey; up: boolean;
  ksort: KernelSort; kup: boolean; // the kernel table
  tree: boolean; // table as a tree
  charts: string[]; // extra charts
  by: string; // what splits the CPU chart
  utc: boolean;
  theme: Theme;
  split: number; // share of the table; 0 = default
  pane: "graph" | "table"; // below 1100 px
}

export const START: View = {
  from: "-5m", to: "now", resume: "", sel: null, node: "", gpu: "", apart: [], match: [], tab: "cpu", zoom: 0, heap: -1, fn: "", focus: "", exclude: [],
  q: "", flip: false, recursion: false, runtime: false, mine: false, lines: false, off: [], sort: "self", up: false, ksort: "time", kup: false, tree: false, charts: [], by: "", utc: false, theme: "",
  split: 0, pane: "graph",
};

const TEXT = ["node", "gpu", "focus", "q", "by", "fn"] as const;
const FLAG = ["flip", "recursion", "runtime", "mine", "lines", "up", "kup", "tree", "utc"] as const;
const LIST = ["apart", "off", "charts"] as const;

const validTime = (t: string | null): t is string => t !== null && parseTime(t, 0, true) !== null;

/** Unknown or broken parts of a URL fall back to the start's, one by one. */
export function viewOf(search: string, base: View = START): View {
  const p = new URLSearchParams(search), v: View = { ...base };
  const [from, to] = [p.get("from"), p.get("to")];
  if (validTime(from)) v.from = from;
  if (validTime(to)) v.to = to;
  const resume = p.get("live");
  if (resume && isRelative(resume) && validTime(resume)) v.resume = resume;
  const sel = /^(\d{11,14})-(\d{11,14})$/.exec(p.get("sel") ?? "");
  if (sel && Number(sel[1]) < Number(sel[2])) v.sel = [Number(sel[1]), Number(sel[2])];
  for (const k of TEXT) { const s = p.get(k); if (s !== null) v[k] = s; }
  for (const k of FLAG) { const s = p.get(k); if (s !== null) v[k] = s === "1"; }
  for (const k of LIST) { const s = p.get(k); if (s !== null) v[k] = s ? s.split(",") : []; }
  if (p.has("exclude")) v.exclude = p.getAll("exclude").filter(Boolean);
  const match = p.getAll("match").flatMap((m) => parseMatch(m) ?? []);
  if (match.length) v.match = match;
  const tab = p.get("tab");
  if (TABS.includes(tab as Tab)) v.tab = tab as Tab;
  const zoom = /^([0-9a-f]{1,8})(?:\.(\d+))?$/.exec(p.get("zoom") ?? "");
  if (zoom) { v.zoom = parseInt(zoom[1], 16); v.heap = zoom[2] === undefined ? -1 : Number(zoom[2]); }
  const sort = p.get("sort");
  if (sort === "name" || sort === "kind" || sort === "self" || sort === "total") v.sort = sort;
  const ksort = p.get("ksort");
  if (KERNEL_SORTS.includes(ksort as KernelSort)) v.ksort = ksort as KernelSort;
  const theme = p.get("theme");
  if (theme === "light" || theme === "dark") v.theme = theme;
  const split = Number(p.get("split"));
  if (split >= 0.15 && split <= 0.8) v.split = split;
  if (p.get("pane") === "table") v.pane = "table";
  return v;
}

export function urlOf(v: View): string {
  const p = new URLSearchParams();
  if (v.from !== START.from || v.to !== START.to) { p.set("from", v.from); p.set("to", v.to); }
  if (v.resume) p.set("live", v.resume);
  if (v.sel) p.set("sel", `${v.sel[0]}-${v.sel[1]}`);
  for (const k of TEXT) if (v[k]) p.set(k, v[k]);
  for (const k of FLAG) if (v[k] !== START[k]) p.set(k, v[k] ? "1" : "0");
  for (const k of LIST) if (v[k].length) p.set(k, v[k].join(","));
  for (const e of v.exclude) p.append("exclude", e);
  if (v.match.length) p.set("match", formatMatch(v.match));
  if (v.tab !== "cpu") p.set("tab", v.tab);
  if (v.zoom) p.set("zoom", v.zoom.toString(16) + (v.heap >= 0 ? `.${v.heap}` : ""));
  if (v.sort !== START.sort) p.set("sort", v.sort);
  if (v.ksort !== START.ksort) p.set("ksort", v.ksort);
  if (v.theme) p.set("theme", v.theme);
  if (v.split) p.set("split", v.split.toFixed(3));
  if (v.pane !== "graph") p.set("pane", v.pane);
  const s = p.toString().replace(/%2C/g, ",").replace(/%3A/g, ":").replace(/%22/g, "\"").replace(/%3D/g, "=");
  return s.replace(/"/g, "%22");
}

export interface Range { from: number; to: number }

/** The range in ms; `now` is the store's clock, `edge` the newest data when it is close to now, so that the picture ends full. */
export function rangeOf(v: Pick<View, "from" | "to">, edge: number, now: number): Range {
  const to = parseTime(v.to, v.to === "now" ? edge : now, true) ?? now;
  const from = parseTime(v.from, isRelative(v.from) ? (v.to === "now" ? edge : now) : now, true) ?? to - 300e3;
  return from < to ? { from, to } : { from: to - 1000, to };
}

/** The same view with fixed times: what Pause and Share make of it. */
export function frozen(v: View, r: Range): View {
  if (!isRelative(v.from) && !isRelative(v.to)) return v;
  const resume = v.to === "now" ? `-${formatDuration(r.to - r.from)}` : v.resume;
  return { ...v, from: String(Math.round(r.from)), to: String(Math.round(r.to)), resume };
}
