// SPDX-License-Identifier: Apache-2.0
// An invented store for development: deterministic, one training node with two GPUs. Never part of the bundle.
// States by the page's own query: ?state=empty|nogpu|large|gone|big|begin
import type { FlameAnswer, FrameKind, Status } from "../api.ts";
import { parseMatch } from "../match.ts";
import { STACKS } from "./stacks.ts";

const PERIOD = 9_973_013, NODE = "gpu-node-07";
const BORN = Date.now() - 3600e3;
const noise = (t: number, k: number): number => { let h = Math.imul(t * 7919 + k * 104729, 0x9e3779b1); h = Math.imul(h ^ (h >>> 15), 0x85ebca6b); return ((h ^ (h >>> 13)) >>> 0) / 4294967296; };
/** How much of second t is a stall, 0..1: every 20 s for about 5 s. */
const stall = (t: number): number => { const p = t % 20; return p < 7 || p >= 12 ? 0 : p === 7 || p === 11 ? 0.5 : 1; };

interface Stack { frames: [FrameKind, string, string, string, number][]; weight: (t: number) => number; comm: string; script: string; thread: string }
const GROUP: Record<string, (t: number) => number> = {
  step: (t) => 3.0 * (1 - 0.86 * stall(t)) + 0.3 * noise(t, 1), wait: (t) => 0.05 + 2.3 * stall(t), load: (t) => 0.8 + 0.9 * stall(t) + 0.3 * noise(t, 2), other: (t) => 0.6 + 0.3 * noise(t, 3) + (t % 30 === 12 ? 0.9 : 0),
};
const KIND: Record<string, FrameKind> = { p: "python", n: "native", k: "kernel", c: "cuda_api", x: "collective", r: "reason", g: "guessed", P: "process", T: "thread" };

function parse(): Stack[] {
  const out: (Omit<Stack, "weight"> & { group: string; w: number })[] = [], open: { depth: number; frames: Stack["frames"]; group: string }[] = [];
  for (const raw of STACKS.split("\n")) {
    if (!raw.trim()) continue;
    const depth = raw.search(/\S/);
    while (open.length && open[open.length - 1].depth >= depth) open.pop();
    const up = open[open.length - 1];
    let frames = up?.frames ?? [], group = up?.group ?? "other";
    for (const part of raw.trim().split(" > ")) {
      const [k, name, loc = "", w = "", g = ""] = part.split("|");
      group = g || group;
      const line = /^(.*\.py):(\d+)$/.exec(loc);
      frames = [...frames, [KIND[k], name, k === "P" ? loc.split(",")[0] : line ? "python3.12" : loc, k === "P" ? loc.split(",").slice(1).join(",") : line ? `${line[1].includes("/") ? "" : "/srv/llm/"}${line[1]}` : "", line ? Number(line[2]) : 0]];
      const of = (kind: FrameKind) => frames.find((f) => f[0] === kind);
      if (Number(w) > 0) out.push({ frames, group, w: Number(w), comm: of("process")?.[1] ?? "", script: of("process")?.[2] ?? "", thread: of("thread")?.[1] ?? "" });
    }
    open.push({ depth, frames, group });
  }
  const sum: Record<string, number> = {};
  for (const s of out) sum[s.group] = (sum[s.group] ?? 0) + s.w;
  return out.map((s) => ({ ...s, weight: (t) => (GROUP[s.group](t) * s.w) / sum[s.group] }));
}
const stacks = parse();
function groupBy(list: Stack[], of: (s: Stack) => string): Map<string, Stack[]> {
  const out = new Map<string, Stack[]>();
  for (const s of list) { const k = of(s); out.set(k, [...(out.get(k) ?? []), s]); }
  return out;
}

const time = (v: string | null, now: number): number => (v === "now" || v === null ? now : v.startsWith("-") ? now - 300e3 : Number(v));
const bad = (status: number, code: string, message: string, hint = "") => ({ status, body: { error: { code, message, hint } } });

