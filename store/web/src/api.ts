// SPDX-License-Identifier: Apache-2.0
// The store's HTTP API as docs/api.md states it: types, and one function that asks and turns every failure into an ApiError.

export type FrameKind =
  | "root" | "process" | "thread" | "python" | "native" | "kernel" | "cuda_api" | "cuda" | "collective" | "copy" | "reason" | "guessed";

export interface Gpu { uuid: string; index: number; name: string }
export interface AgentCost { version: string; cpu_cores: number; bpf_cores: number; memory_bytes: number; cpu_share: number; gpu_duty?: number | null; gpu_budget?: number | null }
/** Recording in full detail on demand, where the node offers it; `cost` says what it takes. */
export interface Detail { seconds: number; cost: string }
export interface StatusNode {
  node: string; first_ms: number; last_ms: number; cores: number; agent: AgentCost | null; gpus: Gpu[];
  gpu_state: string; types: string[]; live: boolean; detail?: Detail | null;
}
/** How far the values of a GPU profile are estimates; `interval` of the total, 95 %. */
export interface Estimate { recorded: number | null; counted: boolean; windows: number; gpus: number; gpu_seconds: number; interval: [number, number] | null }
export interface Status {
  version: string; now_ms: number; nodes: StatusNode[];
  data: { oldest_ms: number | null; newest_ms: number | null; bytes: number; samples: number; path?: string };
}
export interface Books { produced: number; idle: number; filtered: number; delivered: number; drops: Record<string, number> }
export interface FlameAnswer {
  type: string; unit: string; period_ns: number; from_ms: number; to_ms: number; seconds: number; cores: number;
  total: number; samples: number; all_total: number;
  frames: { name: string[]; kind: FrameKind[]; module: string[]; file: string[]; line: number[]; reason: string[] };
  nodes: { parent: number[]; frame: number[]; self: number[]; total: number[]; half?: number[] };
  merged: { nodes: number; below: number };
  books: Books; estimate?: Estimate;
}
export interface Origin { name: string; kind: FrameKind; module: string; file: string; line: number; share: number; others: number }
export interface Kernel {
  name: string; full: string; kind: FrameKind; module: string; category: string; time: number; interval: [number, number] | null; share: number; launches: number | null;
  mean_ns: number | null; p99_ns: number | null; p99_why: string; queue_ns: number | null; registers: string; grid: string; block: string; shared: string; from: Origin | null;
}
export interface KernelsAnswer { kernels: Kernel[]; count: number; total: number; launches: number | null; seconds: number; estimate: Estimate; missing: Record<string, string> }
export type Column = (number | null)[];
export interface Series { labels: Record<string, string>; mean: Column; min?: Column; max?: Column }
export interface SeriesAnswer { name: string; unit: string; step_ms: number; t_ms: number[]; series: Series[]; left_out?: number }
export interface Losses {
  produced: number; idle: number; filtered: number; delivered: number; share: number;
  drops: { name: string; count: number; help: string }[]; seconds: [number, number][];
}
export interface Mark { t_ms: number; kind: string; text: string; labels: Record<string, string> }
export interface LabelValue { value: string; samples: number }
export interface Labels { labels: Record<string, LabelValue[]>; truncated?: Record<string, number> }
export interface ProcessRow { pid: number; comm: string; script: string; container: string; value: number; first_ms: number | null; last_ms: number | null; gpu_memory: number; gpu_time?: number }
export interface Finding { text: { t: string; code?: boolean; strong?: boolean }[]; evidence: string; match: string; focus: string; tab: string; gpu?: string }

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly hint = "") { super(message); }
  /** No answer at all: the store is gone or the network is. */
  get gone(): boolean { return this.status === 0 || this.status === 502 || this.status === 503; }
  get tooLarge(): boolean { return this.status === 413 || this.status === 504; }
}

export type Params = Record<string, string | number | string[] | undefined>;

export function queryOf(params: Params): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) {
    if (v === undefined || v === "") continue;
    for (const one of Array.isArray(v) ? v : [v]) q.append(k, String(one));
  }
  return q.toString();
}

const TIMEOUT_MS = 30_000; // the store's own limit is shorter and answers 504

export async function ask<T>(path: string, params: Params = {}, abort?: AbortSignal, arrived?: () => void): Promise<T> {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const signal = abort ? AbortSignal.any([abort, limit]) : limit;
  let answer: Response, text: string;
  try {
    answer = await fetch(`api/v1/${path}?${queryOf(params)}`, { signal, headers: { accept: "application/json" } });
    text = await answer.text();
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new ApiError(0, "gone", limit.aborted ? "the store took longer than 30 s" : "the store does not answer");
  }
  arrived?.();
  let body: unknown;
  try { body = JSON.parse(text); } catch { body = null; } // a proxy's own page
  if (answer.ok && body !== null) return body as T;
  const error = (body as { error?: { code?: string; message?: string; hint?: string } } | null)?.error;
  throw new ApiError(answer.ok ? 502 : answer.status, error?.code ?? String(answer.status), error?.message ?? (answer.ok ? "what answers is not the store" : answer.statusText), error?.hint ?? "");
}

/** Asks the store to do something. */
export async function post(path: string, body: unknown): Promise<void> {
  let answer: Response;
  try {
    answer = await fetch(`api/v1/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch { throw new ApiError(0, "gone", "the store does not answer"); }
  if (answer.ok) return;
  const said = (await answer.json().catch(() => null)) as { error?: { code?: string; message?: string; hint?: string } } | null;
  throw new ApiError(answer.status, said?.error?.code ?? String(answer.status), said?.error?.message ?? answer.statusText, said?.error?.hint ?? "");
}

export const status = (abort?: AbortSignal) => ask<Status>("status", {}, abort);
/** Marks when the answer's bytes were there: the time from then to the first paint is what a person waits for us. */
export const flamegraph = (p: Params, abort?: AbortSignal) => ask<FlameAnswer>("flamegraph", p, abort, () => performance.mark("flame answer"));
export const kernels = (p: Params, abort?: AbortSignal) => ask<KernelsAnswer>("kernels", p, abort);
export const series = (p: Params, abort?: AbortSignal) => ask<SeriesAnswer>("series", p, abort);
export const losses = (p: Params, abort?: AbortSignal) => ask<Losses>("losses", p, abort);
export const marks = (p: Params, abort?: AbortSignal) => ask<{ marks: Mark[] }>("marks", p, abort);
export const labels = (p: Params, abort?: AbortSignal) => ask<Labels>("labels", p, abort);
export const processes = (p: Params, abort?: AbortSignal) => ask<{ rows: ProcessRow[] }>("processes", p, abort);
export const finding = (p: Params, abort?: AbortSignal) => ask<{ finding: Finding | null }>("finding", p, abort);
