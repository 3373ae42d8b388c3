// SPDX-License-Identifier: Apache-2.0
// Draws rectangles of a layout on a canvas: the visible rows only, one device pixel sharp.
import { hatch, type Palette } from "../palette.ts";
import { labelFor } from "./label.ts";
import type { Rect } from "./layout.ts";
import type { Tree } from "./tree.ts";

export const ROW = 18, PAD = 12, TOP = 4, FONT = 11;

/** One tree on the canvas: row r stands at `base + dir * r`. */
export interface Part { tree: Tree; rows: Rect[][]; base: number; dir: 1 | -1; skipRoot: boolean }
export interface Look {
  width: number; height: number; ratio: number; scroll: number; colors: Palette;
  found: Uint8Array | null; // per frame; others are dimmed
  off: Set<string>; // kinds switched off
  hot: number; // function under the pointer
  cursor: number; // node with the keyboard
  short: (name: string) => string;
}

export const yOf = (part: Part, row: number): number => TOP + (part.base + part.dir * row) * ROW;
export const rowAt = (part: Part, y: number): number => part.dir * (Math.floor((y - TOP) / ROW) - part.base);

export function paint(ctx: CanvasRenderingContext2D, parts: Part[], look: Look): void {
  const { ratio, colors: c } = look;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, look.width, look.height);
  ctx.font = `${FONT}px ${c.get("--mono")}`;
  ctx.textBaseline = "middle";
  const char = ctx.measureText("MMMMMMMMMM").width / 10; // monospaced: labels need no measuring
  const pen: Pen = {
    ctx, look, char, text: c.get("--text"), text3: c.get("--text-3"), edge: c.get("--edge"), accent: c.get("--accent"),
    small: hatch(ctx, c.get("--k-i"), "#A7B0BC", ratio),
  };
  for (const part of parts) {
    part.rows.forEach((line, row) => {
      if (part.skipRoot && row === 0) return;
      const y = yOf(part, row) - look.scroll;
      if (y > -ROW && y < look.height) for (const r of line) frame(pen, part.tree, r, y);
    });
  }
  ctx.globalAlpha = 1;
}

interface Pen { ctx: CanvasRenderingContext2D; look: Look; char: number; text: string; text3: string; edge: string; accent: string; small: CanvasPattern }

function frame(p: Pen, t: Tree, r: Rect, y: number): void {
  const { ctx, look } = p, gap = r.w > 3 ? 1 : r.w > 1.6 ? 0.5 : 0, x = PAD + r.x, w = r.w - gap, h = ROW - 1;
  const f = t.frame[r.node], kind = t.frames.kind[f], open = kind === "reason" && !r.small;
  const dim = (look.found !== null && (r.small > 0 || !look.found[f])) || (!r.small && look.off.has(kind));
  ctx.globalAlpha = r.faded ? 0.34 : dim ? 0.2 : 1;
  if (open) outline(p, x, y, w, h);
  else { ctx.fillStyle = r.small ? p.small : look.colors.fill(kind, t.frames.module[f]); ctx.fillRect(x, y, w, h); }
  ctx.globalAlpha = dim ? 0.55 : 1;
  const ink = open || r.faded || dim ? p.text : "#000";
  if (r.small) { smallLabel(p, r, x, y, w); }
  else label(p, t, f, x, y, w, ink);
  ctx.globalAlpha = 1;
  if (r.small) return;
  if (look.cursor === r.node) { ctx.strokeStyle = p.accent; ctx.lineWidth = 2; ctx.strokeRect(x + 1, y + 1, Math.max(1, w - 2), h - 2); ctx.lineWidth = 1; }
  else if (look.hot >= 0 && !r.faded && t.frames.fn[f] === look.hot) { ctx.strokeStyle = p.text; ctx.lineWidth = 1.5; ctx.strokeRect(x + 0.75, y + 0.75, Math.max(1, w - 1.5), h - 1.5); ctx.lineWidth = 1; }
}

function outline(p: Pen, x: number, y: number, w: number, h: number): void {
  const { ctx } = p;
  if (w <= 3) { ctx.fillStyle = p.edge; ctx.fillRect(x, y, w, h); return; }
  ctx.strokeStyle = p.text3;
  ctx.setLineDash([3, 2]);
  ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
  ctx.setLineDash([]);
}

function label(p: Pen, t: Tree, f: number, x: number, y: number, w: number, ink: string): void {
  const { ctx, char } = p, { text, place } = labelFor(t.frames, f, p.look.short(t.frames.name[f]), Math.floor((w - 8) / char));
  if (!text) return;
  const mid = y + (ROW - 1) / 2 + 0.5;
  ctx.fillStyle = ink;
  ctx.fillText(text, x + 4, mid);
  if (t.frames.kind[f] === "guessed") {
    ctx.strokeStyle = ink;
    ctx.setLineDash([1, 2]);
    ctx.beginPath(); ctx.moveTo(x + 4, y + ROW - 3.5); ctx.lineTo(x + 4 + text.length * char, y + ROW - 3.5); ctx.stroke();
    ctx.setLineDash([]);
  }
  if (place) { ctx.globalAlpha *= 0.74; ctx.fillText(place, x + 4 + (text.length + 1.4) * char, mid); }
}

function smallLabel(p: Pen, r: Rect, x: number, y: number, w: number): void {
  const { ctx, char } = p, room = Math.floor((w - 8) / char), long = `${r.small} smaller`;
  const text = long.length <= room ? long : String(r.small).length <= room && room >= 3 ? String(r.small) : "";
  if (!text) return;
  ctx.fillStyle = "#D3D8DF";
  ctx.fillRect(x + 2, y + 2, text.length * char + 5, ROW - 5);
  ctx.fillStyle = "#000";
  ctx.fillText(text, x + 4, y + (ROW - 1) / 2 + 0.5);
}
