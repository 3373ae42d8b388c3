// SPDX-License-Identifier: Apache-2.0
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { escapeRegex } from "../match.ts";
import { show, sourceTemplate, sourceUrl } from "../panel/sheet.tsx";
import { addFilter, go, say, view } from "../state.ts";
import { zoomInto } from "./graph.tsx";
import * as model from "./model.ts";
import { menu, type MenuSpot } from "./pointer.ts";
import { pathTo } from "./tree.ts";

interface Item { text: string; run: () => void; off?: string }

function itemsFor(m: MenuSpot): Item[] {
  const f = m.tree.frames, i = m.frame, name = f.name[i], kind = f.kind[i], exact = `^${escapeRegex(name)}$`;
  const group = kind === "process" || kind === "thread", items: Item[] = [];
  if (m.node >= 0) items.push({ text: "Zoom", run: () => zoomInto(m.tree, m.node) });
  if (kind === "process") {
    items.push({ text: `Only comm=${name}`, run: () => addFilter({ label: "comm", op: "=", value: name }) }, { text: `Without comm=${name}`, run: () => addFilter({ label: "comm", op: "!=", value: name }) });
    if (f.module[i]) items.push({ text: `Only script=${f.module[i]}`, run: () => addFilter({ label: "script", op: "=", value: f.module[i] }) });
  } else if (kind === "thread") {
    items.push({ text: `Only thread=${name}`, run: () => addFilter({ label: "thread", op: "=", value: name }) }, { text: `Without thread=${name}`, run: () => addFilter({ label: "thread", op: "!=", value: name }) });
  } else if (kind !== "root") {
    items.push(
      { text: "Focus this function everywhere", run: () => go({ focus: exact, zoom: 0, heap: -1, fn: "" }, true) },
      { text: "Exclude stacks with it", run: () => go({ exclude: [...view.value.exclude, exact], zoom: 0, heap: -1, fn: "" }, true) },
      { text: "Callers and callees", run: () => go({ fn: model.keyOfFn(m.tree, f.fn[i]), zoom: 0, heap: -1 }, true) },
    );
  }
  items.push({ text: "Copy name", run: () => copy(name, "Name") });
  if (m.node >= 0) items.push({ text: "Copy stack", run: () => copy(pathTo(m.tree, m.node).map((n) => f.name[m.tree.frame[n]]).join(";"), "Stack") });
  if (!group && kind !== "root") {
    const url = sourceTemplate() && f.file[i] ? sourceUrl(f.file[i], f.line[i]) : "";
    if (url) items.push({ text: "Open source", run: () => { window.open(url, "_blank", "noopener"); } });
    items.push({ text: sourceTemplate() ? "Source address…" : "Open source: set the address…", run: () => show("source"), off: f.file[i] ? undefined : "file not known" });
  }
  return items;
}

function copy(text: string, what: string): void {
  const done = () => say(`${what} copied`);
  if (navigator.clipboard) { void navigator.clipboard.writeText(text).then(done); return; }
  const area = document.createElement("textarea"); // plain http from another host has no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  if (document.execCommand("copy")) done();
  area.remove();
}

export function Menu() {
  const m = menu.value, box = useRef<HTMLDivElement>(null);
  const shut = () => { menu.value = null; m?.back?.focus(); };
  useLayoutEffect(() => {
    const el = box.current;
    if (!el || !m) return;
    el.style.left = `${Math.min(innerWidth - el.offsetWidth - 8, m.x)}px`;
    el.style.top = `${Math.max(8, Math.min(innerHeight - el.offsetHeight - 8, m.y))}px`;
    el.querySelector("button")?.focus();
  }, [m]);
  useEffect(() => {
    if (!m) return;
    const away = (e: PointerEvent) => { if (e.target instanceof Node && !box.current?.contains(e.target)) menu.value = null; };
    addEventListener("pointerdown", away, true);
    return () => removeEventListener("pointerdown", away, true);
  }, [m]);
  if (!m) return null;
  const keys = (e: KeyboardEvent) => {
    const all = [...(box.current?.querySelectorAll<HTMLButtonElement>("button:not(:disabled)") ?? [])], at = all.indexOf(document.activeElement as HTMLButtonElement);
    if (e.key === "Escape") shut();
    else if (e.key === "ArrowDown") all[(at + 1) % all.length]?.focus();
    else if (e.key === "ArrowUp") all[(at + all.length - 1) % all.length]?.focus();
    else return;
    e.preventDefault(); e.stopPropagation();
  };
  return (
    <div class="pop panel menu" role="menu" ref={box} onKeyDown={keys} aria-label={m.tree.frames.name[m.frame]}>
      <h4 class="cut">{model.short(m.tree.frames.name[m.frame])}</h4>
      {itemsFor(m).map((x) => <button key={x.text} role="menuitem" class="option" disabled={x.off !== undefined} title={x.off} onClick={() => { shut(); x.run(); }}>{x.text}{x.off && <span class="muted">{x.off}</span>}</button>)}
    </div>
  );
}
