// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_table.h"
#include "tables.h"

#define DEFAULT_FILES 16384
/* Descriptors kept for Python until it takes the file, once a second; what is past that is opened again when it is taken.
 * RLIMIT_NOFILE is often 1024. */
#define MAX_HELD_FDS 384
#define OFFER_NS 60000000000ULL

struct entry {
	uint32_t next_by_inode; /* index + 1 everywhere, 0 = end */
	uint32_t next_by_id;
	uint32_t older, newer; /* among those no process holds; index + 1 */
	uint32_t next_pending;
	uint32_t file_id; /* 0 = the entry is free */
	uint32_t holds;
	uint32_t flags;
	uint32_t pid; /* where it was last seen */
	uint32_t device;
	uint64_t inode;
	uint64_t start_boottime, start, end;
	uint64_t serial;     /* never repeats */
	uint64_t offered_ns; /* when its descriptor was last lent to tables.c */
	struct gs_identity identity;
	struct gs_build_id build_id;
	int32_t fd;
	int32_t open_errno;
	uint8_t identified; /* identity is valid */
	uint8_t replaced;   /* the inode has other content now */
	uint8_t raw;        /* its frames stay raw: never announced */
	uint8_t pending;
	uint8_t reopen; /* a descriptor may be had when it is taken */
	uint16_t path_length;
	char *path;
};

struct gs_files {
	const struct gs_proc *proc;
	uint64_t *counters;
	struct entry *entries;
	uint32_t *by_inode, *by_id; /* index + 1 */
	uint32_t max, mask;
	uint32_t used;       /* entries ever used */
	uint32_t free_entry; /* chain through next_by_id */
	uint32_t oldest, newest;
	uint32_t pending_head, pending_tail;
	uint32_t held_fds;
	uint32_t next_id, ids_given; /* in this epoch */
	uint64_t next_serial;
};

static uint32_t inode_bucket(const struct gs_files *f, uint32_t device, uint64_t inode)
{
	uint64_t h = (inode ^ (uint64_t)device << 32) * 0x9e3779b97f4a7c15ULL;

	return (uint32_t)(h >> 32) & f->mask;
}

static struct entry *at(const struct gs_files *f, uint32_t index_plus_1)
{
	return index_plus_1 ? &f->entries[index_plus_1 - 1] : NULL;
}

static uint32_t index_of(const struct gs_files *f, const struct entry *e)
{
	return e ? (uint32_t)(e - f->entries) + 1 : 0;
}

static struct entry *by_id(const struct gs_files *f, uint32_t file_id)
{
	struct entry *e = at(f, f->by_id[file_id & f->mask]);

	while (e && e->file_id != file_id)
		e = at(f, e->next_by_id);
	return e;
}

struct gs_files *gs_files_open(uint32_t max_files, const struct gs_proc *proc, uint64_t *counters)
{
	struct gs_files *f = calloc(1, sizeof(*f));
	uint32_t size = 64;

	if (!f)
		return NULL;
	f->max = !max_files ? DEFAULT_FILES : max_files < GS_FILE_IDS / 2 ? max_files : GS_FILE_IDS / 2;
	while (size < f->max)
		size *= 2;
	f->mask = size - 1;
	f->proc = proc;
	f->counters = counters;
	f->next_id = 1;
	f->entries = calloc(f->max, sizeof(*f->entries));
	f->by_inode = calloc(size, sizeof(uint32_t));
	f->by_id = calloc(size, sizeof(uint32_t));
	if (!f->entries || !f->by_inode || !f->by_id) {
		gs_files_close(f);
		return NULL;
	}
	return f;
}

static void close_fd(struct gs_files *f, struct entry *e)
{
	if (e->fd < 0)
		return;
	close(e->fd);
	e->fd = -1;
	f->held_fds--;
}

void gs_files_close(struct gs_files *f)
{
	if (!f)
		return;
	for (uint32_t i = 0; f->entries && i < f->used; i++) {
		if (!f->entries[i].file_id)
			continue;
		close_fd(f, &f->entries[i]);
		free(f->entries[i].path);
	}
	free(f->entries);
	free(f->by_inode);
	free(f->by_id);
	free(f);
}

/* The queue of those no process holds, oldest first: the order of eviction. */
static void leave_idle(struct gs_files *f, struct entry *e)
{
	*(e->older ? &at(f, e->older)->newer : &f->oldest) = e->newer;
	*(e->newer ? &at(f, e->newer)->older : &f->newest) = e->older;
	e->older = e->newer = 0;
}

static void join_idle(struct gs_files *f, struct entry *e)
{
	e->older = f->newest;
	e->newer = 0;
	*(f->newest ? &at(f, f->newest)->newer : &f->oldest) = index_of(f, e);
	f->newest = index_of(f, e);
}

