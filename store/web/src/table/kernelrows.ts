// SPDX-License-Identifier: Apache-2.0
// Rows of the kernel table: order, filter, texts; pure.
import type { Kernel, KernelsAnswer, Origin } from "../api.ts";
import { baseName } from "../flame/frames.ts";
import { fitName, shortName } from "../flame/label.ts";
import { count, digits, percent, seconds } from "../format.ts";
import type { KernelSort } from "../view.ts";

const BY: Record<KernelSort, (k: Kernel) => number | string | null> = {
  name: (k) => k.name.toLowerCase(), time: (k) => k.time, launches: (k) => k.launches, mean: (k) => k.mean_ns, p99: (k) => k.p99_ns, queue: (k) => k.queue_ns, from: (k) => (k.from ? originText(k.from).toLowerCase() : null),
};

/** Greatest first (names: A first); what is not known stands last, either way up. */
export function sortKernels(list: readonly Kernel[], by: KernelSort, up: boolean): Kernel[] {
  const of = BY[by], turn = (by === "name" || by === "from" ? 1 : -1) * (up ? -1 : 1);
  return [...list].sort((a, b) => {
    const x = of(a), y = of(b);
    if (x === null || y === null) return x === y ? b.time - a.time : x === null ? 1 : -1;
    return (x < y ? -1 : x > y ? 1 : 0) * turn || b.time - a.time;
  });
}

/** Text or /regex/ as in the graph's search, over name, full name and what launched it. */
export function kernelTest(query: string): (k: Kernel) => boolean {
  const q = query.trim(), re = /^\/(.+)\/(i?)$/.exec(q);
  if (re) {
    try {
      const r = new RegExp(re[1], /[A-Z]/.test(re[1]) && !re[2] ? "" : "i");
      return (k) => r.test(k.name) || r.test(k.full) || (k.from !== null && r.test(k.from.name));
    } catch { return () => false; }
  }
  const low = q.toLowerCase();
  return (k) => `${k.name}\0${k.full}\0${k.from ? `${k.from.name} ${originText(k.from)}` : ""}`.toLowerCase().includes(low);
}

/** A Python frame by its place, an autograd node or native function by its name. */
export function originText(o: Origin): string {
  return o.kind === "python" && o.file ? `${baseName(o.file)}${o.line ? `:${o.line}` : ""}` : fitName(shortName(o.name), 22);
}

/** A kernel's name tells most at its ends: cut in the middle to `room` characters. */
export function cutMiddle(name: string, room: number): string {
  if (name.length <= room || room < 6) return name;
  const end = Math.floor((room - 1) * 0.45);
  return `${name.slice(0, room - 1 - end)}…${name.slice(name.length - end)}`;
}

export const estimated = (a: KernelsAnswer): boolean => a.estimate.recorded === null || a.estimate.windows > 0;
export const short = (ns: number | null): string => (ns === null ? "–" : seconds(ns / 1e9));
export const launchText = (a: KernelsAnswer, n: number | null): string => (n === null ? "–" : `${estimated(a) && !a.estimate.counted ? "~" : ""}${count(n)}`);
export const timeText = (a: KernelsAnswer, ns: number): string => `${estimated(a) ? "~" : ""}${seconds(ns / 1e9)}`;
/** "403–440 s"; as many digits as tell the ends apart. */
export function intervalText([low, high]: [number, number]): string {
  const [unit, name] = high >= 1e9 ? [1e9, "s"] : high >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  for (let n = 3; ; n++) { const a = digits(low / unit, n), b = digits(high / unit, n); if (a !== b || n === 6) return `${a === b ? a : `${a}–${b}`} ${name}`; }
}

/** Everything of a kernel, for the row's title. */
export function kernelTitle(a: KernelsAnswer, k: Kernel): string {
  const o = k.from, shape = [k.registers && `${k.registers} registers`, k.grid && `grid ${k.grid}`, k.block && `block ${k.block}`, k.shared && `${k.shared} bytes shared`].filter(Boolean).join(", ");
  return [
    k.full, `${k.category}${k.module ? `, ${k.module}` : ""}`,
    k.interval && estimated(a) ? `time ${timeText(a, k.time)}, 95 % interval ${intervalText(k.interval)}` : `time ${timeText(a, k.time)}`,
    shape && `${shape}${k.grid ? " (the shape launched most)" : ""}`,
    o && `launched from ${o.name}${o.file ? `, ${o.file}${o.line ? `:${o.line}` : ""}` : o.module ? `, ${o.module}` : ""}${o.others ? `: ${percent(o.share, 0)} of its time, ${o.others} more` : ""}`,
    k.p99_ns === null && k.p99_why ? `no p99: ${k.p99_why}` : "", k.queue_ns === null && a.missing["queue"] ? `no queue delay: ${a.missing["queue"]}` : "",
  ].filter(Boolean).join("\n");
}
