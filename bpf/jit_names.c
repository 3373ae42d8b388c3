/* SPDX-License-Identifier: Apache-2.0 */
#include "jit_names.h"

#include <stdlib.h>
#include <string.h>

#include "epoch.h"
#include "jit.h"

#define MAX_RECORDS (16u << 20) /* bytes waiting to be taken */
#define MAX_WAITING 8192

static void append(struct gs_jit_names *n, const struct gs_jit_waiting *frame, uint32_t object, const char *name, const char *module)
{
	size_t name_length = strlen(name), module_length = strlen(module);
	struct gs_jit_record head = { frame->address, frame->process_id, object, (uint16_t)name_length, (uint16_t)module_length, 0 };
	uint64_t need = ((uint64_t)n->length + sizeof(head) + name_length + module_length + 7) & ~7ULL;
	uint8_t *at;

	if (gs_grow((void **)&n->records, &n->room, need, MAX_RECORDS, 1))
		return; /* its frame stays unknown code */
	at = n->records + n->length;
	memcpy(at, &head, sizeof(head));
	memcpy(at + sizeof(head), name, name_length);
	memcpy(at + sizeof(head) + name_length, module, module_length);
	n->length = (uint32_t)need;
}

void gs_jit_names_see(struct gs_jit_names *n, const struct gs_jit_waiting *frame, const struct gs_jit_function *f,
		      const struct gs_jit_view *view)
{
	if (f)
		append(n, frame, f->object, view->text + f->name, view->text + f->module);
	else if (!gs_grow((void **)&n->waiting, &n->room_waiting, n->n_waiting + 1ULL, MAX_WAITING, sizeof(*frame)))
		n->waiting[n->n_waiting++] = *frame;
}

void gs_jit_names_answer(struct gs_jit_names *n, const struct gs_jit_view *view)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n->n_waiting; i++) {
		const struct gs_jit_waiting *w = &n->waiting[i];
		int theirs = w->tgid == view->tgid && w->start_boottime == view->start_boottime;
		const struct gs_jit_function *f = theirs ? gs_jit_find(view, w->address) : NULL;

		if (f)
			append(n, w, 0, view->text + f->name, view->text + f->module);
		else
			n->waiting[kept++] = *w;
	}
	n->n_waiting = kept;
}

void gs_jit_names_free(struct gs_jit_names *n)
{
	free(n->records);
	free(n->waiting);
}
