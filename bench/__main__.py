# SPDX-License-Identifier: Apache-2.0
"""`make bench`: our own cost, accuracy and speed as one table, each beside its budget.

`python -m bench loops --quick` runs a part.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench import overhead


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    value: str
    budget: str = ""
    within: bool | None = None
    peer: str = ""  # the strongest open peer, or a limit, as measured on such a machine


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


PEER = {"loops": ("0.45 %", "18.7 us", "147 MB", "99.95 %"), "mixed": ("1.95 %", "58 us", "161 MB", "96.7 %")}
BARS = {"loops": (0.003, 12e3, 0.995), "mixed": (0.01, 30e3, 0.99)}


def cost_lines(name: str, quick: bool) -> Iterator[Line]:
    cost, speed = overhead.measure(name, *((10, 10, 1) if quick else (30, 20, 5)))
    share, per_sample, complete = BARS[name]
    peer = PEER[name]
    whole = cost.cpu_share + cost.bpf_share
    title = {"loops": "two busy loops", "mixed": "mixed load"}[name]
    yield Line(
        f"{title}: whole agent, share of the host",
        f"{percent(whole)} (BPF {percent(cost.bpf_share)})",
        f"<= {percent(share)}",
        whole <= share,
        peer[0],
    )
    yield Line(
        f"{title}: BPF time per sample",
        f"{cost.bpf_ns_per_sample / 1e3:.1f} us",
        f"<= {per_sample / 1e3:.0f} us",
        cost.bpf_ns_per_sample <= per_sample,
        peer[1],
    )
    yield Line(
        f"{title}: memory, BPF maps included",
        f"{cost.memory / 1e6:.0f} MB (peak {cost.memory_peak / 1e6:.0f})",
        "<= 150 MB",
        cost.memory <= 150e6,
        peer[2],
    )
    yield Line(
        f"{title}: stacks that reach the first frame",
        percent(cost.complete),
        f">= {percent(complete)}",
        cost.complete >= complete,
        peer[3],
    )
    for reason, part in sorted(cost.reasons.items(), key=lambda item: -item[1])[:5]:
        yield Line(f"  of the rest: {reason}", percent(part))
    yield Line(f"{title}: samples lost", percent(cost.lost), "counted")
    yield Line(f"{title}: speed left to the programs", percent(speed), ">= 99 %", speed >= 0.99)


def bpf_lines(quick: bool) -> Iterator[Line]:
    from bench import bpf_cost

    for what, value in bpf_cost.measure(5 if quick else 15).items():
        yield Line(f"BPF: {what}", f"{value:.0f}" if isinstance(value, float) else str(value))


def wait_lines(quick: bool) -> Iterator[Line]:
    from bench import offcpu

    for part, row in offcpu.measure(quick=quick).items():
        for what, value in row.items():
            yield Line(f"off-CPU {part}: {what.replace('_', ' ')}", f"{value:,.4g}")


def store_lines(quick: bool) -> Iterator[Line]:
    from bench import store

    for what, value in store.measure(quick=quick).items():
        yield Line(f"store: {what}", f"{value:,.3g}" if isinstance(value, float) else str(value))


def cupti_lines(quick: bool) -> Iterator[Line]:
    from bench import cupti

    for what, value in cupti.measure(5 if quick else 15).items():
        bar = cupti.BAR_RECORD_NS if what == "kernel record" else None
        yield Line(f"CUPTI: {what}", f"{value:.0f} ns", f"<= {bar} ns" if bar else "", value <= bar if bar else None)


SECTIONS: dict[str, Callable[[bool], Iterator[Line]]] = {
    "loops": lambda quick: cost_lines("loops", quick),
    "mixed": lambda quick: cost_lines("mixed", quick),
    "bpf": bpf_lines,
    "waits": wait_lines,
    "store": store_lines,
    "cupti": cupti_lines,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="shorter runs, wider error")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    print(
        f"kernel {platform.release()}, Python {platform.python_version()}; ratios come from one run, machines are noisy"
    )
    print(f"{'what':58} {'measured':>28} {'budget':>12} {'':4} {'peer':>10}")
    missed = 0
    for name in arguments.sections or SECTIONS:
        for line in SECTIONS[name](arguments.quick):
            verdict = "" if line.within is None else "ok" if line.within else "MISS"
            missed += line.within is False
            print(f"{line.what:58} {line.value:>28} {line.budget:>12} {verdict:4} {line.peer:>10}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
