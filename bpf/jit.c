/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reads JIT lists, and what it remembers of each process between two looks. */
#include "jit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "index.h"
#include "jit_view.h"
#include "mapped_file.h"
#include "process_dir.h"

#define MAX_JOBS 256
#define MAX_PROCESSES 256
#define KNOWN_FILES 4096 /* power of two; an old one gives way to a new one in its place */
#define MAX_BYTES (32u << 20) /* of objects of all processes */

struct job {
	uint32_t tgid, count;
	uint64_t start_boottime;
	struct gs_row *rows; /* NULL: forget the process */
	int rebuild;
};

struct known_file {
	uint64_t key;
	uint64_t descriptor; /* gs_jit_find_descriptor */
};

struct gs_jits {
	struct gs_proc proc;
	struct gs_tables *tables;
	pthread_t thread;
	pthread_mutex_t lock; /* jobs, answers, stop */
	pthread_cond_t work;
	struct job jobs[MAX_JOBS];
	uint32_t head, queued;
	struct gs_jit_view *answers, **last;
	int stop, started;
	/* the thread's own */
	struct known_file files[KNOWN_FILES];
	struct gs_jit_process *processes; /* the one looked at last first */
	uint32_t n_processes;
	uint64_t bytes, numbers;
};

/* One look at one process. */
struct look {
	struct gs_jits *j;
	const struct job *job;
	struct gs_jit_process *p;
	struct gs_jit_view *view;
	int process; /* descriptor of /proc/PID */
	int memory;  /* of /proc/PID/mem: stays with this very process */
};

static uint64_t identity_key(const struct gs_identity *i, uint64_t file_offset)
{
	return gs_mix(gs_mix(gs_mix(gs_mix(gs_mix(gs_mix(i->device, i->inode), i->size), (uint64_t)i->mtime_ns), (uint64_t)i->ctime_ns),
			     file_offset) , 1) | 1;
}

/* The descriptor in the file of a mapping, looked for once per content. 0 = none. */
static uint64_t file_descriptor_of(struct look *l, const struct gs_row *row)
{
	struct gs_sight sight = { .process = l->process, .pid = l->job->tgid, .start_boottime = l->job->start_boottime, .start = row->start,
				  .end = row->end, .device = row->device, .inode = row->inode };
	struct gs_identity identity;
	struct known_file *known;
	int fd, by_path;
	uint64_t key;

	if (gs_mapped_stat(&sight, &identity) || !identity.regular)
		return 0;
	key = identity_key(&identity, row->file_offset);
	known = &l->j->files[key >> 8 & (KNOWN_FILES - 1)];
	if (known->key == key)
		return known->descriptor;
	fd = gs_mapped_open(&sight, &identity, &by_path);
	if (fd < 0)
		return 0;
	*known = (struct known_file){ key, gs_jit_find_descriptor(fd, row->file_offset) };
	l->view->counts[GS_MAPPING_jit_files_searched]++;
	close(fd);
	return known->descriptor;
}

