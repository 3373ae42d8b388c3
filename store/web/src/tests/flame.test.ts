// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import { labelFor, fitName, shortName } from "../flame/label.ts";
import { extent, extentOfSmall, hit, layout } from "../flame/layout.ts";
import { functionRows, selfByKind } from "../flame/rows.ts";
import { patternOf, search } from "../flame/search.ts";
import { callees, callers, isMine, isRuntime, reshape } from "../flame/shape.ts";
import { arrange, findPath, leftOut, treeOf } from "../flame/tree.ts";
import { framesOf } from "../flame/frames.ts";
import { folded, node, tree } from "./stacks.ts";

const T = tree(`
main;load;read 30
main;load;parse 10
main;train;step 50
main;train;step;load;read 5
idle 5`);

test("children are contiguous, widest first, totals are sums", () => {
  assert.equal(T.total[0], 100);
  for (let i = 0; i < T.n; i++) {
    let sum = T.self[i];
    for (let c = T.start[i]; c < T.start[i + 1]; c++) { sum += T.total[c]; assert.equal(T.parent[c], i); if (c > T.start[i]) assert.ok(T.total[c] <= T.total[c - 1]); }
    assert.equal(sum, T.total[i]);
  }
});

test("columns in any order give the same tree as breadth-first ones", () => {
  const columns = { name: ["all", "a", "b", "c"], kind: ["root", "native", "native", "native"] as const, module: ["", "", "", ""], file: ["", "", "", ""], line: [0, 0, 0, 0], reason: ["", "", "", ""] };
  const f = framesOf({ ...columns, kind: [...columns.kind] });
  const t = arrange(f, Int32Array.of(-1, 0, 1, 0), Uint32Array.of(0, 1, 3, 2), Float64Array.of(0, 1, 2, 7), Float64Array.of(10, 3, 2, 7));
  assert.deepEqual([...t.frame], [0, 2, 1, 3]);
  assert.deepEqual([...t.parent], [-1, 0, 0, 2]);
  assert.deepEqual([...t.depth], [0, 1, 1, 2]);
});

test("a stack keeps its path hash when the answer changes around it", () => {
  const other = tree("new;thing 500\nmain;train;step 1");
  assert.equal(T.path[node(T, "main", "train", "step")], other.path[node(other, "main", "train", "step")]);
  assert.notEqual(T.path[node(T, "main", "load")], T.path[node(T, "main", "train", "step", "load")]);
  assert.equal(findPath(other, T.path[node(T, "idle")]), -1);
});

test("what the store left out stays part of its parent", () => {
  const t = treeOf({ frames: { name: ["all", "a"], kind: ["root", "native"], module: ["", ""], file: ["", ""], line: [0, 0], reason: ["", ""] }, nodes: { parent: [-1, 0], frame: [0, 1], self: [10, 60], total: [100, 60] } });
  assert.equal(leftOut(t, 0), 30);
  const again = reshape(t, { recursion: true, keep: null });
  assert.equal(again.total[0], 100);
  assert.equal(leftOut(again, 0), 30);
  const rows = layout(t, { a: 0, b: 1 }, 1000);
  const heap = rows[1].find((r) => r.small > 0);
  assert.ok(heap && Math.abs(heap.w - 300) < 1e-6);
});

test("search counts a stack once, however often it matches", () => {
  const found = search(T, patternOf("/load|read/")!);
  assert.equal(found.value, 45);
  assert.equal(found.nodes.length, 4);
  assert.equal(search(T, patternOf("LOAD")!).value, 45);
  assert.equal(search(T, patternOf("nothing here")!).nodes.length, 0);
});
test("a broken pattern says so and matches nothing", () => {
  const p = patternOf("/a(/")!;
  assert.notEqual(p.error, "");
  assert.equal(search(T, p).value, 0);
  assert.equal(patternOf("   "), null);
});

test("recursion folds whole turns only", () => {
  const t = tree("f;f;f;g 4\nf;g 1\na;b;a;b;c 3\nx;eval;y;eval;z 2");
  const r = reshape(t, { recursion: true, keep: null });
  assert.deepEqual(folded(r), ["a;b;c 3", "f;g 5", "x;eval;y;eval;z 2"]);
  assert.equal(r.total[0], 10);
});