void gs_files_hold(struct gs_files *f, uint32_t file_id)
{
	struct entry *e = file_id ? by_id(f, file_id) : NULL;

	if (e && !e->holds++)
		leave_idle(f, e);
}

void gs_files_release(struct gs_files *f, uint32_t file_id)
{
	struct entry *e = file_id ? by_id(f, file_id) : NULL;

	if (e && e->holds && !--e->holds)
		join_idle(f, e);
}

static void unlink_pending(struct gs_files *f, struct entry *e)
{
	uint32_t *link = &f->pending_head, before = 0;

	if (!e->pending)
		return;
	while (*link != index_of(f, e)) {
		before = *link;
		link = &at(f, *link)->next_pending;
	}
	*link = e->next_pending;
	if (f->pending_tail == index_of(f, e))
		f->pending_tail = before;
	e->pending = 0;
	e->next_pending = 0;
}

static void announce(struct gs_files *f, struct entry *e)
{
	if (e->pending || e->raw)
		return;
	e->pending = 1;
	e->next_pending = 0;
	*(f->pending_tail ? &at(f, f->pending_tail)->next_pending : &f->pending_head) = index_of(f, e);
	f->pending_tail = index_of(f, e);
}

static void unlink_from(const struct gs_files *f, uint32_t *bucket, const struct entry *e, size_t link_offset)
{
	uint32_t *link = bucket;

	while (*link != index_of(f, e))
		link = (uint32_t *)((char *)at(f, *link) + link_offset);
	*link = *(const uint32_t *)((const char *)e + link_offset);
}

static void forget(struct gs_files *f, struct entry *e)
{
	unlink_pending(f, e);
	leave_idle(f, e);
	unlink_from(f, &f->by_inode[inode_bucket(f, e->device, e->inode)], e, offsetof(struct entry, next_by_inode));
	unlink_from(f, &f->by_id[e->file_id & f->mask], e, offsetof(struct entry, next_by_id));
	close_fd(f, e);
	free(e->path);
	memset(e, 0, sizeof(*e));
	e->next_by_id = f->free_entry;
	f->free_entry = index_of(f, e);
}

/* An id that is neither in use nor was given before in this epoch: interned frames still name files evicted since. */
static uint32_t new_id(struct gs_files *f)
{
	while (f->ids_given < GS_FILE_IDS - 1) {
		uint32_t id = f->next_id;

		f->next_id = id == GS_FILE_IDS - 1 ? 1 : id + 1;
		f->ids_given++;
		if (!by_id(f, id))
			return id;
	}
	return 0;
}

static struct entry *new_entry(struct gs_files *f, const struct gs_sight *s)
{
	uint32_t id, *bucket = &f->by_inode[inode_bucket(f, s->device, s->inode)];
	struct entry *e;

	if (!f->free_entry && f->used == f->max && f->oldest) {
		f->counters[GS_MAPPING_files_evicted]++;
		forget(f, at(f, f->oldest));
	}
	id = f->free_entry || f->used < f->max ? new_id(f) : 0;
	if (!id) {
		f->counters[GS_MAPPING_files_no_room]++;
		return NULL;
	}
	e = f->free_entry ? at(f, f->free_entry) : &f->entries[f->used++];
	f->free_entry = e->next_by_id; /* 0 in a fresh entry: the chain was empty */
	*e = (struct entry){.file_id = id, .serial = ++f->next_serial, .device = s->device, .inode = s->inode, .fd = -1};
	e->next_by_inode = *bucket;
	*bucket = index_of(f, e);
	e->next_by_id = f->by_id[id & f->mask];
	f->by_id[id & f->mask] = index_of(f, e);
	join_idle(f, e);
	return e;
}

static void seen_at(struct entry *e, const struct gs_sight *s)
{
	e->pid = s->pid;
	e->start_boottime = s->start_boottime;
	e->start = s->start;
	e->end = s->end;
}

static void count_open(struct gs_files *f, int error)
{
	f->counters[error == ENOENT || error == ESRCH	? GS_MAPPING_open_gone
		    : error == EACCES || error == EPERM ? GS_MAPPING_open_denied
		    : error == EMFILE || error == ENFILE ? GS_MAPPING_open_no_descriptors
		    : error == ENOTSUP			 ? GS_MAPPING_open_not_regular
							 : GS_MAPPING_open_failed]++;
}

