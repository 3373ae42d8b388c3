/* SPDX-License-Identifier: Apache-2.0 */
#include "offcpu.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "kernel_features.h"

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

static int set_entries(struct bpf_object *object, const char *name, uint32_t entries, size_t value_size)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, name);

	if (!map || (value_size && bpf_map__value_size(map) != value_size))
		return -EINVAL;
	return bpf_map__set_max_entries(map, entries);
}

static int prepare(struct bpf_object *object, const struct gs_kernel *k)
{
	for (size_t i = 0; i < N_SHARED; i++) {
		struct bpf_map *map = bpf_object__find_map_by_name(object, shared[i]);

		if (!map || bpf_map__reuse_fd(map, map_fd(k->object, shared[i])))
			return -EINVAL;
	}
	if (set_entries(object, "waiting", GS_MAX_WAITING, sizeof(struct gs_wait)) ||
	    set_entries(object, "wait_counters", 1, sizeof(struct gs_wait_counters)))
		return -EINVAL;
	/* 2 s of the stacks that the budget of a CPU allows, at 500 bytes each; never less than 2 MB: at first all processes are
	 * listed, and the drain waits for it */
	return set_entries(object, "samples", gs_power_of_two(512u << 10, k->n_cpus > 4 ? k->n_cpus : 4), 0);
}

static int link_programs(struct bpf_object *object, struct gs_error *error)
{
	const char *names[] = { "walk_wait", NULL, "guess_wait", "copy_wait" }; /* maps.bpf.h GS_PROGRAM_ */

	for (uint32_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct bpf_program *program = names[i] ? bpf_object__find_program_by_name(object, names[i]) : NULL;
		int fd = program ? bpf_program__fd(program) : -1;

		if (names[i] && bpf_map_update_elem(map_fd(object, "programs"), &i, &fd, BPF_ANY))
			return gs_fail(error, GS_FAULT_load, errno, "program %s could not be linked: %s", names[i], strerror(errno));
	}
	return 0;
}

static void find_scheduler(struct gs_offcpu *o)
{
	FILE *file = fopen("/proc/kallsyms", "re");
	unsigned long long address;
	char line[512], name[256];

	while (file && !o->scheduler_end && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%llx %*c %255s", &address, name) != 2)
			continue;
		if (!strcmp(name, "__sched_text_start"))
			o->scheduler = address;
		else if (!strcmp(name, "__sched_text_end"))
			o->scheduler_end = address;
	}
	if (file)
		fclose(file);
}

int gs_offcpu_open(struct gs_offcpu *o, const struct gs_kernel *k, const struct gs_options *options, struct gs_error *error)
{
	struct bpf_map *map;

	memset(o, 0, sizeof(*o));
	o->link = -1;
	o->n_cpus = k->n_cpus;
	o->per_cpu = calloc(k->n_cpus, sizeof(*o->per_cpu));
	o->tids = malloc(GS_MAX_WAITING * sizeof(*o->tids));
	o->waits = malloc(GS_MAX_WAITING * sizeof(*o->waits));
	if (!o->per_cpu || !o->tids || !o->waits)
		return gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for waits");
	if (!k->config.task_state)
		return gs_fail(error, GS_FAULT_btf, 0, "off-CPU time needs a kernel with BTF");
	if (gs_kernel_load_beside(k, options->off_cpu_path, prepare, &o->object, error) || link_programs(o->object, error))
		return -1;
	o->ring = map_fd(o->object, "samples");
	o->waiting = map_fd(o->object, "waiting");
	o->counters = map_fd(o->object, "wait_counters");
	find_scheduler(o);
	bpf_object__for_each_map(map, o->object)
		if (!is_shared(bpf_map__name(map)))
			o->map_bytes += gs_fd_memory(bpf_map__fd(map));
	return 0;
}

int gs_offcpu_attach(struct gs_offcpu *o, struct gs_error *error)
{
	struct bpf_program *program = bpf_object__find_program_by_name(o->object, "off_cpu");

	o->link = program ? gs_raw_tracepoint("sched_switch", bpf_program__fd(program)) : -1;
	return o->link >= 0 ? 0 : gs_fail(error, GS_FAULT_load, errno, "raw tracepoint sched_switch: %s", strerror(errno));
}

void gs_offcpu_find_asleep(struct gs_offcpu *o)
{
	struct bpf_program *program = bpf_object__find_program_by_name(o->object, "asleep");
	struct bpf_link *link = program ? bpf_program__attach_iter(program, NULL) : NULL;
	int fd = libbpf_get_error(link) || !link ? -1 : bpf_iter_create(bpf_link__fd(link));
	ssize_t n = fd < 0 ? 0 : -1;
	char nothing[64];

	while (n) { /* it writes nothing: a read that is broken off goes on where it was */
		n = read(fd, nothing, sizeof(nothing));
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			break;
	}
	if (fd >= 0)
		close(fd);
	if (link && !libbpf_get_error(link))
		bpf_link__destroy(link);
}

void gs_offcpu_detach(struct gs_offcpu *o)
{
	if (o->link >= 0)
		close(o->link);
	o->link = -1;
}

void gs_offcpu_close(struct gs_offcpu *o)
{
	if (!o->per_cpu && !o->object)
		return; /* never opened */
	gs_offcpu_detach(o);
	bpf_object__close(o->object);
	free(o->per_cpu);
	free(o->tids);
	free(o->waits);
	memset(o, 0, sizeof(*o));
	o->link = -1;
}

int gs_offcpu_counters(struct gs_offcpu *o, struct gs_wait_counters *sum)
{
	__u32 zero = 0;
	uint64_t *to = (uint64_t *)sum;

	if (bpf_map_lookup_elem(o->counters, &zero, o->per_cpu))
		return -1;
	memset(sum, 0, sizeof(*sum));
	for (int cpu = 0; cpu < o->n_cpus; cpu++)
		for (size_t i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
			to[i] += ((uint64_t *)&o->per_cpu[cpu])[i];
	return 0;
}

uint32_t gs_offcpu_scan(struct gs_offcpu *o)
{
	uint32_t batch = 0, n = 0, count;
	int failed = 0;

	for (void *from = NULL; n < GS_MAX_WAITING && !failed; from = &batch) {
		count = GS_MAX_WAITING - n;
		failed = bpf_map_lookup_batch(o->waiting, from, &batch, o->tids + n, o->waits + n, &count, NULL);
		if (failed && errno != ENOENT)
			break;
		n += count;
	}
	return n;
}

uint64_t gs_switches(void)
{
	FILE *file = fopen("/proc/stat", "re");
	unsigned long long switches = 0;
	char line[8192]; /* "intr" is long, and read in parts */

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "ctxt %llu", &switches) == 1)
			break;
	fclose(file);
	return switches;
}
