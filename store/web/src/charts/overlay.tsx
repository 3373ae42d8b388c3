// SPDX-License-Identifier: Apache-2.0
// One layer over all charts: crosshair, selection with handles, marks. It alone takes the pointer.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { span } from "../format.ts";
import { plotWidth } from "../poll.ts";
import { hover, marks, node, now, range, say, select, showRange, view } from "../state.ts";
import { clock, rangeText } from "../time.ts";
import type { Mark } from "../api.ts";

interface Drag { mode: "new" | "edge" | "move"; from: number; edge: number; was: [number, number] | null; raw: [number, number] | null; at: number }
export const drag = signal<Drag | null>(null);
const GRAB_PX = 6, LEAST_PX = 3;

const x = (t: number): number => ((t - range.value.from) / (range.value.to - range.value.from)) * plotWidth.value;
const snap = (t: number): number => Math.round(t / 1000) * 1000;
const snapped = (raw: [number, number]): [number, number] => { const a = snap(raw[0]), b = snap(raw[1]); return b > a ? [a, b] : [Math.floor(raw[0] / 1000) * 1000, Math.floor(raw[0] / 1000) * 1000 + 1000]; };

function timeAt(e: PointerEvent | MouseEvent): number {
  const b = (e.currentTarget as HTMLElement).getBoundingClientRect(), r = range.value;
  return r.from + Math.max(0, Math.min(1, (e.clientX - b.left) / b.width)) * (r.to - r.from);
}
function down(e: PointerEvent): void {
  if (e.button !== 0) return;
  const t = timeAt(e), sel = view.value.sel, near = sel ? sel.findIndex((s) => Math.abs(x(s) - x(t)) < GRAB_PX) : -1;
  drag.value = { mode: near >= 0 ? "edge" : e.shiftKey && sel ? "move" : "new", from: t, edge: near, was: sel, raw: null, at: e.clientX };
  (e.currentTarget as HTMLElement).setPointerCapture(e.pointerId);
}
function move(e: PointerEvent): void {
  const t = timeAt(e), d = drag.value;
  hover.value = Math.floor(t / 1000) * 1000;
  if (!d || (!d.raw && Math.abs(e.clientX - d.at) < LEAST_PX)) return;
  const pair = d.mode === "new" ? [d.from, t] : d.mode === "edge" ? [d.was![1 - d.edge], t] : d.was!.map((v) => v + t - d.from);
  drag.value = { ...d, raw: [Math.min(pair[0], pair[1]), Math.max(pair[0], pair[1])] };
}
function up(): void {
  const d = drag.value;
  drag.value = null;
  if (!d?.raw) return;
  const s = snapped(d.raw);
  select(s);
  say(`Selected ${rangeText(s[0], s[1], now.value, view.value.utc)}, ${span((s[1] - s[0]) / 1000)}`);
}

export function Over() {
  const sel = drag.value?.raw ?? view.value.sel, w = plotWidth.value, s = sel && drag.value?.raw ? snapped(sel) : null, h = hover.value, d = drag.value;
  const near = !d && h !== null && view.value.sel?.some((v) => Math.abs(x(v) - x(h)) < GRAB_PX);
  return (
    <div class={near ? "over near" : "over"} id="over" onPointerDown={down} onPointerMove={move} onPointerUp={up} onPointerCancel={() => { drag.value = null; }}
      onPointerLeave={() => { hover.value = null; }} onDblClick={() => { if (view.value.sel) select(null); }} onContextMenu={(e) => { if (drag.value) e.preventDefault(); }}>
      {lined(visibleMarks()).map((m) => <i class="markline" key={`${m.t_ms}${m.text}`} style={{ left: `${x(m.t_ms)}px` }} />)}
      {sel && <>
        <div class="veil" style={{ left: "0", width: `${Math.max(0, x(sel[0]))}px` }} />
        <div class="veil" style={{ left: `${Math.min(w, x(sel[1]))}px`, right: "0" }} />
        <div class="sel" id="sel" style={{ left: `${x(sel[0])}px`, width: `${x(sel[1]) - x(sel[0])}px` }} />
        {s && <div class="snap" style={{ left: `${x(s[0])}px`, width: `${x(s[1]) - x(s[0])}px` }} />}
        <i class="grip" style={{ left: `${x(sel[0])}px` }} /><i class="grip" style={{ left: `${x(sel[1])}px` }} />
      </>}
      {h !== null && !d && <i class="hair" style={{ left: `${x(h + 500)}px` }} />}
    </div>
  );
}

