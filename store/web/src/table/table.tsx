// SPDX-License-Identifier: Apache-2.0
// The profile by function, or as a tree: what the graph shows, for eyes that want numbers and for screen readers. Only rows in sight exist.
import { computed, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { FlameAnswer } from "../api.ts";
import { place, KIND_NAME } from "../flame/frames.ts";
import { openMenu, setCursor, zoomInto } from "../flame/graph.tsx";
import * as model from "../flame/model.ts";
import { fitName } from "../flame/label.ts";
import type { Tree } from "../flame/tree.ts";
import { go, hot, say, view } from "../state.ts";
import { Swatch } from "../swatch.tsx";
import type { SortKey } from "../view.ts";
import { flatLines, heaviest, largest, treeLines, type Line } from "./lines.ts";

const ROW = 22, SPARE = 6;
const opened = signal<ReadonlySet<number>>(new Set());
const active = signal(-1); // key of the row with the keyboard
const sort = computed(() => view.value.sort), up = computed(() => view.value.up), asTree = computed(() => view.value.tree), off = computed(() => view.value.off.join());

const open = computed<ReadonlySet<number>>(() => {
  const t = model.tree.value;
  if (!t || opened.value.size) return opened.value;
  return new Set(heaviest(t, model.root.value));
});
export const lines = computed<Line[]>(() => {
  const t = model.tree.value, o = off.value ? off.value.split(",") : [];
  if (!t) return [];
  return asTree.value ? treeLines(t, model.root.value, open.value, o) : flatLines(t, model.rows.value, model.found.value?.frames ?? null, o, sort.value, up.value);
});

const COLUMNS: [SortKey, string][] = [["name", "Function"], ["self", "Self"], ["total", "Total"]];

export function Table() {
  const t = model.tree.value, a = model.answer.value, scroll = useRef<HTMLDivElement>(null), top = useRef(signal(0)).current, height = useRef(signal(400)).current;
  useEffect(() => {
    const el = scroll.current!;
    const watch = new ResizeObserver(() => { height.value = el.clientHeight; });
    watch.observe(el);
    return () => watch.disconnect();
  }, []);
  const all = lines.value, first = Math.max(0, Math.floor(top.value / ROW) - SPARE), last = Math.min(all.length, Math.ceil((top.value + height.value) / ROW) + SPARE);
  const at = all.findIndex((l) => l.key === active.value), unit = a?.type === "cpu" ? "cores" : "seconds";
  const to = (i: number) => {
    const l = all[Math.max(0, Math.min(all.length - 1, i))], el = scroll.current;
    if (!l || !el || !t) return;
    active.value = l.key;
    hot.value = t.frames.fn[l.frame];
    const y = all.indexOf(l) * ROW;
    if (y < el.scrollTop) el.scrollTop = y;
    else if (y + ROW > el.scrollTop + el.clientHeight - ROW) el.scrollTop = y + 2 * ROW - el.clientHeight;
  };
  return (
    <div class="tablebox" role={asTree.value ? "treegrid" : "grid"} aria-label={asTree.value ? "Call tree" : "Functions"} aria-rowcount={all.length + 1} tabIndex={0} id="table"
      aria-activedescendant={at >= 0 ? `row-${active.value}` : undefined} onKeyDown={(e) => keys(e, all, at, to)} onPointerLeave={() => { hot.value = -1; }}>
      <div class="thead" role="row">
        {COLUMNS.map(([k, name]) => (
          <div role="columnheader" key={k} class={k === "name" ? "c-name" : "num"} aria-sort={!asTree.value && view.value.sort === k ? (view.value.up ? "ascending" : "descending") : "none"}>
            <button disabled={asTree.value && k !== "total"} title={k === "name" ? "Sort by name" : `${name} time, ${unit}`} onClick={() => sortBy(k)}>{name}{mark(k)}</button>
            {k === "name" && <>
              <button class="minor" title="Sort by kind" onClick={() => sortBy("kind")}>kind{mark("kind")}</button>
              <button class="minor" aria-pressed={asTree.value} title="Rows as a call tree, for the keyboard and screen readers" onClick={() => go({ tree: !asTree.value })}>tree</button>
            </>}
          </div>
        ))}
        <div role="columnheader" class="c-share">Share of all</div>
      </div>
      <div class="scroll" ref={scroll} tabIndex={-1} onScroll={(e) => { top.value = e.currentTarget.scrollTop; }}>
        <div class="sizer" style={{ height: `${all.length * ROW}px` }}>
          {t && a && all.slice(first, last).map((l, i) => <Row key={l.key} t={t} a={a} l={l} y={(first + i) * ROW} index={first + i} tree={asTree.value} />)}
        </div>
        {t && !all.length && <p class="muted none">{model.pattern.value ? "No function matches." : "No function to show."}</p>}
      </div>
    </div>
  );
}
const mark = (k: SortKey): string => (asTree.value ? "" : view.value.sort === k ? (view.value.up ? " ▴" : " ▾") : "");
function sortBy(k: SortKey): void {
  const v = view.value;
  go(v.tree ? { tree: false, sort: k, up: false } : v.sort === k ? { up: !v.up } : { sort: k, up: false });
  say(`Sorted by ${k}`);
}

function Row({ t, a, l, y, index, tree }: { t: Tree; a: FlameAnswer; l: Line; y: number; index: number; tree: boolean }) {
  const f = t.frames, fn = f.fn[l.frame], all = a.all_total || a.total || 1, name = model.short(f.name[l.frame]), where = place(f, l.frame);
  const most = Math.max(t.total[model.root.value] || 1, 1e-9);
  return (
    <div role="row" id={`row-${l.key}`} class="trow" aria-rowindex={index + 2} aria-level={tree ? l.level : undefined} aria-expanded={l.open === null ? undefined : l.open}
      data-hot={hot.value === fn || undefined} data-active={active.value === l.key || undefined} style={{ transform: `translateY(${y}px)` }} title={f.reason[l.frame] ? `${f.name[l.frame]}\n${f.reason[l.frame]}` : f.name[l.frame]}
      onPointerEnter={() => { hot.value = fn; }} onClick={() => pick(t, l)} onContextMenu={(e) => { e.preventDefault(); openMenu(t, l.frame, l.node, e.clientX, e.clientY, document.getElementById("table")); }}>
      <div role="gridcell" class={tree ? "fn intree" : "fn"} style={tree ? { paddingLeft: `${8 + Math.min(24, l.level - 1) * 7}px` } : undefined}>
        {tree && <button class="twist" tabIndex={-1} aria-hidden="true" onClick={(e) => { e.stopPropagation(); twist(l); }}>{l.open === null ? "" : l.open ? "▾" : "▸"}</button>}
        <Swatch kind={f.kind[l.frame]} /><span class="sr">{KIND_NAME[f.kind[l.frame]]} </span><span class="code cut">{fitName(name, 44)}</span><span class="loc">{where}</span>
      </div>
      <div role="gridcell" class="num">{model.cellText(a, l.self)}</div>
      <div role="gridcell" class="num">{model.cellText(a, l.total)}</div>
      <div role="gridcell" class="share"><i><i class="b" style={{ width: `${(l.total / most) * 100}%` }} /><i class="a" style={{ width: `${(l.self / most) * 100}%` }} /></i><span>{model.shareText(l.total, all)}</span></div>
    </div>
  );
}

function pick(t: Tree, l: Line): void {
  active.value = l.key;
  const node = l.node >= 0 ? l.node : model.scene.value?.callers ? -1 : largest(t, t.frames.fn[l.frame]);
  if (node >= 0) zoomInto(t, node);
  else go({ fn: model.keyOfFn(t, t.frames.fn[l.frame]) }, true);
}
function twist(l: Line): void {
  const next = new Set(open.value);
  if (next.has(l.key)) next.delete(l.key); else next.add(l.key);
  opened.value = next;
}
function keys(e: KeyboardEvent, all: Line[], at: number, to: (i: number) => void): void {
  if (e.ctrlKey || e.metaKey || e.altKey || (e.target as HTMLElement).closest("button")) return;
  const l = all[at], page = 15, t = model.tree.value;
  if (e.key === "ArrowDown") to(at + 1);
  else if (e.key === "ArrowUp") to(Math.max(0, at - 1));
  else if (e.key === "PageDown") to(at + page);
  else if (e.key === "PageUp") to(Math.max(0, at - page));
  else if (e.key === "Home") to(0);
  else if (e.key === "End") to(all.length - 1);
  else if (e.key === "Enter" && l && t) { const node = l.node >= 0 ? l.node : largest(t, t.frames.fn[l.frame]); pick(t, l); if (node >= 0) setCursor(node); }
  else if (e.key === "ArrowRight" && l && l.open === false) twist(l);
  else if (e.key === "ArrowLeft" && l && l.open) twist(l);
  else if (e.key === "ArrowLeft" && l && l.level > 1) { let i = at; while (i > 0 && all[i].level >= l.level) i--; to(i); }
  else if ((e.key === "ContextMenu" || (e.key === "F10" && e.shiftKey)) && l && t) { const b = document.getElementById(`row-${l.key}`)?.getBoundingClientRect(); if (b) openMenu(t, l.frame, l.node, b.left + 40, b.bottom, document.getElementById("table")); }
  else return;
  e.preventDefault();
}