/* "jit " and what the library is known as. */
static void name_module(struct look *l, const struct gs_row *row, char out[GS_JIT_MODULE_MAX])
{
	char link[64], path[4096];
	const char *name;
	ssize_t n;
	int length;

	snprintf(link, sizeof(link), "map_files/%llx-%llx", (unsigned long long)row->start, (unsigned long long)row->end);
	n = readlinkat(l->process, link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = 0;
	name = strrchr(path, '/');
	name = name ? name + 1 : path;
	if (strstr(name, "libjax_common") || strstr(name, "xla_extension") || strstr(name, "pjrt_"))
		name = "xla";
	else if (strstr(name, "llvmlite"))
		name = "numba";
	length = (int)strcspn(strncmp(name, "lib", 3) ? name : (name += 3), ".");
	snprintf(out, GS_JIT_MODULE_MAX, "[jit%s%.*s]", length ? " " : "", length, name);
}

/* All lists of the process: one for each library that brings the interface. */
static void find_lists(struct look *l)
{
	struct gs_jit_process *p = l->p;

	p->n_lists = 0;
	for (uint32_t i = 0; i < l->job->count && p->n_lists < GS_JIT_MAX_LISTS; i++) {
		const struct gs_row *row = &l->job->rows[i];
		uint64_t at;

		if (row->kind != GS_PLACE_NATIVE || (i && row[-1].inode == row->inode && row[-1].device == row->device))
			continue;
		at = file_descriptor_of(l, row);
		if (!at)
			continue;
		p->lists[p->n_lists].at = row->start - row->file_offset + at;
		name_module(l, row, p->lists[p->n_lists].module);
		p->n_lists++;
	}
}

static int lists_changed(struct look *l)
{
	int changed = 0;

	for (uint32_t i = 0; i < l->p->n_lists; i++) {
		struct gs_jit_list *list = &l->p->lists[i];
		struct gs_jit_descriptor d = { 0 };
		uint64_t state;

		if (gs_jit_read_descriptor(l->memory, list->at, &d))
			state = gs_mix(gs_mix(gs_mix(list->at, d.first), d.relevant), d.action) | 1;
		else
			state = 0;
		changed |= state != l->p->states[i] || l->p->read_again;
		l->p->states[i] = state;
	}
	return changed;
}

static uint64_t object_bytes(const struct gs_jit_object *o)
{
	return sizeof(*o) + o->frames_size + o->n_symbols * sizeof(*o->symbols) + o->names_size;
}

static void free_objects(struct gs_jits *j, struct gs_jit_object *objects, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		j->bytes -= objects[i].number ? object_bytes(&objects[i]) : 0;
		gs_jit_free_object(&objects[i]);
	}
	free(objects);
}

/* Moves what is known of an object from the last look over, or reads it. */
static void know_object(struct look *l, struct gs_jit_object *o, struct gs_jit_object *old, uint32_t n_old, uint32_t *hint)
{
	struct gs_jits *j = l->j;

	for (uint32_t k = 0; k < n_old; k++) { /* lists change at their head: the next old one is most often it */
		struct gs_jit_object *before = &old[(*hint + k) % n_old];
		if (before->number && before->entry == o->entry && before->image == o->image && before->size == o->size && before->mark == o->mark) {
			*o = *before;
			before->number = 0;
			before->symbols = NULL;
			before->names = NULL;
			before->frames = NULL;
			*hint = (*hint + k + 1) % n_old;
			return;
		}
	}
	if (j->bytes >= MAX_BYTES) {
		l->view->counts[GS_MAPPING_jit_no_room]++;
		return;
	}
	if (gs_jit_read_object(l->memory, o)) {
		l->view->counts[GS_MAPPING_jit_objects_refused]++;
		return;
	}
	o->number = (uint32_t)++j->numbers;
	j->bytes += object_bytes(o);
	l->view->counts[GS_MAPPING_jit_objects]++;
}

/* Reads list i anew. */
static void read_list(struct look *l, struct gs_jit_list *list)
{
	struct gs_jit_object *old = list->objects;
	uint32_t n_old = list->n_objects, hint = 0;
	enum gs_jit_list_end end = gs_jit_read_list(l->memory, list->at, &list->objects, &list->n_objects);

	l->view->counts[GS_MAPPING_jit_lists_read]++;
	l->view->counts[GS_MAPPING_jit_lists_broken] += end == GS_JIT_LIST_BROKEN;
	l->view->counts[GS_MAPPING_jit_lists_cut] += end == GS_JIT_LIST_CUT;
	l->p->read_again |= end == GS_JIT_LIST_BROKEN;
	for (uint32_t i = 0; i < list->n_objects; i++)
		know_object(l, &list->objects[i], old, n_old, &hint);
	free_objects(l->j, old, n_old);
}

