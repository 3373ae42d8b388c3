// SPDX-License-Identifier: Apache-2.0
const ic = (d: string, fill = "none") => <svg class="ic" viewBox="0 0 16 16" aria-hidden="true"><path d={d} fill={fill} /></svg>;
export const Half = () => <svg class="ic" viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="5.5" /><path d="M8 2.5v11A5.5 5.5 0 0 0 8 2.5z" fill="currentColor" /></svg>;
export const Upload = () => ic("M8 10V2.5M5 5l3-3 3 3M3.5 8.5v5h9v-5");
export const Lens = () => <svg class="ic" viewBox="0 0 16 16" aria-hidden="true"><circle cx="7" cy="7" r="4.5" /><path d="M10.5 10.5 14 14" /></svg>;
