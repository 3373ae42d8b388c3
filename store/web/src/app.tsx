// SPDX-License-Identifier: Apache-2.0
import { useEffect } from "preact/hooks";
import { Charts } from "./charts/charts.tsx";
import { FindingBar } from "./finding.tsx";
import { Menu } from "./flame/menu.tsx";
import { Tooltip } from "./flame/tooltip.tsx";
import { Header } from "./header/header.tsx";
import { Sheet } from "./panel/sheet.tsx";
import { Profile } from "./profile.tsx";
import { gone, nodeName, spoken } from "./state.ts";

export function App() {
  useEffect(() => { document.title = nodeName.value ? `${nodeName.value} · gpustrobe` : "gpustrobe"; });
  return (
    <div class="page" data-stale={gone.value ? "" : undefined}>
      <Header /><FindingBar /><Charts /><Profile />
      <Tooltip /><Menu /><Sheet />
      <div class="sr" aria-live="polite" id="say">{spoken.value}</div>
    </div>
  );
}
