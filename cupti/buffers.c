/* SPDX-License-Identifier: Apache-2.0 */
#include "buffers.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD 32 /* free ones; untouched they are address space only. At 100 k records/s one lasts 40 ms */

static uint8_t *buffers[GS_MOST_BUFFERS]; /* NULL: this number has none. Set by our thread, while it is neither free nor full */
static uint64_t free_bits, full_bits, missed;
static uint64_t known_bits; /* those that have one; our thread's */
static unsigned limit;
static size_t valid_bytes[GS_MOST_BUFFERS];
static _Alignas(16) uint8_t discard[64 << 10];

/* The lowest set bit, taken out of `bits`: low numbers first keep few pages touched. */
static int take(uint64_t *bits)
{
	uint64_t seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
	while (seen)
		if (__atomic_compare_exchange_n(bits, &seen, seen & (seen - 1), 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return __builtin_ctzll(seen);
	return -1;
}

static void put(uint64_t *bits, int number)
{
	__atomic_fetch_or(bits, 1ull << number, __ATOMIC_RELEASE);
}

static int add(void)
{
	uint64_t without = ~known_bits;
	int number = without ? __builtin_ctzll(without) : GS_MOST_BUFFERS;
	if (number >= (int)limit)
		return -1;
	uint8_t *buffer = calloc(1, GS_BUFFER_SIZE); /* zeroed: CUPTI is told so */
	if (!buffer)
		return -1;
	__atomic_store_n(&buffers[number], buffer, __ATOMIC_RELEASE);
	known_bits |= 1ull << number;
	put(&free_bits, number);
	return 0;
}

void gs_buffers_refill(void)
{
	while (__builtin_popcountll(__atomic_load_n(&free_bits, __ATOMIC_RELAXED)) < AHEAD && !add())
		;
}

int gs_buffers_create(unsigned most)
{
	limit = most && most < GS_MOST_BUFFERS ? most : GS_MOST_BUFFERS;
	gs_buffers_refill();
	return known_bits ? 0 : -1;
}

void gs_buffer_request(uint8_t **buffer, size_t *size, size_t *most_records)
{
	int number = take(&free_bits);
	*most_records = 0; /* as many as fit */
	if (number < 0) {
		__atomic_fetch_add(&missed, 1, __ATOMIC_RELAXED);
		*buffer = discard;
		*size = sizeof discard;
		return;
	}
	*buffer = buffers[number];
	*size = GS_BUFFER_SIZE;
}

void gs_buffer_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	(void)context, (void)stream, (void)size;
	for (int i = 0; i < GS_MOST_BUFFERS; i++) {
		if (__atomic_load_n(&buffers[i], __ATOMIC_ACQUIRE) != buffer || !buffer)
			continue;
		valid_bytes[i] = valid < GS_BUFFER_SIZE ? valid : GS_BUFFER_SIZE;
		put(&full_bits, i);
		return;
	}
	/* the shared one, or another client's */
}

int gs_buffer_full(uint8_t **buffer, size_t *valid)
{
	int number = take(&full_bits);
	if (number >= 0) {
		*buffer = buffers[number];
		*valid = valid_bytes[number];
	}
	return number;
}

void gs_buffer_done(int number)
{
	/* zeroed here, by our thread, so that CUPTI need not do it in the application's. A page more than it says is valid: it may
	 * have begun a record there */
	size_t dirty = valid_bytes[number] + 4096;
	memset(buffers[number], 0, dirty < GS_BUFFER_SIZE ? dirty : GS_BUFFER_SIZE);
	put(&free_bits, number);
}

static void forget(int number)
{
	__atomic_store_n(&buffers[number], NULL, __ATOMIC_RELEASE);
	known_bits &= ~(1ull << number);
}

void gs_buffers_forget_lent(void)
{
	uint64_t here = __atomic_load_n(&free_bits, __ATOMIC_ACQUIRE) | __atomic_load_n(&full_bits, __ATOMIC_ACQUIRE);
	for (uint64_t lent = known_bits & ~here; lent; lent &= lent - 1)
		forget(__builtin_ctzll(lent));
}

uint64_t gs_buffers_missed(void)
{
	return __atomic_load_n(&missed, __ATOMIC_RELAXED);
}

unsigned gs_buffers_count(void)
{
	return (unsigned)__builtin_popcountll(known_bits);
}

void gs_buffers_release(void)
{
	int number;
	while ((number = take(&free_bits)) >= 0) {
		uint8_t *buffer = buffers[number];
		forget(number);
		free(buffer);
	}
}
