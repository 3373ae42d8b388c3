// SPDX-License-Identifier: Apache-2.0
// Times as people type and read them. All values are milliseconds since 1970 unless a name says seconds.

const UNIT: Record<string, number> = { s: 1e3, m: 60e3, h: 3600e3, d: 86400e3, w: 604800e3 };

/** "1h30m" -> 5400000; null when it is no duration. */
export function parseDuration(text: string): number | null {
  if (!/^(\d+(\.\d+)?[smhdw])+$/.test(text)) return null;
  let ms = 0;
  for (const [, n, u] of text.matchAll(/(\d+(?:\.\d+)?)([smhdw])/g)) ms += Number(n) * UNIT[u];
  return ms;
}

/** 5400000 -> "1h30m"; whole seconds only. */
export function formatDuration(ms: number): string {
  let s = Math.max(1, Math.round(ms / 1000)), out = "";
  for (const [u, n] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]] as const) {
    const k = Math.floor(s / n);
    if (k) out += `${k}${u}`;
    s -= k * n;
  }
  return out;
}

export const isRelative = (text: string): boolean => text === "now" || /^(now)?-/.test(text);

/**
 * What a person or a URL says: now, -5m, now-1h30m, milliseconds, 14:31, 14:31:34, 2026-03-12 14:31, RFC 3339.
 * A clock time without a date is the latest such time not after `now`. Null when it is none of these.
 */
export function parseTime(text: string, now: number, utc: boolean): number | null {
  const t = text.trim();
  if (t === "now") return now;
  const rel = /^(?:now)?\s*-\s*(.+)$/.exec(t);
  if (rel) {
    const d = parseDuration(rel[1].replace(/\s+/g, ""));
    return d === null ? null : now - d;
  }
  if (/^\d{11,14}(\.\d+)?$/.test(t)) return Number(t);
  const clockOnly = /^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?$/.exec(t);
  if (clockOnly) {
    const [h, m, s] = [Number(clockOnly[1]), Number(clockOnly[2]), Number(clockOnly[3] ?? 0)];
    if (h > 23 || m > 59 || s >= 60) return null;
    const d = new Date(now);
    const at = utc ? Date.UTC(d.getUTCFullYear(), d.getUTCMonth(), d.getUTCDate(), h, m) : new Date(d.getFullYear(), d.getMonth(), d.getDate(), h, m).getTime();
    const ms = at + s * 1000;
    return ms <= now ? ms : ms - 86400e3;
  }
  const dated = /^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?)?(Z|[+-]\d{2}:?\d{2})?$/.exec(t);
  if (!dated) return null;
  const [, Y, M, D, h = "00", m = "00", s = "00", zone = utc ? "Z" : ""] = dated;
  const ms = Date.parse(`${Y}-${M}-${D}T${h}:${m}:${s.includes(".") ? s : `${s}.000`}${zone}`);
  return Number.isNaN(ms) ? null : ms;
}

const two = (n: number): string => String(n).padStart(2, "0");

export interface Parts { Y: number; M: number; D: number; h: number; m: number; s: number }
export function parts(ms: number, utc: boolean): Parts {
  const d = new Date(ms);
  return utc
    ? { Y: d.getUTCFullYear(), M: d.getUTCMonth() + 1, D: d.getUTCDate(), h: d.getUTCHours(), m: d.getUTCMinutes(), s: d.getUTCSeconds() }
    : { Y: d.getFullYear(), M: d.getMonth() + 1, D: d.getDate(), h: d.getHours(), m: d.getMinutes(), s: d.getSeconds() };
}
export const clock = (ms: number, utc: boolean): string => { const p = parts(ms, utc); return `${two(p.h)}:${two(p.m)}:${two(p.s)}`; };
export const day = (ms: number, utc: boolean): string => { const p = parts(ms, utc); return `${p.Y}-${two(p.M)}-${two(p.D)}`; };
export const stamp = (ms: number, utc: boolean): string => `${day(ms, utc)} ${clock(ms, utc)}`;

/** "14:29:30 to 14:32:30"; dates only when they are not today's. */
export function rangeText(from: number, to: number, now: number, utc: boolean): string {
  const today = day(now, utc), a = day(from, utc), b = day(to, utc);
  if (a === b) return a === today ? `${clock(from, utc)} to ${clock(to, utc)}` : `${a} ${clock(from, utc)} to ${clock(to, utc)}`;
  return `${a.slice(5)} ${clock(from, utc).slice(0, 5)} to ${b.slice(5)} ${clock(to, utc).slice(0, 5)}`;
}

const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Step of time ticks, seconds, at least `gap` px apart. */
export function tickStep(spanMs: number, width: number, gap = 88): number {
  const least = (spanMs / 1000 / Math.max(1, width)) * gap;
  return TICKS_S.find((s) => s >= least) ?? Math.ceil(least / 604800) * 604800;
}

/** Tick positions in local or UTC wall time: a 6 h tick stands at 06:00 of the zone that is shown. */
export function timeTicks(from: number, to: number, width: number, utc: boolean): number[] {
  const step = tickStep(to - from, width) * 1000, out: number[] = [];
  const zone = utc ? 0 : -new Date(from).getTimezoneOffset() * 60e3;
  for (let t = Math.ceil((from + zone) / step) * step - zone; t <= to; t += step) out.push(t);
  return out;
}
export function tickText(t: number, stepS: number, utc: boolean): string {
  if (stepS >= 86400) return day(t, utc).slice(5);
  const c = clock(t, utc);
  if (stepS >= 60) return c === "00:00:00" ? day(t, utc).slice(5) : c.slice(0, 5);
  return c;
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

/** Chart step, ms: the finest that keeps every point at least `px` wide and the answer under 2 000 points. */
export function chartStep(spanMs: number, width: number, px = 3): number {
  const least = Math.max((spanMs / 1000) * (px / Math.max(100, width)), spanMs / 1000 / 2000);
  return (STEPS_S.find((s) => s >= least) ?? Math.ceil(least / 86400) * 86400) * 1000;
}

export function niceMax(v: number): number {
  if (!(v > 0)) return 1;
  const e = 10 ** Math.floor(Math.log10(v));
  for (const m of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (m * e >= v) return m * e;
  return 10 * e;
}
/** Two or three round values from 0 to `max`. */
export function valueTicks(max: number): number[] {
  for (const n of [2, 3, 4, 1]) {
    const step = max / n, e = 10 ** Math.floor(Math.log10(step));
    if ([1, 1.5, 2, 2.5, 3, 4, 5].some((m) => Math.abs(step / e - m) < 1e-9)) return Array.from({ length: n + 1 }, (_, i) => i * step);
  }
  return [0, max];
}
