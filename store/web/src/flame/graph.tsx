// SPDX-License-Identifier: Apache-2.0
import { useEffect, useRef } from "preact/hooks";
import { go, hot, say, view, zoomTo } from "../state.ts";
import { FlameCanvas } from "./canvas.ts";
import { KIND_NAME } from "./frames.ts";
import * as model from "./model.ts";
import { menu, tip } from "./pointer.ts";
import type { Tree } from "./tree.ts";

let canvas: FlameCanvas | null = null;

export function Graph() {
  const scroll = useRef<HTMLDivElement>(null), sizer = useRef<HTMLDivElement>(null), cv = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const c = new FlameCanvas(scroll.current!, sizer.current!, cv.current!);
    canvas = c;
    if (view.peek().flip) requestAnimationFrame(() => c.toBottom());
    return () => { c.stop(); canvas = null; tip.value = null; hot.value = -1; };
  }, []);
  return (
    <div class="scroll flamescroll" ref={scroll}>
      <div class="sizer" ref={sizer}>
        <canvas id="flame" ref={cv} tabIndex={0} role="application" aria-roledescription="flame graph"
          aria-label="Flame graph. Arrow keys move between frames, Enter zooms, Escape goes back. The table beside it holds the same data."
          onPointerMove={move} onPointerLeave={leave} onClick={click} onContextMenu={context} onKeyDown={keys}
          onPointerDown={() => { model.cursorShown.value = false; }}
          onFocus={(e) => { if (e.currentTarget.matches(":focus-visible") && model.cursorNode.value < 0 && model.tree.value) setCursor(model.root.value, false); }} onBlur={() => { tip.value = null; }} />
      </div>
    </div>
  );
}

function move(e: PointerEvent): void {
  const h = canvas?.at(e.clientX, e.clientY) ?? null;
  (e.currentTarget as HTMLElement).style.cursor = h ? "pointer" : "default";
  if (menu.peek()) return;
  hot.value = h && !h.rect.small ? h.tree.frames.fn[h.tree.frame[h.rect.node]] : -1;
  tip.value = h ? { tree: h.tree, node: h.rect.node, small: h.rect.small, first: h.rect.first, x: e.clientX, y: e.clientY } : null;
}
function leave(): void { hot.value = -1; if (!menu.peek()) tip.value = null; }

function click(e: MouseEvent): void {
  const h = canvas?.at(e.clientX, e.clientY);
  if (!h) return;
  tip.value = null;
  const { tree, rect } = h;
  if (rect.small) {
    if (!model.scene.value?.callers) zoomTo(tree.path[rect.node], rect.first - tree.start[rect.node]);
    return;
  }
  zoomInto(tree, rect.node);
}

/** Zooms; in callers and callees it moves to the function instead. */
export function zoomInto(tree: Tree, node: number): void {
  const f = tree.frame[node];
  if (model.scene.value?.callers) { go({ fn: model.keyOfFn(tree, tree.frames.fn[f]) }, true); return; }
  model.cursor.value = tree.path[node];
  zoomTo(tree.path[node]);
  say(node ? `Zoomed into ${tree.frames.name[f]}` : "Whole graph");
}

function context(e: MouseEvent): void {
  e.preventDefault();
  const h = canvas?.at(e.clientX, e.clientY);
  if (!h || h.rect.small) return;
  openMenu(h.tree, h.tree.frame[h.rect.node], h.rect.node, e.clientX, e.clientY, e.currentTarget as HTMLElement);
}
export function openMenu(tree: Tree, frame: number, node: number, x: number, y: number, back: HTMLElement | null): void {
  tip.value = null;
  menu.value = { tree, frame, node, x, y, back };
}

/** Puts the cursor on a node, in view: where it is too narrow or outside the window, the zoom widens to its parent. */
export function setCursor(node: number, speak = true): void {
  const t = model.tree.value;
  if (!t || node < 0 || node >= t.n) return;
  model.cursor.value = t.path[node];
  model.cursorShown.value = true;
  if (speak) {
    const a = model.answer.value, f = t.frame[node];
    if (a) say(`${t.frames.name[f]}, ${KIND_NAME[t.frames.kind[f]]}, ${model.valueText(a, t.total[node])}, ${model.shareText(t.total[node], t.total[0])} of all`);
  }
  let r = canvas?.rectOf(node);
  if (r && r.w >= 3) { canvas?.reveal(node); return; }
  let p = t.parent[node];
  while (p > 0 && t.total[p] < t.total[node] * 1.5 && t.depth[node] - t.depth[p] < 12) p = t.parent[p];
  zoomTo(t.path[Math.max(0, p)], -1, false);
  setTimeout(() => { r = canvas?.rectOf(node); canvas?.reveal(node); }, 160);
}

function keys(e: KeyboardEvent): void {
  const t = model.tree.value, at = model.cursorNode.value;
  if (!t || e.ctrlKey || e.metaKey || e.altKey) return;
  const flip = model.flip.value, down = flip ? "ArrowUp" : "ArrowDown", up = flip ? "ArrowDown" : "ArrowUp";
  let to = -1;
  if (e.key === down) to = at < 0 ? model.root.value : t.start[at] < t.start[at + 1] ? t.start[at] : -1;
  else if (e.key === up) to = at < 0 ? model.root.value : t.parent[at];
  else if (e.key === "ArrowLeft" || e.key === "ArrowRight") to = at < 0 ? model.root.value : canvas?.beside(at, e.key === "ArrowRight" ? 1 : -1) ?? -1;
  else if (e.key === "Home") to = 0;
  else if (e.key === "Enter" && at >= 0) { e.preventDefault(); zoomInto(t, at); return; }
  else if ((e.key === "ContextMenu" || (e.key === "F10" && e.shiftKey)) && at >= 0) {
    e.preventDefault();
    const p = canvas?.reveal(at);
    if (p) openMenu(t, t.frame[at], at, p.x, p.y, e.currentTarget as HTMLElement);
    return;
  } else return;
  e.preventDefault();
  if (to < 0) return;
  setCursor(to);
  const p = canvas?.reveal(to);
  tip.value = p ? { tree: t, node: to, small: 0, first: 0, x: p.x - 14, y: p.y - 14 } : null;
}

export const toBottom = (): void => canvas?.toBottom();
