/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "error.h"
#include "kernel_features.h"
#include "offsets.h"
#include "sample.h"

#define DEFAULT_PROCESSES 4096
#define DEFAULT_MAPPING_ROWS 131072
#define DEFAULT_UNWIND_BYTES (24u << 20) /* libraries of the mixed load take 20.6 MB of rows */
#define UNWIND_TABLES 2048 /* files with a table at a time */
#define UNWIND_RULES 65536 /* as many as a row can name; 0.5 MB */
#define PYTHONS 1024       /* processes running CPython; 0.1 MB */
#define WATCHED_ROWS 16384 /* processes of a PID filter with children; 1.3 MB, only then */
#define HOST_PID_NAMESPACE 0xEFFFFFFCu /* PROC_PID_INIT_INO, include/linux/proc_ns.h */
#define MIN_RING (256u << 10)
#define MAX_RING (256u << 20)

/* libbpf tells the reasons of a failure only to its print function: the last ones are kept while one object loads. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static char load_log[768];

static int keep_log(enum libbpf_print_level level, const char *format, va_list arguments)
{
	char line[1024];

	if (level > LIBBPF_WARN)
		return 0;
	vsnprintf(line, sizeof(line), format, arguments);

	size_t have = strlen(load_log), add = strlen(line);

	if (add >= sizeof(load_log)) { /* the end of a verifier log says why */
		memcpy(load_log, line + add - (sizeof(load_log) - 1), sizeof(load_log));
		return 0;
	}
	if (have + add >= sizeof(load_log)) {
		size_t drop = have + add - (sizeof(load_log) - 1);

		memmove(load_log, load_log + drop, have - drop + 1);
		have -= drop;
	}
	memcpy(load_log + have, line, add + 1);
	return 0;
}

static libbpf_print_fn_t start_log(void)
{
	pthread_mutex_lock(&load_lock);
	load_log[0] = 0;
	return libbpf_set_print(keep_log);
}

static void end_log(libbpf_print_fn_t before)
{
	libbpf_set_print(before);
	pthread_mutex_unlock(&load_lock);
}

uint32_t gs_power_of_two(uint64_t each, uint64_t times)
{
	uint64_t size = 4096;

	while (size < each * times && size < MAX_RING)
		size *= 2;
	return (uint32_t)size;
}

static uint32_t ring_bytes(const struct gs_options *options, int n_cpus)
{
	uint32_t size = options->ring_bytes ? gs_power_of_two(options->ring_bytes, 1) : gs_power_of_two(4ULL * options->hz * 512, n_cpus);

	return options->ring_bytes || size > MIN_RING ? size : MIN_RING;
}

static int find_offsets(struct gs_config *config, const struct gs_options *options, struct gs_error *error)
{
	if (!options->offsets)
		return gs_offsets_from_btf(&config->offset, error);
	if (options->n_offsets * sizeof(uint32_t) != sizeof(config->offset))
		return gs_fail(error, GS_FAULT_argument, EINVAL, "%u offsets given, %zu wanted", options->n_offsets,
			       sizeof(config->offset) / sizeof(uint32_t));
	memcpy(&config->offset, options->offsets, sizeof(config->offset));
	return 0;
}

/* The PID namespace that a /proc shows is that of its process 1. */
static uint32_t pid_namespace(const char *proc_root)
{
	char path[4200];
	struct stat st;

	snprintf(path, sizeof(path), "%s/1/ns/pid", proc_root);
	return !stat(path, &st) && st.st_ino != HOST_PID_NAMESPACE ? (uint32_t)st.st_ino : 0;
}

