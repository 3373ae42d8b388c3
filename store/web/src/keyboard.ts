// SPDX-License-Identifier: Apache-2.0
import { pan, scale } from "./header/timepicker.tsx";
import * as model from "./flame/model.ts";
import { menu } from "./flame/pointer.ts";
import { hide, sheet, show } from "./panel/sheet.tsx";
import { close, open } from "./popover.tsx";
import { setTab, toggleFlip } from "./profile.tsx";
import { go, live, select, setLive, setTheme, setUtc, view, zoomBack } from "./state.ts";
import { TABS } from "./view.ts";

/** Esc undoes the innermost thing: menu, sheet, popover, callers and callees, zoom, search, selection. */
function back(): void {
  const v = view.value, t = model.tree.value;
  if (menu.value) menu.value = null;
  else if (sheet.value) hide();
  else if (open.value) close();
  else if (v.fn) go({ fn: "" });
  else if (v.zoom || v.heap >= 0) zoomBack();
  else if (v.q) go({ q: "" });
  else if (v.sel) select(null);
  else if (t) model.cursor.value = 0;
}

const KEYS: Record<string, () => void> = {
  a: () => pan(-0.5), d: () => pan(0.5), w: () => scale(0.5), s: () => scale(2),
  "[": () => history.back(), "]": () => history.forward(),
  r: () => go({ recursion: !view.value.recursion }), h: () => go({ runtime: !view.value.runtime }), m: () => go({ mine: !view.value.mine }), l: () => go({ lines: !view.value.lines }),
  f: toggleFlip, t: setTheme, u: setUtc, " ": () => setLive(!live.value), "?": () => show("help"),
  "1": () => setTab(TABS[0]), "2": () => setTab(TABS[1]), "3": () => setTab(TABS[2]), "4": () => setTab(TABS[3]),
};

export function listen(): void {
  addEventListener("keydown", (e) => {
    const el = e.target instanceof HTMLElement ? e.target : null;
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") { if (el?.id !== "q") back(); return; }
    if (el && (/^(INPUT|TEXTAREA|SELECT)$/.test(el.tagName) || el.isContentEditable)) return;
    if (e.key === " " && el && /^(BUTTON|A|LABEL)$/.test(el.tagName)) return; // it presses the button
    if (e.key === "/") { e.preventDefault(); const q = document.getElementById("q") as HTMLInputElement | null; q?.focus(); q?.select(); return; }
    const run = KEYS[e.key.length === 1 ? e.key.toLowerCase() : e.key];
    if (run) { e.preventDefault(); run(); }
  });
}
