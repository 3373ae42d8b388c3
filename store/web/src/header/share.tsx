// SPDX-License-Identifier: Apache-2.0
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Popover } from "../popover.tsx";
import { range, say, theme, view } from "../state.ts";
import { frozen, urlOf } from "../view.ts";

/** The address of exactly this picture: relative times become fixed, the reader's own theme stays theirs. */
export function shareUrl(): string {
  const v = { ...frozen(view.value, range.value), resume: "", theme: "" as const };
  return `${location.origin}${location.pathname}?${urlOf(v)}`;
}
const copied = signal(false);

export function SharePanel() { return <Popover id="share" label="Share" align="right" width={420}><Share /></Popover>; }

function Share() {
  const input = useRef<HTMLInputElement>(null), url = shareUrl();
  void theme.value;
  const copy = () => {
    const done = () => { copied.value = true; say("Link copied; its times are fixed"); };
    if (navigator.clipboard) navigator.clipboard.writeText(url).then(done, () => select(input.current));
    else { select(input.current); if (document.execCommand("copy")) done(); } // plain http from another host has no clipboard
  };
  useEffect(() => { copied.value = false; copy(); }, []);
  return (
    <div class="sharepanel">
      <p>{copied.value ? "Copied. " : ""}The link shows exactly this picture: its times are fixed.</p>
      <div class="end"><input ref={input} class="code grow" readOnly value={url} aria-label="Link" onFocus={(e) => e.currentTarget.select()} /><button class="primary" data-first onClick={copy}>Copy</button></div>
    </div>
  );
}
const select = (el: HTMLInputElement | null): void => { el?.focus(); el?.select(); };
