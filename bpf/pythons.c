/* SPDX-License-Identifier: Apache-2.0 */
#include "pythons.h"

#include <bpf/bpf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_table.h"

#define MAX_FILES 256 /* distinct interpreters at a time */
#define RETRY_FIRST_NS 20000000ULL
#define RETRY_MAX_NS 1000000000ULL

struct found {
	uint32_t file_id;
	struct gs_python_file file;
};

struct gs_pythons {
	int map_fd;
	uint64_t *counters;
	struct found *found;
	uint32_t n_found;
	uint8_t looked[GS_FILE_IDS / 8];
};

struct gs_pythons *gs_pythons_open(int map_fd, uint64_t *counters)
{
	struct gs_pythons *p = calloc(1, sizeof(*p));

	if (p) {
		p->map_fd = map_fd;
		p->counters = counters;
		p->found = calloc(MAX_FILES, sizeof(*p->found));
		if (p->found)
			return p;
		free(p);
	}
	return NULL;
}

void gs_pythons_close(struct gs_pythons *p)
{
	if (p)
		free(p->found);
	free(p);
}

void gs_pythons_new_epoch(struct gs_pythons *p)
{
	memset(p->looked, 0, sizeof(p->looked));
	p->n_found = 0;
}

static const struct gs_python_file *find(const struct gs_pythons *p, uint32_t file_id)
{
	for (uint32_t i = 0; i < p->n_found; i++)
		if (p->found[i].file_id == file_id)
			return &p->found[i].file;
	return NULL;
}

/* An interpreter lies in libpython, in a program called python, or inside another program, which embeds it. */
int gs_pythons_look(struct gs_pythons *p, uint32_t file_id, int is_program, const struct gs_sight *sight)
{
	char path[GS_FILE_PATH_MAX];
	struct gs_identity identity;
	const char *name;
	int fd, by_path;

	if (!file_id || file_id >= GS_FILE_IDS)
		return 0;
	if (p->looked[file_id / 8] & 1 << file_id % 8)
		return find(p, file_id) != NULL;
	p->looked[file_id / 8] |= (uint8_t)(1 << file_id % 8);
	if (gs_list_path(sight->list, sight->vma, path) < 0)
		return 0;
	name = strrchr(path, '/');
	if (!is_program && !strstr(name ? name : path, "python"))
		return 0;
	if (p->n_found == MAX_FILES)
		p->n_found = 0; /* looked at again in the next epoch */
	fd = gs_mapped_open(sight, &identity, &by_path);
	if (fd < 0)
		return 0;
	p->found[p->n_found].file_id = file_id;
	p->n_found += (uint32_t)gs_python_probe(fd, path, &p->found[p->n_found].file);
	close(fd);
	return find(p, file_id) != NULL;
}

int gs_pythons_due(const struct gs_cached *process, uint64_t now_ns)
{
	return process->python_wait && now_ns - process->python_tried >= process->python_wait;
}

static int try_attach(struct gs_pythons *p, struct gs_cached *process, struct gs_python *out)
{
	int best = GS_PYTHON_UNSUPPORTED, any = 0;

	for (uint32_t i = 0; i < process->count; i++) {
		const struct gs_row *row = &process->rows[i];
		const struct gs_python_file *file = row->file_id ? find(p, row->file_id) : NULL;
		int found;

		if (!file)
			continue;
		any = 1;
		found = gs_python_attach(process->tgid, row->start, row->file_offset, file, out);
		if (found == GS_PYTHON_FOUND)
			return found;
		if (found == GS_PYTHON_NOT_YET)
			best = found;
	}
	return any ? best : -1;
}

void gs_pythons_attach(struct gs_pythons *p, struct gs_cached *process, uint64_t now_ns)
{
	struct gs_python python;
	int found = try_attach(p, process, &python);

	process->python_tried = now_ns;
	if (found == GS_PYTHON_NOT_YET) {
		uint64_t wait = process->python_wait ? process->python_wait * 2 : RETRY_FIRST_NS;
		process->python_wait = wait < RETRY_MAX_NS ? wait : RETRY_MAX_NS;
		return;
	}
	process->python_wait = 0;
	if (found != GS_PYTHON_FOUND) { /* also after an exec of something else */
		p->counters[GS_MAPPING_python_unsupported] += found == GS_PYTHON_UNSUPPORTED;
		gs_pythons_forget(p, process);
		return;
	}
	python.start_boottime = process->start_boottime;
	if (process->python && !memcmp(process->python, &python, sizeof(python)))
		return;
	if (!process->python)
		process->python = malloc(sizeof(python));
	if (!process->python)
		return;
	*process->python = python;
	p->counters[GS_MAPPING_python_found]++;
	if (p->map_fd >= 0 && bpf_map_update_elem(p->map_fd, &process->tgid, &python, BPF_ANY))
		p->counters[GS_MAPPING_publish_failed]++;
}

void gs_pythons_forget(struct gs_pythons *p, struct gs_cached *process)
{
	if (!process->python)
		return;
	if (p->map_fd >= 0)
		bpf_map_delete_elem(p->map_fd, &process->tgid);
	free(process->python);
	process->python = NULL;
}
