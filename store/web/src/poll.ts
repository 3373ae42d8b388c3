// SPDX-License-Identifier: Apache-2.0
// Asks the store: at once when the question changes, every few seconds while live and visible.
import { computed, effect, signal, untracked } from "@preact/signals";
import * as api from "./api.ts";
import { CHARTS } from "./charts/chart.ts";
import { feed } from "./charts/feed.ts";
import * as state from "./state.ts";
import { chartStep } from "./time.ts";

const LEAST_MS = 2500, MOST_MS = 5000, IDLE_MS = 5000, FIRST_SECONDS_MS = 1000;
const CLOSE_MS = 20_000; // newest data this close to now ends the live picture, so that its right end is not empty
const UNSETTLED_MS = 15_000; // a fixed range that ends this close to now may still get data

export const plotWidth = signal(900);
export const beginning = computed(() => { // the first ten seconds of a node
  const s = state.status.value.value;
  if (!s) return false;
  if (!s.nodes.length) return true;
  const n = state.node.value;
  return n !== null && n.live && s.now_ms - n.first_ms < 10_000;
});

const step = computed(() => chartStep(state.range.value.to - state.range.value.from, plotWidth.value));
const cpuBy = computed(() => state.view.value.by || "comm");

export const shownCharts = computed(() => {
  const v = state.view.value, types = state.node.value?.types ?? [];
  return CHARTS.filter((c) => (!c.extra || v.charts.includes(c.id)) && (!c.gpu || state.hasGpu.value) && (!c.needs || types.includes(c.needs)));
});
function wanted(): { name: string; match: string; by: string }[] {
  return shownCharts.value.flatMap((c) => [...c.readings.map((r) => r.name), ...(c.aux ?? [])].map((name) => ({
    name, match: name === "cpu" ? state.matchParam.value : state.nodeMatch.value, by: name === "cpu" ? cpuBy.value : "",
  })));
}

export const profileParams = computed<api.Params>(() => {
  const v = state.view.value, r = state.selected.value;
  return { type: v.tab, from: Math.round(r.from), to: Math.round(r.to), match: state.profileMatch.value, focus: v.focus, exclude: v.exclude, lines: v.lines ? 1 : undefined };
});
export const profileKey = computed(() => {
  const v = state.view.value, p = { ...profileParams.value };
  if (state.live.value) { p.from = v.from; p.to = "now"; }
  return api.queryOf(p);
});
export const recorded = computed(() => state.node.value === null || state.node.value.types.includes(state.view.value.tab));

let waiting: { key: string; value: api.FlameAnswer } | null = null;
const accept = (value: api.FlameAnswer, fresh: boolean): boolean => {
  if (!fresh && state.held.value) { waiting = { key: state.flame.key.value, value }; return false; }
  waiting = null;
  return true;
};
effect(() => { // the pointer left the profile: what came meanwhile is shown
  if (state.held.value || !waiting) return;
  const w = waiting;
  waiting = null;
  if (w.key === state.flame.key.peek()) state.flame.value.value = w.value;
});

async function askStatus(): Promise<boolean> {
  const ok = await state.status.load("status", api.status);
  const s = state.status.value.value;
  if (!ok) {
    if (state.status.error.value && !state.gone.value) { state.gone.value = Date.now(); state.say("The store does not answer; the picture is the last one"); }
    return false;
  }
  if (state.gone.value) { state.gone.value = 0; state.say("The store answers again"); }
  if (s) {
    state.skew.value = s.now_ms - Date.now();
    state.now.value = s.now_ms;
    const newest = state.node.value?.last_ms ?? s.data.newest_ms ?? 0;
    const edge = s.now_ms - newest < CLOSE_MS && newest <= s.now_ms ? newest : s.now_ms;
    if (untracked(() => state.live.value)) state.edge.value = Math.floor(edge / 1000) * 1000; // windows are whole seconds
  }
  return true;
}

async function askPicture(): Promise<void> {
  const r = state.range.value, sel = state.selected.value, node = state.nodeName.value;
  const range = { from: Math.round(r.from), to: Math.round(r.to), node }, part = { from: Math.round(sel.from), to: Math.round(sel.to), node };
  const rangeKey = state.live.value ? `live ${state.view.value.from} ${node}` : api.queryOf(range), partKey = `${state.live.value ? "live" : ""} ${api.queryOf(part)}`;
  const jobs: Promise<unknown>[] = [feed(wanted(), r, step.value)];
  if (recorded.value) jobs.push(state.flame.load(profileKey.value, (s) => api.flamegraph(profileParams.value, s), accept));
  if (recorded.value && state.view.value.tab === "gpu_time") {
    const { type: _, lines: __, ...p } = profileParams.value;
    jobs.push(state.kernels.load(profileKey.value, (s) => api.kernels(p, s), (_, fresh) => fresh || !state.held.value));
  }
  jobs.push(state.losses.load(partKey, (s) => api.losses(part, s)));
  jobs.push(state.marks.load(rangeKey, async (s) => (await api.marks(range, s)).marks));
  jobs.push(state.finding.load(partKey, async (s) => (await api.finding(part, s)).finding));
  if (beginning.value || state.hasGpu.value) jobs.push(state.processes.load(partKey, async (s) => (await api.processes({ type: "cpu", ...part, node: undefined, match: state.nodeMatch.value }, s)).rows));
  await Promise.all(jobs);
  if (!state.gone.value) state.lastPicture.value = Date.now() + state.skew.value;
}

let timer = 0, running = false, again = false;
/** One round; a change of the question during a round starts the next at once. */
async function round(): Promise<void> {
  clearTimeout(timer);
  if (document.hidden) return;
  if (running) { again = true; return; }
  running = true;
  const started = performance.now();
  try {
    do {
      again = false;
      if (await askStatus()) {
        const settled = state.now.value - state.range.value.to > UNSETTLED_MS;
        const question = questionNow();
        if (question !== answered || state.live.value || !settled) { asked = question; await askPicture(); answered = question; }
      }
    } while (again && !document.hidden);
  } finally {
    running = false;
    const took = performance.now() - started, calm = state.live.value && !state.gone.value;
    timer = window.setTimeout(() => void round(), beginning.value ? FIRST_SECONDS_MS : calm ? Math.min(MOST_MS, Math.max(LEAST_MS, took * 4)) : IDLE_MS);
  }
}
let answered = "", asked = ""; // the question of the newest picture, and the newest one put
const questionNow = (): string => [profileKey.value, state.live.value ? state.view.value.from : `${state.range.value.from}-${state.range.value.to}`, step.value, cpuBy.value, shownCharts.value.length, state.view.value.charts.join(), state.nodeName.value].join("|");

let soon = 0;
export function start(): void {
  effect(() => {
    const q = questionNow();
    clearTimeout(soon);
    if (q !== asked) soon = window.setTimeout(() => { if (questionNow() !== asked) void overtake(); }, 40); // a drag or a run of keys asks once
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) void round(); });
  void round();
}
/** A new question does not wait for the old one's answer. */
async function overtake(): Promise<void> {
  if (!running) return round();
  again = true;
  if (state.status.value.value) { const q = questionNow(); asked = q; await askPicture(); answered = q; }
}
export const refresh = (): void => { answered = ""; void round(); };