const visibleMarks = () => (marks.value.value ?? []).filter((m) => m.t_ms >= range.value.from && m.t_ms <= range.value.to && !stillHere(m));
/** At the live end every process is "last seen" now: that is no exit yet. */
const stillHere = (m: Mark): boolean => m.kind === "process_exit" && node.value !== null && m.t_ms > node.value.last_ms - 15_000;
const LABEL_PX = 150, CLOSE_PX = 18, CROWD_PX = 60, MANY = 10;
const isProcess = (m: Mark): boolean => m.kind === "process_start" || m.kind === "process_exit";
/** Where processes come and go all the time, only what is rarer gets a line through the charts. */
const lined = (list: Mark[]): Mark[] => (list.length > MANY ? list.filter((m) => !isProcess(m)) : list);

interface Cluster { first: Mark; all: Mark[]; x: number; end: number }
function clusters(): Cluster[] {
  const out: Cluster[] = [];
  const list = visibleMarks(), close = list.length > MANY ? CROWD_PX : CLOSE_PX;
  for (const m of list) {
    const at = x(m.t_ms), last = out[out.length - 1];
    if (last && at - last.end < close) { last.all.push(m); last.end = at; if (isProcess(last.first) && !isProcess(m)) last.first = m; }
    else out.push({ first: m, all: [m], x: at, end: at });
  }
  return out;
}
const clusterText = (c: Cluster): string => (c.all.length === 1 ? c.first.text : `${c.first.text}, ${c.all.length - 1} more`);

/** The strip above the charts: marks by name where there is room, and the selection's pill. */
export function Strip() {
  const sel = drag.value?.raw ? snapped(drag.value.raw) : view.value.sel, w = plotWidth.value, pill = useRef<HTMLDivElement>(null);
  const mid = sel ? (x(sel[0]) + x(sel[1])) / 2 : 0;
  useLayoutEffect(() => {
    const el = pill.current;
    if (el) el.style.left = `${Math.max(0, Math.min(w - el.offsetWidth, mid - el.offsetWidth / 2))}px`;
  });
  const list = clusters();
  let free = -Infinity;
  return (
    <div class="lane">
      {list.map((c, i) => {
        const next = i + 1 < list.length ? list[i + 1].x : w, covered = sel !== null && Math.abs(c.x - mid) < 150 + (c.x < mid ? LABEL_PX : 0), text = clusterText(c);
        const room = Math.max(0, Math.min(next - c.end - 8, w - c.end)), named = c.x >= free && room > 70 && !covered;
        if (named) free = c.end + Math.min(LABEL_PX, text.length * 6 + 20);
        return (
          <span class="mark" key={c.first.t_ms} data-kind={c.first.kind} title={c.all.slice(0, 12).map((m) => `${clock(m.t_ms, view.value.utc)} ${m.text}`).join("\n")} style={{ left: `${c.x}px` }}>
            {c.end > c.x + 1 && <i class="reach" style={{ width: `${c.end - c.x}px` }} />}
            {named && <span class="cut" style={{ marginLeft: `${c.end - c.x}px`, maxWidth: `${room}px` }}>{text}</span>}
          </span>
        );
      })}
      {sel && (
        <div class="pill" id="pill" ref={pill}>
          <span>{rangeText(sel[0], sel[1], now.value, view.value.utc)}, {span((sel[1] - sel[0]) / 1000)}</span>
          <button onClick={() => showRange({ from: sel[0], to: sel[1] })}>Zoom</button>
          <button aria-label="Clear the selection" onClick={() => select(null)}>×</button>
        </div>
      )}
    </div>
  );
}
