// SPDX-License-Identifier: Apache-2.0
// One popover at a time, beside what opened it; never a modal: the page behind it stays alive.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export const open = signal("");
let opener: HTMLElement | null = null;
export function toggle(id: string, from: EventTarget | null): void {
  opener = from instanceof HTMLElement ? from : null;
  open.value = open.value === id ? "" : id;
}
export function close(focus = true): void {
  if (!open.value) return;
  open.value = "";
  if (focus) opener?.focus();
}

interface Props { id: string; label: string; children: ComponentChildren; align?: "left" | "right"; width?: number }
export function Popover({ id, label, children, align = "left", width }: Props) {
  const box = useRef<HTMLDivElement>(null), shown = open.value === id;
  useLayoutEffect(() => {
    const el = box.current;
    if (!shown || !el) return;
    const b = opener?.getBoundingClientRect() ?? new DOMRect(innerWidth / 2, 60, 0, 0), w = el.offsetWidth;
    const x = align === "right" ? b.right - w : b.left;
    el.style.left = `${Math.max(8, Math.min(innerWidth - w - 8, x))}px`;
    el.style.top = `${b.bottom + 6}px`;
    el.style.maxHeight = `${Math.max(120, innerHeight - b.bottom - 18)}px`;
    (el.querySelector<HTMLElement>("[data-first]") ?? el.querySelector<HTMLElement>("input, button"))?.focus();
  }, [shown]);
  useEffect(() => {
    if (!shown) return;
    const away = (e: PointerEvent) => {
      if (e.target instanceof Node && !box.current?.contains(e.target) && !opener?.contains(e.target)) close(false);
    };
    const esc = (e: KeyboardEvent) => { if (e.key === "Escape") { e.stopPropagation(); e.preventDefault(); close(); } };
    addEventListener("pointerdown", away, true);
    addEventListener("keydown", esc, true);
    return () => { removeEventListener("pointerdown", away, true); removeEventListener("keydown", esc, true); };
  }, [shown]);
  if (!shown) return null;
  return <div class="pop panel" ref={box} role="dialog" aria-label={label} style={width ? { width: `${width}px` } : undefined}>{children}</div>;
}