export function answer(url: URL, page: URLSearchParams): { status: number; body: unknown } {
  const state = page.get("state") ?? "", q = url.searchParams, now = Date.now(), nogpu = state === "nogpu";
  if (state === "gone") return bad(503, "stopping", "the store is stopping");
  const what = url.pathname.split("/").pop() ?? "";
  const born = state === "begin" ? now - 4000 : state === "empty" ? now - 7200e3 : BORN, last = state === "empty" ? now - 3600e3 : Math.floor((now - 1500) / 1000) * 1000;
  const from = Math.max(born, time(q.get("from"), now)), to = Math.min(last, time(q.get("to"), now));
  const match = q.getAll("match").flatMap((m) => parseMatch(m) ?? []);
  const keep = (s: Stack): boolean => match.every((m) => {
    const has = m.label === "comm" ? s.comm : m.label === "script" ? s.script : m.label === "thread" ? s.thread : m.label === "node" ? m.value : "";
    const is = m.op === "=" || m.op === "!=" ? has === m.value : new RegExp(`^(?:${m.value})$`).test(has);
    return m.op.startsWith("!") ? !is : is;
  }) && (!nogpu || s.comm !== "dcgm-exporter");
  const seconds = (a: number, b: number): number[] => { const o = []; for (let t = Math.floor(a / 1000); t < Math.floor(b / 1000); t++) o.push(t); return o; };
  if (what === "status") {
    const body: Status = {
      version: "0.1.0", now_ms: now, data: { oldest_ms: born, newest_ms: last, bytes: 412e6, samples: state === "begin" ? 1912 : 41_230_118, path: "/var/lib/gpustrobe" },
      nodes: [{
        node: nogpu ? "cpu-node-12" : NODE, first_ms: born, last_ms: last, cores: 64, live: state !== "empty", types: ["cpu"],
        agent: { version: "0.1.0", cpu_cores: 0.16, bpf_cores: 0.09, memory_bytes: 93e6, cpu_share: 0.0039 },
        gpus: nogpu ? [] : [0, 1].map((i) => ({ uuid: `GPU-${i}`, index: i, name: "NVIDIA H100 80GB HBM3" })), gpu_state: nogpu ? "libnvidia-ml.so.1 is not installed, so there is nothing to ask for device readings" : "ok",
      }],
    };
    return { status: 200, body };
  }
  if (what === "flamegraph") {
    if (state === "large") return bad(413, "too_large", "This range holds 212 million samples; the limit is 50 million", "Ask for at most 6 h at once.");
    return { status: 200, body: state === "big" ? bigTree(from, to) : flame(stacks.filter(keep), seconds(from, to), from, to, q) };
  }
  if (what === "series") return { status: 200, body: seriesOf(q.get("name") ?? "", q.get("by") ?? "", Number(q.get("step_ms") ?? 1000), time(q.get("from"), now), time(q.get("to"), now), from, to, stacks.filter(keep), nogpu) };
  if (what === "losses") {
    const lossy = seconds(from, to).filter((t) => t % 97 === 41 || t % 97 === 42);
    const n = lossy.length * 40, produced = seconds(from, to).length * 6400;
    return { status: 200, body: { produced, idle: produced * 0.93, filtered: 0, delivered: produced * 0.07 - n, share: n / (produced * 0.07 || 1), drops: n ? [{ name: "ring_full", count: n - 9, help: "The ring buffer had no room: the agent was late." }, { name: "unwind_no_rows", count: 9, help: "A library without unwind rows; the stack was cut." }] : [], seconds: lossy.map((t) => [t * 1000, 40]) } };
  }
  if (what === "marks") {
    const m = seconds(from, to).flatMap((t) => (t % 150 === 46 ? [{ t_ms: t * 1000, kind: "throttle", text: "power cap, GPU 1", labels: {} }] : t % 150 === 93 ? [{ t_ms: t * 1000, kind: "process_start", text: "eval.py started", labels: {} }] : []));
    return { status: 200, body: { marks: m } };
  }
  if (what === "finding") return { status: 200, body: { finding: nogpu || state ? null : { text: [{ t: "GPU 0 was idle ~62 % of this range" }, { t: ", 73 % of it under " }, { t: "collate", code: true }, { t: ", " }, { t: "data.py:88", code: true }], evidence: "56–68 % (95 % interval), 442 samples", match: 'gpu_index="0"', focus: "^collate$", tab: "cpu" } } };
  if (what === "labels") {
    const by = (pick: (s: Stack) => string) => [...groupBy(stacks, pick)].map(([value, l]) => ({ value, samples: Math.round(l.reduce((a, s) => a + s.weight(1e6), 0) * 30000) })).filter((x) => x.value).sort((a, b) => b.samples - a.samples);
    return { status: 200, body: { labels: { comm: by((s) => s.comm), script: by((s) => s.script), thread: by((s) => s.thread), node: [{ value: NODE, samples: 1 }] } } };
  }
  if (what === "processes") return { status: 200, body: { rows: [0, 1, 2].map((i) => ({ pid: 41822 + i, comm: "python3.12", script: "train.py", container: "", value: 1000, first_ms: born, last_ms: last, gpu_memory: nogpu ? 0 : 60e9 })) } };
  return bad(404, "not_found", `no such path: ${url.pathname}`);
}