static int configure(struct gs_config *config, const struct gs_options *options, struct gs_error *error)
{
	long page = sysconf(_SC_PAGESIZE);

	memset(config, 0, sizeof(*config));
	if (find_offsets(config, options, error))
		return -1;
	config->filter = !!(options->flags & GS_OPTION_FILTER);
	config->kernel_stacks = !!(options->flags & GS_OPTION_KERNEL_STACKS);
	/* these two take pointers to kernel types, so they need BTF in the kernel whatever its version */
	config->task_pt_regs = !options->offsets && gs_has_helper(BPF_FUNC_task_pt_regs);
	config->leaf_hint = config->task_pt_regs && config->offset.super_block_s_dev && gs_has_helper(BPF_FUNC_find_vma);
	config->page_shift = __builtin_ctzl(page);
	config->pid_namespace = pid_namespace(options->proc_root);
	config->wake_interval_ms = 100;
	config->wait_threshold_us = options->wait_threshold_us;
	if ((options->flags & GS_OPTION_OFF_CPU) && !options->offsets)
		config->task_state = gs_task_state_offset();
	return 0;
}

static int set_rodata(struct bpf_object *object, const struct gs_config *config)
{
	struct bpf_map *map;

	bpf_object__for_each_map(map, object) {
		const char *name = bpf_map__name(map), *dot = strrchr(name, '.');

		if (dot && !strcmp(dot, ".rodata"))
			return bpf_map__set_initial_value(map, config, sizeof(*config));
	}
	return -ENOENT;
}

static int set_entries(struct bpf_object *object, const char *name, uint32_t entries)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, name);

	return map ? bpf_map__set_max_entries(map, entries) : -ENOENT;
}

/* Object and library are two files: a mixed installation must not write past a buffer. */
static int has_value_size(struct bpf_object *object, const char *name, size_t size)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, name);

	return map && bpf_map__value_size(map) == size;
}

static int is_ours(struct bpf_object *object)
{
	return has_value_size(object, "counters", sizeof(struct gs_cpu_counters)) &&
	       has_value_size(object, "procs", sizeof(struct gs_process)) &&
	       has_value_size(object, "mappings", sizeof(struct gs_mapping)) && has_value_size(object, "watched", sizeof(uint64_t));
}

static void autoload(struct bpf_object *object, const char *name, int wanted)
{
	struct bpf_program *program = bpf_object__find_program_by_name(object, name);

	if (program)
		bpf_program__set_autoload(program, wanted);
}

static int prepare(struct gs_kernel *k, const struct gs_options *options, const struct gs_config *config, struct gs_error *error)
{
	int follow = (options->flags & GS_OPTION_FILTER) && (options->flags & GS_OPTION_CHILDREN);
	uint32_t watched = follow ? WATCHED_ROWS : options->n_pids ? options->n_pids : 1;

	k->n_procs = options->max_processes ? options->max_processes : DEFAULT_PROCESSES;
	k->mapping_rows = options->mapping_rows ? options->mapping_rows : DEFAULT_MAPPING_ROWS;
	k->n_words = (options->unwind_bytes ? options->unwind_bytes : DEFAULT_UNWIND_BYTES) / 4096 * 1024;
	k->n_tables = UNWIND_TABLES;
	k->n_rules = UNWIND_RULES;
	autoload(k->object, "watch_child", follow);
	autoload(k->object, "forget_process", follow);
	autoload(k->object, "leaf_hint", config->leaf_hint);
	if (!is_ours(k->object) || set_rodata(k->object, config) || set_entries(k->object, "samples", ring_bytes(options, k->n_cpus)) ||
	    set_entries(k->object, "procs", k->n_procs) || set_entries(k->object, "mappings", k->mapping_rows) ||
	    set_entries(k->object, "watched", watched) || set_entries(k->object, "tables", k->n_tables) ||
	    set_entries(k->object, "words", k->n_words / 1024) || set_entries(k->object, "rules", k->n_rules) ||
	    set_entries(k->object, "pythons", PYTHONS))
		return gs_fail(error, GS_FAULT_object, EINVAL, "%s is not the sampler this library was built with", options->object_path);
	return 0;
}

