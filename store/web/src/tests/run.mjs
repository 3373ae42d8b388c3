// SPDX-License-Identifier: Apache-2.0
// Bundles the tests of the pure parts and runs them with Node's own runner.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const here = import.meta.dirname, out = mkdtempSync(join(tmpdir(), "gpustrobe-page-"));
const entryPoints = readdirSync(here).filter((f) => f.endsWith(".test.ts")).map((f) => join(here, f));
await build({ entryPoints, outdir: out, bundle: true, platform: "node", format: "esm", outExtension: { ".js": ".mjs" }, logLevel: "error" });
const { status } = spawnSync(process.execPath, ["--test", "--test-reporter=spec", ...readdirSync(out).map((f) => join(out, f))], { stdio: "inherit" });
rmSync(out, { recursive: true });
process.exit(status ?? 1);
