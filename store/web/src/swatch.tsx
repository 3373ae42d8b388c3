// SPDX-License-Identifier: Apache-2.0
import type { FrameKind } from "./api.ts";
import { KIND_NAME } from "./flame/frames.ts";
import { KIND_VAR } from "./palette.ts";

export const Swatch = ({ kind }: { kind: FrameKind }) => (
  <i class={kind === "reason" ? "sw unresolved" : kind === "guessed" ? "sw guessed" : "sw"} title={KIND_NAME[kind]} style={kind === "reason" ? undefined : { background: `var(${KIND_VAR[kind]})` }} />
);
