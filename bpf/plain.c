/* SPDX-License-Identifier: Apache-2.0 */
#include "plain.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "kernel_features.h"
#include "timers.h"

static void read_counts(struct bpf_object *object, struct gs_plain_result *result)
{
	int n = libbpf_num_possible_cpus();
	uint64_t (*counts)[2] = calloc(n > 0 ? n : 1, sizeof(*counts));
	__u32 zero = 0;

	if (counts && n > 0 && !bpf_map_lookup_elem(bpf_object__find_map_fd_by_name(object, "counts"), &zero, counts))
		for (int cpu = 0; cpu < n; cpu++) {
			result->samples += counts[cpu][0];
			result->user_frames += counts[cpu][1];
		}
	free(counts);
}

static int run(struct bpf_object *object, uint32_t hz, uint32_t milliseconds, struct gs_plain_result *result, struct gs_error *error)
{
	struct bpf_program *program = bpf_object__find_program_by_name(object, "plain");
	int fd = program ? bpf_program__fd(program) : -1;
	struct timespec pause = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
	struct bpf_prog_info info;
	__u32 length = sizeof(info);
	struct gs_timers timers;
	int status = gs_timers_open(&timers, fd, hz, error);

	if (!status)
		nanosleep(&pause, NULL);
	gs_timers_close(&timers);
	if (status)
		return -1;
	memset(&info, 0, sizeof(info));
	if (bpf_obj_get_info_by_fd(fd, &info, &length))
		return gs_fail(error, GS_FAULT_load, errno, "run times: %s", strerror(errno));
	result->time_ns = info.run_time_ns;
	result->runs = info.run_cnt;
	read_counts(object, result);
	return 0;
}

int gs_plain_measure(const char *object_path, uint32_t hz, uint32_t milliseconds, struct gs_plain_result *result, struct gs_error *error)
{
	struct bpf_object *object = bpf_object__open_file(object_path, NULL);
	long failed = libbpf_get_error(object);
	int stats, status;

	memset(error, 0, sizeof(*error));
	memset(result, 0, sizeof(*result));
	if (failed)
		return gs_fail(error, GS_FAULT_object, -(int)failed, "%s: %s", object_path, strerror(-(int)failed));
	failed = bpf_object__load(object);
	if (failed) {
		bpf_object__close(object);
		return gs_fail(error, GS_FAULT_load, -(int)failed, "%s: %s", object_path, strerror(-(int)failed));
	}
	stats = gs_enable_stats();
	status = run(object, hz, milliseconds, result, error);
	if (stats >= 0)
		close(stats);
	bpf_object__close(object);
	return status;
}
