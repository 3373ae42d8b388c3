// SPDX-License-Identifier: Apache-2.0
// Recording every launch for a while, on demand. The button says what it costs before anything happens; it is there only where the node offers it.
import { signal } from "@preact/signals";
import { post } from "../api.ts";
import { span } from "../format.ts";
import { close, open, Popover, toggle } from "../popover.tsx";
import { node, say } from "../state.ts";

const outcome = signal("");

export function DetailButton() {
  const n = node.value, d = n?.detail;
  if (!n || !d) return null;
  const begin = async () => {
    try {
      await post("detail", { node: n.node, seconds: d.seconds });
      say(`Recording in full detail for ${span(d.seconds)}`);
      close();
    } catch (e) { outcome.value = e instanceof Error ? e.message : String(e); }
  };
  return (
    <>
      <button class="tog" id="detail" aria-haspopup="dialog" aria-expanded={open.value === "detail"} title={`Record every launch for ${span(d.seconds)}: ${d.cost}`} onClick={(e) => { outcome.value = ""; toggle("detail", e.currentTarget); }}>Full detail…</button>
      <Popover id="detail" label="Full detail" align="right" width={320}>
        <h4>Record every launch on {n.node} for {span(d.seconds)}</h4>
        <p id="detailcost">It costs: {d.cost}.</p>
        <p class="muted">Then nothing in these seconds is an estimate.</p>
        {outcome.value && <p class="bad">{outcome.value}</p>}
        <div class="end"><span class="grow" /><button class="ghost" onClick={() => close()}>Not now</button><button class="primary" data-first onClick={() => void begin()}>Record {span(d.seconds)}</button></div>
      </Popover>
    </>
  );
}
