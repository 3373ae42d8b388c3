/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Every place between the kernel's timer and the store that can lose a sample, listed once. `make generate` writes its Python
 * twin bpf/drops.py from it and a test compares the two, so kernel side, C core and Python cannot disagree.
 *
 * X(name, where, what a person reads)
 * where: kernel = counted by the BPF program, core = by the draining thread, agent = by Python.
 * Identity, checked each window: produced = idle + filtered + delivered + the sum of every drop here.
 * "produced" is the perf counter's own count divided by the period (BPF counters alone cannot close the books: while a
 * long program runs on a tracepoint the kernel skips samples and counts nothing). */
#ifndef GPUSTROBE_DROPS_H
#define GPUSTROBE_DROPS_H

#define GS_DROPS(X) \
	X(kernel_skipped, agent, "the kernel did not run the sampler: timer delayed, vCPU stolen or another BPF program running") \
	X(scratch_busy, kernel, "the sampler interrupted itself on this CPU") \
	X(ring_full, kernel, "the ring buffer was full: the agent did not drain in time") \
	X(wait_no_room, kernel, "the table of waiting threads was full: the wait was not timed") \
	X(bad_record, core, "a record in the ring had an impossible length or version") \
	X(stack_table_full, core, "the table of distinct stacks was full in this window") \
	X(window_full, core, "the window had no room for another row") \
	X(window_late, agent, "Python did not take a window before it had to be reused") \
	X(export_queue_full, agent, "the store was away and the bounded queue was full") \
	X(export_refused, agent, "the store refused the batch for good") \
	X(export_unsent, agent, "the agent ended before the store was back, and had no spool") \
	X(spool_damaged, agent, "a batch kept on disk could not be read back") \
	X(encode_too_large, agent, "a single window exceeded the request limit")

#endif
