// SPDX-License-Identifier: Apache-2.0
// The page's state: the view (mirrored in the URL), the store's answers, and what the pointer is on. Components read signals, actions write the view.
import { computed, effect, signal } from "@preact/signals";
import type { FlameAnswer, Finding, KernelsAnswer, Losses, Mark, ProcessRow, Status, StatusNode } from "./api.ts";
import { chipText, formatMatch, formatMatcher, sameMatcher, type Matcher } from "./match.ts";
import { Resource } from "./resource.ts";
import { formatDuration, isRelative } from "./time.ts";
import { frozen, rangeOf, START, urlOf, viewOf, type Range, type View } from "./view.ts";

const kept = (key: string): string => { try { return localStorage.getItem(`gpustrobe.${key}`) ?? ""; } catch { return ""; } };
export const keep = (key: string, value: string): void => { try { localStorage.setItem(`gpustrobe.${key}`, value); } catch { /* private mode: it lasts as long as the page */ } };
export const keptText = kept;

const base: View = { ...START, theme: kept("theme") as View["theme"], utc: kept("utc") === "1", split: Number(kept("split")) || 0 };
export const view = signal<View>(viewOf(location.search, base));

let writing = 0;
/** Changes the view; `push` makes it a step that the browser's Back undoes. */
export function go(patch: Partial<View>, push = false): void {
  const next = { ...view.value, ...patch };
  const url = `${location.pathname}?${urlOf(next)}`.replace(/\?$/, "");
  clearTimeout(writing);
  if (push) history.pushState(null, "", url);
  else writing = window.setTimeout(() => history.replaceState(null, "", url), 120); // Safari allows 100 changes per 30 s
  view.value = next;
}
addEventListener("popstate", () => { view.value = viewOf(location.search, base); });

export const status = new Resource<Status>();
export const flame = new Resource<FlameAnswer>();
export const kernels = new Resource<KernelsAnswer>();
export const losses = new Resource<Losses>();
export const marks = new Resource<Mark[]>();
export const finding = new Resource<Finding | null>();
export const processes = new Resource<ProcessRow[]>();

/** Store clock minus ours, ms. */
export const skew = signal(0);
/** Newest data edge, moved by each poll while live; fixed otherwise. */
export const now = signal(Date.now());
export const edge = signal(Date.now());
export const gone = signal(0); // since when the store does not answer (ms, our clock); 0 = it does
export const lastPicture = signal(0);

export const slice = <K extends keyof View>(key: K) => computed(() => view.value[key]);

export const node = computed<StatusNode | null>(() => {
  const nodes = status.value.value?.nodes ?? [];
  return nodes.find((n) => n.node === view.value.node) ?? (view.value.node ? null : nodes.length === 1 ? nodes[0] : nodes.find((n) => n.live) ?? nodes[0] ?? null);
});
export const nodeName = computed(() => view.value.node || node.value?.node || "");
const YOUNG_MS = 60_000;
/** True while the default range would mostly show the time before the node's first data. */
export const young = computed(() => view.value.from === START.from && view.value.to === "now" && node.value !== null && node.value.first_ms > edge.value - 300_000);
export const range = computed<Range>((): Range => {
  const r = rangeOf(view.value, edge.value, now.value);
  return young.value ? { from: Math.max(r.from, Math.min(node.value!.first_ms, r.to - YOUNG_MS)), to: r.to } : r;
});
export const selected = computed<Range>((): Range => (view.value.sel ? { from: view.value.sel[0], to: view.value.sel[1] } : range.value));
export const live = computed(() => view.value.to === "now" && !view.value.sel);
export const hasGpu = computed(() => (node.value?.gpus.length ?? 0) > 0);
export const cores = computed(() => node.value?.cores ?? 0);
export const gpus = computed(() => (node.value?.gpus ?? []).filter((g) => view.value.gpu === "" || String(g.index) === view.value.gpu));