static void free_process(struct gs_jits *j, struct gs_jit_process *p)
{
	for (uint32_t i = 0; i < GS_JIT_MAX_LISTS; i++)
		free_objects(j, p->lists[i].objects, p->lists[i].n_objects);
	free(p->extents);
	free(p);
	j->n_processes--;
}

/* Takes the process out of the list, NULL if it is not known. */
static struct gs_jit_process *unlink_process(struct gs_jits *j, uint32_t tgid, uint64_t start_boottime)
{
	for (struct gs_jit_process **at = &j->processes, *p; (p = *at); at = &p->next)
		if (p->tgid == tgid && p->start_boottime == start_boottime) {
			*at = p->next;
			return p;
		}
	return NULL;
}

static void drop_oldest(struct gs_jits *j)
{
	struct gs_jit_process **at = &j->processes;

	while (*at && (*at)->next)
		at = &(*at)->next;
	if (*at) {
		struct gs_jit_process *p = *at;
		*at = NULL;
		free_process(j, p);
	}
}

static struct gs_jit_process *know_process(struct gs_jits *j, const struct job *job)
{
	struct gs_jit_process *p = unlink_process(j, job->tgid, job->start_boottime);

	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			return NULL;
		p->tgid = job->tgid;
		p->start_boottime = job->start_boottime;
		j->n_processes++;
	}
	p->next = j->processes;
	j->processes = p;
	while (j->n_processes > MAX_PROCESSES)
		drop_oldest(j);
	return p;
}

/* find_lists, keeping the objects of lists that are still where they were. */
static void refresh_lists(struct look *l)
{
	struct gs_jit_process *p = l->p;
	struct gs_jit_list before[GS_JIT_MAX_LISTS];

	memcpy(before, p->lists, sizeof(before));
	memset(p->lists, 0, sizeof(p->lists));
	find_lists(l);
	for (uint32_t i = 0; i < p->n_lists; i++)
		for (uint32_t k = 0; k < GS_JIT_MAX_LISTS; k++)
			if (before[k].at == p->lists[i].at) {
				p->lists[i].objects = before[k].objects;
				p->lists[i].n_objects = before[k].n_objects;
				before[k] = (struct gs_jit_list){ 0 };
			}
	for (uint32_t k = 0; k < GS_JIT_MAX_LISTS; k++) {
		p->read_again |= before[k].n_objects != 0;
		free_objects(l->j, before[k].objects, before[k].n_objects);
	}
}

static void look_at(struct look *l)
{
	int changed;

	refresh_lists(l);
	l->view->has_list = l->p->n_lists > 0;
	changed = lists_changed(l);
	if (changed) {
		l->p->read_again = 0;
		for (uint32_t i = 0; i < l->p->n_lists; i++)
			read_list(l, &l->p->lists[i]);
	}
	if (changed || l->job->rebuild)
		gs_jit_make_view(l->p, l->job->rows, l->job->count, l->j->tables, l->view);
}

/* /proc/PID/mem of the process that was meant: a descriptor that reads nothing once it is gone, whoever has its PID then. */
static void look_safely(struct look *l)
{
	struct gs_stamp stamp;

	l->process = gs_process_open(&l->j->proc, l->job->tgid);
	if (l->process < 0)
		return;
	l->memory = openat(l->process, "mem", O_RDONLY | O_CLOEXEC);
	if (l->memory >= 0 && !gs_process_stamp(l->process, 0, &stamp) &&
	    gs_process_started(&l->j->proc, stamp.start_ticks, l->job->start_boottime) && (l->p = know_process(l->j, l->job)))
		look_at(l);
	if (l->memory >= 0)
		close(l->memory);
	close(l->process);
}

