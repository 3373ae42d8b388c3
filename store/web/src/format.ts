// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them: SI for time, binary for memory, a thin space between thousands, never more digits than are known.

const NARROW = "\u202f";

/** `n` significant digits, no exponent: 0.0412, 3.2, 412, 41 200. */
export function digits(v: number, n = 3): string {
  if (!Number.isFinite(v)) return "?";
  if (v === 0) return "0";
  if (Math.abs(v) >= 10 ** (n - 1)) return count(v);
  const s = v.toPrecision(n);
  return s.includes("e") ? Number(s).toFixed(Math.min(20, n - 1 - Math.floor(Math.log10(Math.abs(v))))) : s;
}

export function count(v: number): string {
  return Math.round(v).toString().replace(/\B(?=(\d{3})+$)/g, NARROW);
}

/** A share 0..1 as "10.6 %"; what is there but would read 0.0 says "< 0.1 %". */
export function percent(x: number, decimals = 1): string {
  if (x > 0 && x < 0.5 / 10 ** (decimals + 2)) return `<${NARROW}${1 / 10 ** decimals}${NARROW}%`;
  return `${(x * 100).toFixed(x >= 0.9995 ? 0 : decimals)}${NARROW}%`;
}

export function seconds(s: number, n = 3): string {
  const a = Math.abs(s);
  if (a >= 1 || s === 0) return `${digits(s, n)} s`;
  if (a >= 1e-3) return `${digits(s * 1e3, n)} ms`;
  return `${digits(s * 1e6, n)} µs`;
}

/** A span in whole seconds as "8 s", "3 min", "1 h 30 min", "2 d 4 h". */
export function span(s: number): string {
  s = Math.round(s);
  if (s < 120) return `${s} s`;
  if (s < 7200) return s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${s / 60} min`;
  if (s < 172800) return join(Math.floor(s / 3600), "h", Math.round((s % 3600) / 60), "min");
  return join(Math.floor(s / 86400), "d", Math.round((s % 86400) / 3600), "h");
}
const join = (a: number, ua: string, b: number, ub: string) => (b ? `${a} ${ua} ${b} ${ub}` : `${a} ${ua}`);

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export function bytes(v: number, n = 3): string {
  let i = 0;
  while (Math.abs(v) >= 1024 && i < BINARY.length - 1) { v /= 1024; i++; }
  return `${digits(v, i ? n : 4)} ${BINARY[i]}`;
}

const cores1 = (v: number): string => (v >= 100 ? count(v) : v >= 10 ? v.toFixed(1) : v >= 1 ? v.toFixed(2) : digits(v, 2));
export const cores = (v: number): string => `${cores1(v)} core${v === 1 ? "" : "s"}`;

/** 95 % interval of a count of independent samples, as a share of the count (normal approximation; Poisson below ten is wider). */
export const interval95 = (samples: number): number => 1.96 / Math.sqrt(Math.max(1, samples));

export const plural = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`;
