// SPDX-License-Identifier: Apache-2.0
// Colours for canvases, read from the style sheet once per theme.
import { computed } from "@preact/signals";
import type { FrameKind } from "./api.ts";
import { hashText } from "./flame/frames.ts";
import { theme } from "./state.ts";

export class Palette {
  private readonly style = getComputedStyle(document.documentElement);
  private readonly seen = new Map<string, string>();
  private readonly shades = new Map<string, string>();
  constructor(readonly theme: string) {}
  get(name: string): string {
    let v = this.seen.get(name);
    if (v === undefined) { v = this.style.getPropertyValue(name).trim(); this.seen.set(name, v); }
    return v;
  }
  px(name: string): number { return parseFloat(this.get(name)) || 0; }

  /** A kind's fill; lightness varies a little by module, so that a library's frames are told from its neighbour's. */
  fill(kind: FrameKind, module: string): string {
    const key = `${kind}\0${module}`, had = this.shades.get(key);
    if (had) return had;
    const base = this.get(KIND_VAR[kind]);
    const vary = kind === "python" || kind === "native" || kind === "kernel" || kind === "cuda_api" || kind === "guessed";
    const d = vary && module ? ((hashText(module) % 5) - 2) * 4 : 0;
    const shade = base.startsWith("#") ? `#${[1, 3, 5].map((i) => Math.max(0, Math.min(255, parseInt(base.slice(i, i + 2), 16) + d)).toString(16).padStart(2, "0")).join("")}` : base;
    this.shades.set(key, shade);
    return shade;
  }
}
export const KIND_VAR: Record<FrameKind, string> = {
  root: "--k-t", process: "--k-t", thread: "--k-t", python: "--k-p", native: "--k-n", kernel: "--k-k", cuda_api: "--k-c", cuda: "--k-g", collective: "--k-x",
  copy: "--k-m", reason: "--k-r", guessed: "--k-n",
};
export const palette = computed(() => new Palette(theme.value));

/** A tile of 6 px; `ratio` keeps its lines one device pixel wide. `scaled`: the context already counts CSS pixels. */
function pattern(ctx: CanvasRenderingContext2D, ground: string, ratio: number, scaled: boolean, draw: (p: CanvasRenderingContext2D, n: number) => void): CanvasPattern {
  const n = 6, tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(n * ratio);
  const p = tile.getContext("2d")!;
  p.scale(tile.width / n, tile.height / n);
  p.fillStyle = ground; p.fillRect(0, 0, n, n);
  draw(p, n);
  const out = ctx.createPattern(tile, "repeat")!;
  if (scaled) out.setTransform(new DOMMatrix().scale(n / tile.width));
  return out;
}
export function hatch(ctx: CanvasRenderingContext2D, ground: string, line: string, ratio: number, scaled = true): CanvasPattern {
  return pattern(ctx, ground, ratio, scaled, (p, n) => {
    p.strokeStyle = line; p.lineWidth = 1; p.beginPath();
    for (const o of [-n, 0, n]) { p.moveTo(o, n); p.lineTo(o + n, 0); }
    p.stroke();
  });
}
export function dots(ctx: CanvasRenderingContext2D, ground: string, dot: string, ratio: number, scaled = true): CanvasPattern {
  return pattern(ctx, ground, ratio, scaled, (p) => { p.fillStyle = dot; p.fillRect(1, 1, 1.2, 1.2); p.fillRect(4, 4, 1.2, 1.2); });
}