function flame(list: Stack[], ts: number[], from: number, to: number, q: URLSearchParams): FlameAnswer {
  const dict = new Map<string, number>(), F: FlameAnswer["frames"] = { name: [], kind: [], module: [], file: [], line: [], reason: [] };
  const frameId = (f: Stack["frames"][0]): number => {
    const key = f.join("\0");
    let id = dict.get(key);
    if (id === undefined) { id = F.name.length; dict.set(key, id); F.kind.push(f[0]); F.name.push(f[1]); F.module.push(f[2]); F.file.push(f[3]); F.line.push(f[4]); F.reason.push(f[0] === "reason" ? "no symbol table and no debug file" : ""); }
    return id;
  };
  interface N { frame: number; self: number; total: number; kids: Map<number, N> }
  const root: N = { frame: frameId(["root", "all", NODE, "", 0]), self: 0, total: 0, kids: new Map() };
  const test = (re: string | null) => (re ? new RegExp(re) : null), focus = test(q.get("focus")), excl = q.getAll("exclude").map((x) => new RegExp(x));
  let all = 0;
  for (const s of list) {
    const v = Math.round(ts.reduce((a, t) => a + s.weight(t), 0) * (1e9 / PERIOD));
    all += v;
    if (!v || (focus && !s.frames.some((f) => focus.test(f[1]))) || excl.some((x) => s.frames.some((f) => x.test(f[1])))) continue;
    let at = root;
    root.total += v;
    for (const f of s.frames) {
      const id = frameId(f);
      let kid = at.kids.get(id);
      if (!kid) { kid = { frame: id, self: 0, total: 0, kids: new Map() }; at.kids.set(id, kid); }
      kid.total += v; at = kid;
    }
    at.self += v;
  }
  const nodes: FlameAnswer["nodes"] = { parent: [], frame: [], self: [], total: [] }, queue: [N, number][] = [[root, -1]];
  for (let i = 0; i < queue.length; i++) {
    const [n, p] = queue[i];
    nodes.parent.push(p); nodes.frame.push(n.frame); nodes.self.push(n.self); nodes.total.push(n.total);
    for (const k of [...n.kids.values()].sort((a, b) => b.total - a.total)) queue.push([k, i]);
  }
  return envelope(F, nodes, root.total, all, from, to);
}
function envelope(frames: FlameAnswer["frames"], nodes: FlameAnswer["nodes"], total: number, all: number, from: number, to: number): FlameAnswer {
  return { type: "cpu", unit: "samples", period_ns: PERIOD, from_ms: from, to_ms: to, seconds: Math.max(1, (to - from) / 1000), cores: 64, total, samples: total, all_total: all, frames, nodes, merged: { nodes: 0, below: 0 }, books: { produced: 0, idle: 0, filtered: 0, delivered: 0, drops: {} } };
}

