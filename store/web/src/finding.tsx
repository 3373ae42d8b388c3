// SPDX-License-Identifier: Apache-2.0
// The line under the header: at most one sentence. A dead store comes before a finding.
import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { parseMatch } from "./match.ts";
import { refresh } from "./poll.ts";
import { finding, go, gone, held, lastPicture, node, view } from "./state.ts";
import { clock } from "./time.ts";
import { span } from "./format.ts";
import { TABS, type Tab } from "./view.ts";

const tick = signal(0);
/** Once there, the bar keeps its place: a line that came and went would move the graph under the pointer. */
const shown = signal(false);
effect(() => { if (finding.value.value && !held.value) shown.value = true; });

export function FindingBar() {
  if (gone.value) return <Stale />;
  const f = finding.value.value;
  if (!f) return shown.value ? <div class="finding none" id="nofinding">Nothing stands out in this {view.value.sel ? "selection" : "range"}</div> : null;
  if (!shown.value) return null;
  const apply = () => {
    const tab = TABS.includes(f.tab as Tab) ? (f.tab as Tab) : view.value.tab;
    const gpu = node.value?.gpus.find((g) => g.uuid === f.gpu)?.index ?? /gpu_index="?(\d+)/.exec(f.match)?.[1];
    const extra = (parseMatch(f.match) ?? []).filter((m) => m.label !== "node" && m.label !== "gpu_index");
    go({ tab, focus: f.focus, match: [...view.value.match, ...extra.filter((m) => !view.value.match.some((x) => x.label === m.label))], ...(gpu === undefined ? {} : { gpu: String(gpu) }), zoom: 0, heap: -1, fn: "" }, true);
  };
  return (
    <button class="finding" id="finding" onClick={apply}>
      <span class="cut grow">{f.text.map((p, i) => (p.code ? <code key={i}>{p.t}</code> : p.strong || i === 0 ? <b key={i}>{p.t}</b> : <span key={i}>{p.t}</span>))}</span>
      <span class="ev">{f.evidence}</span><span class="go">Show stack</span>
    </button>
  );
}

function Stale() {
  useEffect(() => { const t = setInterval(() => { tick.value++; }, 1000); return () => clearInterval(t); }, []);
  void tick.value;
  return (
    <div class="finding stale" id="stale" role="status">
      <span class="cut grow"><b>The store does not answer</b>, for {span((Date.now() - gone.value) / 1000)}. {lastPicture.value ? `This picture is from ${clock(lastPicture.value, view.value.utc)}; nothing in it is newer.` : "There is no picture yet."}</span>
      <span class="ev">asked again every 5 s</span>
      <button class="go" onClick={refresh}>Try now</button>
    </div>
  );
}
