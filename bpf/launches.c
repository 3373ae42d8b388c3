/* SPDX-License-Identifier: Apache-2.0 */
#include "launches.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "kernel_features.h"
#include "state.h"

/* Shared with the sampler: what user side writes once serves both. */
static const char *const shared[] = { "procs", "mappings", "tables", "words", "rules", "pythons", "watched" };
#define N_SHARED (sizeof(shared) / sizeof(*shared))

static int map_fd(struct bpf_object *object, const char *name)
{
	return bpf_object__find_map_fd_by_name(object, name);
}

static int is_shared(const char *name)
{
	for (size_t i = 0; i < N_SHARED; i++)
		if (!strcmp(name, shared[i]))
			return 1;
	return 0;
}

static int prepare(struct bpf_object *object, const struct gs_kernel *k)
{
	struct bpf_map *counters = bpf_object__find_map_by_name(object, "launch_counters");
	struct bpf_map *ring = bpf_object__find_map_by_name(object, "samples");

	for (size_t i = 0; i < N_SHARED; i++) {
		struct bpf_map *map = bpf_object__find_map_by_name(object, shared[i]);

		if (!map || bpf_map__reuse_fd(map, map_fd(k->object, shared[i])))
			return -EINVAL;
	}
	if (!counters || bpf_map__value_size(counters) != sizeof(struct gs_launch_counters) || !ring)
		return -EINVAL;
	/* a tenth of a second of 20 k stacks a second at 400 bytes each, whatever the number of CPUs: who launches is one thread or a few */
	return bpf_map__set_max_entries(ring, 1u << 20);
}

static int link_programs(struct bpf_object *object, struct gs_error *error)
{
	const char *names[] = { "walk_launch", NULL, "guess_launch" }; /* maps.bpf.h GS_PROGRAM_ */

	for (uint32_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct bpf_program *program = names[i] ? bpf_object__find_program_by_name(object, names[i]) : NULL;
		int fd = program ? bpf_program__fd(program) : -1;

		if (names[i] && bpf_map_update_elem(map_fd(object, "programs"), &i, &fd, BPF_ANY))
			return gs_fail(error, GS_FAULT_load, errno, "program %s could not be linked: %s", names[i], strerror(errno));
	}
	return 0;
}

static int open_kernel(struct gs_launches *l, const struct gs_kernel *k, const struct gs_options *options, struct gs_error *error)
{
	struct bpf_map *map;

	l->n_cpus = k->n_cpus;
	l->per_cpu = calloc(k->n_cpus, sizeof(*l->per_cpu));
	if (!l->per_cpu)
		return gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for the counters of launches");
	if (gs_kernel_load_beside(k, options->launch_path, prepare, &l->object, error) || link_programs(l->object, error))
		return -1;
	l->ring = map_fd(l->object, "samples");
	l->counters = map_fd(l->object, "launch_counters");
	bpf_object__for_each_map(map, l->object)
		if (!is_shared(bpf_map__name(map)))
			l->map_bytes += gs_fd_memory(bpf_map__fd(map));
	return 0;
}

struct gs_launches *gs_launches_open(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	struct gs_launches *l = calloc(1, sizeof(*l));

	if (!l) {
		gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for launches");
		return NULL;
	}
	l->ring = l->counters = -1;
	l->rows.limit = l->moments.limit = core->rows.limit;
	if (!(options->flags & GS_OPTION_NO_KERNEL) && open_kernel(l, &core->kernel, options, error)) {
		gs_launches_close(l);
		return NULL;
	}
	return l;
}

int gs_launches_attach(struct gs_launches *l, const char *path, const char *function)
{
	LIBBPF_OPTS(bpf_uprobe_opts, options, .func_name = function);
	struct bpf_program *program = l->object ? bpf_object__find_program_by_name(l->object, "launch") : NULL;
	struct bpf_link *link;

	if (!program)
		return EINVAL;
	if (l->n_links == GS_MAX_PROBES)
		return ENOSPC;
	link = bpf_program__attach_uprobe_opts(program, -1, path, 0, &options);
	if (libbpf_get_error(link))
		return (int)-libbpf_get_error(link);
	l->links[l->n_links++] = link;
	return 0;
}

void gs_launches_detach(struct gs_launches *l)
{
	while (l->n_links)
		bpf_link__destroy(l->links[--l->n_links]);
}

void gs_launches_close(struct gs_launches *l)
{
	if (!l)
		return;
	gs_launches_detach(l);
	bpf_object__close(l->object);
	gs_window_rows_free(&l->rows);
	gs_window_rows_free(&l->moments);
	free(l->per_cpu);
	free(l);
}

int gs_launches_counters(struct gs_launches *l, struct gs_launch_counters *sum)
{
	__u32 zero = 0;
	uint64_t *to = (uint64_t *)sum;

	if (l->counters < 0 || bpf_map_lookup_elem(l->counters, &zero, l->per_cpu))
		return -1;
	memset(sum, 0, sizeof(*sum));
	for (int cpu = 0; cpu < l->n_cpus; cpu++)
		for (size_t i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
			to[i] += ((uint64_t *)&l->per_cpu[cpu])[i];
	return 0;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

void gs_launches_watch(struct gs_launches *l, const uint32_t *tids, uint32_t n)
{
	l->n_watched = n < GS_MAX_MOMENTS ? n : GS_MAX_MOMENTS;
	if (l->n_watched)
		memcpy(l->watched, tids, l->n_watched * sizeof(*tids));
	qsort(l->watched, l->n_watched, sizeof(*l->watched), by_number);
}

void gs_moment(struct gs_core *core, uint32_t tid, uint32_t stack, uint32_t thread, uint64_t time_ns, uint64_t lasted)
{
	struct gs_launches *l = core->launches;

	if (!l || !l->n_watched || !bsearch(&tid, l->watched, l->n_watched, sizeof(*l->watched), by_number))
		return;
	if (gs_window_rows_append(&l->moments, stack, thread, lasted, time_ns))
		l->moments_lost++;
}

void gs_launches_record(struct gs_core *core, const void *data, uint64_t length)
{
	struct gs_launches *l = core->launches;
	const struct gs_sample *s = data;
	struct gs_launch_tail tail;
	uint32_t stack, thread;

	if (length < sizeof(*s) + sizeof(tail) || s->n_kernel || s->n_user > GS_MAX_USER_WORDS + 1 ||
	    length != sizeof(*s) + s->n_user * sizeof(uint64_t) + sizeof(tail)) {
		l->lost++;
		return;
	}
	memcpy(&tail, (const char *)data + length - sizeof(tail), sizeof(tail));
	if (core->mappings)
		gs_mappings_sampled(core->mappings, s, core->drain_time);
	if (gs_intern(core, s, length - sizeof(tail), 0, &stack, &thread) != GS_DROP_COUNT ||
	    gs_window_rows_append(&l->rows, stack, thread, tail.weight, tail.correlation))
		l->lost++;
}
