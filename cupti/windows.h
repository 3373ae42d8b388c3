/* SPDX-License-Identifier: Apache-2.0 */
/* The last windows: which of them cover a launch (asked by any thread, by time) or a record (asked by ours, by correlation id).
 * A window is opened and closed by our thread; at most GS_MOST_ACTIVE are open at once (windows of one schedule overlap in pairs). */
#ifndef GPUSTROBE_WINDOWS_H
#define GPUSTROBE_WINDOWS_H

#include "ring.h"

#define GS_WINDOW_ROWS 128 /* at one window a second, records find their window for two minutes */
#define GS_MOST_ACTIVE 3

struct gs_window_row {
	uint64_t begin;
	uint64_t end; /* lowered when it closes early */
	uint64_t width_ns, period_ns;
	uint32_t id;
	uint32_t probability;
	uint32_t first, last; /* correlation ids, 0 = none yet */
	uint32_t launches;
	uint8_t flags; /* enum gs_window_flag */
	uint8_t announced_lossy;
	uint16_t close;
};

struct gs_windows {
	struct gs_window_row rows[GS_WINDOW_ROWS]; /* id % GS_WINDOW_ROWS */
	uint64_t active; /* GS_MOST_ACTIVE times 16 bits: row + 1, 0 = none */
	uint32_t newest; /* id */
};

struct gs_cover {
	uint32_t window; /* newest window that covers it; 0 = none */
	uint32_t multiplicity;
	uint32_t probability;
};

/* A launch at `time` with this correlation id; notes it in the windows that cover it. */
struct gs_cover gs_windows_launch(struct gs_windows *windows, uint64_t time, uint32_t correlation);

/* The windows whose launches have correlation ids around this one. */
struct gs_cover gs_windows_find(const struct gs_windows *windows, uint32_t correlation);

/* The windows that lie around this time; for records without a launch. */
struct gs_cover gs_windows_at(const struct gs_windows *windows, uint64_t time);

/* The next window, not yet seen by launches; NULL when too many are open. */
struct gs_window_row *gs_windows_open(struct gs_windows *windows, uint64_t begin, uint64_t end);

/* Lets launches see a row that was opened; the caller has filled it in. */
void gs_windows_activate(struct gs_windows *windows, const struct gs_window_row *row);

/* Active row number i of GS_MOST_ACTIVE, or NULL. */
struct gs_window_row *gs_windows_active(struct gs_windows *windows, unsigned i);
void gs_windows_close(struct gs_windows *windows, unsigned i);

/* The row as a WINDOW record; clocks are the caller's. */
struct gs_window gs_windows_record(const struct gs_window_row *row);

#endif
