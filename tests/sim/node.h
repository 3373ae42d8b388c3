/* SPDX-License-Identifier: Apache-2.0 */
/* State of the simulated GPU node: one file, mapped by every simulated library (libnvidia-ml, libcuda, libcupti)
 * and by whoever scripts the node (simulated_node.py mirrors these structures; a test compares the two layouts).
 * It may be rewritten while libraries are at work: each field is read anew on each call. */
#ifndef GS_SIM_NODE_H
#define GS_SIM_NODE_H

#include <stdint.h>

#define GS_SIM_MAGIC 0x4d495347u /* "GSIM" */
#define GS_SIM_VERSION 2u
#define GS_SIM_VARIABLE "SIM_NODE_STATE" /* names the file */
#define GS_SIM_MAX_DEVICES 16
#define GS_SIM_MAX_POINTS 64
#define GS_SIM_MAX_PROCESSES 128
#define GS_SIM_MAX_FAULTS 64
#define GS_SIM_MAX_CALLS 192
#define GS_SIM_FOREVER 0xffffffffu
#define GS_SIM_BUCKET_NS 10000000ull
#define GS_SIM_BUCKETS 4096 /* 41 s: what NVML averages over is at most 20 s */
#define GS_SIM_MAX_COLLECTIVES 64
#define GS_SIM_MAX_RANKS 16

/* Load is periodic and piecewise linear, 0 to 1, so its integral (byte counters, energy, mean utilization) is exact. */
struct gs_sim_point {
	uint64_t at_ns; /* within the period, rising */
	double load;
};

enum gs_sim_process_kind { GS_SIM_COMPUTE, GS_SIM_GRAPHICS, GS_SIM_MPS };

struct gs_sim_process {
	uint32_t pid;
	uint32_t kind;
	uint64_t memory; /* bytes; all ones: the driver does not tell */
	double share;    /* of the device's load, 0 to 1 */
	uint32_t gpu_instance; /* all ones: none */
	uint32_t compute_instance;
	char name[64]; /* nvmlSystemGetProcessName */
	uint64_t launcher; /* 1: entered by libcuda, gone when it has ended; `share` is then of what ran, from `busy_ns` */
	uint64_t busy_ns;
};

/* Time in which the device worked, from the simulated libcuda. `index` is CLOCK_REALTIME / GS_SIM_BUCKET_NS. */
struct gs_sim_bucket {
	uint64_t index;
	uint64_t busy_ns;
};

/* A collective on its way: ends when its last rank has come, plus its duration. */
struct gs_sim_meeting {
	uint64_t sequence;
	uint32_t communicator;
	uint32_t ranks, came, left;
	uint64_t latest_ns; /* CLOCK_MONOTONIC, the same for all processes of a machine */
	uint32_t pids[GS_SIM_MAX_RANKS];
};

struct gs_sim_device {
	char uuid[80];
	char name[96];
	char bus_id[32];
	uint64_t memory_total;
	uint64_t memory_reserved; /* used beside what processes use */
	double memory_share;      /* memory utilization as a share of the load */
	double power_idle; /* W */
	double power_full;
	double power_limit;
	double celsius_idle;
	double celsius_full;
	uint32_t clock_idle[4]; /* MHz by nvmlClockType_t: graphics, SM, memory, video */
	uint32_t clock_full[4];
	double pcie_tx_full; /* bytes/s at load 1 */
	double pcie_rx_full;
	uint64_t pcie_start; /* counters' value at start_unix_ns */
	uint32_t pcie_bits;  /* width of the byte counters; 0: fields not supported */
	uint32_t pcie_generation;
	uint32_t pcie_width;
	uint32_t gpm; /* supports GPM */
	uint32_t lost;
	uint32_t mig;
	uint32_t n_points;
	uint32_t n_processes;
	uint64_t period_ns;
	struct gs_sim_point points[GS_SIM_MAX_POINTS];
	struct gs_sim_process processes[GS_SIM_MAX_PROCESSES];
	uint64_t launches; /* 1: load is what the simulated libcuda executes, not `points`; set by the first CUDA context */
	uint64_t busy_ns;  /* since the node's start, part of it in buckets not yet over */
	struct gs_sim_bucket buckets[GS_SIM_BUCKETS];
};

/* What a named function does instead of its work. Of several that match, the first with calls left is taken. */
struct gs_sim_fault {
	char function[64];  /* as nvml.h spells it; a _vN suffix need not be given; "*" is every function that takes a device */
	int32_t device;     /* slot; -1: any, and functions without a device */
	int32_t code;       /* nvmlReturn_t; -1: abort() */
	int64_t delay_ms;   /* before it; -1: for good */
	uint32_t remaining; /* calls; GS_SIM_FOREVER */
	uint32_t pad;
};

struct gs_sim_calls {
	char function[64];
	uint64_t count;
};

struct gs_sim_node {
	uint32_t magic;
	uint32_t version;
	uint32_t size; /* of this structure: a library built from another header refuses to start */
	uint32_t n_devices;
	uint64_t start_unix_ns;
	char driver_version[32];
	char nvml_version[32];
	uint32_t cuda_version; /* as cuDriverGetVersion: 13010 */
	uint32_t n_faults;
	struct gs_sim_fault faults[GS_SIM_MAX_FAULTS];
	struct gs_sim_calls calls[GS_SIM_MAX_CALLS];
	struct gs_sim_device devices[GS_SIM_MAX_DEVICES];
	uint32_t meeting_lock; /* the PID that holds it */
	uint32_t process_lock;
	struct gs_sim_meeting meetings[GS_SIM_MAX_COLLECTIVES];
};

/* state.c */
struct gs_sim_node *gs_sim_node(void); /* NULL: no usable state file, and standard error says why */
uint64_t gs_sim_now(void);             /* CLOCK_REALTIME */
double gs_sim_integral(const struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns); /* load seconds */
double gs_sim_mean(const struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns);
/* Counts the call, then obeys a fault: returns its code (0: none). `slot` -1: a function without a device. */
int gs_sim_fault(struct gs_sim_node *node, const char *function, int slot);

void gs_sim_busy(struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns); /* CLOCK_REALTIME */
int gs_sim_present(const struct gs_sim_process *process);
void gs_sim_hold(uint32_t *lock); /* between processes; a holder that has died loses it */
void gs_sim_let_go(uint32_t *lock);

#endif
