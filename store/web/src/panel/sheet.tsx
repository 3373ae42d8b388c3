// SPDX-License-Identifier: Apache-2.0
// A sheet at the right side: keyboard help, or a chart's data. The page stays usable beside it.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { charts } from "../charts/charts.tsx";
import { digits } from "../format.ts";
import { keep, keptText, selected, view } from "../state.ts";
import { clock, rangeText } from "../time.ts";
import { now } from "../state.ts";

export const sheet = signal(""); // "", "help", "source" or "data:<chart>"
let back: HTMLElement | null = null;
export function show(id: string): void { back = document.activeElement instanceof HTMLElement ? document.activeElement : null; sheet.value = sheet.value === id ? "" : id; }
export const showData = (chart: string): void => show(`data:${chart}`);
export function hide(): void { sheet.value = ""; back?.focus(); }

export function Sheet() {
  const id = sheet.value, box = useRef<HTMLElement>(null);
  useEffect(() => { if (id) box.current?.querySelector<HTMLElement>("button, input")?.focus(); }, [id]);
  if (!id) return null;
  const title = id === "help" ? "Keyboard and pointer" : id === "source" ? "Open source" : "Data of the chart";
  return (
    <aside class="sheet" ref={box} aria-label={title} onKeyDown={(e) => { if (e.key === "Escape") { e.stopPropagation(); hide(); } }}>
      <div class="sheethead"><h3>{title}</h3><button class="ghost" aria-label="close" onClick={hide}>×</button></div>
      {id === "help" ? <Help /> : id === "source" ? <Source /> : <Data id={id.slice(5)} />}
    </aside>
  );
}

const KEYS: [string, [string, string][]][] = [
  ["Time", [["A D", "earlier, later"], ["W S", "closer, wider"], ["[ ]", "range back, forth"], ["drag", "select for everything"], ["Shift-drag", "move the selection"], ["double-click", "clear the selection"]]],
  ["Graph", [["click, Enter", "zoom into a frame"], ["Esc", "back"], ["arrows", "walk through frames"], ["right-click", "focus, exclude, callers, copy, source"], ["F", "flip"], ["R", "collapse recursion"], ["H", "hide runtime internals"], ["M", "my code only"], ["L", "a frame for each line"]]],
  ["Search", [["/", "text or /regex/"], ["Enter, Shift-Enter", "next, previous match"], ["Esc", "clear"]]],
  ["Page", [["1 2 3 4", "CPU, GPU time, GPU idle, Off-CPU"], ["Space", "live, paused"], ["T", "light, dark"], ["U", "UTC, local"], ["?", "this help"]]],
];
function Help() {
  return <>{KEYS.map(([title, keys]) => <div key={title}><h4>{title}</h4><dl class="keys">{keys.map(([k, what]) => <><dt>{k.split(/(?<=^\S) (?=\S)/).length > 1 && k.length < 8 ? k.split(" ").map((x) => <kbd key={x}>{x}</kbd>) : <kbd>{k}</kbd>}</dt><dd>{what}</dd></>)}</dl></div>)}</>;
}

function Data({ id }: { id: string }) {
  const c = charts.value.find((x) => x.id === id), r = selected.value, utc = view.value.utc;
  if (!c) return <p class="muted">This chart has no data here.</p>;
  const at: number[] = [];
  for (let i = 0; i < c.grid.n && at.length < 2000; i++) { const t = c.grid.t0 + i * c.grid.step; if (t + c.grid.step > r.from && t < r.to) at.push(i); }
  return (
    <>
      <p class="muted">{c.title}, {rangeText(r.from, r.to, now.value, utc)}, a row for each {c.grid.step / 1000} s</p>
      <table class="data"><thead><tr><th scope="col">Time</th>{c.drawn.map((d) => <th scope="col" class="num" key={d.label}>{d.label}</th>)}</tr></thead>
        <tbody>{at.map((i) => <tr key={i}><th scope="row">{clock(c.grid.t0 + i * c.grid.step, utc)}</th>{c.drawn.map((d) => { const v = d.mean[i]; return <td class="num" key={d.label}>{v === null || v === undefined ? "no data" : c.kind === "stack" && c.id === "cpu" ? digits(v, 3) : d.value(v)}</td>; })}</tr>)}</tbody></table>
    </>
  );
}

const template = signal(keptText("source"));
const EXAMPLES = ["vscode://file{file}:{line}", "https://github.com/OWNER/REPO/blob/main{file}#L{line}"];
export const sourceTemplate = (): string => template.value;
/** The template's address for a place, or "" when it would be no web or editor link. */
export function sourceUrl(file: string, line: number): string {
  const url = template.value.replace("{file}", file.split("/").map(encodeURIComponent).join("/")).replace("{line}", String(line || 1));
  return /^(https?|vscode|vscodium|cursor|idea|jetbrains|zed|subl|txmt|emacs):/.test(url) ? url : "";
}
function Source() {
  const save = (e: Event) => { e.preventDefault(); keep("source", template.value); hide(); };
  return (
    <form onSubmit={save}>
      <p>An address with <code>{"{file}"}</code> and <code>{"{line}"}</code>. It stays in this browser.</p>
      <div class="end"><input class="code grow" value={template.value} placeholder={EXAMPLES[0]} aria-label="Address template" spellcheck={false} onInput={(e) => { template.value = e.currentTarget.value.trim(); }} /><button class="primary">Keep</button></div>
      <h4>Examples</h4>
      {EXAMPLES.map((x) => <button type="button" class="option code" key={x} onClick={() => { template.value = x; }}>{x}</button>)}
    </form>
  );
}