static int explain_load(struct gs_error *error, int number)
{
	struct rlimit limit = { 0, 0 };

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (number == EPERM && geteuid() == 0 && limit.rlim_cur != RLIM_INFINITY && strstr(load_log, "map"))
		return gs_fail(error, GS_FAULT_memlock, number, "a BPF map could not be made with %llu KiB of RLIMIT_MEMLOCK: %s",
			       (unsigned long long)limit.rlim_cur / 1024, load_log);
	if (number == EPERM || number == EACCES) {
		/* the verifier also says EACCES: then it has written a log */
		enum gs_fault fault = strstr(load_log, "BEGIN PROG LOAD LOG") ? GS_FAULT_load : GS_FAULT_permission;

		return gs_fail(error, fault, number, "%s", load_log[0] ? load_log : strerror(number));
	}
	return gs_fail(error, GS_FAULT_load, number, "%s", load_log[0] ? load_log : strerror(number));
}

static int open_object(struct bpf_object **object, const char *path, struct gs_error *error)
{
	if (!path || access(path, R_OK))
		return gs_fail(error, GS_FAULT_object, errno, "%s: %s", path ? path : "(no path)", strerror(errno));
	*object = bpf_object__open_file(path, NULL);

	long failed = libbpf_get_error(*object);

	if (failed) {
		*object = NULL;
		return gs_fail(error, GS_FAULT_object, -(int)failed, "%s: %s", path, load_log[0] ? load_log : strerror(-(int)failed));
	}
	return 0;
}

/* Kernels before 5.11 charge maps to RLIMIT_MEMLOCK when they are made. Put back afterwards, for what this process starts.
 * Where it may not be raised the maps may still fit: an error only if they do not. */
static int load_object(struct bpf_object *object)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY }, before;
	int raised = !getrlimit(RLIMIT_MEMLOCK, &before) && !setrlimit(RLIMIT_MEMLOCK, &all);
	int status = bpf_object__load(object);

	if (raised)
		setrlimit(RLIMIT_MEMLOCK, &before);
	return status;
}

static int program_fd(struct gs_kernel *k, const char *name)
{
	struct bpf_program *program = bpf_object__find_program_by_name(k->object, name);

	return program ? bpf_program__fd(program) : -1;
}

static int map_fd(struct gs_kernel *k, const char *name)
{
	return bpf_object__find_map_fd_by_name(k->object, name);
}

static int link_programs(struct gs_kernel *k, const struct gs_config *config, struct gs_error *error)
{
	const char *names[] = { "walk", config->leaf_hint ? "leaf_hint" : NULL, "guess", "copy_stack" }; /* maps.bpf.h GS_PROGRAM_ */
	int table = map_fd(k, "programs");

	for (uint32_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		int fd = names[i] ? program_fd(k, names[i]) : -1;

		if (names[i] && bpf_map_update_elem(table, &i, &fd, BPF_ANY))
			return gs_fail(error, GS_FAULT_load, errno, "program %s could not be linked: %s", names[i], strerror(errno));
	}
	return 0;
}

int gs_raw_tracepoint(const char *name, int program)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.raw_tracepoint.name = (unsigned long)name;
	attr.raw_tracepoint.prog_fd = program;
	return syscall(SYS_bpf, BPF_RAW_TRACEPOINT_OPEN, &attr, sizeof(attr));
}

static int follow_children(struct gs_kernel *k, struct gs_error *error)
{
	k->tracepoints[0] = gs_raw_tracepoint("sched_process_fork", program_fd(k, "watch_child"));
	k->tracepoints[1] = gs_raw_tracepoint("sched_process_free", program_fd(k, "forget_process"));
	if (k->tracepoints[0] < 0 || k->tracepoints[1] < 0)
		return gs_fail(error, GS_FAULT_load, errno, "raw tracepoints sched_process_fork and _free: %s", strerror(errno));
	return 0;
}

static int load(struct gs_kernel *k, const struct gs_options *options, struct gs_error *error)
{
	const struct gs_config *config = &k->config;

	if (open_object(&k->object, options->object_path, error) || configure(&k->config, options, error) ||
	    prepare(k, options, config, error))
		return -1;

	int failed = load_object(k->object);

	if (failed)
		return explain_load(error, -failed);
	k->profile = program_fd(k, "profile");
	k->ring = map_fd(k, "samples");
	k->counters = map_fd(k, "counters");
	k->procs = map_fd(k, "procs");
	k->mappings = map_fd(k, "mappings");
	k->watched = map_fd(k, "watched");
	k->tables = map_fd(k, "tables");
	k->words = map_fd(k, "words");
	k->rules = map_fd(k, "rules");
	k->pythons = map_fd(k, "pythons");
	if (link_programs(k, config, error))
		return -1;
	if ((options->flags & GS_OPTION_FILTER) && (options->flags & GS_OPTION_CHILDREN))
		return follow_children(k, error);
	return 0;
}

