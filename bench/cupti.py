# SPDX-License-Identifier: Apache-2.0
"""What the injected library costs: nanoseconds per launch (dormant, attached, in a window) and per kernel record.

Launches: a program that launches through tests/cupti_fake.c, whose own cost is nearly nothing, timed by itself with and without
the library. Records: gs_read_buffer over a buffer of real layout. Each number is the best of several runs: the machine is noisy,
and noise only adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gpustrobe.cupti import library, ring  # noqa: E402

from tests import cupti_agent  # noqa: E402

BAR_RECORD_NS = 150  # budget: our own code per kernel record
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int cuInit(unsigned flags);
void fake_launch(const char *name, uint32_t ns, uint32_t grid);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(int argc, char **argv)
{
	static const char *const names[] = {"_Z4gemmPfS_S_i", "_Z4reluPfi", "_Z4gemmPfS_S_i", "_Z7softmaxPfi"};
	int pace = argc > 1 ? atoi(argv[1]) : 0;
	cuInit(0);
	puts("ready");
	fflush(stdout);
	for (char line[16]; fgets(line, sizeof line, stdin);) {
		double spent = 0;
		int n = 0;
		for (int chunk = 0; chunk < 200; chunk++) {
			double begun = now();
			for (int i = 0; i < 100; i++, n++)
				fake_launch(names[n % 4], 1000, 1 + n % 3);
			double took = now() - begun;
			spent += took;
			for (double wait = now() + pace * 100000; now() < wait;)
				;
		}
		printf("%.2f\\n", spent / n);
		fflush(stdout);
	}
	return 0;
}
"""
READER = """
#include "activity.h"
#include "clock.h"
#include <stdio.h>
#include <stdlib.h>
#define SIZE 248
static int next(uint8_t *at, size_t valid, void **record)
{
	uint8_t *following = *record ? (uint8_t *)*record + SIZE : at;
	if (following + SIZE > at + valid) return 12;
	*record = following;
	return 0;
}
int main(void)
{
	enum { N = 4000 };
	static uint8_t buffer[N * SIZE];
	static struct gs_windows windows;
	static char names[100][200];
	struct gs_ring ring;
	uint64_t best = ~0ull;
	if (gs_ring_create(&ring, GS_RING_SLOTS, GS_ARENA_SIZE)) return 1;
	struct gs_reader reader = {.ring = &ring, .names = gs_names_create(&ring), .windows = &windows, .next_record = next,
		.version = 130500, .latest = ~0ull};
	for (int w = 0; w < 10; w++) {
		struct gs_window_row *row = gs_windows_open(&windows, 1000 * w, 1000 * w + 1000);
		gs_windows_activate(&windows, row);
		for (uint32_t i = 0; i < 400; i++) gs_windows_launch(&windows, 1000 * w + 1, 1 + 400 * w + i);
		gs_windows_close(&windows, 0);
	}
	for (int i = 0; i < 100; i++)
		snprintf(names[i], 200, "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_%dIfEE", i);
	for (uint32_t i = 0; i < N; i++) {
		uint8_t *r = buffer + i * SIZE;
		uint32_t kind = 10, one = 1, correlation = 1 + (i * 7919) % N, grid = 1 + rand() % 20, block = 256;
		uint64_t start = 1000 + i, end = 2000 + i;
		const char *name = names[rand() % 100];
		memcpy(r, &kind, 4); memcpy(r + 16, &start, 8); memcpy(r + 24, &end, 8); memcpy(r + 44, &one, 4);
		memcpy(r + 52, &grid, 4); memcpy(r + 64, &block, 4); memcpy(r + 92, &correlation, 4); memcpy(r + 104, &name, 8);
	}
	for (int run = 0; run < 60; run++) {
		uint64_t begun = gs_mono();
		gs_read_buffer(&reader, buffer, sizeof buffer);
		uint64_t took = gs_mono() - begun;
		if (run > 20 && took < best) best = took; /* the ring's pages are touched by then */
		ring.control->tail = ring.control->head;
	}
	printf("%.1f %llu\\n", (double)best / N, (unsigned long long)ring.control->counters[GS_COUNTER_records]);
	return 0;
}
"""


def compile_c(folder: Path, name: str, text: str, *more: str | Path) -> Path:
    source, target = folder / f"{name}.c", folder / name
    source.write_text(text)
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", f"-I{ROOT / 'cupti'}"]
    subprocess.run(["gcc", *flags, "-o", target, source, *more, "-lpthread", "-ldl"], check=True)
    return target


def launching_program(folder: Path) -> Path:
    for name, define in (("libcuda.so.1", "FAKE_CUDA"), ("libcupti.so.13", "FAKE_CUPTI")):
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-D{define}", f"-Wl,-soname,{name}", "-o", folder / name]
        subprocess.run([*command, ROOT / "tests" / "cupti_fake.c"], check=True)
    return compile_c(
        folder, "launches", PROGRAM, folder / "libcuda.so.1", folder / "libcupti.so.13", f"-Wl,-rpath,{folder}"
    )


def ns_per_launch(program: Path, runs: int, inject: bool = True, **wish: int) -> float:
    """Best of `runs` times 20 000 launches in bursts of 100, each followed by so many times `pace` us of other work."""
    env = dict(os.environ) | ({"CUDA_INJECTION64_PATH": str(library.path())} if inject else {})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([program, "2"], env=env, **pipes) as process:
        process.stdout.readline()
        agent = cupti_agent.PlainAgent(cupti_agent.wait_for(process.pid)) if inject else None
        if wish:
            agent.wish(**wish)
            agent.run(0.4)
        times = []
        for _ in range(runs):
            process.stdin.write("go\n")
            process.stdin.flush()
            time.sleep(0.01)
            times.append(float(process.stdout.readline()))
            if agent and wish:
                agent.beat()
                agent.drain()
        process.stdin.close()
        if agent and wish.get("mode") == ring.Mode.ALWAYS:
            counters = agent.counters()
            if counters["launches"] != 20_000 * runs or counters["drop_ring_full"]:
                raise RuntimeError(f"not all launches were in a window, so the times mean nothing: {counters}")
    return min(times)


def ns_per_record(folder: Path) -> float:
    parts = [path for path in (ROOT / "cupti").glob("*.c") if path.name != "injection.c"]
    program = compile_c(folder, "reader", READER, *parts)
    return float(subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()[0])


def measure(runs: int = 15) -> dict[str, float]:
    """Nanoseconds: a launch without us, what we add to one (dormant; attached between windows; counted; in a window; in a
    window with one stack in 64 asked for), a kernel record."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = launching_program(folder)
        bare = ns_per_launch(program, runs, inject=False)
        always = {"mode": ring.Mode.ALWAYS, "seed": 1}
        return {
            "launch without us": bare,
            "added, dormant": ns_per_launch(program, runs) - bare,
            "added, attached, between windows": ns_per_launch(program, runs, mode=ring.Mode.ON_DEMAND) - bare,
            "added, attached and counting": ns_per_launch(program, runs, mode=ring.Mode.ON_DEMAND, counting=1) - bare,
            "added, in a window": ns_per_launch(program, runs, **always) - bare,
            "added, in a window, stacks 1/64": ns_per_launch(program, runs, probability=1 << 26, **always) - bare,
            "kernel record": ns_per_record(folder),
        }


if __name__ == "__main__":
    for what, value in measure().items():
        print(f"{what:36} {value:8.1f} ns")
