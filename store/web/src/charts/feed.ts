// SPDX-License-Identifier: Apache-2.0
// Keeps the blocks behind the charts: whole when the question is new, else the tail only.
import { signal } from "@preact/signals";
import { ApiError, series } from "../api.ts";
import type { Range } from "../view.ts";
import { blockOf, splice, type Block } from "./block.ts";

export interface Wanted { name: string; match: string; by: string }
const LATE_MS = 15_000; // names may keep a window back for 10 s (docs/architecture.md), so this much is asked again
const WHOLE_EVERY_MS = 60_000; // which processes are the largest is decided anew each minute
const CPU_LIMIT = 8, TAIL_LIMIT = 64;

export const blocks = signal(new Map<string, Block>());
export const blocksError = signal<ApiError | null>(null);

interface Kept { key: string; block: Block; whole: number }
const kept = new Map<string, Kept>();
let flight: AbortController | null = null;

/** True once all are answered. A newer call aborts this one. */
export async function feed(wanted: Wanted[], range: Range, step: number): Promise<boolean> {
  flight?.abort();
  const abort = new AbortController();
  flight = abort;
  const names = new Set(wanted.map((w) => w.name));
  for (const k of kept.keys()) if (!names.has(k)) kept.delete(k);
  const from = Math.floor(range.from / step) * step, to = Math.ceil(range.to / step) * step;
  const results = await Promise.allSettled(wanted.map((w) => one(w, from, to, step, abort.signal)));
  if (flight !== abort) return false;
  flight = null;
  const failed = results.find((r) => r.status === "rejected");
  blocksError.value = failed && failed.reason instanceof ApiError ? failed.reason : null;
  blocks.value = new Map([...kept].map(([k, v]) => [k, v.block]));
  return !failed;
}

async function one(w: Wanted, from: number, to: number, step: number, abort: AbortSignal): Promise<void> {
  const key = `${step}|${w.match}|${w.by}`, old = kept.get(w.name), now = Date.now();
  const end = old ? old.block.t0 + old.block.n * step : 0, start = old?.block.t0 ?? Infinity;
  const tail = old && old.key === key && from >= start && from < end && to >= end && now - old.whole < WHOLE_EVERY_MS;
  const since = tail ? Math.max(from, Math.floor((end - LATE_MS) / step) * step) : from;
  const limit = w.name === "cpu" ? (tail ? TAIL_LIMIT : CPU_LIMIT) : TAIL_LIMIT;
  const answer = await series({ name: w.name, from: since, to, match: w.match, by: w.by, step_ms: step, limit }, abort);
  const block = blockOf(answer, since, to);
  kept.set(w.name, tail ? { key, block: splice(old.block, block, from, to), whole: old.whole } : { key, block, whole: now });
}
