// SPDX-License-Identifier: Apache-2.0
import { plotWidth } from "../poll.ts";
import { hover, losses, range, view } from "../state.ts";
import { clock, tickStep, tickText, timeTicks } from "../time.ts";

/** The time axis, the time under the pointer, and a bar under each second that lost samples. */
export function Axis() {
  const r = range.value, w = plotWidth.value, utc = view.value.utc, h = hover.value, span = r.to - r.from;
  const x = (t: number) => ((t - r.from) / span) * w, step = tickStep(span, w), at = h === null ? null : x(h + 500);
  const lost = (losses.value.value?.seconds ?? []).filter(([t, n]) => n > 0 && t + 1000 > r.from && t < r.to);
  return (
    <div class="crow axis">
      <div class="shell">{h !== null ? `Values at ${clock(h, utc)}` : view.value.sel ? "Mean of the selection" : "Mean of the range"}</div>
      <div class="lane" aria-hidden="true">
        {timeTicks(r.from, r.to, w, utc).map((t) => (
          <span class="tick" key={t} style={{ left: `${x(t)}px` }}>{at === null || Math.abs(at - x(t)) > 62 ? tickText(t, step, utc) : ""}</span>
        ))}
        {lost.map(([t, n]) => <i class="lost" key={t} title={`${n} lost at ${clock(t, utc)}`} style={{ left: `${x(t)}px`, width: `${Math.max(2, x(t + 1000) - x(t))}px` }} />)}
        {at !== null && <span class="now" style={{ left: `${at}px` }}>{clock(h!, utc)}</span>}
      </div>
    </div>
  );
}
