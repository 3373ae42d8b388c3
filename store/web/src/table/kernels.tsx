// SPDX-License-Identifier: Apache-2.0
// On GPU time the table is of kernels: what ran, how often, how long, and what launched it. Only rows in sight exist.
import { computed, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Kernel, KernelsAnswer } from "../api.ts";
import { KIND_NAME } from "../flame/frames.ts";
import { openMenu, setCursor, zoomInto } from "../flame/graph.tsx";
import * as model from "../flame/model.ts";
import { count, percent } from "../format.ts";
import { go, hot, kernels, say, view } from "../state.ts";
import { Swatch } from "../swatch.tsx";
import type { KernelSort } from "../view.ts";
import { cutMiddle, intervalText, kernelTest, kernelTitle, launchText, originText, short, sortKernels, timeText } from "./kernelrows.ts";
import { largest } from "./lines.ts";

const ROW = 22, SPARE = 6, SWATCH_PX = 30;
const active = signal("");
const sort = computed(() => view.value.ksort), up = computed(() => view.value.kup), query = computed(() => view.value.q), off = computed(() => view.value.off.join());

const keyOf = (name: string, full: string): string => `${name}\0${full === name ? "" : full}`;
/** Kernel -> its function in the graph's tree, -1 where it is not in it (focus, callers). */
const functions = computed(() => {
  const out = new Map<string, number>(), f = model.tree.value?.frames;
  if (f) for (let i = 0; i < f.name.length; i++) if (f.kind[i] === "cuda" || f.kind[i] === "collective" || f.kind[i] === "copy") out.set(keyOf(f.name[i], f.file[i]), f.fn[i]);
  return out;
});
const functionOf = (k: Kernel): number => functions.value.get(keyOf(k.name, k.full)) ?? -1;
/** Functions below the frame that the graph is zoomed into; null = all. */
const inZoom = computed(() => (model.root.value > 0 ? new Set(model.rows.value.map((r) => r.fn)) : null));
const rows = computed<Kernel[]>(() => {
  const a = kernels.value.value, q = query.value.trim(), hidden = off.value.split(",");
  if (!a) return [];
  const test = q ? kernelTest(q) : null;
  return sortKernels(a.kernels.filter((k) => (!test || test(k)) && !hidden.includes(k.kind)), sort.value, up.value);
});

const COLUMNS: [KernelSort, string, string][] = [
  ["name", "Kernel", "Sort by name"], ["time", "Time", "Time on the device"], ["time", "Share", "Share of all device time here"], ["launches", "Launches", "How often it ran"],
  ["mean", "Mean", "Mean time of a launch"], ["p99", "p99", "99 % of the recorded launches took no longer, within 19 %"], ["queue", "Queue", "Mean time from launch to start"], ["from", "Launched from", "The nearest Python line; for a backward kernel its autograd node"],
];

export function Kernels() {
  const a = kernels.value.value, all = rows.value, scroll = useRef<HTMLDivElement>(null), top = useRef(signal(0)).current, height = useRef(signal(400)).current, room = useRef(signal(24)).current, nameRef = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const el = scroll.current!;
    const watch = new ResizeObserver(() => {
      const ctx = document.createElement("canvas").getContext("2d")!;
      ctx.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
      height.value = el.clientHeight;
      room.value = Math.max(8, Math.floor((nameRef.current!.clientWidth - SWATCH_PX) / ctx.measureText("m").width));
    });
    watch.observe(el);
    return () => watch.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top.value / ROW) - SPARE), last = Math.min(all.length, Math.ceil((top.value + height.value) / ROW) + SPARE);
  const at = all.findIndex((k) => keyOf(k.name, k.full) === active.value);
  const to = (i: number) => {
    const k = all[Math.max(0, Math.min(all.length - 1, i))], el = scroll.current;
    if (!k || !el) return;
    active.value = keyOf(k.name, k.full);
    hot.value = functionOf(k);
    const y = all.indexOf(k) * ROW;
    if (y < el.scrollTop) el.scrollTop = y;
    else if (y + ROW > el.scrollTop + el.clientHeight - ROW) el.scrollTop = y + 2 * ROW - el.clientHeight;
    if (a) say(`${k.name}, ${KIND_NAME[k.kind]}, ${timeText(a, k.time)}, ${percent(k.share)}, ${launchText(a, k.launches)} launches`);
  };
  return (
    <div class="tablebox kernels" role="grid" aria-label="Kernels" aria-rowcount={all.length + 1} tabIndex={0} id="kernels" aria-activedescendant={at >= 0 ? `kernel-${at}` : undefined} onKeyDown={(e) => keys(e, all, at, to)} onPointerLeave={() => { hot.value = -1; }}>
      <div class="thead" role="row">
        {COLUMNS.map(([k, name, title]) => (
          <div role="columnheader" key={name} ref={k === "name" ? nameRef : undefined} class={k === "name" ? "c-name" : k === "from" ? "c-from" : "num"} aria-sort={sort.value === k && name !== "Share" ? (up.value ? "ascending" : "descending") : "none"}>
            <button title={a?.missing[k] ? `${title}: ${a.missing[k]}` : title} onClick={() => sortBy(k)}>{name}{sort.value === k && name !== "Share" ? (up.value ? " ▴" : " ▾") : ""}</button>
            {k === "name" && <button class="minor" title="The same by function, as a call tree" onClick={() => go({ tree: true })}>tree</button>}
          </div>
        ))}
      </div>
      <div class="scroll" ref={scroll} tabIndex={-1} onScroll={(e) => { top.value = e.currentTarget.scrollTop; }}>
        <div class="sizer" style={{ height: `${all.length * ROW}px` }}>
          {a && all.slice(first, last).map((k, i) => <Row key={keyOf(k.name, k.full)} a={a} k={k} index={first + i} room={room.value} />)}
        </div>
        {a && !all.length && <p class="muted none">{a.count ? "No kernel matches." : "No kernel was recorded here."}</p>}
        {a && a.count > a.kernels.length && !query.value && <p class="muted none">{count(a.count - a.kernels.length)} more kernels, all shorter</p>}
      </div>
    </div>
  );
}
function sortBy(k: KernelSort): void {
  go(view.value.ksort === k ? { kup: !view.value.kup } : { ksort: k, kup: false });
  say(`Sorted by ${k}`);
}

