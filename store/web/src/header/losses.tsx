// SPDX-License-Identifier: Apache-2.0
import { count, percent, plural } from "../format.ts";
import { open, Popover, toggle } from "../popover.tsx";
import { losses, selected, view } from "../state.ts";
import { clock } from "../time.ts";

/** Amber above 0.1 %, red above 1 %. */
export const lossLevel = (share: number): string => (share > 0.01 ? "bad" : share > 0.001 ? "warn" : "");

export function LossChip() {
  const l = losses.value.value;
  if (!l) return null;
  const lost = l.drops.reduce((a, d) => a + d.count, 0);
  return (
    <>
      <button class="ctl loss" id="loss" data-level={lossLevel(l.share)} aria-haspopup="dialog" aria-expanded={open.value === "loss"} title="What was lost in this range" onClick={(e) => toggle("loss", e.currentTarget)}>
        {lost ? `${percent(l.share, l.share < 0.01 ? 2 : 1)} lost` : "0 lost"}
      </button>
      <Popover id="loss" label="Losses in this range" align="right" width={440}><Books /></Popover>
    </>
  );
}

function Books() {
  const l = losses.value.value, r = selected.value, utc = view.value.utc;
  if (!l) return null;
  const lost = l.drops.reduce((a, d) => a + d.count, 0), wanted = l.produced - l.idle - l.filtered;
  return (
    <div class="facts" tabIndex={-1} data-first>
      <h4>{lost ? `Lost here: ${count(lost)} of ${plural(wanted, "sample")}` : `Nothing lost of ${plural(wanted, "sample")}`}</h4>
      <p class="muted">{view.value.sel ? "Selection" : "Range"} {clock(r.from, utc)} to {clock(r.to, utc)}</p>
      {l.drops.length > 0 && <dl class="drops">{l.drops.map((d) => <><dt title={d.help}><span class="code">{d.name}</span><small>{d.help}</small></dt><dd>{count(d.count)}</dd></>)}</dl>}
      <dl>
        <dt>Timer events</dt><dd>{count(l.produced)}</dd>
        <dt>CPU was idle</dt><dd>{count(l.idle)}</dd>
        {l.filtered > 0 && <><dt>Other processes, filtered</dt><dd>{count(l.filtered)}</dd></>}
        <dt>Delivered</dt><dd>{count(l.delivered)}</dd>
        <dt>Lost</dt><dd>{count(lost)}</dd>
      </dl>
    </div>
  );
}
