// SPDX-License-Identifier: Apache-2.0
import { Half, Upload } from "../icons.tsx";
import { toggle } from "../popover.tsx";
import { go, gpus, hasGpu, live, node, nodeName, setLive, setTheme, setUtc, status, view } from "../state.ts";
import { Filters } from "./filters.tsx";
import { LossChip } from "./losses.tsx";
import { SharePanel } from "./share.tsx";
import { StatusChip } from "./status.tsx";
import { TimePicker } from "./timepicker.tsx";

export function Header() {
  return (
    <header>
      <span class="name">gpustrobe</span>
      <NodePicker />
      {hasGpu.value && <GpuPicker />}
      <Filters />
      <span class="grow" />
      <TimePicker />
      <button class="ctl" id="live" aria-pressed={live.value} title={live.value ? "Live: a new picture every few seconds. Click to pause" : "Paused. Click to follow the newest data"} onClick={() => setLive(!live.value)}>
        {live.value ? <i class="dot" /> : <i class="pausebars" />}<span>{live.value ? "Live" : "Paused"}</span>
      </button>
      <button class="ghost" id="tz" title="Times in UTC or in this browser's zone" onClick={setUtc}>{view.value.utc ? "UTC" : "local"}</button>
      <button class="ghost" aria-label="Theme" title="Light or dark (T)" onClick={setTheme}><Half /></button>
      <button class="ghost" aria-label="Share" aria-haspopup="dialog" title="Share: a link with fixed times" onClick={(e) => toggle("share", e.currentTarget)}><Upload /></button>
      <SharePanel />
      <StatusChip />
      <LossChip />
    </header>
  );
}

function NodePicker() {
  const nodes = status.value.value?.nodes ?? [];
  if (nodes.length < 2 && !view.value.node) {
    return <span class="ctl still" id="node"><b class="w2">Node</b><span class="cut">{nodeName.value || "none yet"}</span></span>;
  }
  const known = nodes.some((n) => n.node === nodeName.value);
  return (
    <select class="ctl" id="node" aria-label="Node" value={nodeName.value} onChange={(e) => go({ node: e.currentTarget.value, gpu: "" }, true)}>
      {!known && <option value={nodeName.value}>{nodeName.value}, unknown here</option>}
      {nodes.map((n) => <option key={n.node} value={n.node}>{n.node}{n.live ? "" : ", silent"}</option>)}
    </select>
  );
}

const shortGpu = (name: string): string => name.replace(/^NVIDIA |^Tesla |^GeForce /g, "").replace(/ (80GB|40GB).*| HBM3.*| PCIe.*| SXM.*/, "") || "GPU";
function GpuPicker() {
  const all = node.value?.gpus ?? [], models = [...new Set(all.map((g) => shortGpu(g.name)))];
  if (all.length === 1) return <span class="ctl still" id="gpu" title={`${all[0].name}, ${all[0].uuid}`}>{models[0]}</span>;
  return (
    <select class="ctl" id="gpu" aria-label="GPU" value={view.value.gpu} title={gpus.value.map((g) => `GPU ${g.index} ${g.uuid}`).join("\n")} onChange={(e) => go({ gpu: e.currentTarget.value }, true)}>
      <option value="">{all.length} × {models.length === 1 ? models[0] : "GPU"}, mean</option>
      {all.map((g) => <option key={g.uuid} value={String(g.index)}>GPU {g.index} · {shortGpu(g.name)}</option>)}
    </select>
  );
}
