// SPDX-License-Identifier: Apache-2.0
// Tree to tree: what the toggles do. Values never change, they only move to the nearest frame that stays.
import type { Frames } from "./frames.ts";
import { leftOut, TreeBuilder, type Tree } from "./tree.ts";

const LONGEST_CYCLE = 8; // frames in one turn of a mutual recursion that is still recognized

/**
 * A stack that repeats its last frames (a a, or a b a b) is folded onto the first turn. Only whole turns fold: a Python
 * function between two eval loops keeps its place, where folding onto any equal ancestor would hide it.
 */
function turn(b: TreeBuilder, fn: Uint32Array, node: number, frame: number): number {
  const f = fn[frame];
  let up = node;
  for (let p = 1; p <= LONGEST_CYCLE && up > 0; p++, up = b.parentOf(up)) {
    if (fn[b.frameOf(up)] !== f) continue;
    // last p frames: node .. (p - 1) of them and `frame`; those before them start at `up`
    let x = node, y = b.parentOf(up), same = true;
    for (let k = 1; k < p && same; k++, x = b.parentOf(x), y = b.parentOf(y)) same = y > 0 && fn[b.frameOf(x)] === fn[b.frameOf(y)];
    if (same) return up;
  }
  return -1;
}

export interface Shape { recursion: boolean; keep: ((f: Frames, i: number) => boolean) | null }

export function reshape(t: Tree, shape: Shape): Tree {
  if (!shape.recursion && !shape.keep) return t;
  const { frames } = t, b = new TreeBuilder(frames, t.frame[0]), to = new Int32Array(t.n);
  const keep = new Uint8Array(frames.name.length).fill(1);
  if (shape.keep) {
    for (let i = 0; i < keep.length; i++) {
      const k = frames.kind[i];
      keep[i] = k === "root" || k === "process" || k === "thread" || shape.keep(frames, i) ? 1 : 0;
    }
  }
  b.add(0, t.self[0], leftOut(t, 0));
  for (let i = 1; i < t.n; i++) {
    const above = to[t.parent[i]], frame = t.frame[i];
    let at = above;
    if (keep[frame]) {
      const again = shape.recursion ? turn(b, frames.fn, above, frame) : -1;
      at = again >= 0 ? again : b.into(above, frame);
    }
    to[i] = at;
    b.add(at, t.self[i], leftOut(t, i));
  }
  return b.build();
}

const RUNTIME_NAME = new RegExp(
  "^(_start|__libc_start_main.*|__libc_start_call_main|start_thread|__clone3?|clone3|_?Py(Eval|Object|Function|Vectorcall|Run|Import|Method|CFunction|Code|Frame|Thread|Interpreter|Init)\\w*"
  + "|_PyEval_EvalFrameDefault.*|py_trampoline.*|vectorcall\\w*|method_vectorcall\\w*|object_vacall|slot_tp_\\w+|cfunction_\\w+|type_call|thread_run|run_(mod|eval_code_obj)|pymain_\\w+|Py_(BytesMain|RunMain)"
  + "|entry_SYSCALL.*|do_syscall_64|x64_sys_call|__x64_sys_\\w+|invoke_syscall|el0t?_\\w+|asm_\\w+|ret_from_fork(_asm)?|kthread"
  + "|runtime\\.(goexit|main|mcall|park_m|asmcgocall|systemstack)\\b.*|std::rt::.*|std::sys::.*|core::ops::function::.*|__rust_begin_short_backtrace|rust_begin_unwind"
  + "|at::_ops::.*|c10::(Dispatcher|KernelFunction|impl)::.*|torch::autograd::VariableType::.*|node::(Start|SpinEventLoop|LoadEnvironment).*|uv_run|v8::internal::Execution::.*|Builtins_JS(Entry|EntryTrampoline)"
  + "|std::invoke.*|std::__invoke.*|std::function<.*>::operator\\(\\)|std::_Function_handler<.*)$");

/** Frames that are only machinery: interpreter loops, thread starters, system call entries, dispatchers. */
export function isRuntime(f: Frames, i: number): boolean {
  const kind = f.kind[i];
  if (kind === "python") return /^<frozen |[/\\](runpy|threading|contextlib|functools)\.py$|importlib/.test(f.file[i]);
  if (kind === "reason") return false;
  return RUNTIME_NAME.test(f.name[i]);
}

const LIBRARY_FILE = /(^|[/\\])(site-packages|dist-packages|lib\/python3[^/]*|lib64\/python3[^/]*|node_modules|\.cargo|rustc|go\/pkg|usr\/(include|lib|src|local\/lib))[/\\]|^<|^node:/;
const LIBRARY_MODULE = /\.so(\.|$)|^(vmlinux|\[.*\])$|\.ko$|^(python3?[\d.]*|node|ruby|perl|java|bash|dash|sh|ld-linux.*)$/;

/** The program's own frames: no interpreter, no shared library, no kernel, no installed package. */
export function isMine(f: Frames, i: number): boolean {
  const kind = f.kind[i];
  if (kind === "cuda" || kind === "collective" || kind === "copy") return true; // what the device spent its time on
  if (kind === "python") return !LIBRARY_FILE.test(f.file[i]);
  if (kind !== "native" && kind !== "guessed") return false;
  return f.module[i] !== "" && !LIBRARY_MODULE.test(f.module[i]) && !(f.file[i] && LIBRARY_FILE.test(f.file[i])) && !isRuntime(f, i);
}

/** Callees of a function: every outermost occurrence of it merged. `root` is the function's own frame. */
export function callees(t: Tree, fn: number): Tree {
  const b = new TreeBuilder(t.frames, t.frames.example[fn]), to = new Int32Array(t.n).fill(-1);
  for (let i = 0; i < t.n; i++) {
    const above = i ? to[t.parent[i]] : -1;
    const at = above >= 0 ? b.into(above, t.frame[i]) : t.frames.fn[t.frame[i]] === fn ? 0 : -1;
    to[i] = at;
    if (at >= 0) b.add(at, t.self[i], leftOut(t, i));
  }
  return b.build();
}

/** Callers of a function: the stacks above every outermost occurrence, turned over; the function is the root. */
export function callers(t: Tree, fn: number): Tree {
  const b = new TreeBuilder(t.frames, t.frames.example[fn]), inside = new Uint8Array(t.n);
  for (let i = 0; i < t.n; i++) {
    const is = t.frames.fn[t.frame[i]] === fn;
    if (i && inside[t.parent[i]]) { inside[i] = 1; continue; }
    if (!is) continue;
    inside[i] = 1;
    let at = 0;
    for (let p = t.parent[i]; p > 0; p = t.parent[p]) at = b.into(at, t.frame[p]);
    b.add(at, t.total[i]);
  }
  return b.build();
}
