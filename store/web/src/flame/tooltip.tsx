// SPDX-License-Identifier: Apache-2.0
import { useLayoutEffect, useRef } from "preact/hooks";
import { count, digits, plural, seconds } from "../format.ts";
import { kernels } from "../state.ts";
import { intervalText } from "../table/kernelrows.ts";
import { Swatch } from "../swatch.tsx";
import { fullName, KIND_NAME, onDevice } from "./frames.ts";
import * as model from "./model.ts";
import { tip } from "./pointer.ts";

export function Tooltip() {
  const s = tip.value, box = useRef<HTMLDivElement>(null), a = model.answer.value;
  useLayoutEffect(() => {
    const el = box.current;
    if (!el || !s) return;
    el.style.left = `${Math.max(8, Math.min(innerWidth - el.offsetWidth - 8, s.x + 14))}px`;
    el.style.top = `${s.y + 18 + el.offsetHeight > innerHeight ? Math.max(8, s.y - el.offsetHeight - 12) : s.y + 18}px`;
  });
  if (!s || !a || s.node >= s.tree.n) return null;
  const t = s.tree;
  if (s.small) {
    let v = 0;
    for (let c = s.first; c < t.start[s.node + 1]; c++) v += t.total[c];
    return <div class="pop tip" ref={box} role="tooltip"><h4>{plural(s.small, "smaller frame")}</h4><div class="sub">each narrower than a pixel, {model.valueText(a, v)} in all{model.scene.value?.callers ? "" : "; a click opens them"}</div></div>;
  }
  const f = t.frame[s.node], fr = t.frames, kind = fr.kind[f], total = t.total[s.node], self = t.self[s.node];
  const inView = t.total[t === model.tree.value ? model.root.value : 0], all = a.all_total || a.total;
  const path = !onDevice(fr, f) && fr.file[f] && fr.file[f] !== fr.module[f] ? fr.file[f] + (fr.line[f] ? `:${fr.line[f]}` : "") : "";
  const kernel = a.type === "gpu_time" && onDevice(fr, f) ? kernels.value.value?.kernels.find((k) => k.name === fr.name[f] && (k.full === fr.file[f] || (k.full === k.name && !fr.file[f]))) : undefined;
  const interval = model.isEstimate(a) ? model.interval(t, s.node) : null;
  const line = (name: string, v: number) => <><dt>{name}</dt><dd>{model.valueText(a, v)}</dd><dd>{v <= inView && model.shareText(v, inView)} {v <= inView && <span class="muted">of view</span>}</dd><dd>{model.shareText(v, all)} <span class="muted">of all</span></dd></>;
  return (
    <div class="pop tip" ref={box} role="tooltip">
      <h4>{fullName(fr, f)}</h4>
      <div class="sub"><Swatch kind={kind} /><span>{KIND_NAME[kind]}</span>{fr.module[f] && <span>· {fr.module[f]}</span>}</div>
      {path && <div class="sub path">{path}</div>}
      {fr.reason[f] && <div class="sub why">Not resolved: {fr.reason[f]}</div>}
      {kind === "guessed" && <div class="sub why">Caller guessed: no unwind rows there</div>}
      <dl>
        {line("total", total)}{line("self", self)}
        {a.type === "cpu" && <><dt>samples</dt><dd>{count(total)}</dd></>}
        {a.type === "off_cpu" && <><dt>threads</dt><dd>{digits(total / 1e9 / Math.max(1e-9, a.seconds), 2)}</dd><dd class="wide muted">waiting here on average</dd></>}
        {interval && <><dt>interval</dt><dd class="all3">{intervalText(interval)} <span class="muted">(95 %)</span></dd></>}
        {kernel && kernel.launches !== null && <><dt>launches</dt><dd>{count(kernel.launches)}</dd><dd class="wide">{kernel.mean_ns !== null && <>{seconds(kernel.mean_ns / 1e9)} <span class="muted">mean, in all stacks</span></>}</dd></>}
        {a.type === "cpu" && <dd class="wide">{model.intervalText(a, total)} <span class="muted">(95 %)</span></dd>}
      </dl>
    </div>
  );
}
