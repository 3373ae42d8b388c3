# SPDX-License-Identifier: Apache-2.0
"""At most one sentence about a range: a GPU that was idle (idle.py), or else little used, and what the CPU did meanwhile.
None where evidence is weak.

What is here says "utilization", never "idle": NVML's figure is the share of time in which any kernel ran, and gives no gaps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import sql
from gpustrobe.store.flame import by_frame
from gpustrobe.store.idle import idle_finding
from gpustrobe.store.match import Matcher
from gpustrobe.store.query import read_profile, with_texts

if TYPE_CHECKING:
    from gpustrobe.store.content import Contents
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question

LOW = 10.0  # % utilization
MIN_SECONDS = 15  # of low utilization
MIN_SHARE = 0.1  # of the range
MIN_SAMPLES = 100
MIN_FRAME_SHARE = 0.3  # of the process's samples in those seconds
MIN_EXCESS = 1.5  # the function's share while the GPU was low, against its share of the rest of the range
MAX_SECONDS = 6 * 3600  # a longer range gets no sentence: what it would average over explains nothing
SKIPPED_KINDS = ("kernel", "reason", "guessed")


def finding(reader: Reader, contents: Contents, question: Question) -> dict[str, object] | None:
    if question.span.seconds > MAX_SECONDS:
        return None
    if (idle := idle_finding(reader, contents, question)) is not None:
        return idle
    low = _lowest(reader, question)
    if low is None:
        return None
    node, gpu, index, seconds, measured, utilization = low
    share = len(seconds) / measured
    where = _guilty(reader, contents, question, node, seconds)
    text = [
        {"t": f"GPU {index}" + (f" of {node}" if not question.node else "")},
        {
            "t": f" was below {LOW:.0f} % utilization for {share:.0%} of this range".replace("%", " %").replace(
                "  %", " %"
            )
        },
    ]
    answer = {
        "gpu": gpu,
        "node": node,
        "tab": "cpu",
        "focus": "",
        "match": "",
        "utilization_mean": round(utilization, 1),
    }
    evidence = f"{len(seconds)} of {measured} readings"
    if where is not None:
        name, file, line, frame_share, samples, matcher = where
        place = f", {file.rsplit('/', 1)[-1]}:{line}" if file and line else ""
        text += [
            {"t": f"; {matcher['comm']} then spent {frame_share * 100:.0f} % of its CPU time under "},
            {"t": name, "code": True},
            {"t": place},
        ]
        evidence += f", {samples} samples"
        quoted = ",".join(f'{label}="{_escaped(value)}"' for label, value in matcher.items() if value)
        answer |= {"match": quoted, "focus": f"^{_regex(name)}$"}
    return {"text": text, "evidence": evidence, **answer}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _regex(name: str) -> str:
    return "".join(char if char.isalnum() or char in "_ " else "\\" + char for char in name)


def _lowest(reader: Reader, question: Question) -> tuple | None:
    """(node, gpu, index, low seconds, readings, mean) of the GPU with the most seconds of low utilization, if they are
    many."""
    conditions, parameters = question.node_conditions()
    among = sql.among_series(conditions)
    parameters |= {
        "name": "gpu.utilization",
        "first": question.span.first,
        "last": question.span.last,
        "step": 1_000_000_000,
    }
    data = reader.columns(sql.READINGS.format(among=among), parameters)
    if not len(data["metric"]):
        return None
    info = reader.lookup(sql.METRIC_LABELS, np.unique(data["metric"]))
    owner = {
        metric: (node, gpu, index)
        for metric, node, gpu, index in zip(
            *(info[name].tolist() for name in ("metric", "node", "gpu", "gpu_index")), strict=True
        )
    }
    best = None
    for key in sorted(set(owner.values())):
        mine = np.isin(data["metric"], [metric for metric, other in owner.items() if other == key])
        mean, seconds = data["mean"][mine], data["bin"][mine]
        low = seconds[mean < LOW]
        worth = len(low) >= MIN_SECONDS and len(low) >= MIN_SHARE * len(seconds)
        # A GPU that never worked starves from nothing: it is unused, which the page shows by itself.
        if worth and mean.max() >= LOW and (best is None or len(low) > len(best[3])):
            best = (*key, np.unique(low), len(seconds), float(mean.mean()))
    return best


def _guilty(reader: Reader, contents: Contents, question: Question, node: str, seconds: np.ndarray) -> tuple | None:
    """The deepest function with a strong share of the heaviest process's samples in `seconds`, and a weaker one
    elsewhere."""
    base = replace(
        question, type="cpu", matchers=(*question.matchers, Matcher("node", "=", node)) if node else question.matchers
    )
    during = read_profile(reader, contents, base, seconds=seconds)
    if during.total < MIN_SAMPLES:
        return None
    tree = during.tree
    processes = np.arange(1, tree.starts[2])
    heaviest = int(processes[np.argmax(tree.total[1 : tree.starts[2]])])
    comm, _, script, _ = during.top.texts[heaviest]
    matcher = {"comm": comm, "script": script}
    mine = replace(base, matchers=(*base.matchers, Matcher("comm", "=", comm), Matcher("script", "=", script)))
    inside = _shares(reader, contents, mine, seconds)
    whole = _shares(reader, contents, mine, None)
    if inside is None or whole is None or inside[1] < MIN_SAMPLES:
        return None
    rest = whole[1] - inside[1]
    best = None
    for key, (count, own_depth, text) in inside[0].items():
        share = count / inside[1]
        elsewhere = (whole[0].get(key, (0,))[0] - count) / rest if rest > 0 else 0.0
        good = share >= MIN_FRAME_SHARE and share >= MIN_EXCESS * elsewhere and text[1] not in SKIPPED_KINDS
        # The deepest frame that still holds most of it says more than `main` does; Python is what people can change.
        rank = (text[1] == "python", own_depth)
        if good and (best is None or rank > best[0]):
            best = (rank, key, share, text)
    if best is None:
        return None
    _, (_, line), share, text = best
    return text[0], text[3], line, share, inside[1], matcher


def _shares(reader: Reader, contents: Contents, question: Question, seconds: np.ndarray | None) -> tuple | None:
    """({(text, line): (total, depth, text)}, samples) of a process's frames."""
    profile = read_profile(reader, contents, question, lines=True, seconds=seconds)
    if not profile.total:
        return None
    tree = profile.tree
    frame, _, total = by_frame(tree)
    texts = with_texts(reader, profile, frame)
    level = np.repeat(np.arange(len(tree.starts) - 1), np.diff(tree.starts))
    deepest = np.zeros(len(tree.frames), dtype=np.int64)
    rows = tree.frame >= 0
    np.maximum.at(deepest, tree.frame[rows], level[rows])
    out = {}
    for number, count in zip(frame.tolist(), total.tolist(), strict=True):
        function, line = tree.frames[number]
        out[(texts[function], line)] = (count, int(deepest[number]), texts[function])
    return out, profile.total
