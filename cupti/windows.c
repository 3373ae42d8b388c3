/* SPDX-License-Identifier: Apache-2.0 */
#include "windows.h"

#include <string.h>

static uint64_t load64(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static uint32_t load32(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_RELAXED);
}

/* Correlation ids count up and wrap: a is before b. */
static int before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0;
}

static void widen(struct gs_window_row *row, uint32_t correlation)
{
	uint32_t known = load32(&row->first);
	while ((!known || before(correlation, known)) &&
	       !__atomic_compare_exchange_n(&row->first, &known, correlation, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	known = load32(&row->last);
	while ((!known || before(known, correlation)) &&
	       !__atomic_compare_exchange_n(&row->last, &known, correlation, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	__atomic_fetch_add(&row->launches, 1, __ATOMIC_RELAXED);
}

static void cover(struct gs_cover *found, const struct gs_window_row *row)
{
	if (!found->window || before(found->window, row->id)) {
		found->window = row->id;
		found->probability = row->probability;
	}
	found->multiplicity++;
}

struct gs_cover gs_windows_launch(struct gs_windows *windows, uint64_t time, uint32_t correlation)
{
	struct gs_cover found = {0, 0, 0};
	for (uint64_t active = __atomic_load_n(&windows->active, __ATOMIC_ACQUIRE); active; active >>= 16) {
		if (!(active & 0xffff))
			continue;
		struct gs_window_row *row = &windows->rows[(active & 0xffff) - 1];
		if (time < load64(&row->begin) || time >= load64(&row->end))
			continue;
		cover(&found, row);
		widen(row, correlation);
	}
	return found;
}

static const struct gs_window_row *back(const struct gs_windows *windows, uint32_t n)
{
	uint32_t id = windows->newest - n;
	const struct gs_window_row *row = &windows->rows[id % GS_WINDOW_ROWS];
	return row->id == id && id ? row : NULL;
}

struct gs_cover gs_windows_find(const struct gs_windows *windows, uint32_t correlation)
{
	struct gs_cover found = {0, 0, 0};
	const struct gs_window_row *row;
	for (uint32_t n = 0; n < GS_WINDOW_ROWS && (row = back(windows, n)); n++) {
		uint32_t first = load32(&row->first), last = load32(&row->last);
		if (!load32(&row->launches) || before(correlation, first))
			continue;
		if (before(last, correlation))
			break; /* older windows end before this one's last */
		cover(&found, row);
	}
	return found;
}

struct gs_cover gs_windows_at(const struct gs_windows *windows, uint64_t time)
{
	struct gs_cover found = {0, 0, 0};
	const struct gs_window_row *row;
	for (uint32_t n = 0; n < GS_WINDOW_ROWS && (row = back(windows, n)); n++) {
		if (time >= load64(&row->end))
			break;
		if (time >= load64(&row->begin))
			cover(&found, row);
	}
	return found;
}

struct gs_window_row *gs_windows_open(struct gs_windows *windows, uint64_t begin, uint64_t end)
{
	unsigned shift = 0;
	while (shift < 16 * GS_MOST_ACTIVE && windows->active >> shift & 0xffff)
		shift += 16;
	if (shift == 16 * GS_MOST_ACTIVE)
		return NULL;
	uint32_t id = windows->newest + 1 ? windows->newest + 1 : 1;
	struct gs_window_row *row = &windows->rows[id % GS_WINDOW_ROWS];
	memset(row, 0, sizeof *row);
	row->begin = begin;
	row->end = end;
	row->id = id;
	windows->newest = id;
	return row;
}

void gs_windows_activate(struct gs_windows *windows, const struct gs_window_row *row)
{
	uint64_t active = windows->active;
	unsigned shift = 0;
	while (active >> shift & 0xffff)
		shift += 16;
	active |= (uint64_t)(row - windows->rows + 1) << shift;
	__atomic_store_n(&windows->active, active, __ATOMIC_RELEASE);
}

struct gs_window_row *gs_windows_active(struct gs_windows *windows, unsigned i)
{
	uint64_t number = windows->active >> 16 * i & 0xffff;
	return number ? &windows->rows[number - 1] : NULL;
}

void gs_windows_close(struct gs_windows *windows, unsigned i)
{
	__atomic_store_n(&windows->active, windows->active & ~(0xffffull << 16 * i), __ATOMIC_RELEASE);
}

struct gs_window gs_windows_record(const struct gs_window_row *row)
{
	uint64_t width = row->width_ns;
	struct gs_window record = {
		.type = GS_RECORD_WINDOW,
		.flags = row->flags,
		.reason = row->close,
		.begin = row->begin,
		.end = row->flags & GS_WINDOW_OPEN ? 0 : row->end,
		.period_us = (uint32_t)(row->period_ns / 1000),
		.probability = row->probability,
		.id = row->id,
		.launches = load32(&row->launches),
	};
	if (!(row->flags & GS_WINDOW_OPEN) && row->close != GS_CLOSE_complete)
		width = row->end - row->begin;
	record.width_us = (uint32_t)(width / 1000);
	return record;
}
