// SPDX-License-Identifier: Apache-2.0
// Matchers as in Prometheus: comm="python3", pod!="x", script=~"train.*", thread!~"...".

export type Op = "=" | "!=" | "=~" | "!~";
export interface Matcher { label: string; op: Op; value: string }

export const quote = (s: string): string => `"${s.replace(/\\/g, "\\\\").replace(/"/g, '\\"').replace(/\n/g, "\\n")}"`;
export const formatMatcher = (m: Matcher): string => `${m.label}${m.op}${quote(m.value)}`;
export const formatMatch = (list: Matcher[]): string => list.map(formatMatcher).join(",");

const ONE = /^\s*([A-Za-z_][\w.]*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))\s*(,|$)/;

/** Null when the text is no list of matchers. Quotes may be left out around simple values. */
export function parseMatch(text: string): Matcher[] | null {
  const out: Matcher[] = [];
  let rest = text;
  while (rest.trim()) {
    const m = ONE.exec(rest);
    if (!m) return null;
    const value = m[3] !== undefined ? m[3].replace(/\\(.)/g, (_, c: string) => (c === "n" ? "\n" : c)) : m[4];
    out.push({ label: m[1], op: m[2] as Op, value });
    rest = rest.slice(m[0].length);
  }
  return out;
}
export const chipText = (m: Matcher): string => `${m.label}${m.op}${m.value}`;
export const sameMatcher = (a: Matcher, b: Matcher): boolean => a.label === b.label && a.op === b.op && a.value === b.value;
/** RE2 and JavaScript agree on these. */
export const escapeRegex = (s: string): string => s.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