test("hidden frames give their time to what called them", () => {
  const t = tree("main;_PyEval_EvalFrameDefault;work 7\nmain;_PyEval_EvalFrameDefault 2\nmain;work 1");
  const r = reshape(t, { recursion: false, keep: (f, i) => !isRuntime(f, i) });
  assert.deepEqual(folded(r), ["main 2", "main;work 8"]);
});

test("my code: the program's files, not libraries", () => {
  const f = framesOf({
    name: ["train", "forward", "malloc", "main", "vfs_read"], kind: ["python", "python", "native", "native", "kernel"], module: ["python3.12", "python3.12", "libc.so.6", "server", "vmlinux"],
    file: ["/srv/train.py", "/opt/venv/lib/python3.12/site-packages/torch/nn.py", "", "", ""], line: [1, 1, 0, 0, 0], reason: ["", "", "", "", ""],
  });
  assert.deepEqual([0, 1, 2, 3, 4].map((i) => isMine(f, i)), [true, false, false, true, false]);
});

test("callers and callees carry the function's whole value", () => {
  const fn = T.frames.fn[T.frames.name.indexOf("load")];
  const down = callees(T, fn), up = callers(T, fn);
  assert.equal(down.total[0], 45);
  assert.equal(up.total[0], 45);
  assert.equal(down.total[node(down, "read")], 35);
  assert.equal(up.total[node(up, "main")], 40);
  assert.equal(up.total[node(up, "step", "train", "main")], 5);
});

test("rows count recursion once", () => {
  const t = tree("f;g;f 6\nf 2\ng 1"), row = (name: string) => functionRows(t).find((r) => t.frames.name[r.frame] === name)!;
  assert.deepEqual([row("f").self, row("f").total], [8, 8]);
  assert.deepEqual([row("g").self, row("g").total], [1, 7]);
  assert.equal([...selfByKind(t).values()].reduce((a, b) => a + b), 9);
});

test("layout: the window fills the width, rows never move, narrow frames merge and open", () => {
  const many = tree([...Array(400)].map((_, i) => `main;f${i} 1`).join("\n") + "\nmain;big 9600");
  const rows = layout(many, { a: 0, b: 1 }, 1000);
  assert.equal(rows[2][0].node, node(many, "main", "big"));
  const heap = rows[2].find((r) => r.small)!;
  assert.equal(heap.small, 400);
  assert.ok(Math.abs(heap.w - 40) < 1e-6);
  const win = extentOfSmall(many, heap.node, heap.first), open = layout(many, win, 1000, 1);
  assert.equal(open[2].filter((r) => !r.small).length, 400);
  assert.ok(open[1][0].w > 999.9);
  const e = extent(T, node(T, "main", "train")), zoomed = layout(T, e, 800, 2);
  assert.equal(zoomed[2].length, 1);
  assert.ok(Math.abs(zoomed[2][0].w - 800) < 1e-6 && !zoomed[2][0].faded && zoomed[1][0].faded);
  assert.equal(hit(rows, 2, 5)?.node, rows[2][0].node);
  assert.equal(hit(rows, 2, 999)?.small, 400);
  assert.equal(hit(rows, 9, 5), null);
});

test("names lose arguments, templates, namespaces, in that order", () => {
  assert.equal(shortName("void at::native::cat_kernel<float, std::vector<int>>(at::Tensor const&, long) const"), "at::native::cat_kernel");
  assert.equal(shortName("<module>"), "<module>");
  assert.equal(shortName("Foo::operator<(Foo const&)"), "Foo::operator<");
  assert.equal(shortName("core::ptr::drop_in_place::h0123456789abcdef"), "core::ptr::drop_in_place");
  assert.equal(fitName("torch::autograd::Engine::execute", 16), "Engine::execute");
  assert.equal(fitName("a::generated::AddmmBackward0::apply", 15), "AddmmBackward0");
  const f = T.frames, i = f.name.indexOf("train");
  assert.equal(labelFor(f, i, "train", 2).text, "");
  assert.equal(labelFor(f, i, "train", 4).text, "tra…");
});