static uint64_t thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void do_job(struct gs_jits *j, const struct job *job)
{
	struct look l = { .j = j, .job = job, .process = -1, .memory = -1 };

	if (!job->rows) {
		struct gs_jit_process *p = unlink_process(j, job->tgid, job->start_boottime);
		if (p)
			free_process(j, p);
		return;
	}
	l.view = calloc(1, sizeof(*l.view));
	if (!l.view)
		return;
	l.view->tgid = job->tgid;
	l.view->start_boottime = job->start_boottime;
	l.view->spent_ns = thread_ns();
	look_safely(&l);
	l.view->spent_ns = thread_ns() - l.view->spent_ns;
	pthread_mutex_lock(&j->lock);
	*j->last = l.view;
	j->last = &l.view->next;
	pthread_mutex_unlock(&j->lock);
}

static void *reader(void *argument)
{
	struct gs_jits *j = argument;

	pthread_mutex_lock(&j->lock);
	while (!j->stop) {
		struct job job;

		if (!j->queued) {
			pthread_cond_wait(&j->work, &j->lock);
			continue;
		}
		job = j->jobs[j->head];
		j->head = (j->head + 1) % MAX_JOBS;
		j->queued--;
		pthread_mutex_unlock(&j->lock);
		do_job(j, &job);
		free(job.rows);
		pthread_mutex_lock(&j->lock);
	}
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

static int add_job(struct gs_jits *j, const struct job *job)
{
	int added = 0;

	pthread_mutex_lock(&j->lock);
	if (j->queued < MAX_JOBS) {
		j->jobs[(j->head + j->queued++) % MAX_JOBS] = *job;
		pthread_cond_signal(&j->work);
		added = 1;
	}
	pthread_mutex_unlock(&j->lock);
	return added;
}

int gs_jits_ask(struct gs_jits *j, uint32_t tgid, uint64_t start_boottime, const struct gs_row *rows, uint32_t count, int rebuild)
{
	struct job job = { tgid, count, start_boottime, malloc((count + 1) * sizeof(*rows)), rebuild };

	if (!job.rows)
		return 0;
	if (count)
		memcpy(job.rows, rows, count * sizeof(*rows));
	if (add_job(j, &job))
		return 1;
	free(job.rows);
	return 0;
}

void gs_jits_forget(struct gs_jits *j, uint32_t tgid, uint64_t start_boottime)
{
	struct job job = { tgid, 0, start_boottime, NULL, 0 };

	add_job(j, &job); /* one that finds no room is forgotten as the oldest, in time */
}

struct gs_jit_view *gs_jits_answer(struct gs_jits *j)
{
	struct gs_jit_view *view;

	if (!__atomic_load_n(&j->answers, __ATOMIC_RELAXED))
		return NULL;
	pthread_mutex_lock(&j->lock);
	view = j->answers;
	if (view) {
		j->answers = view->next;
		if (!j->answers)
			j->last = &j->answers;
	}
	pthread_mutex_unlock(&j->lock);
	return view;
}

struct gs_jits *gs_jits_open(const char *proc_root, struct gs_tables *tables)
{
	struct gs_jits *j = calloc(1, sizeof(*j));
	int error;

	if (!j)
		return NULL;
	j->tables = tables;
	j->last = &j->answers;
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->work, NULL);
	error = gs_proc_open(&j->proc, proc_root);
	if (!error)
		error = pthread_create(&j->thread, NULL, reader, j);
	j->started = !error;
	if (!error)
		return j;
	gs_jits_close(j);
	errno = error;
	return NULL;
}

void gs_jits_close(struct gs_jits *j)
{
	struct gs_jit_view *view;

	if (!j)
		return;
	if (j->started) {
		pthread_mutex_lock(&j->lock);
		j->stop = 1;
		pthread_cond_signal(&j->work);
		pthread_mutex_unlock(&j->lock);
		pthread_join(j->thread, NULL);
	}
	for (; j->queued; j->queued--, j->head = (j->head + 1) % MAX_JOBS)
		free(j->jobs[j->head].rows);
	while ((view = gs_jits_answer(j)))
		gs_jit_view_free(view);
	while (j->processes) {
		struct gs_jit_process *p = j->processes;
		j->processes = p->next;
		free_process(j, p);
	}
	gs_proc_close(&j->proc);
	free(j);
}
