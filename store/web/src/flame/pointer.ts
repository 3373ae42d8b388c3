// SPDX-License-Identifier: Apache-2.0
// What pointer and menu are on: tooltip and context menu read it.
import { signal } from "@preact/signals";
import type { Tree } from "./tree.ts";

export interface Spot { tree: Tree; node: number; small: number; first: number; x: number; y: number }
export const tip = signal<Spot | null>(null);
export interface MenuSpot { tree: Tree; frame: number; node: number; x: number; y: number; back: HTMLElement | null }
export const menu = signal<MenuSpot | null>(null);
