// SPDX-License-Identifier: Apache-2.0
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { labels, type Labels } from "../api.ts";
import { count } from "../format.ts";
import { chipText, formatMatcher, parseMatch, type Matcher } from "../match.ts";
import { close, open, Popover, toggle } from "../popover.tsx";
import { addFilter, go, matchParam, removeFilter, selected, tight, view } from "../state.ts";

const FLIP: Record<Matcher["op"], Matcher["op"]> = { "=": "!=", "!=": "=", "=~": "!~", "!~": "=~" };

interface Part { key: string; text: string; title: string; turn?: () => void; drop: () => void }
function parts(): Part[] {
  const v = view.value;
  return [
    ...v.match.map((m) => ({
      key: formatMatcher(m), text: chipText(m), title: "Click to turn it over", drop: () => removeFilter(m),
      turn: () => go({ match: v.match.map((x) => (x === m ? { ...m, op: FLIP[m.op] } : x)) }, true),
    })),
    ...(v.focus ? [{ key: "focus", text: `through ${plain(v.focus)}`, title: v.focus, drop: () => go({ focus: "" }, true) }] : []),
    ...v.exclude.map((x) => ({ key: x, text: `without ${plain(x)}`, title: x, drop: () => go({ exclude: v.exclude.filter((y) => y !== x) }, true) })),
  ];
}

/** Chips; where there is no room for more than one they become a count, and the popover lists them. */
export function Filters() {
  const all = parts(), folded = all.length > (tight.value ? 1 : 4);
  return (
    <>
      {folded ? <span class="chip"><button class="chiptext" onClick={(e) => toggle("filter", e.currentTarget)}>{all.length} filters</button><button class="x" aria-label="remove all filters" onClick={() => go({ match: [], focus: "", exclude: [] }, true)}>×</button></span>
        : all.map((p) => <Chip key={p.key} part={p} />)}
      <button class="ghost" id="addfilter" aria-haspopup="dialog" aria-expanded={open.value === "filter"} onClick={(e) => toggle("filter", e.currentTarget)}>+ filter</button>
      <Popover id="filter" label="Add a filter" width={380}>{folded && <div class="chips">{all.map((p) => <Chip key={p.key} part={p} />)}</div>}<Chooser /></Popover>
    </>
  );
}
const plain = (re: string): string => re.replace(/^\^|\$$/g, "").replace(/\\(.)/g, "$1");
function Chip({ part: p }: { part: Part }) {
  return (
    <span class="chip" title={p.title}>
      {p.turn ? <button class="chiptext cut" onClick={p.turn}>{p.text}</button> : <span class="chiptext cut">{p.text}</span>}
      <button class="x" aria-label={`remove filter ${p.text}`} onClick={p.drop}>×</button>
    </span>
  );
}

const typed = signal(""), answer = signal<Labels | null>(null), failed = signal("");
const ORDER = ["comm", "script", "pod", "namespace", "container", "service", "thread", "pid", "tid", "gpu_index", "category", "stream", "graph"];
const MOST = 60;

function Chooser() {
  useEffect(() => {
    typed.value = ""; failed.value = "";
    const abort = new AbortController(), r = selected.peek();
    labels({ type: view.peek().tab, from: Math.round(r.from), to: Math.round(r.to), match: matchParam.peek() }, abort.signal)
      .then((a) => { answer.value = a; }, (e: unknown) => { if (!abort.signal.aborted) failed.value = e instanceof Error ? e.message : String(e); });
    return () => abort.abort();
  }, []);
  const text = typed.value, direct = parseMatch(text), all = answer.value?.labels ?? {};
  const names = Object.keys(all).filter((n) => n !== "node").sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const low = text.toLowerCase().trim();
  let left = MOST;
  const groups = names.map((name) => {
    const values = all[name].filter((x) => !low || x.value.toLowerCase().includes(low) || `${name}=${x.value}`.toLowerCase().startsWith(low)).slice(0, low ? left : Math.min(left, 6));
    left -= values.length;
    return { name, values, more: (answer.value?.truncated?.[name] ?? all[name].length) - values.length };
  }).filter((g) => g.values.length);
  const add = (m: Matcher) => { addFilter(m); close(); };
  const submit = (e: Event) => {
    e.preventDefault();
    if (direct?.length) { for (const m of direct) addFilter(m); close(); }
    else if (groups.length) add({ label: groups[0].name, op: "=", value: groups[0].values[0].value });
  };
  return (
    <form class="chooser" onSubmit={submit}>
      <input data-first value={text} placeholder='Find a value, or type comm=~"train.*"' aria-label="Find a label value" spellcheck={false} autocomplete="off" onInput={(e) => { typed.value = e.currentTarget.value; }} />
      {direct && direct.length > 0 && <button type="submit" class="option"><span class="code">{direct.map(chipText).join(", ")}</span><span class="muted">add</span></button>}
      {failed.value && <p class="muted">{failed.value}</p>}
      {!answer.value && !failed.value && <p class="muted">Looking…</p>}
      {answer.value && !groups.length && !direct?.length && <p class="muted">{names.length ? "No value holds this." : "No labels in this range."}</p>}
      {groups.map((g) => (
        <div key={g.name}>
          <h4>{g.name}</h4>
          {g.values.map((x) => (
            <button type="button" class="option" key={x.value} onClick={() => add({ label: g.name, op: "=", value: x.value })}>
              <span class="code cut">{x.value || "(empty)"}</span><span class="muted">{count(x.samples)}</span>
            </button>
          ))}
          {g.more > 0 && <p class="muted more">{count(g.more)} more, type to find</p>}
        </div>
      ))}
    </form>
  );
}
const rank = (name: string): number => { const i = ORDER.indexOf(name); return i < 0 ? ORDER.length : i; };
