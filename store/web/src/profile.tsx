// SPDX-License-Identifier: Apache-2.0
import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { plural, percent } from "./format.ts";
import { Bar, Kinds } from "./flame/bar.tsx";
import { Graph, setCursor, toBottom } from "./flame/graph.tsx";
import * as model from "./flame/model.ts";
import { menu } from "./flame/pointer.ts";
import { recordedText, unknownText } from "./gpu.ts";
import { Lens } from "./icons.tsx";
import { DetailButton } from "./panel/detail.tsx";
import { Beginning, Empty, Failed, NotRecorded } from "./panel/note.tsx";
import { beginning, recorded } from "./poll.ts";
import { flame, go, gone, hasGpu, held, keep, narrow, node, say, status, view } from "./state.ts";
import { Kernels } from "./table/kernels.tsx";
import { Table } from "./table/table.tsx";
import { TABS, type Tab } from "./view.ts";

const NAME: Record<Tab, string> = { cpu: "CPU", gpu_time: "GPU time", gpu_idle: "GPU idle", off_cpu: "Off-CPU" };

function note(tab: Tab): string {
  const n = node.value, a = flame.value.value;
  if (!n) return "";
  if ((tab === "gpu_time" || tab === "gpu_idle") && !hasGpu.value) return "no GPU";
  if (!n.types.includes(tab)) return "not recorded";
  const r = recordedText();
  if (tab === "gpu_time") return r && r !== "all recorded" ? `${r}, scaled` : r;
  if (tab === "gpu_idle") return [r, unknownText()].filter(Boolean).join(", ");
  if (tab === "cpu" && a?.type === "cpu" && a.period_ns) hz = Math.round(1e9 / a.period_ns);
  return tab === "cpu" && hz ? `${hz} Hz` : "";
}
let hz = 0; // of the newest CPU answer: stands on the tab while another is open
export function setTab(tab: Tab): void { go({ tab, zoom: 0, heap: -1, fn: "" }, true); say(`${NAME[tab]} ${note(tab)}`); }

export function Profile() {
  const inside = useRef(false);
  useEffect(() => effect(() => { held.value = (inside.current && !gone.value) || menu.value !== null; }), []);
  const set = (on: boolean) => { inside.current = on; held.value = on || menu.value !== null; };
  return (
    <main class="profile">
      <div class="tabs">
        <div role="tablist" aria-label="Profiles">
          {TABS.map((t, i) => (
            <button class="tab" role="tab" key={t} id={`tab-${t}`} title={`Key ${i + 1}`} aria-selected={view.value.tab === t} tabIndex={view.value.tab === t ? 0 : -1} data-empty={node.value && !node.value.types.includes(t) ? "" : undefined} onClick={() => setTab(t)} onKeyDown={(e) => {
              const d = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
              if (d) { const next = TABS[(i + d + TABS.length) % TABS.length]; setTab(next); document.getElementById(`tab-${next}`)?.focus(); }
            }}>{NAME[t]}<small class={view.value.tab === t ? "" : "w1"}>{note(t)}</small></button>
          ))}
        </div>
        <Tools />
      </div>
      <div class="profilebody" onPointerEnter={() => set(true)} onPointerLeave={() => set(false)}><Body /></div>
    </main>
  );
}

function Body() {
  const v = view.value, a = model.answer.value;
  if (!status.value.value || !node.value || (beginning.value && v.tab === "cpu")) return <Beginning />;
  if (!recorded.value && v.tab !== "cpu") return <NotRecorded tab={v.tab} />;
  if (flame.error.value && !flame.error.value.gone) return <Failed />;
  if (!a || a.type !== v.tab) return <div class="note" />;
  if (!(a.total > 0)) return <Empty />;
  return <Split />;
}

