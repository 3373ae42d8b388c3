// SPDX-License-Identifier: Apache-2.0
import { bytes, count, digits, percent, span } from "../format.ts";
import { open, Popover, toggle } from "../popover.tsx";
import { gone, node, now, status, view } from "../state.ts";
import { stamp } from "../time.ts";

/** Dot, the agent's own cost, and details on a click. */
export function StatusChip() {
  const n = node.value, s = status.value.value, level = gone.value ? "bad" : !n ? "none" : n.live ? "ok" : "warn";
  const text = gone.value ? "store gone" : !s ? "…" : !n ? "no agent" : !n.live ? `silent ${span((now.value - n.last_ms) / 1000)}` : n.agent ? `${percent(n.agent.cpu_share)} CPU${n.agent.gpu_duty ? `, duty ${percent(n.agent.gpu_duty, 0)}` : ""}` : "live";
  return (
    <>
      <button class="ctl" id="status" aria-haspopup="dialog" aria-expanded={open.value === "status"} title="The agent's own cost, share of this node's CPUs" onClick={(e) => toggle("status", e.currentTarget)}>
        <i class="dot" data-level={level} /><span>{text}</span>
      </button>
      <Popover id="status" label="Agent and store" align="right"><Details /></Popover>
    </>
  );
}

function Details() {
  const n = node.value, s = status.value.value, utc = view.value.utc, a = n?.agent;
  return (
    <div class="facts" tabIndex={-1} data-first>
      <h4>Agent on {n?.node ?? "no node yet"}</h4>
      {!n && <p class="muted">No agent has sent anything yet. Start one: <code>gpustrobe agent</code></p>}
      {n && <dl>
        {a && <><dt>User and system time</dt><dd>{percent(a.cpu_cores, 2)} of a core</dd>
          <dt>In the kernel (BPF)</dt><dd>{percent(a.bpf_cores, 2)} of a core</dd>
          <dt>Both, of {n.cores} cores</dt><dd>{percent(a.cpu_share, 2)}</dd>
          {n.agent?.gpu_duty != null && <><dt>GPU launches recorded</dt><dd>{percent(a.gpu_duty ?? 0, 0)} of the time{a.gpu_budget ? `, to cost ${percent(a.gpu_budget, 0)} at most` : ""}</dd></>}
          <dt>Memory</dt><dd>{bytes(a.memory_bytes)}</dd>
          <dt>Version</dt><dd>{a.version}</dd></>}
        <dt>Newest data</dt><dd>{span(Math.max(0, (now.value - n.last_ms) / 1000))} ago</dd>
        <dt>GPUs</dt><dd>{n.gpus.length ? n.gpus.map((g) => `${g.index}: ${g.name}`).join(", ") : n.gpu_state}</dd>
        <dt>Profiles</dt><dd>{n.types.join(", ") || "none"}</dd>
      </dl>}
      <h4>Store</h4>
      {s ? <dl>
        <dt>Version</dt><dd>{s.version}</dd>
        <dt>Stacks kept</dt><dd>{count(s.data.samples)} samples</dd>
        <dt>On disk</dt><dd>{bytes(s.data.bytes)}{s.data.samples > 1000 ? `, ${digits(s.data.bytes / s.data.samples, 2)} bytes a sample` : ""}</dd>
        {s.data.oldest_ms ? <><dt>Since</dt><dd>{stamp(s.data.oldest_ms, utc)}</dd></> : null}
        {s.data.path && <><dt>Lies in</dt><dd class="code">{s.data.path}</dd></>}
      </dl> : <p class="muted">{status.error.value?.message ?? "Asking…"}</p>}
    </div>
  );
}