function Row({ a, k, index, room }: { a: KernelsAnswer; k: Kernel; index: number; room: number }) {
  const fn = functionOf(k), key = keyOf(k.name, k.full);
  return (
    <div role="row" id={`kernel-${index}`} class="trow" aria-rowindex={index + 2} title={kernelTitle(a, k)} data-hot={(fn >= 0 && hot.value === fn) || undefined} data-active={active.value === key || undefined} data-out={(inZoom.value !== null && !inZoom.value.has(fn)) || undefined} style={{ transform: `translateY(${index * ROW}px)` }}
      onPointerEnter={() => { hot.value = fn; }} onClick={() => pick(k)} onContextMenu={(e) => { e.preventDefault(); context(k, e.clientX, e.clientY); }}>
      <div role="gridcell" class="kname"><Swatch kind={k.kind} /><span class="sr">{KIND_NAME[k.kind]} </span><span class="code">{cutMiddle(k.name, room)}</span></div>
      <div role="gridcell" class="num" title={k.interval ? `95 % interval ${intervalText(k.interval)}` : undefined}>{timeText(a, k.time)}</div>
      <div role="gridcell" class="num">{percent(k.share)}</div>
      <div role="gridcell" class="num">{launchText(a, k.launches)}</div>
      <div role="gridcell" class="num">{short(k.mean_ns)}</div>
      <div role="gridcell" class="num" title={k.p99_ns === null ? k.p99_why : undefined}>{short(k.p99_ns)}</div>
      <div role="gridcell" class="num" title={k.queue_ns === null ? a.missing["queue"] : undefined}>{short(k.queue_ns)}</div>
      <div role="gridcell" class="code cut c-from">{k.from ? originText(k.from) : "–"}{k.from && k.from.others > 0 && <span class="muted"> +{k.from.others}</span>}</div>
    </div>
  );
}

function node(k: Kernel): number {
  const t = model.tree.value, fn = functionOf(k);
  return t && fn >= 0 && !model.scene.value?.callers ? largest(t, fn) : -1;
}
function pick(k: Kernel): void {
  active.value = keyOf(k.name, k.full);
  const t = model.tree.value, at = node(k);
  if (t && at >= 0) zoomInto(t, at);
}
function context(k: Kernel, x: number, y: number): void {
  const t = model.tree.value, fn = functionOf(k);
  if (t && fn >= 0) openMenu(t, t.frames.example[fn], node(k), x, y, document.getElementById("kernels"));
}
function keys(e: KeyboardEvent, all: Kernel[], at: number, to: (i: number) => void): void {
  if (e.ctrlKey || e.metaKey || e.altKey || (e.target as HTMLElement).closest("button")) return;
  const k = all[at], page = 15;
  if (e.key === "ArrowDown") to(at + 1);
  else if (e.key === "ArrowUp") to(Math.max(0, at - 1));
  else if (e.key === "PageDown") to(at + page);
  else if (e.key === "PageUp") to(Math.max(0, at - page));
  else if (e.key === "Home") to(0);
  else if (e.key === "End") to(all.length - 1);
  else if (e.key === "Enter" && k) { const n = node(k); pick(k); if (n >= 0) setCursor(n); }
  else if ((e.key === "ContextMenu" || (e.key === "F10" && e.shiftKey)) && k) { const b = document.getElementById(`kernel-${at}`)?.getBoundingClientRect(); if (b) context(k, b.left + 40, b.bottom); }
  else return;
  e.preventDefault();
}
