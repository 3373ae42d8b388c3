/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSTROBE_KERNEL_FEATURES_H
#define GPUSTROBE_KERNEL_FEATURES_H

/* 1 if perf_event programs of the running kernel may call the helper, by asking its verifier; 0 if not, or not permitted. */
int gs_has_helper(int helper);

/* memlock bytes of a BPF object as /proc/self/fdinfo tells; 0 if it does not. */
unsigned long long gs_fd_memory(int fd);

/* BPF_ENABLE_STATS (5.8): run times are kept while the returned descriptor is open; -1 if not available. */
int gs_enable_stats(void);

#endif