export const matchParam = computed(() => formatMatch([...(nodeName.value ? [{ label: "node", op: "=", value: nodeName.value } as Matcher] : []), ...view.value.match]));
/** GPU profiles are of the picked GPU; CPU profiles know no GPU. */
export const profileMatch = computed(() => {
  const v = view.value;
  return v.gpu !== "" && v.tab.startsWith("gpu_") ? `${matchParam.value}${matchParam.value ? "," : ""}${formatMatcher({ label: "gpu_index", op: "=", value: v.gpu })}` : matchParam.value;
});
export const nodeMatch = computed(() => (nodeName.value ? formatMatch([{ label: "node", op: "=", value: nodeName.value }]) : ""));

export const theme = signal<"light" | "dark">("light");
const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", (e) => { systemDark.value = e.matches; });
effect(() => {
  theme.value = view.value.theme || (systemDark.value ? "dark" : "light");
  document.documentElement.dataset.theme = theme.value;
});

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
export const narrow = signal(innerWidth < 1100);
/** Header and legends are short of room. */
export const tight = signal(innerWidth <= 1180);
addEventListener("resize", () => { narrow.value = innerWidth < 1100; tight.value = innerWidth <= 1180; });

/** Function under the pointer, in graph or table: both show it. */
export const hot = signal(-1);
/** Second under the pointer in the charts, ms; null = none. */
export const hover = signal<number | null>(null);
/** True while the pointer is in the profile: a refresh waits, so that no frame moves under it. */
export const held = signal(false);
/** What the live region speaks. */
export const spoken = signal("");
export const say = (text: string): void => { spoken.value = text; };

export function freeze(): void { if (isRelative(view.value.from) || isRelative(view.value.to)) go(frozen(view.value, range.value)); }
export function setLive(on: boolean): void {
  const v = view.value;
  if (!on) { freeze(); say("Paused"); return; }
  const from = v.resume || (isRelative(v.from) ? v.from : `-${formatDuration(range.value.to - range.value.from)}`);
  go({ from, to: "now", resume: "", sel: null }, true);
  say("Live");
}
export function select(sel: [number, number] | null): void {
  const v = view.value;
  if (!sel) { // back to live if that is where the selection came from
    go(v.resume && v.sel ? { sel: null, from: v.resume, to: "now", resume: "" } : { sel: null });
    say("Selection cleared");
    return;
  }
  go({ ...frozen(v, range.value), sel }, !v.sel);
}
export function setRange(from: string, to: string): void { go({ from, to, sel: null, resume: to === "now" ? "" : view.value.resume }, true); }
/** Fixed times, keeping the way back to live. */
export function showRange(r: Range): void {
  const v = frozen(view.value, range.value);
  go({ ...v, from: String(Math.round(r.from)), to: String(Math.round(r.to)), sel: null }, true);
}
export function addFilter(m: Matcher): void {
  if (!view.value.match.some((x) => sameMatcher(x, m))) { go({ match: [...view.value.match, m] }, true); say(`Filter ${chipText(m)} added`); }
}
export function removeFilter(m: Matcher): void { go({ match: view.value.match.filter((x) => !sameMatcher(x, m)) }, true); say(`Filter ${chipText(m)} removed`); }
export function setTheme(): void {
  const next = theme.value === "light" ? "dark" : "light";
  keep("theme", next);
  go({ theme: next });
}
export function setUtc(): void { keep("utc", view.value.utc ? "0" : "1"); go({ utc: !view.value.utc }); }
const trail: [number, number][] = [];
export function zoomTo(hash: number, heap = -1, push = true): void {
  const v = view.value, to = hash === 1 ? 0 : hash;
  if (to === v.zoom && heap === v.heap) return;
  if (push) trail.push([v.zoom, v.heap]);
  go({ zoom: to, heap }, push);
}
/** Back to what was zoomed into before, else to the root. */
export function zoomBack(): void { const [zoom, heap] = trail.pop() ?? [0, -1]; go({ zoom, heap }); }
