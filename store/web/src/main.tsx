// SPDX-License-Identifier: Apache-2.0
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/header.css";
import "./style/charts.css";
import "./style/profile.css";
import { App } from "./app.tsx";
import { listen } from "./keyboard.ts";
import { start } from "./poll.ts";

render(<App />, document.getElementById("page")!);
listen();
start();
