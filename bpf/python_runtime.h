/* SPDX-License-Identifier: Apache-2.0 */
/* Finds CPython 3.9 to 3.14 in a process: from symbols of the file that holds the interpreter, offsets of its version, and one
 * look at the process's memory.
 *
 * The thread state of a thread is found in the kernel through its pthread-specific data (valid also while the GIL is released).
 * Which slot that is needs no offset of the runtime's key: the head of the interpreter's thread list is a thread state, its
 * thread_id is the fs base of its thread (pthread_self), and near there lies a pointer back to the thread state. */
#ifndef GPUSTROBE_PYTHON_RUNTIME_H
#define GPUSTROBE_PYTHON_RUNTIME_H

#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>

#include "core.h"
#include "python.h"

/* `size` bytes of a process's memory, all or nothing: 1, or 0 where it is gone or not readable. */
int gs_read_memory(uint32_t pid, void *to, size_t size, uint64_t from);

struct gs_python_file {
	uint64_t runtime, code_type, version_symbol; /* virtual addresses of _PyRuntime, PyCode_Type, Py_Version (3.11 on) */
	uint64_t eval_start, eval_end;               /* _PyEval_EvalFrameDefault, for 3.9 */
	uint64_t text_delta;                         /* p_vaddr - p_offset of the executable segment */
	uint32_t version;                            /* from the file's name, where Py_Version is missing: 0x309; 0 = not known */
};

/* 1 if the ELF file behind `fd` holds a CPython. `path` is the file's name as mapped; only its last part is looked at. */
GS_API int gs_python_probe(int fd, const char *path, struct gs_python_file *out);

enum gs_python_found {
	GS_PYTHON_FOUND,
	GS_PYTHON_NOT_YET,      /* no thread state yet, or memory not readable: look again later */
	GS_PYTHON_UNSUPPORTED,  /* another version, a free-threaded build, or a C library whose pthreads are unknown */
};

/* `start` and `file_offset` of an executable mapping of that file in process tgid. Fills all of *out but start_boottime. */
GS_API int gs_python_attach(uint32_t tgid, uint64_t start, uint64_t file_offset, const struct gs_python_file *file,
			    struct gs_python *out);

#endif
