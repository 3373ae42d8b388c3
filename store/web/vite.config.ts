// SPDX-License-Identifier: Apache-2.0
import { defineConfig, type Plugin } from "vite";

/** In development: the invented store of src/dev, or a real one at GPUSTROBE_STORE (http://127.0.0.1:7070). */
const mock = (): Plugin => ({
  name: "invented-store",
  apply: "serve",
  async configureServer(server) {
    if (process.env["GPUSTROBE_STORE"]) return;
    server.middlewares.use(async (req, res, next) => {
      if (!req.url?.startsWith("/api/")) return next();
      const { answer } = (await server.ssrLoadModule("/src/dev/store.ts")) as typeof import("./src/dev/store.ts");
      const r = answer(new URL(req.url, "http://x"), new URL(req.headers.referer ?? "http://x").searchParams);
      res.statusCode = r.status;
      res.setHeader("content-type", "application/json");
      res.end(JSON.stringify(r.body));
    });
  },
});

export default defineConfig({
  base: "./",
  plugins: [mock()],
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  server: { host: "127.0.0.1", ...(process.env["GPUSTROBE_STORE"] ? { proxy: { "/api": process.env["GPUSTROBE_STORE"] } } : {}) },
  build: { target: "es2022", assetsInlineLimit: 0, cssCodeSplit: false, modulePreload: { polyfill: false }, reportCompressedSize: true },
});