static void learn_path(struct entry *e, const struct gs_sight *s)
{
	static const char suffix[] = " (deleted)";
	char path[GS_FILE_PATH_MAX];
	int length = s->list ? gs_list_path(s->list, s->vma, path) : -1, bare = length - (int)sizeof(suffix) + 1;

	if (length < 0 || e->path)
		return;
	if (bare > 0 && !strcmp(path + bare, suffix) && (!e->identified || !e->identity.links || !gs_mapped_at_path(s, path))) {
		e->flags |= GS_FILE_DELETED | (strncmp(path, "/memfd:", 7) ? 0 : GS_FILE_MEMFD);
		length = bare;
		path[length] = 0;
	}
	e->path = malloc(length + 1);
	if (!e->path)
		return;
	memcpy(e->path, path, length + 1);
	e->path_length = (uint16_t)length;
}

/* What the opened file says. fd (or -errno) becomes the entry's. */
static void learn(struct gs_files *f, struct entry *e, const struct gs_sight *s, int fd, const struct gs_identity *identity, const struct gs_build_id *id)
{
	e->build_id = *id;
	e->open_errno = fd < 0 ? -fd : 0;
	if (identity) {
		e->identity = *identity;
		e->identified = 1;
	}
	learn_path(e, s);
	if (fd < 0 && s->list && !id->length) {
		e->build_id = gs_list_build_id(s->list, s->vma);
		f->counters[GS_MAPPING_build_id_by_kernel] += e->build_id.length > 0;
	}
	e->raw = fd == -ENOTSUP || (fd >= 0 && id->reason == GS_BUILD_ID_not_elf && e->flags & GS_FILE_DELETED);
	if (fd >= 0 && (e->raw || f->held_fds >= MAX_HELD_FDS)) {
		e->reopen = !e->raw;
		close(fd);
		fd = -1;
	}
	e->reopen |= fd == -EMFILE || fd == -ENFILE;
	e->fd = fd < 0 ? -1 : fd;
	f->held_fds += fd >= 0;
	announce(f, e);
}

static int same_content(const struct entry *e, const struct gs_identity *now, const struct gs_build_id *id)
{
	return e->build_id.length && e->build_id.length == id->length && !memcmp(e->build_id.bytes, id->bytes, id->length) &&
	       e->identity.size == now->size && e->identity.mtime_ns == now->mtime_ns;
}

/* Opens the file. `known` is the entry of the same (device, inode) whose ctime or size is not the file's any more, or one
 * that could not be looked at when it was first seen, or NULL. */
static struct entry *open_file(struct gs_files *f, struct entry *known, const struct gs_sight *s, const struct gs_identity *seen)
{
	struct gs_build_id id = {.reason = GS_BUILD_ID_not_opened};
	struct gs_identity now;
	int by_path = 0, fd = gs_mapped_open(s, &now, &by_path);
	struct entry *e = known && !known->identified ? known : NULL;

	f->counters[GS_MAPPING_open_by_path] += by_path;
	if (fd < 0)
		count_open(f, -fd);
	else
		id = gs_read_build_id(fd);
	if (fd >= 0 && known && !e && same_content(known, &now, &id)) {
		known->identity = now;
		close(fd);
		return known;
	}
	if (!e) {
		e = new_entry(f, s);
		f->counters[GS_MAPPING_files_found] += e != NULL;
		if (e && known) {
			known->replaced = 1;
			f->counters[GS_MAPPING_files_replaced]++;
		}
	}
	if (!e && fd >= 0)
		close(fd);
	if (e)
		learn(f, e, s, fd, fd >= 0 ? &now : seen, &id);
	return e;
}

static int unchanged(const struct entry *e, const struct gs_identity *now)
{
	return e->identity.ctime_ns == now->ctime_ns && e->identity.size == now->size && e->identity.mtime_ns == now->mtime_ns;
}

/* The entry for a file as it is now; *changed: one of the same inode with other content. */
static struct entry *find(struct gs_files *f, const struct gs_sight *s, const struct gs_identity *now, struct entry **changed)
{
	struct entry *only = NULL, *e = at(f, f->by_inode[inode_bucket(f, s->device, s->inode)]);
	int several = 0;

	*changed = NULL;
	for (; e; e = at(f, e->next_by_inode)) {
		if (e->device != s->device || e->inode != s->inode || e->replaced)
			continue;
		if (!now) {
			several |= only != NULL;
			only = e;
		} else if (!e->identified) {
			*changed = e;
		} else if (e->identity.device == now->device && e->identity.inode == now->inode) {
			if (unchanged(e, now))
				return e;
			*changed = e;
		}
	}
	return several ? NULL : only;
}

