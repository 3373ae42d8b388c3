/* SPDX-License-Identifier: Apache-2.0 */
#include "offsets.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "error.h"

#if defined(__x86_64__)
#define KERNEL_STACK 16384 /* THREAD_SIZE */
#define PT_REGS_BYTES 168
#elif defined(__aarch64__)
#define KERNEL_STACK 16384
#define PT_REGS_BYTES 336
#endif

static const struct btf_type *without_modifiers(const struct btf *btf, __u32 id)
{
	const struct btf_type *t = btf__type_by_id(btf, id);

	while (t && (btf_is_mod(t) || btf_is_typedef(t)))
		t = btf__type_by_id(btf, t->type);
	return t;
}

/* Byte offset of a member, looking into anonymous structs and unions; -1 if there is none. depth: BTF is the kernel's own and
 * trusted, yet no loop in it may hang us. */
static int64_t member_offset(const struct btf *btf, const struct btf_type *type, const char *name, int depth)
{
	const struct btf_member *m = btf_members(type);

	for (int i = 0; i < btf_vlen(type); i++) {
		const char *member = btf__name_by_offset(btf, m[i].name_off);
		int64_t at = btf_member_bit_offset(type, i) / 8;

		if (member && *member) {
			if (!strcmp(member, name))
				return at;
			continue;
		}
		const struct btf_type *inner = without_modifiers(btf, m[i].type);
		int64_t deeper = inner && btf_is_composite(inner) && depth > 0 ? member_offset(btf, inner, name, depth - 1) : -1;

		if (deeper >= 0)
			return at + deeper;
	}
	return -1;
}

static int64_t offset_of(const struct btf *btf, const char *type, const char *member)
{
	__s32 id = btf__find_by_name_kind(btf, type, BTF_KIND_STRUCT);

	return id > 0 ? member_offset(btf, btf__type_by_id(btf, id), member, 8) : -1;
}

int gs_offsets_from_btf(struct gs_offsets *offsets, struct gs_error *error)
{
	struct btf *btf = btf__load_vmlinux_btf();
	long failed = libbpf_get_error(btf);
	int status = 0;

	if (failed)
		return gs_fail(error, GS_FAULT_btf, -(int)failed, "no BTF: /sys/kernel/btf/vmlinux could not be read");
#define X(type, member) \
	do { \
		int64_t at = offset_of(btf, #type, #member); \
		if (at < 0) \
			status = gs_fail(error, GS_FAULT_offset, 0, "struct %s has no %s in this kernel's BTF", #type, #member); \
		offsets->type##_##member = at < 0 ? 0 : (__u32)at; \
	} while (0);
	GS_HINT_OFFSETS(X)
	status = 0;
	GS_OFFSETS(X)
#undef X
	/* Only for kernels before 5.15, which know no FRED and so no padding above the registers. */
	offsets->pt_regs = KERNEL_STACK - PT_REGS_BYTES;
	btf__free(btf);
	return status;
}

uint32_t gs_task_state_offset(void)
{
	struct btf *btf = btf__load_vmlinux_btf();
	int64_t at = -1;

	if (libbpf_get_error(btf))
		return 0;
	at = offset_of(btf, "task_struct", "__state");
	if (at < 0)
		at = offset_of(btf, "task_struct", "state");
	btf__free(btf);
	return at > 0 ? (uint32_t)at : 0;
}
