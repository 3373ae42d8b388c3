# SPDX-License-Identifier: Apache-2.0
"""Kernel names as people say them, and what sort of work a kernel is.

A demangled kernel of PyTorch or CUTLASS has 200 to 4,000 characters, nearly all of them template arguments. The short
name keeps what tells kernels apart for a person: the function, its functor, data types and tile of a matrix product.
The first rule that matches wins; users' own come first (`read_rules`). What no rule knows loses its template arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpustrobe.agent.config_file import read_yaml
from gpustrobe.agent.errors import UsageError

CATEGORIES = ("compute", "collective", "copy")
SHORT_LIMIT = 120
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")


@dataclass(frozen=True, slots=True)
class KernelName:
    short: str
    full: str  # demangled, whole
    category: str  # one of CATEGORIES


@dataclass(frozen=True, slots=True)
class Rule:
    """`name` is a template of re.Match.expand, or makes the short name from the match and the full name; "" folds as if
    no rule had matched."""

    pattern: re.Pattern[str]
    name: str | Callable[[re.Match[str], str], str] = ""
    category: str = "compute"


# Wrappers of PyTorch around what a kernel computes: the first name inside that is none of these is the functor.
_WRAPPERS = frozenset(
    (
        *("BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "gpu_kernel_impl", "gpu_kernel_impl_nocast"),
        *("func_wrapper_t", "ReduceOp", "opmath_gpu_kernel_with_scalars", "opmath_symmetric_gpu_kernel_with_scalars"),
    )
)
_FUNCTOR = re.compile(
    r"\b([A-Za-z]\w*?(?:Functor\w*|Ops|Op|_functor|_kernel_cuda|_kernel_impl|_kernel|_cuda_out|_cuda))(?![\w])"
)
_XMMA = re.compile(
    r"^sm(?P<arch>\d+)_xmma_(?P<what>[a-z_0-9]*?(?:gemm|conv|fprop|dgrad|wgrad)[a-z_0-9]*?)_"
    r"(?P<a>[a-z]+\d[a-z0-9]*)_(?P<b>[a-z]+\d[a-z0-9]*)_(?P<c>[a-z]+\d[a-z0-9]*)_(?P<layout>\w+?)_tilesize(?P<tile>\d+x\d+x\d+)(?P<rest>.*)$"
)
_SPECIALIZED = re.compile(r"(?:_\d+(?:d?e?c?\d*)*[dec])+$")


def _xmma(match: re.Match[str], full: str) -> str:
    split = " split_k" if "split_k" in match["rest"] else ""
    kind = re.match(r"(e\dm\d|bf16|tf32|f\d\d|i8|f8)", match["a"])
    return f"{match['what']} {kind[0] if kind else match['a']} {match['layout']} {match['tile']}{split}"


def _functor(match: re.Match[str], full: str) -> str:
    """`vectorized_elementwise_kernel<MulFunctor>`."""
    base = folded(full)
    inside = full[match.end() :]
    found = next((name for name in _FUNCTOR.findall(inside) if name not in _WRAPPERS and name != base), "")
    return f"{base}<{found}>" if found else base


def _triton(match: re.Match[str], full: str) -> str:
    """Without the specialization of arguments that Triton 2 appends: `_fwd_kernel_0d1d2d34d`."""
    return _SPECIALIZED.sub("", full)


def _cudnn_generated(match: re.Match[str], full: str) -> str:
    tile = re.search(r"\d+x\d+x\d+", full)
    return " ".join(filter(None, ("cudnn", match["what"].replace("_", " "), tile[0] if tile else "")))


def _rule(pattern: str, name: str | Callable[[re.Match[str], str], str] = "", category: str = "compute") -> Rule:
    return Rule(re.compile(pattern), name, category)


RULES: tuple[Rule, ...] = (
    # NCCL 2.18 and later, older, and symmetric kernels of 2.27
    _rule(r"^nccl(?:Dev)?Kernel_(\w+)", r"nccl \1", "collective"),
    _rule(r"^ncclSymk?(?:Dev)?Kernel_(\w+)|^ncclSymkKernel_(\w+)", "", "collective"),
    _rule(r"^(?:m?scclKernel|mscclpp::|rccl|nvshmem)\w*", "", "collective"),
    # one-shot all-reduce and all-to-all of inference engines
    _rule(
        r"\b(?:cross_device_reduce_\d\w*|allreduce_fusion_kernel\w*|(?:one|two)_?[sS]hot_?[aA]ll_?[rR]educe\w*|"
        r"(?:oneShot|twoShot)AllReduceKernel|multimem_\w*(?:reduce|gather)\w*|quickreduce\w*|allreduce_prototype\w*)\b",
        "",
        "collective",
    ),
    _rule(r"\bdeep_ep::|\b(?:all_?to_?all|allgather|all_gather|reduce_scatter)\w*kernel", "", "collective"),
    # cuBLAS and cuDNN
    Rule(_XMMA, _xmma),
    _rule(r"^cudnn_generated_\w*?native_(?P<what>\w+?)_(?:wgmma|hmma|f16|bf16|knob|\d)", _cudnn_generated),
    _rule(r"^nvjet_\w+"),
    _rule(r"\b(cublasLt|cudnn)::(?:\w+::)*(\w+)", r"\1 \2"),
    _rule(r"\b((?:gemv|gemm|dot|asum|nrm2|scal|axpy|trsm|iamax)\w*kernel\w*)", r"\1"),
    # flash-attention 2 and 3, in their own wheels, in PyTorch and in vLLM
    _rule(r"\bflash::(Flash\w+?(?:Sm\d+|Kernel|Postprocess\w*|Preprocess\w*|Combine))\b", r"\1"),
    _rule(r"\b(?:pytorch_)?(flash_(?:fwd|bwd)\w*kernel)\b", r"\1"),
    _rule(r"^(fmha_cutlass\w+)", r"\1"),
    # CUTLASS: the instance's own name where it has one, else its kernel's class
    _rule(r"\b(cutlass(?:3x)?_(?:sm)?\d+_\w+)", r"\1"),
    _rule(r"\bcutlass::(?:device_kernel|Kernel2?)<(?:\w+::)*enable_\w+<(?:\w+::)*(\w+)", r"cutlass \1"),
    _rule(r"\bcutlass::(?:device_kernel|Kernel2?)<(?:\w+::)*(\w+)", r"cutlass \1"),
    # PyTorch
    _rule(r"\b\w*elementwise_kernel\w*<", _functor),
    _rule(
        r"\bat::native::(?:\w+::|\(anonymous namespace\)::|<unnamed>::)*(?:\w*reduce_kernel|multi_tensor_apply_kernel)<",
        _functor,
    ),
    _rule(r"^triton_\w+"),
    _rule(r"^\w+_\d+(?:d\d*|c|e|\d)*[dec]$", _triton),
)


def kernel_name(demangled: str, rules: Sequence[Rule] = RULES) -> KernelName:
    """`demangled` may also be a name that was never mangled (cuBLAS, Triton, NCCL)."""
    plain = _ANONYMOUS.sub("(anonymous namespace)", demangled)
    for rule in rules:
        match = rule.pattern.search(plain)
        if match:
            short = rule.name(match, plain) if callable(rule.name) else match.expand(rule.name)
            return KernelName(_bounded(short or folded(plain)), demangled, rule.category)
    return KernelName(_bounded(folded(plain)), demangled, "compute")


def folded(name: str) -> str:
    """Without return type, parameters, template arguments and namespaces: `at::native::f<4, g<int>>(int)` -> `f`."""
    head = name[: _end_of_name(name)]
    depth, kept = 0, []
    for char in head:
        depth += char in "<({["
        if not depth:
            kept.append(char)
        depth -= char in ">)}]" and depth > 0
    text = "".join(kept).strip().split(" ")[-1]
    return text.split("::")[-1] or name


def _end_of_name(name: str) -> int:
    """Where the outermost parameter list begins."""
    depth = 0
    for at, char in enumerate(name):
        if char == "(" and not depth and not name.startswith("(anonymous namespace)", at) and at:
            return at
        depth += char in "<({["
        depth -= char in ">)}]" and depth > 0
    return len(name)


def _bounded(name: str) -> str:
    """Cut in the middle: both ends tell instances apart."""
    half = SHORT_LIMIT // 2
    return name if len(name) <= SHORT_LIMIT else f"{name[: half - 1]}…{name[-half:]}"


# CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind, cupti_activity.h
COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORY_KINDS = ("", "pageable", "pinned", "device", "array", "managed", "device static", "managed static")


def copy_name(kind: int) -> str:
    """Short name of a MEMCPY record's `kind` (cupti/ring.h): direction, and the host's kind of memory."""
    direction = COPY_KINDS[kind & 0xFF] if kind & 0xFF < len(COPY_KINDS) else ""
    kinds = [MEMORY_KINDS[k] if k < len(MEMORY_KINDS) else "" for k in (kind >> 8 & 15, kind >> 12 & 15)]
    host = next((kind for kind in kinds if kind in ("pageable", "pinned", "managed")), "")
    return f"Memcpy {direction or 'unknown direction'}" + (f" ({host})" if host else "")


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Users' rules, a YAML file: `kernels:` a list of `match` (a regular expression, searched for in the full name) with
    `name` (may use \\1) and `category`, either of which may be left out. UsageError where it is not that."""
    content = read_yaml(path)
    listed = content.get("kernels", [])
    if not isinstance(listed, list):
        raise UsageError(f"{path}: kernels: a list is expected.")
    return tuple(_user_rule(path, number, entry) for number, entry in enumerate(listed, 1))


def _user_rule(path: Path, number: int, entry: Any) -> Rule:
    where = f"{path}: kernels: entry {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("match"), str):
        raise UsageError(f"{where}: needs `match`, a regular expression.")
    if unknown := set(entry) - {"match", "name", "category"}:
        raise UsageError(f"{where}: unknown {', '.join(sorted(map(str, unknown)))}.")
    category = entry.get("category", "compute")
    if category not in CATEGORIES:
        raise UsageError(f"{where}: category is one of {', '.join(CATEGORIES)}.")
    try:
        pattern, name = re.compile(entry["match"]), str(entry.get("name", ""))
        if pattern.groups:
            re.compile(f"(?:{entry['match']})|").match("").expand(name)
    except (re.error, IndexError) as error:
        raise UsageError(f"{where}: {error}.") from error
    return Rule(pattern, name, category)
