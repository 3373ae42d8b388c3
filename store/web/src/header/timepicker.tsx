// SPDX-License-Identifier: Apache-2.0
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { span } from "../format.ts";
import { close, open, Popover, toggle } from "../popover.tsx";
import { live, now, range, setRange, showRange, view, young } from "../state.ts";
import { isRelative, parseTime, rangeText, stamp } from "../time.ts";

const PRESETS: [string, string][] = [["-1m", "1 minute"], ["-5m", "5 minutes"], ["-15m", "15 minutes"], ["-1h", "1 hour"], ["-3h", "3 hours"], ["-12h", "12 hours"], ["-1d", "1 day"], ["-7d", "7 days"]];

/** Moves the visible range by a share of its width, or scales it around its middle. */
export function pan(share: number): void {
  const r = range.value, w = r.to - r.from, limit = now.value + w * 0.1;
  const to = Math.min(limit, r.to + w * share);
  showRange({ from: to - w, to });
}
export function scale(factor: number, around?: number): void {
  const r = range.value, w = Math.max(5000, Math.min(90 * 86400e3, (r.to - r.from) * factor)), mid = around ?? (r.from + r.to) / 2;
  const k = (mid - r.from) / (r.to - r.from), from = mid - w * k;
  showRange({ from: Math.round(from / 1000) * 1000, to: Math.round((from + w) / 1000) * 1000 });
}

export function TimePicker() {
  const r = range.value, v = view.value;
  return (
    <>
      <span class="group">
        <button aria-label="earlier" title="Earlier (A)" onClick={() => pan(-0.5)}>‹</button>
        <button id="range" aria-haspopup="dialog" aria-expanded={open.value === "time"} title={`${stamp(r.from, v.utc)} to ${stamp(r.to, v.utc)}`} onClick={(e) => toggle("time", e.currentTarget)}>
          {live.value && !young.value && isRelative(v.from) ? <><span class="w2">Last {PRESETS.find(([p]) => p === v.from)?.[1] ?? span((r.to - r.from) / 1000)}</span><span class="n2">Last {v.from.replace(/^(now)?-/, "")}</span></> : rangeText(r.from, r.to, now.value, v.utc)}
        </button>
        <button aria-label="later" title="Later (D)" onClick={() => pan(0.5)}>›</button>
      </span>
      <Popover id="time" label="Time range" align="right" width={320}><Times /></Popover>
    </>
  );
}

const from = signal(""), to = signal(""), wrong = signal("");
function Times() {
  const v = view.value;
  useEffect(() => {
    const show = (t: string, ms: number) => (isRelative(t) ? t : stamp(ms, view.peek().utc));
    from.value = show(view.peek().from, range.peek().from);
    to.value = show(view.peek().to, range.peek().to);
    wrong.value = "";
  }, []);
  const submit = (e: Event) => {
    e.preventDefault();
    const a = parseTime(from.value, now.value, v.utc), b = parseTime(to.value, now.value, v.utc);
    if (a === null || b === null) { wrong.value = `“${(a === null ? from : to).value}” is no time. Try -15m, 14:30, 2026-03-12 14:30 or now.`; return; }
    if (a >= b) { wrong.value = "The range ends before it starts."; return; }
    const text = (t: string, ms: number) => (isRelative(t.trim()) ? t.trim().replace(/^now-/, "-") : String(Math.round(ms)));
    setRange(text(from.value, a), text(to.value, b));
    close();
  };
  return (
    <form class="times" onSubmit={submit}>
      <div class="presets">
        {PRESETS.map(([p, name]) => <button type="button" class="option" key={p} aria-pressed={v.from === p && v.to === "now"} onClick={() => { setRange(p, "now"); close(); }}>{name}</button>)}
      </div>
      <label>From <input data-first class="code" value={from.value} spellcheck={false} onInput={(e) => { from.value = e.currentTarget.value; }} /></label>
      <label>To <input class="code" value={to.value} spellcheck={false} onInput={(e) => { to.value = e.currentTarget.value; }} /></label>
      {wrong.value && <p class="bad" role="alert">{wrong.value}</p>}
      <div class="end"><span class="muted grow">{v.utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone}</span><button class="primary" type="submit">Show</button></div>
    </form>
  );
}
