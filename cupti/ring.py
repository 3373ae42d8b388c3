# SPDX-License-Identifier: Apache-2.0
"""The layout of the ring that a CUDA process shares with the agent, for numpy. The format is described in cupti/ring.h, of
which this is the twin; tests/test_cupti_ring.py compiles the header and compares every offset, constant and name.

Every dtype is little-endian and has exactly the header's size. Times: `mono` CLOCK_MONOTONIC, `cupti` CUPTI's clock, ns.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

NAME = "gpustrobe-cupti"
LINK = "/memfd:gpustrobe-cupti (deleted)"  # what /proc/PID/fd/N reads
MAGIC = 0x3149545055435347
VERSION = 1
CONTROL_SIZE = 4096
RING_SLOTS = 65536
ARENA_SIZE = 4 << 20
RECORD_SIZE = 64
STRING_LIMIT = 32768
HEARTBEAT_LIMIT_NS = 2_500_000_000
MULTIPLICITY_SHIFT = 4
UNKNOWN = 0xFFFFFFFF  # device, stream, channel

# enum gs_state, in order: name -> what a person reads
STATES: dict[str, str] = {
    "dormant": "no agent: nothing is subscribed, no thread wakes",
    "waiting": "an agent is there; the CUDA driver is not initialized yet",
    "between": "between windows",
    "recording": "in a window",
    "standing_back": "the user's own profiler is at work",
    "refused": "this process cannot be recorded; see reason",
    "exited": "the process has ended, its tail is in the ring",
}

# enum gs_reason, in order
REASONS: dict[str, str] = {
    "none": "",
    "no_driver": "libcuda.so.1 is not loaded",
    "driver_not_ready": "cuInit has not returned",
    "no_cupti": "no libcupti of the version that cudart has was found",
    "cupti_too_old": "this CUPTI is older than 12.0",
    "cupti_symbol": "libcupti lacks a function that is needed",
    "subscriber_taken": "another profiler holds CUPTI's subscriber",
    "foreign_profiler": "another profiler uses CUPTI in this process",
    "not_permitted": "CUPTI lacks the permission (NVreg_RestrictProfilingToAdminUsers, or the container)",
    "virtual_device": "CUPTI does not trace on this virtual device",
    "hardware_busy": "CUPTI's hardware is taken by another tool",
    "enable_failed": "CUPTI refused an activity kind",
    "bad_timestamps": "more than 0.1 % of the records had no timestamp",
    "no_memory": "memory for buffers or tables was not to be had",
    "forked": "a fork's child does not record",
}

# enum gs_close, in order: why a window closed
CLOSES: dict[str, str] = {
    "complete": "its time was over",
    "agent_gone": "the agent's heartbeat stopped",
    "mode_changed": "the agent asked for something else",
    "foreign_profiler": "another profiler came",
    "buffers_empty": "no activity buffer was left",
    "enable_failed": "CUPTI refused",
    "exit": "the process ended",
}

# The u64 counters of the control page, in order
COUNTERS: dict[str, str] = {
    "records": "records committed to the ring",
    "drop_ring_full": "records dropped: the ring was full",
    "drop_cupti": "activity records CUPTI says it dropped",
    "drop_pool": "activity lost because no host buffer was left: buffers, not records",
    "drop_zero_time": "activity records with start or end 0",
    "drop_reversed_time": "activity records that end before they start",
    "drop_future_time": "activity records that end after now",
    "drop_outside": "activity records of launches that no window covers",
    "drop_graph_correlation": "graph records whose correlation id is wrong below CUPTI 13.1 U1",
    "drop_unknown_kind": "activity records of a kind we do not know",
    "drop_bad_record": "activity records that run past their buffer",
    "shapes_coarse": "kernel records without grid and block: the arena was three quarters full",
    "shapes_full": "kernel records without a name: the arena was full",
    "strings_cut": "names longer than 32 KiB, cut",
    "names_busy": "launches whose function got no id: the table was locked just then",
    "shapes": "shapes in the arena",
    "strings": "strings in the arena",
    "windows": "windows opened",
    "windows_lossy": "windows of which something was lost",
    "windows_skipped": "windows not opened: standing back, refused, or late",
    "activity_records": "activity records read from CUPTI's buffers",
    "activity_buffers": "activity buffers read",
    "callbacks": "CUPTI callbacks, enter and exit",
    "callback_ns": "own time in callbacks; estimated from one in 16",
    "buffer_ns": "own time reading buffers, in our thread",
    "thread_ns": "CPU time of our thread, CUPTI's work inside it included",
    "enable_ns": "time inside CUPTI to open windows",
    "disable_ns": "time inside CUPTI to close windows",
    "flush_ns": "time inside CUPTI to flush",
    "enables": "windows opened by CUPTI calls; overlapping windows share one",
    "launches": "launches seen in windows",
    "launches_sampled": "launches whose stack was asked for",
    "launches_counted": "launches counted exactly, in and out of windows",
    "latency_in_ns": "duration of launch calls in windows, sum",
    "latency_in": "... of so many calls",
    "latency_out_ns": "duration of launch calls seen out of windows (just before one, or while counting), sum",
    "latency_out": "... of so many calls",
    "overhead_ns": "duration of CUPTI's own overhead records, sum",
    "attaches": "times an agent came",
    "foreign": "times we stood back for another profiler",
    "cupti_errors": "CUPTI calls that failed",
    "callbacks_in_child": "callbacks in a fork's child, ignored",
    "counts_full": "launches not counted: the table of functions was full",
    "finalizes": "times CUPTI was finalized, which ends what it costs between sessions",
}


class Mode(IntEnum):
    OFF = 0
    AUTO = 1
    WINDOWS = 2
    SESSIONS = 3
    ON_DEMAND = 4
    ALWAYS = 5


class GraphLevel(IntEnum):
    BY_SHARE = 0
    WHOLE = 1
    NODES = 2


class Record(IntEnum):
    NONE = 0
    WINDOW = 1
    LAUNCH = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    GRAPH = 7
    OVERHEAD = 8
    COUNT = 9
    DEVICE = 10
    CONTEXT = 11
    EXIT = 12


class Call(IntEnum):
    KERNEL = 1
    GRAPH = 2
    MEMCPY = 3
    MEMSET = 4


class Entry(IntEnum):
    STRING = 1
    SHAPE = 2


class WindowFlag(IntFlag):
    OPEN = 1
    AMENDED = 2
    LOSSY = 4
    CLOCK_STEP = 8
    DETAIL = 16


class LaunchFlag(IntFlag):
    SAMPLED = 1
    FIRST = 2


class ActivityFlag(IntFlag):
    PEER = 1
    DEVICE_LAUNCHED = 2
    ASYNC = 4
    LATE = 8


# A field: name, numpy type, offset. Pads are left out: fields need not touch.
Fields = tuple[tuple[str, object, int], ...]


def _dtype(size: int, fields: Fields) -> np.dtype:
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype({"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": size})


_HEAD: Fields = (("commit", "<u4", 0), ("type", "u1", 4), ("flags", "u1", 5))

# The control page: LAYOUT at 0, AGENT and LIBRARY at these offsets; HEAD, TAIL, ARENA_HEAD are u64.
HEAD_OFFSET, TAIL_OFFSET, ARENA_HEAD_OFFSET = 128, 256, 384
AGENT_OFFSET, LIBRARY_OFFSET, COUNTERS_OFFSET = 512, 640, 2048
LAYOUT = _dtype(
    112,
    (
        ("magic", "<u8", 0),
        ("version", "<u4", 8),
        ("control_size", "<u4", 12),
        ("total_size", "<u8", 16),
        ("ring_offset", "<u8", 24),
        ("ring_slots", "<u4", 32),
        ("record_size", "<u4", 36),
        ("arena_offset", "<u8", 40),
        ("arena_size", "<u8", 48),
        ("counters_offset", "<u4", 56),
        ("n_counters", "<u4", 60),
        ("pid", "<u4", 64),
        ("writer", "<u4", 68),
        ("created", "<u8", 72),
        ("host_id", "<u8", 80),
        ("library_version", "S24", 88),
    ),
)
AGENT = _dtype(
    128,
    (
        ("wake", "<u4", 0),
        ("config_sequence", "<u4", 4),
        ("heartbeat", "<u8", 8),
        ("mode", "<u4", 16),
        ("foreign", "<u4", 20),
        ("detail_until", "<u8", 24),
        ("window_ns", "<u8", 32),
        ("period_ns", "<u8", 40),
        ("seed", "<u8", 48),
        ("probability", "<u4", 56),
        ("counting", "<u4", 60),
        ("graph_level", "<u4", 64),
        ("node_share", "<u4", 68),
        ("flush", "<u4", 72),
        ("warm", "<u4", 76),
        ("agent_pid", "<u4", 80),
        ("finalize", "<u4", 84),
        ("buffers_mib", "<u4", 88),
    ),
)
LIBRARY = _dtype(
    512,
    (
        ("state", "<u4", 0),
        ("reason", "<u4", 4),
        ("updated", "<u8", 8),
        ("heard", "<u8", 16),
        ("cupti_version", "<u4", 24),
        ("driver_version", "<u4", 28),
        ("policy", "<u4", 32),
        ("graph_level", "<u4", 36),
        ("window", "<u4", 40),
        ("config_heard", "<u4", 44),
        ("first_enable_ns", "<u8", 48),
        ("next_window", "<u8", 56),
        ("buffers", "<u4", 64),
        ("buffer_size", "<u4", 68),
        ("error", "<u4", 72),
        ("latch_window_ns", "<u8", 80),
        ("latch_period_ns", "<u8", 88),
        ("reason_text", "S160", 96),
        ("cupti_path", "S256", 256),
    ),
)
WINDOW = _dtype(
    64,
    (
        *_HEAD,
        ("reason", "<u2", 6),
        ("begin", "<u8", 8),
        ("end", "<u8", 16),
        ("cupti_minus_mono", "<i8", 24),
        ("unix_minus_mono", "<i8", 32),
        ("width_us", "<u4", 40),
        ("period_us", "<u4", 44),
        ("pair_error_ns", "<u4", 48),
        ("probability", "<u4", 52),
        ("id", "<u4", 56),
        ("launches", "<u4", 60),
    ),
)
LAUNCH = _dtype(
    64,
    (
        *_HEAD,
        ("call", "<u2", 6),
        ("time", "<u8", 8),
        ("correlation", "<u4", 16),
        ("tid", "<u4", 20),
        ("window", "<u4", 24),
        ("weight", "<u4", 28),
        ("function", "<u4", 32),
        ("context", "<u4", 36),
        ("cbid", "<u4", 40),
        ("graph", "<u4", 44),
        ("multiplicity", "<u4", 48),
    ),
)
ACTIVITY = _dtype(
    64,
    (
        *_HEAD,
        ("kind", "<u2", 6),
        ("start", "<u8", 8),
        ("end", "<u8", 16),
        ("correlation", "<u4", 24),
        ("window", "<u4", 28),
        ("device", "<u4", 32),
        ("context", "<u4", 36),
        ("stream", "<u4", 40),
        ("graph", "<u4", 44),
        ("node", "<u8", 48),
        ("peer_device", "<u4", 48),
        ("peer_context", "<u4", 52),
        ("bytes", "<u8", 56),
        ("shape", "<u4", 56),
        ("channel", "<u4", 60),
        ("event", "<u8", 56),
    ),
)
COUNT = _dtype(
    64,
    (
        *_HEAD,
        ("call", "<u2", 6),
        ("time", "<u8", 8),
        ("since", "<u8", 16),
        ("count", "<u8", 24),
        ("function", "<u4", 32),
        ("graph", "<u4", 36),
    ),
)
DEVICE = _dtype(
    64,
    (
        *_HEAD,
        ("ordinal", "<u4", 8),
        ("name", "<u4", 12),
        ("uuid", ("u1", 16), 16),
        ("pci_domain", "<u4", 32),
        ("pci_bus", "<u4", 36),
        ("pci_device", "<u4", 40),
        ("capability", "<u4", 44),
        ("memory", "<u8", 48),
    ),
)
CONTEXT = _dtype(
    64,
    (
        *_HEAD,
        ("context", "<u4", 8),
        ("device", "<u4", 12),
        ("first", "<u8", 16),
    ),
)
EXIT = _dtype(
    64,
    (
        *_HEAD,
        ("reason", "<u2", 6),
        ("time", "<u8", 8),
        ("records", "<u8", 16),
        ("drops", "<u8", 24),
    ),
)
SHAPE = _dtype(
    64,
    (
        ("size", "<u4", 0),
        ("type", "<u2", 4),
        ("flags", "<u2", 6),
        ("name", "<u4", 8),
        ("grid", ("<i4", 3), 12),
        ("block", ("<i4", 3), 24),
        ("cluster", ("<u4", 3), 36),
        ("static_shared", "<u4", 48),
        ("dynamic_shared", "<u4", 52),
        ("local_per_thread", "<u4", 56),
        ("registers", "<u4", 60),
    ),
)

# Any record: what stands in all of them. View the rows of one type as RECORDS[type]: rows.view(RECORDS[t]), shape (n,).
ANY = _dtype(RECORD_SIZE, _HEAD)
RECORDS: dict[Record, np.dtype] = {
    Record.WINDOW: WINDOW,
    Record.LAUNCH: LAUNCH,
    **dict.fromkeys(
        (Record.KERNEL, Record.MEMCPY, Record.MEMSET, Record.SYNC, Record.GRAPH, Record.OVERHEAD), ACTIVITY
    ),
    Record.COUNT: COUNT,
    Record.DEVICE: DEVICE,
    Record.CONTEXT: CONTEXT,
    Record.EXIT: EXIT,
}
# Arena: every entry starts with ENTRY; a STRING's text follows its 16 bytes (TEXT_OFFSET).
ENTRY = _dtype(8, (("size", "<u4", 0), ("type", "<u2", 4), ("flags", "<u2", 6)))
TEXT_OFFSET = 16
STRING = _dtype(
    TEXT_OFFSET,
    (("size", "<u4", 0), ("type", "<u2", 4), ("flags", "<u2", 6), ("length", "<u4", 8), ("hash", "<u4", 12)),
)