static int load_beside(const struct gs_kernel *k, const char *path, int (*arrange)(struct bpf_object *, const struct gs_kernel *),
		       struct bpf_object **object, struct gs_error *error)
{
	int failed;

	if (open_object(object, path, error))
		return -1;
	if (set_rodata(*object, &k->config) || arrange(*object, k))
		return gs_fail(error, GS_FAULT_object, EINVAL, "%s is not the program this library was built with", path);
	failed = bpf_object__load(*object);
	return failed ? explain_load(error, -failed) : 0;
}

int gs_kernel_load_beside(const struct gs_kernel *k, const char *path, int (*arrange)(struct bpf_object *, const struct gs_kernel *),
			  struct bpf_object **object, struct gs_error *error)
{
	libbpf_print_fn_t before = start_log();
	int status = load_beside(k, path, arrange, object, error);

	end_log(before);
	return status;
}

static uint64_t map_memory(struct gs_kernel *k)
{
	struct bpf_map *map;
	uint64_t bytes = 0;

	bpf_object__for_each_map(map, k->object)
		bytes += gs_fd_memory(bpf_map__fd(map));
	return bytes;
}

int gs_kernel_open(struct gs_kernel *k, const struct gs_options *options, struct gs_error *error)
{
	memset(k, 0, sizeof(*k));
	k->stats = k->tracepoints[0] = k->tracepoints[1] = -1;
	k->n_cpus = libbpf_num_possible_cpus();
	if (k->n_cpus <= 0 || !(k->per_cpu = calloc(k->n_cpus, sizeof(*k->per_cpu))))
		return gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for the counters of %d CPUs", k->n_cpus);

	libbpf_print_fn_t before = start_log();
	int status = load(k, options, error);

	end_log(before);
	if (status)
		return -1;
	k->map_bytes = map_memory(k);
	if (options->flags & GS_OPTION_STATS)
		k->stats = gs_enable_stats();
	return 0;
}

void gs_kernel_close(struct gs_kernel *k)
{
	for (int i = 0; i < 2; i++)
		if (k->tracepoints[i] >= 0)
			close(k->tracepoints[i]);
	if (k->stats >= 0)
		close(k->stats);
	bpf_object__close(k->object);
	free(k->per_cpu);
	memset(k, 0, sizeof(*k));
	k->stats = k->tracepoints[0] = k->tracepoints[1] = -1;
}

int gs_kernel_counters(struct gs_kernel *k, struct gs_cpu_counters *sum)
{
	__u32 zero = 0;
	uint64_t *to = (uint64_t *)sum;

	if (bpf_map_lookup_elem(k->counters, &zero, k->per_cpu))
		return -1;
	memset(sum, 0, sizeof(*sum));
	for (int cpu = 0; cpu < k->n_cpus; cpu++)
		for (size_t i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
			to[i] += ((uint64_t *)&k->per_cpu[cpu])[i];
	return 0;
}

struct gs_run_times gs_run_times(struct bpf_object *object, const char *entry)
{
	struct gs_run_times times = { 0, 0, 0 };
	struct bpf_program *program;

	if (!object)
		return times;
	bpf_object__for_each_program(program, object) {
		struct bpf_prog_info info;
		__u32 length = sizeof(info);

		memset(&info, 0, sizeof(info));
		if (bpf_program__fd(program) < 0 || bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &length))
			continue;
		times.time_ns += info.run_time_ns;
		times.verified += info.verified_insns;
		if (!strcmp(bpf_program__name(program), entry))
			times.runs = info.run_cnt;
	}
	return times;
}
