// SPDX-License-Identifier: Apache-2.0
import { addFilter, go, hover, selected, view } from "../state.ts";
import { showData } from "../panel/sheet.tsx";
import { readout, type Chart } from "./chart.ts";

/** Left of a chart: its series and their mean over the selection, or the value under the pointer. */
export function Legend({ chart }: { chart: Chart }) {
  const r = selected.value, h = hover.value, from = h ?? r.from, to = h === null ? r.to : h + Math.max(1000, chart.grid.step);
  const spread = (chart.legend ?? chart.drawn).some((d) => d.spread.length > 0);
  const split = () => { const a = view.value.apart; go({ apart: a.includes(chart.id) ? a.filter((x) => x !== chart.id) : [...a, chart.id] }); };
  return (
    <div class="shell">
      <div class="ctitle">
        <h2><button title="Data as a table" onClick={() => showData(chart.id)}>{chart.title}</button></h2>
        {chart.canSplit || chart.apart ? <button class="unit" title={chart.apart ? "Mean of all GPUs" : "A line for each GPU"} aria-pressed={chart.apart} onClick={split}>{chart.apart ? "per GPU" : "mean, min–max"}</button> : <span class="unit">{chart.unit}</span>}
      </div>
      {(chart.legend ?? chart.drawn).slice(0, 5).map((d) => {
        const v = readout(chart, d, from, to), f = d.filter;
        const body = <><Mark color={d.color} stack={chart.kind !== "lines"} dashed={d.dash.length > 0} fill={d.fill} /><span class="cut">{d.label}</span><span class="v">{v.value}</span>{spread && <span class="mm">{v.spread}</span>}</>;
        return f ? <button class="leg" key={d.label} title={`Only ${f.label} ${f.value}`} onClick={() => addFilter(f)}>{body}</button> : <div class="leg" key={d.label} title={[d.help, d === chart.drawn[0] ? chart.missing : ""].filter(Boolean).join("\n")}>{body}</div>;
      })}
      {!chart.drawn.length && chart.grid.n > 0 && <div class="leg muted">no data in this range</div>}
    </div>
  );
}

function Mark({ color, stack, dashed, fill }: { color: string; stack: boolean; dashed: boolean; fill?: "hatch" | "dots" }) {
  if (fill) return <i class={`sw ${fill}`} />;
  return <i class={stack ? "sw" : dashed ? "sw ds" : "sw ln"} style={dashed ? { borderColor: `var(${color})` } : { background: `var(${color})` }} />;
}
