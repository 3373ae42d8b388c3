/* SPDX-License-Identifier: Apache-2.0 */
#include "buffers.h"

#include <string.h>
#include <sys/mman.h>

static uint8_t *region;
static uint64_t free_bits, full_bits, missed;
static size_t valid_bytes[GS_MOST_BUFFERS], touched_bytes[GS_MOST_BUFFERS];
static _Alignas(16) uint8_t discard[64 << 10];

int gs_buffers_create(unsigned most)
{
	if (!region) {
		size_t size = (size_t)GS_MOST_BUFFERS * GS_BUFFER_SIZE;
		void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at == MAP_FAILED)
			return -1;
		region = at;
		if (!most || most > GS_MOST_BUFFERS)
			most = GS_MOST_BUFFERS;
		__atomic_store_n(&free_bits, most == 64 ? ~0ull : (1ull << most) - 1, __ATOMIC_RELEASE);
	}
	return 0;
}

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
	*buffer = region + (size_t)number * GS_BUFFER_SIZE;
	*size = GS_BUFFER_SIZE;
}

void gs_buffer_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	(void)context, (void)stream, (void)size;
	if (!region || buffer < region || buffer >= region + (size_t)GS_MOST_BUFFERS * GS_BUFFER_SIZE)
		return; /* the shared one, or another client's */
	int number = (int)((size_t)(buffer - region) / GS_BUFFER_SIZE);
	valid_bytes[number] = valid < GS_BUFFER_SIZE ? valid : GS_BUFFER_SIZE;
	put(&full_bits, number);
}

int gs_buffer_full(uint8_t **buffer, size_t *valid)
{
	int number = take(&full_bits);
	if (number >= 0) {
		*buffer = region + (size_t)number * GS_BUFFER_SIZE;
		*valid = valid_bytes[number];
	}
	return number;
}

void gs_buffer_done(int number)
{
	/* zeroed here, by our thread, so that CUPTI need not do it in the application's (ATTRIBUTE_ZEROED_BUFFER). CUPTI 13
	 * may have written a header past nothing valid: a page more than it says costs little */
	size_t dirty = valid_bytes[number] + 4096;
	memset(region + (size_t)number * GS_BUFFER_SIZE, 0, dirty < GS_BUFFER_SIZE ? dirty : GS_BUFFER_SIZE);
	if (touched_bytes[number] < dirty)
		touched_bytes[number] = dirty;
	put(&free_bits, number);
}

uint64_t gs_buffers_missed(void)
{
	return __atomic_load_n(&missed, __ATOMIC_RELAXED);
}

unsigned gs_buffers_free(void)
{
	return (unsigned)__builtin_popcountll(__atomic_load_n(&free_bits, __ATOMIC_RELAXED));
}

void gs_buffers_release(void)
{
	uint64_t taken = 0;
	int number;
	while ((number = take(&free_bits)) >= 0) {
		if (touched_bytes[number])
			madvise(region + (size_t)number * GS_BUFFER_SIZE, GS_BUFFER_SIZE, MADV_DONTNEED);
		touched_bytes[number] = 0;
		taken |= 1ull << number;
	}
	__atomic_fetch_or(&free_bits, taken, __ATOMIC_RELEASE);
}
