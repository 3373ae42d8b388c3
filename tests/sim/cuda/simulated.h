/* SPDX-License-Identifier: Apache-2.0 */
/* What a workload may say to the simulated libcuda beyond CUDA's own interface. ctypes programs use the same names. */
#ifndef GS_SIM_SIMULATED_H
#define GS_SIM_SIMULATED_H

#include <stdint.h>

/* How long kernels of this name take; before or after their functions are loaded. Names not told take 10 us.
 * sigma: of the logarithm of the duration. */
void simKernel(const char *name, uint64_t duration_ns, double sigma, uint32_t registers, uint32_t static_shared);
/* It ends when `ranks` launches of the communicator's same turn have begun, anywhere on the node, plus its duration. */
void simCollective(const char *name, uint64_t duration_ns, uint32_t communicator, uint32_t ranks);
/* Its first argument, a uint64_t, is its duration in ns. */
void simKernelTakesDuration(const char *name);
void simNextDuration(uint64_t ns); /* of the calling thread's next kernel, copy or memset, whatever else was said */
uint64_t simNow(void);             /* CLOCK_MONOTONIC, or the simulated clock's */
void simAdvance(uint64_t ns);      /* host time passes: on the simulated clock at once, else by sleeping */
/* On the simulated clock, before waiting for another thread by a lock or a join: time goes on without the calling thread. */
void simAway(void);

#endif
