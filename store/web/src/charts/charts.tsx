// SPDX-License-Identifier: Apache-2.0
import { computed } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { plural } from "../format.ts";
import { plotWidth, shownCharts } from "../poll.ts";
import { open, Popover, toggle } from "../popover.tsx";
import { cores, go, gpus, hasGpu, node, view } from "../state.ts";
import { cudaProcesses, cudaText } from "../gpu.ts";
import { Axis } from "./axis.tsx";
import { chartOf, CHARTS, type Chart } from "./chart.ts";
import { blocks, blocksError } from "./feed.ts";
import { Legend } from "./legend.tsx";
import { Over, Strip } from "./overlay.tsx";
import { Plot } from "./plot.tsx";

export const charts = computed<Chart[]>(() => {
  if (!node.value) return [];
  const v = view.value, out: Chart[] = [];
  for (const def of shownCharts.value) {
    out.push(chartOf(def, blocks.value, { gpus: gpus.value, gpu: v.gpu, apart: v.apart.includes(def.id), by: v.by || "comm", cores: cores.value }));
  }
  return out;
});

export function Charts() {
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    const el = box.current!;
    const measure = () => {
      const s = getComputedStyle(document.documentElement), px = (n: string) => parseFloat(s.getPropertyValue(n)) || 0;
      plotWidth.value = Math.max(200, el.clientWidth - px("--shell") - px("--ax-l") - px("--ax-r"));
    };
    const watch = new ResizeObserver(measure);
    watch.observe(el);
    measure();
    return () => watch.disconnect();
  }, []);
  return (
    <section class="charts" id="charts" ref={box} aria-label="Charts, one time axis">
      <div class="crow strip"><div class="shell"><button class="ghost low" aria-haspopup="dialog" aria-expanded={open.value === "charts"} onClick={(e) => toggle("charts", e.currentTarget)}>+ chart</button><ChartChooser /></div><Strip /></div>
      <div class="rows">
        <Folds />
        <div class="plots">
          {charts.value.map((c) => <div class="crow" key={c.id} data-chart={c.id}><Legend chart={c} /><Plot chart={c} /></div>)}
          <Over />
        </div>
        {blocksError.value && !blocksError.value.gone && <div class="fold"><b>Charts are not up to date</b><span class="grow cut">{blocksError.value.message} {blocksError.value.hint}</span></div>}
      </div>
      <Axis />
    </section>
  );
}

/** Rows that have nothing to draw fold to a line that says why, and what would fill them. */
function Folds() {
  const n = node.value;
  if (!n) return null;
  if (!n.gpus.length) {
    const why = n.gpu_state && n.gpu_state !== "ok" ? n.gpu_state.replace(/\.?$/, ".") : "The agent found no NVIDIA driver.";
    return <div class="fold" id="nogpu"><b>No GPU on this node</b><span class="grow cut" title={why}>{/^[a-z]+ /.test(why) ? why[0].toUpperCase() + why.slice(1) : why} CPU profiling is complete.</span><code class="w1">gpustrobe doctor --require gpu</code></div>;
  }
  const cuda = cudaProcesses.value, device = n.types.includes("gpu_time");
  if (device && cuda.measured >= cuda.all) return null;
  return (
    <div class="fold" id="nodevicetime"><b>Device time</b>
      <span class="grow cut">{device ? `${plural(cuda.all, "CUDA process", "CUDA processes")}, ${cuda.measured} with device time here. The others ran nothing, or lack the CUDA library.` : `${cuda.all ? cudaText() : "Not measured."} `}{device ? "" : "Compute, collective, copy and idle need the CUDA library; the charts below are the driver's readings."}</span>
      <code class="w1">gpustrobe run -- CMD</code>
    </div>
  );
}

const BY: [string, string][] = [["comm", "process"], ["script", "script"], ["thread", "thread"], ["container", "container"], ["pod", "pod"]];
function ChartChooser() {
  const v = view.value;
  return (
    <Popover id="charts" label="Charts" width={250}>
      <h4>More charts</h4>
      {CHARTS.filter((c) => c.extra).map((c) => (
        <label class="option" key={c.id}><input type="checkbox" disabled={!hasGpu.value} checked={v.charts.includes(c.id)} onChange={() => go({ charts: v.charts.includes(c.id) ? v.charts.filter((x) => x !== c.id) : [...v.charts, c.id] })} /><span>{c.title}</span><span class="muted">{c.unit}</span></label>
      ))}
      {!hasGpu.value && <p class="muted">These need a GPU.</p>}
      <h4>CPU chart by</h4>
      <div class="segments" role="group" aria-label="CPU chart by">{BY.map(([k, name]) => <button key={k} class="tog" aria-pressed={(v.by || "comm") === k} onClick={() => go({ by: k === "comm" ? "" : k })}>{name}</button>)}</div>
    </Popover>
  );
}