function Split() {
  const v = view.value, kernelTable = v.tab === "gpu_time" && !v.tree, share = v.split || (kernelTable ? 0.48 : 0.35);
  const drag = (e: PointerEvent) => {
    const el = e.currentTarget as HTMLElement, box = el.parentElement!.getBoundingClientRect();
    el.setPointerCapture(e.pointerId);
    el.onpointermove = (m) => go({ split: Math.max(0.2, Math.min(0.7, (box.right - m.clientX) / box.width)) });
    el.onpointerup = el.onpointercancel = () => { el.onpointermove = null; keep("split", String(view.value.split)); };
  };
  const step = (e: KeyboardEvent) => {
    const d = e.key === "ArrowLeft" ? 0.02 : e.key === "ArrowRight" ? -0.02 : 0;
    if (d) { e.preventDefault(); go({ split: Math.max(0.2, Math.min(0.7, share + d)) }); }
  };
  const only = narrow.value ? v.pane : "";
  return (
    <div class="split" id="split" data-stale={gone.value ? "" : undefined}>
      {only !== "table" && <div class="flame"><Bar /><Graph /><Kinds /></div>}
      {!only && <div class="divider" role="separator" aria-orientation="vertical" aria-label="Width of the table" aria-valuenow={Math.round(share * 100)} aria-valuemin={20} aria-valuemax={70} tabIndex={0} onPointerDown={drag} onDblClick={() => { keep("split", ""); go({ split: 0 }); }} onKeyDown={step} />}
      {only !== "graph" && <div class="table" style={only ? { width: "100%" } : { width: `${share * 100}%` }}>{kernelTable ? <Kernels /> : <Table />}</div>}
    </div>
  );
}

function Tools() {
  const v = view.value, shown = recorded.value && !beginning.value && (model.answer.value?.total ?? 0) > 0;
  if (!shown) return null;
  const tog = (name: string, key: "recursion" | "runtime" | "mine" | "lines", title: string) => <button class="tog" aria-pressed={v[key]} title={title} onClick={() => go({ [key]: !v[key] })}>{name}</button>;
  return (
    <div class="tools">
      <span class="w2" role="group" aria-label="What the graph shows">
        {tog("Collapse recursion", "recursion", "A stack that repeats its last frames shows one turn (R)")}
        {tog("Hide runtime", "runtime", "Leaves out interpreter loops, thread starters, system call entries, dispatchers; their time stays with what called them (H)")}
        {tog("My code only", "mine", "Leaves out libraries, interpreter and kernel (M)")}
        {tog("Lines", "lines", "A frame for each source line, not for each function (L)")}
      </span>
      {(v.tab === "gpu_time" || v.tab === "gpu_idle") && <DetailButton />}
      {narrow.value && <span class="group" role="group" aria-label="Graph or table"><button aria-pressed={v.pane === "graph"} onClick={() => go({ pane: "graph" })}>Graph</button><button aria-pressed={v.pane === "table"} onClick={() => go({ pane: "table" })}>Table</button></span>}
      <Search />
    </div>
  );
}

export function toggleFlip(): void { go({ flip: !view.value.flip }); if (view.value.flip) requestAnimationFrame(() => requestAnimationFrame(toBottom)); }

let step = -1;
function Search() {
  const v = view.value, f = model.found.value, p = model.pattern.value, t = model.tree.value;
  const next = (d: 1 | -1) => {
    const list = model.foundBySize.value;
    if (!list.length) return;
    step = (step + d + list.length) % list.length;
    setCursor(list[step]);
  };
  const keys = (e: KeyboardEvent & { currentTarget: HTMLInputElement }) => {
    if (e.key === "Enter") { e.preventDefault(); next(e.shiftKey ? -1 : 1); }
    else if (e.key === "Escape") { e.stopPropagation(); if (v.q) { go({ q: "" }); model.cursor.value = 0; } else e.currentTarget.blur(); }
  };
  const out = !p ? null : p.error ? p.error : f && f.nodes.length && t ? `${plural(f.nodes.length, "match", "matches")}, ${percent(f.value / (t.total[0] || 1))}` : "no match";
  return (
    <label class="search"><Lens />
      <input id="q" value={v.q} placeholder="Search, /regex/" aria-label="Search frames" autocomplete="off" spellcheck={false} onInput={(e) => { step = -1; go({ q: e.currentTarget.value }); }} onKeyDown={keys} />
      <output class={p?.error ? "bad cut" : ""} title={p?.error}>{out ?? <kbd>/</kbd>}</output>
    </label>
  );
}
