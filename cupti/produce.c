/* SPDX-License-Identifier: Apache-2.0 */
#include "produce.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

#ifndef GPUSTROBE_VERSION
#define GPUSTROBE_VERSION "0"
#endif

static void describe(struct gs_layout *layout, uint32_t slots, uint32_t arena_size)
{
	layout->version = GS_RING_VERSION;
	layout->control_size = GS_CONTROL_SIZE;
	layout->ring_offset = GS_CONTROL_SIZE;
	layout->ring_slots = slots;
	layout->record_size = 64;
	layout->arena_offset = GS_CONTROL_SIZE + 64ull * slots;
	layout->arena_size = arena_size;
	layout->total_size = layout->arena_offset + arena_size;
	layout->counters_offset = offsetof(struct gs_control, counters);
	layout->n_counters = GS_N_COUNTERS;
	layout->pid = (uint32_t)getpid();
	layout->writer = 1;
	layout->created = gs_mono();
	strncpy(layout->library_version, GPUSTROBE_VERSION, sizeof layout->library_version - 1);
	__atomic_store_n(&layout->magic, GS_RING_MAGIC, __ATOMIC_RELEASE);
}

int gs_ring_create(struct gs_ring *ring, uint32_t slots, uint32_t arena_size)
{
	size_t total = GS_CONTROL_SIZE + 64ull * slots + arena_size;
	int error;
	/* by number: the wrapper came with glibc 2.27 */
	int fd = (int)syscall(SYS_memfd_create, GS_RING_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return errno;
	if (ftruncate(fd, (off_t)total) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		error = errno;
		close(fd);
		return error;
	}
	/* out of the way of programs that count on low numbers */
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	char *at = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		error = errno;
		close(fd);
		return error;
	}
	ring->control = (struct gs_control *)at;
	ring->records = at + GS_CONTROL_SIZE;
	ring->arena = ring->records + 64ull * slots;
	ring->slots = slots;
	ring->arena_size = arena_size;
	ring->fd = fd;
	ring->control->arena_head = 8; /* id 0 means none */
	describe(&ring->control->layout, slots, arena_size);
	return 0;
}

/* Numbers for up to n records: how many, the first in *first. */
static uint32_t reserve(struct gs_ring *ring, uint32_t n, uint64_t *first)
{
	struct gs_control *control = ring->control;
	uint64_t head = __atomic_load_n(&control->head, __ATOMIC_RELAXED);
	for (;;) {
		uint64_t used = head - __atomic_load_n(&control->tail, __ATOMIC_ACQUIRE);
		if (used >= ring->slots) /* full, or a tail that lies */
			return 0;
		uint32_t take = n < ring->slots - used ? n : (uint32_t)(ring->slots - used);
		if (__atomic_compare_exchange_n(&control->head, &head, head + take, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
			*first = head;
			return take;
		}
	}
}

uint32_t gs_ring_push(struct gs_ring *ring, const void *records, uint32_t n)
{
	uint64_t first = 0;
	uint32_t taken = reserve(ring, n, &first);
	for (uint32_t i = 0; i < taken; i++) {
		char *slot = ring->records + 64ull * ((first + i) & (ring->slots - 1));
		memcpy(slot + 4, (const char *)records + 64ull * i + 4, 60);
		__atomic_store_n((uint32_t *)slot, (uint32_t)(first + i) + 1, __ATOMIC_RELEASE);
	}
	if (taken)
		gs_add(ring, GS_COUNTER_records, taken);
	if (taken < n)
		gs_add(ring, GS_COUNTER_drop_ring_full, n - taken);
	return taken;
}

uint32_t gs_arena_take(struct gs_ring *ring, uint32_t size)
{
	uint64_t *arena_head = &ring->control->arena_head;
	uint64_t head = __atomic_load_n(arena_head, __ATOMIC_RELAXED);
	do {
		if (head < 8 || head + size > ring->arena_size)
			return 0;
	} while (!__atomic_compare_exchange_n(arena_head, &head, head + size, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
	return (uint32_t)head;
}

void gs_arena_publish(struct gs_ring *ring, uint32_t id, uint32_t size)
{
	__atomic_store_n((uint32_t *)(ring->arena + id), size, __ATOMIC_RELEASE);
}
