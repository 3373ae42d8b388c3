// SPDX-License-Identifier: Apache-2.0
// Above the graph: how much it shows, and the way to what is zoomed into. Below it: the kinds.
import type { FlameAnswer } from "../api.ts";
import { count, digits, percent, plural, span } from "../format.ts";
import { intervalText, launchText } from "../table/kernelrows.ts";
import { go, held, kernels, narrow, now, selected, view, zoomTo } from "../state.ts";
import { Swatch } from "../swatch.tsx";
import { rangeText } from "../time.ts";
import { KIND_NAME, KIND_ORDER } from "./frames.ts";
import * as model from "./model.ts";
import { pathTo } from "./tree.ts";

export function Bar() {
  const a = model.answer.value, t = model.tree.value, v = view.value, r = selected.value, s = model.scene.value;
  if (!a) return <div class="bar" />;
  const zoomed = v.zoom !== 0 && !s?.callers, shown = s?.callers && t ? t.total[0] : a.total, whole = model.totalText(a, shown);
  const part = a.total !== a.all_total && a.all_total > 0 ? percent(a.total / a.all_total) : "";
  const detail = a.type === "cpu" ? `${plural(shown, "sample")}${part && `, ${part} of ${count(a.all_total)}`}` : [part && `${part} of all`, evidence(a)].filter(Boolean).join(", ");
  const missing = (a.to_ms - a.from_ms) / 1000 - a.seconds, short = missing > 3 && a.seconds < 0.97 * (a.to_ms - a.from_ms) / 1000 ? missing : 0;
  return (
    <div class="bar" id="bar">
      <b id="total">{whole}</b>
      {!zoomed && <span class="cut">{detail}</span>}
      {short > 0 && !zoomed && <span class="muted" id="covered" title="The rest of the range was not profiled; all rates are of the seconds that were">profiled {span(a.seconds)} of {span((a.to_ms - a.from_ms) / 1000)}</span>}
      {a.merged.nodes > 0 && !zoomed && <span class="muted" title={`Nodes below ${percent(a.merged.below, 3)} of the total are part of their parents`}>{count(a.merged.nodes)} small nodes merged</span>}
      {s?.callers && t && <><span class="muted">callers and callees of</span><span class="code cut">{model.short(t.frames.name[t.frame[0]])}</span><button class="tog" onClick={() => go({ fn: "" }, true)}>Whole graph <kbd>Esc</kbd></button></>}
      {zoomed && <Crumbs />}
      <span class="grow" />
      {held.value && v.to === "now" && !v.sel && <span class="muted" title="While the pointer is in the profile nothing moves">held</span>}
      {!zoomed && !narrow.value && !(short > 0 && a.type !== "cpu") && <span class="muted cut">{v.sel ? "selection" : "range"} {rangeText(r.from, r.to, now.value, v.utc)}</span>}
    </div>
  );
}

/** What an estimate rests on: "403–440 s (95 %), 41 200 launches counted, 16 windows". */
function evidence(a: FlameAnswer): string {
  const e = a.estimate, k = kernels.value.value, out: string[] = [];
  if (a.type === "off_cpu") return `${digits(a.total / 1e9 / Math.max(1e-9, a.seconds), 3)} threads waiting on average`;
  if (!e) return "";
  if (e.interval) out.push(`${intervalText(e.interval)} (95 %)`);
  if (a.type === "gpu_time" && k?.launches) out.push(`${launchText(k, k.launches)} launches${k.estimate.counted ? " counted" : ""}`);
  if (e.windows) out.push(plural(e.windows, "window"));
  return out.join(", ");
}

function Crumbs() {
  const t = model.tree.value, v = view.value, at = model.zoomNode.value;
  if (!t) return null;
  if (at < 0) return <><span class="muted cut">the frame that was zoomed into has no samples here</span><button class="tog" onClick={() => zoomTo(0)}>Whole graph <kbd>Esc</kbd></button></>;
  const path = pathTo(t, at), shown = path.length > 4 ? [path[0], -1, ...path.slice(-2)] : path, w = model.zoomWindow.value;
  return (
    <>
      <span class="crumbs">
        {shown.map((n, i) => <>{i > 0 && <span class="muted">›</span>}{n < 0 ? <span class="muted">…</span> : <button class="crumb cut" onClick={() => zoomTo(t.path[n])}>{model.short(t.frames.name[t.frame[n]])}</button>}</>)}
        {v.heap >= 0 && <span class="muted">› smaller frames</span>}
      </span>
      <span class="muted">{percent(w.b - w.a)}</span>
      <button class="tog" onClick={() => zoomTo(0)}>Reset</button>
    </>
  );
}

export function Kinds() {
  const a = model.answer.value, t = model.tree.value, by = model.kinds.value, off = view.value.off;
  if (!a || !t) return <div class="kinds" />;
  const all = t.total[0] || 1;
  return (
    <div class="kinds" id="kinds" role="group" aria-label="Frame kinds; a click filters">
      {KIND_ORDER.filter((k) => by.has(k)).map((k) => (
        <button key={k} aria-pressed={!off.includes(k)} title={`Self ${percent((by.get(k) ?? 0) / all)}; click to ${off.includes(k) ? "show" : "hide"}`} onClick={() => go({ off: off.includes(k) ? off.filter((x) => x !== k) : [...off, k] })}>
          <Swatch kind={k} />{KIND_NAME[k]}<span class="v">{(by.get(k) ?? 0) > 0 ? percent((by.get(k) ?? 0) / all, 0) : ""}</span>
        </button>
      ))}
      <span class="grow" /><span class="muted w2 cut">self time by kind</span>
    </div>
  );
}