/** 100 000 nodes, 60 deep, by a fixed recipe: for measuring the first paint. */
function bigTree(from: number, to: number): FlameAnswer {
  const n = 100_000, nf = 4000, kinds: FrameKind[] = ["python", "native", "kernel", "cuda_api"];
  const frames: FlameAnswer["frames"] = { name: ["all"], kind: ["root"], module: [""], file: [""], line: [0], reason: [""] };
  for (let i = 1; i < nf; i++) { frames.name.push(`space${i % 37}::function_${i}<int>(void*)`); frames.kind.push(kinds[i % 4]); frames.module.push(`lib${i % 60}.so`); frames.file.push(i % 4 ? "" : `/srv/app/mod${i % 90}.py`); frames.line.push(i % 4 ? 0 : i); frames.reason.push(""); }
  const parent = [-1], frame = [0], total = [50_000_000], self = [0];
  for (let i = 0; i < parent.length && parent.length < n; i++) {
    let left = total[i] * 0.97, c = 0;
    const fork = 0.5 + 0.49 * noise(i, 3);
    while (left > 1 && c < 6 && parent.length < n) { const v = Math.floor(left * (c ? 0.6 : fork)); if (v < 1) break; parent.push(i); frame.push(1 + Math.floor(noise(i * 8 + c, 9) * (nf - 1))); total.push(v); self.push(0); left -= v; c++; }
  }
  const inside = new Float64Array(parent.length);
  for (let i = parent.length - 1; i > 0; i--) inside[parent[i]] += total[i];
  for (let i = 0; i < parent.length; i++) self[i] = total[i] - inside[i];
  return envelope(frames, { parent, frame, self, total }, total[0], total[0], from, to);
}

const METRIC: Record<string, [string, (t: number, g: number) => number | null]> = {
  "gpu.utilization": ["%", (t, g) => (g ? 92 - 8 * stall(t) : 94 - 86 * stall(t)) - 6 * noise(t, 10 + g)],
  "gpu.memory.utilization": ["%", (t, g) => 56 - (g ? 20 : 52) * stall(t) - 5 * noise(t, 20 + g)],
  "gpu.power": ["W", (t, g) => 560 - (g ? 180 : 420) * stall(t) + 24 * noise(t, 30 + g)],
  "gpu.memory.used": ["By", (t, g) => (62.6 + g * 1.3 + 0.9 * (1 - stall(t)) + 0.4 * noise(t, 40)) * 2 ** 30], "gpu.memory.total": ["By", () => 79.6 * 2 ** 30],
  "gpu.temperature": ["Cel", (t, g) => 61 + g * 4 + 3 * Math.sin(t / 60)], "gpu.clock.sm": ["MHz", (t) => 1755 - 120 * stall(t)], "gpu.clock.memory": ["MHz", () => 2619], "gpu.clock.graphics": ["MHz", (t) => 1755 - 120 * stall(t)], "gpu.clock.video": ["MHz", () => 1400],
  "gpu.pcie.tx": ["By/s", (t) => 2.1e9 + 4e8 * noise(t, 50)], "gpu.pcie.rx": ["By/s", (t) => 6.4e9 - 5e9 * stall(t)],
};
function seriesOf(name: string, by: string, step: number, f0: number, t0: number, from: number, to: number, list: Stack[], nogpu: boolean) {
  const s = step / 1000, t_ms: number[] = [], a = Math.floor(f0 / step) * s, b = Math.ceil(t0 / step) * s;
  for (let t = a; t < b; t += s) t_ms.push(t * 1000);
  const known = (ms: number): boolean => ms >= from - 999 && ms < to;
  if (name === "cpu") {
    const of = (x: Stack) => (by === "script" ? x.script || x.comm : by === "thread" ? x.thread || x.comm : x.comm), groups = [...groupBy(list, of)];
    return { name, unit: "cores", step_ms: step, t_ms, series: groups.map(([v, l]) => ({ labels: { [by || "comm"]: v }, mean: t_ms.map((ms) => (known(ms) ? l.reduce((x, y) => x + y.weight(ms / 1000), 0) : null)) })), other: null };
  }
  const m = METRIC[name], gap = (ms: number): boolean => (ms / 1000) % 150 >= 96 && (ms / 1000) % 150 < 99; // the driver did not answer: a gap
  return { name, unit: m?.[0] ?? "", step_ms: step, t_ms, series: !m || nogpu ? [] : [0, 1].map((g) => ({ labels: { gpu: `GPU-${g}`, gpu_index: String(g) }, mean: t_ms.map((ms) => (known(ms) && !gap(ms) ? m[1](ms / 1000, g) : null)) })), other: null };
}
