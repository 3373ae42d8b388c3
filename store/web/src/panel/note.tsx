// SPDX-License-Identifier: Apache-2.0
// What the profile area says when it has no picture: each with what would change it.
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { count, plural, span } from "../format.ts";
import { cudaProcesses, cudaText } from "../gpu.ts";
import { refresh } from "../poll.ts";
import { flame, go, gone, hasGpu, losses, node, now, processes, range, setRange, showRange, status, view } from "../state.ts";
import { stamp } from "../time.ts";
import type { Tab } from "../view.ts";

const frame = signal(0);
export function Beginning() {
  useEffect(() => { const t = setInterval(() => { frame.value++; }, 250); return () => clearInterval(t); }, []);
  void frame.value;
  const s = status.value.value, n = node.value;
  if (!s) return <div class="note"><h3>{gone.value ? "The store does not answer yet" : "Asking the store…"}</h3></div>;
  if (!n) return (
    <div class="note" id="beginning">
      <h3>The store listens. No agent has sent anything yet.</h3>
      <p>Start one on each machine that you want to see, as root:</p>
      <p><code class="cmd">gpustrobe agent --store {location.hostname}:4317</code></p>
    </div>
  );
  const procs = processes.value.value?.length ?? 0, lost = (losses.value.value?.drops ?? []).reduce((a, d) => a + d.count, 0);
  const age = Math.max(0, (now.value - n.first_ms) / 1000);
  return (
    <div class="note" id="beginning">
      <h3>Listening for {span(age)}. The first picture comes with the first whole seconds.</h3>
      <table><tbody>
        <tr><td class="big">{count(s.data.samples)}</td><td>CPU stacks{procs ? ` from ${plural(procs, "process", "processes")}` : ""}</td></tr>
        {hasGpu.value && <tr><td class="big">{n.gpus.length}</td><td>{n.gpus.length === 1 ? "GPU" : "GPUs"} answering: {n.gpus.map((g) => g.name).join(", ")}</td></tr>}
        <tr><td class="big">{n.cores}</td><td>CPU cores on {n.node}</td></tr>
      </tbody></table>
      <p class="muted">{count(lost)} lost so far.{s.data.path ? <> Data lies in <code>{s.data.path}</code>.</> : null}</p>
    </div>
  );
}

const QUIET: Record<Tab, string> = {
  cpu: "The CPUs were idle, or the agent was away.", gpu_time: "Nothing ran on the GPU, or nothing was recorded.",
  gpu_idle: "The GPU was not idle, or nothing was recorded.", off_cpu: "No thread waited long enough, or the agent was away.",
};
export function Empty() {
  const n = node.value, v = view.value, r = range.value, filtered = v.match.length > 0 || v.focus !== "" || v.exclude.length > 0;
  const newest = n?.last_ms ?? status.value.value?.data.newest_ms ?? null, oldest = n?.first_ms ?? status.value.value?.data.oldest_ms ?? null;
  const has = newest !== null && oldest !== null && newest > r.from && oldest < r.to;
  const width = r.to - r.from;
  const jump = (end: number) => { const to = Math.ceil(end / 1000) * 1000; showRange({ from: to - width, to }); };
  if (filtered && has) return (
    <div class="note" id="empty">
      <h3>No stack in this range passes the filters</h3>
      <p>{[...v.match.map((m) => `${m.label}${m.op}${m.value}`), ...(v.focus ? ["the focus"] : []), ...(v.exclude.length ? ["what is excluded"] : [])].join(", ")}</p>
      <p><button class="primary" onClick={() => go({ match: [], focus: "", exclude: [] }, true)}>Remove them</button></p>
    </div>
  );
  const before = newest !== null && newest <= r.from, after = oldest !== null && oldest >= r.to;
  return (
    <div class="note" id="empty">
      <h3>No data in this range</h3>
      {newest !== null && before && <><p>{n ? n.node : "The store"} last had data at {stamp(newest, v.utc)}, {span((now.value - newest) / 1000)} ago.</p><p><button class="primary" onClick={() => jump(newest)}>Jump there</button></p></>}
      {oldest !== null && after && <><p>The first data is from {stamp(oldest, v.utc)}.</p><p><button class="primary" onClick={() => jump(oldest + width)}>Jump there</button></p></>}
      {!before && !after && <><p>{has ? QUIET[v.tab] : "The agent has sent no stacks yet."}</p><p><button class="primary" onClick={() => setRange("-5m", "now")}>Last 5 minutes</button></p></>}
    </div>
  );
}

export function Failed() {
  const e = flame.error.value, r = range.value, v = view.value;
  if (!e) return null;
  const half = (r.to - r.from) / 2;
  const narrower = () => (v.sel ? go({ sel: [v.sel[0] + Math.floor((v.sel[1] - v.sel[0]) / 2000) * 1000, v.sel[1]] }, true) : showRange({ from: Math.round((r.to - half) / 1000) * 1000, to: r.to }));
  return (
    <div class="note" id="failed">
      <h3>{e.tooLarge ? "This is too much for one picture" : "The store could not answer"}</h3>
      <p>{e.message}{/[.!?]$/.test(e.message) ? "" : "."} {e.hint}</p>
      <p>{e.tooLarge ? <button class="primary" onClick={narrower}>Show the last {span(v.sel ? (v.sel[1] - v.sel[0]) / 2000 : half / 1000)}</button> : <button class="primary" onClick={refresh}>Try again</button>}</p>
    </div>
  );
}

const NEEDS: Record<Exclude<Tab, "cpu">, { title: string; text: string; cmd: string }> = {
  gpu_time: { title: "GPU time is not recorded here", text: "A flame graph from the Python line to the kernel, weighted by time on the device. It needs the CUDA library inside the processes to be measured.", cmd: "gpustrobe run -- python train.py" },
  gpu_idle: { title: "GPU idle time is not recorded here", text: "Time in which a GPU waited, put under what the launching threads were doing. It needs the kernel records of the CUDA library, the same as GPU time.", cmd: "gpustrobe run -- python train.py" },
  off_cpu: { title: "Off-CPU time is not recorded here", text: "Where threads wait: locks, disk, network, the run queue. Off by default, because it runs at each context switch.", cmd: "gpustrobe agent --off-cpu" },
};
export function NotRecorded({ tab }: { tab: Exclude<Tab, "cpu"> }) {
  const n = NEEDS[tab], gpu = tab !== "off_cpu";
  if (gpu && node.value && !hasGpu.value) {
    const why = node.value.gpu_state === "ok" ? "" : node.value.gpu_state;
    return <div class="note" id="needs"><h3>No GPU on {node.value.node}</h3><p>{why}</p><p><code class="cmd">gpustrobe doctor --require gpu</code></p></div>;
  }
  return (
    <div class="note" id="needs">
      <h3>{gpu && cudaProcesses.value.all ? cudaText().replace(/\.$/, "") : n.title}</h3><p>{n.text}</p>
      <p><code class="cmd">{n.cmd}</code></p>
      {gpu && <p class="muted">A process that runs already has to be started again with it; the library sleeps until the agent asks.</p>}
    </div>
  );
}
