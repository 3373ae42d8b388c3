// SPDX-License-Identifier: Apache-2.0
// The flame graph's canvas: as large as what is visible, however deep the stacks; redrawn at most once a frame.
import { effect } from "@preact/signals";
import { palette } from "../palette.ts";
import { calm, hot, view } from "../state.ts";
import { hit, layout, type Rect, type Window } from "./layout.ts";
import * as model from "./model.ts";
import { paint, PAD, ROW, rowAt, TOP, yOf, type Part } from "./paint.ts";
import type { Tree } from "./tree.ts";

const ZOOM_MS = 120;

export class FlameCanvas {
  private parts: Part[] = [];
  private win: Window = { a: 0, b: 1 };
  private anim: { from: Window; to: Window; start: number } | null = null;
  private shown: Tree | null = null;
  private painted: Tree | null = null;
  private dirty = 0; // 1 = paint, 2 = lay out and paint
  private readonly stops: (() => void)[] = [];
  private readonly observer: ResizeObserver;

  constructor(private readonly scroll: HTMLElement, private readonly sizer: HTMLElement, private readonly canvas: HTMLCanvasElement) {
    this.observer = new ResizeObserver(() => this.want(2));
    this.observer.observe(scroll);
    scroll.addEventListener("scroll", () => this.want(1), { passive: true });
    this.stops.push(effect(() => { void model.scene.value; void model.flip.value; this.retarget(model.zoomWindow.value); }));
    this.stops.push(effect(() => { void [model.found.value, model.off.value, hot.value, model.cursorNode.value, model.cursorShown.value, palette.value]; this.want(1); }));
  }
  stop(): void { this.observer.disconnect(); for (const s of this.stops) s(); }

  private retarget(to: Window): void {
    const tree = model.scene.peek()?.tree ?? null, jump = tree !== this.shown || calm.matches;
    if (jump) { this.anim = null; this.win = to; }
    else if (to.a !== this.win.a || to.b !== this.win.b) this.anim = { from: this.win, to, start: performance.now() };
    this.shown = tree;
    this.want(2);
  }
  private want(level: number): void {
    if (!this.dirty) requestAnimationFrame((t) => this.draw(t));
    this.dirty = Math.max(this.dirty, level);
  }

  private draw(time: number): void {
    const level = this.dirty;
    this.dirty = 0;
    if (this.anim) {
      const k = Math.min(1, Math.max(0, (time - this.anim.start) / ZOOM_MS)), e = 1 - (1 - k) ** 3, { from, to } = this.anim;
      this.win = k >= 1 ? to : { a: from.a + (to.a - from.a) * e, b: from.b + (to.b - from.b) * e };
      if (k >= 1) this.anim = null;
    }
    const started = performance.now();
    if (level === 2) this.place();
    this.paint();
    if (this.shown && this.shown !== this.painted) this.measure(started, this.shown);
    if (this.anim) this.want(2);
  }

  /** For the performance panel and the tests: an answer's way from its bytes to the canvas. */
  private measure(started: number, tree: Tree): void {
    this.painted = tree;
    const end = performance.now(), arrived = performance.getEntriesByName("flame answer").pop()?.startTime ?? started;
    performance.clearMarks("flame answer");
    performance.clearMeasures("flame first paint");
    performance.measure("flame first paint", { start: arrived, end, detail: { nodes: tree.n, draw: end - started } });
  }

  private place(): void {
    const s = model.scene.peek(), width = this.scroll.clientWidth - 2 * PAD, viewRows = Math.floor((this.scroll.clientHeight - 2 * TOP) / ROW);
    this.parts = [];
    let rows = 0;
    if (s && width > 0) {
      const down = layout(s.tree, this.win, width, s.callers ? 0 : s.tree.depth[model.root.peek()]);
      const up = s.callers ? layout(s.callers, { a: 0, b: 1 }, width) : [];
      const above = Math.max(0, up.length - 1);
      rows = above + down.length;
      const flip = model.flip.peek(), last = Math.max(rows, flip ? viewRows : 0) - 1;
      const base = flip ? last - above : above, dir = flip ? -1 : 1;
      this.parts.push({ tree: s.tree, rows: down, base, dir, skipRoot: false });
      if (s.callers) this.parts.push({ tree: s.callers, rows: up, base, dir: -dir as 1 | -1, skipRoot: true });
    }
    this.sizer.style.height = `${Math.max(this.scroll.clientHeight, rows * ROW + 2 * TOP)}px`;
  }

  private paint(): void {
    const w = this.scroll.clientWidth, h = this.scroll.clientHeight, ratio = devicePixelRatio || 1, c = this.canvas;
    if (c.width !== Math.round(w * ratio) || c.height !== Math.round(h * ratio)) {
      c.width = Math.round(w * ratio); c.height = Math.round(h * ratio);
      c.style.width = `${w}px`; c.style.height = `${h}px`;
    }
    const ctx = c.getContext("2d");
    if (!ctx) return;
    paint(ctx, this.parts, {
      width: w, height: h, ratio, scroll: this.scroll.scrollTop, colors: palette.peek(), found: model.found.peek()?.frames ?? null,
      off: new Set(view.peek().off), hot: hot.peek(), cursor: model.cursorShown.peek() ? model.cursorNode.peek() : -1, short: model.short,
    });
  }

  /** The rectangle under a point of the window. */
  at(clientX: number, clientY: number): { tree: Tree; rect: Rect } | null {
    const b = this.canvas.getBoundingClientRect(), x = clientX - b.left - PAD, y = clientY - b.top + this.scroll.scrollTop;
    for (const p of this.parts) {
      const row = rowAt(p, y), r = row >= (p.skipRoot ? 1 : 0) ? hit(p.rows, row, x) : null;
      if (r) return { tree: p.tree, rect: r };
    }
    return null;
  }
  /** The drawn rectangle of a node of the main tree, if it is in the picture. */
  rectOf(node: number): Rect | null {
    const p = this.parts[0];
    return p?.rows[p.tree.depth[node]]?.find((r) => r.node === node && !r.small) ?? null;
  }
  /** Neighbour in the same row, skipping heaps. */
  beside(node: number, step: 1 | -1): number {
    const p = this.parts[0], line = p?.rows[p.tree.depth[node]]?.filter((r) => !r.small) ?? [], i = line.findIndex((r) => r.node === node);
    return line[i + step]?.node ?? -1;
  }
  /** Scrolls the row of a node into view and gives its place in the window. */
  reveal(node: number): { x: number; y: number } | null {
    const p = this.parts[0], r = this.rectOf(node);
    if (!p || !r) return null;
    const y = yOf(p, r.row), s = this.scroll;
    if (y < s.scrollTop + TOP) s.scrollTop = y - TOP;
    else if (y + ROW > s.scrollTop + s.clientHeight) s.scrollTop = y + ROW + TOP - s.clientHeight;
    const b = this.canvas.getBoundingClientRect();
    return { x: b.left + PAD + r.x + Math.min(r.w, 60), y: b.top + y - s.scrollTop + ROW };
  }
  toBottom(): void { this.scroll.scrollTop = this.scroll.scrollHeight; }
}
