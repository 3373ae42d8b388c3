// SPDX-License-Identifier: Apache-2.0
// What is known of GPU recording in the selected range: how much was recorded, how much is unknown, which CUDA processes take part.
import { computed } from "@preact/signals";
import { RECORDED, shareOver, UNKNOWN } from "./charts/device.ts";
import { blocks } from "./charts/feed.ts";
import { percent, plural } from "./format.ts";
import { processes, selected, view } from "./state.ts";

const over = (name: string, scale: number) => computed<number | null>(() => shareOver(blocks.value.get(name), { gpu: view.value.gpu }, selected.value.from, selected.value.to, scale));
export const recordedShare = over(RECORDED, 1);
export const unknownShare = over(UNKNOWN, 1e9);

/** CUDA processes hold device memory; the measured ones have device time. */
export const cudaProcesses = computed(() => {
  const cuda = (processes.value.value ?? []).filter((p) => p.gpu_memory > 0 || (p.gpu_time ?? 0) > 0);
  return { all: cuda.length, measured: cuda.filter((p) => (p.gpu_time ?? 0) > 0).length };
});
export const cudaText = (): string => `${plural(cudaProcesses.value.all, "CUDA process", "CUDA processes")}, ${cudaProcesses.value.measured} measured.`;

const whole = (x: number): string => percent(x, x > 0 && x < 0.01 ? 1 : 0);
/** "10 % recorded, scaled" */
export function recordedText(): string {
  const r = recordedShare.value;
  return r === null ? "" : r >= 0.9995 ? "all recorded" : `${whole(r)} recorded`;
}
export const unknownText = (): string => (unknownShare.value === null ? "" : `${whole(unknownShare.value)} unknown`);