uint32_t gs_files_identify(struct gs_files *f, const struct gs_sight *s)
{
	struct gs_identity now;
	const struct gs_identity *seen = gs_mapped_stat(s, &now) ? NULL : &now;
	struct entry *changed, *e = find(f, s, seen, &changed);

	if (!e)
		e = open_file(f, changed, s, seen);
	if (!e)
		return 0;
	seen_at(e, s);
	if (!e->holds) {
		leave_idle(f, e);
		join_idle(f, e);
	}
	return e->raw ? 0 : e->file_id;
}

uint32_t gs_files_table(struct gs_files *f, struct gs_tables *tables, uint32_t file_id, const struct gs_sight *s, uint64_t now_ns)
{
	struct entry *e = by_id(f, file_id);
	struct gs_identity now;
	int fd = e->fd, by_path, lent = -1;
	uint32_t table;

	if (fd < 0 && (!e->offered_ns || e->offered_ns + OFFER_NS < now_ns)) {
		fd = lent = gs_mapped_open(s, &now, &by_path);
		if (lent >= 0 && (now.device != e->identity.device || now.inode != e->identity.inode ||
				  now.size != e->identity.size || now.mtime_ns != e->identity.mtime_ns))
			fd = -1;
	}
	if (fd >= 0)
		e->offered_ns = now_ns;
	table = gs_tables_want(tables, &e->build_id, e->serial, fd < 0 ? -1 : fd, now_ns);
	if (lent >= 0)
		close(lent);
	return table;
}

uint32_t gs_files_by_inode(struct gs_files *f, uint32_t device, uint64_t inode, int *ambiguous)
{
	struct gs_sight s = {.device = device, .inode = inode};
	struct entry *e = at(f, f->by_inode[inode_bucket(f, device, inode)]);
	uint32_t found = 0;

	*ambiguous = 0;
	for (; e; e = at(f, e->next_by_inode)) {
		if (e->device != s.device || e->inode != s.inode || e->replaced || e->raw)
			continue;
		*ambiguous |= found != 0;
		found = e->file_id;
	}
	return *ambiguous ? 0 : found;
}

static int open_at(struct gs_files *f, struct entry *e, struct gs_sight *s)
{
	struct gs_identity now;
	struct gs_stamp stamp;
	int by_path, fd = -ESRCH;

	s->process = gs_process_open(f->proc, s->pid);
	if (s->process < 0)
		return s->process;
	if (!gs_process_stamp(s->process, 0, &stamp) && gs_process_started(f->proc, stamp.start_ticks, s->start_boottime))
		fd = gs_mapped_open(s, &now, &by_path);
	close(s->process);
	if (fd >= 0 && e->identified && (now.device != e->identity.device || now.inode != e->identity.inode)) {
		close(fd);
		fd = -ESTALE;
	}
	return fd;
}

static void reopen(struct gs_files *f, struct entry *e, gs_find_sight *find_sight, void *context)
{
	struct gs_sight s = {.pid = e->pid, .start_boottime = e->start_boottime, .start = e->start, .end = e->end, .device = e->device, .inode = e->inode};
	int fd = open_at(f, e, &s);

	if (fd < 0 && fd != -EMFILE && find_sight && !find_sight(context, e->file_id, &s))
		fd = open_at(f, e, &s);
	e->reopen = 0;
	e->fd = fd < 0 ? -1 : fd;
	e->open_errno = fd < 0 ? -fd : 0;
	f->held_fds += fd >= 0;
}

int gs_files_take(struct gs_files *f, struct gs_file_record *out, gs_find_sight *find_sight, void *context)
{
	struct entry *e = at(f, f->pending_head);

	if (!e)
		return 0;
	if (e->reopen)
		reopen(f, e, find_sight, context);
	unlink_pending(f, e);
	*out = (struct gs_file_record){.file_id = e->file_id, .fd = e->fd, .open_errno = e->open_errno, .flags = e->flags, .pid = e->pid,
		.device = e->device, .inode = e->inode, .size = e->identity.size, .mtime_ns = e->identity.mtime_ns,
		.ctime_ns = e->identity.ctime_ns, .build_id = e->build_id, .path_length = e->path_length};
	if (e->path)
		memcpy(out->path, e->path, e->path_length + 1);
	f->held_fds -= e->fd >= 0;
	e->fd = -1;
	return 1;
}

void gs_files_new_epoch(struct gs_files *f)
{
	f->ids_given = 0;
	for (uint32_t i = 0; i < f->used; i++) {
		struct entry *e = &f->entries[i];

		if (!e->file_id || e->pending || e->raw)
			continue;
		e->flags |= GS_FILE_AGAIN;
		e->reopen = 1;
		announce(f, e);
	}
}

int gs_files_wants_epoch(const struct gs_files *f)
{
	return f->ids_given > GS_FILE_IDS / 4 * 3;
}
