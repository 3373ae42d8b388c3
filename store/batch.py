# SPDX-License-Identifier: Apache-2.0
"""A request decoded and checked, ready to intern: content and hashes, no ids of the store yet. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store.schema import ATTRIBUTE_LABEL, MAP_LABELS, NUMBER_LABELS, TEXT_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SampleType:
    name: str
    unit: str
    period: int  # ns of CPU time (or the type's own base) per unit of value


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    second: int  # Unix second of its middle: every window belongs to exactly one second
    type: int  # index into Batch.types
    node: str
    start: int  # Unix ns
    duration: int  # ns
    total: int


@dataclass(frozen=True, slots=True)
class MetricSeries:
    name: str
    unit: str
    kind: str  # gauge, delta, cumulative
    labels: int  # index into Batch.label_sets


# Columns of LabelSet.values: the text labels, then the numbers, then the rest as a sorted tuple of pairs.
LabelSet = tuple


@dataclass(frozen=True, slots=True)
class Columns:
    """Sample rows (n,) of int64: second, and indices into the batch's types, label_sets and stacks; value."""

    second: NDArray[np.int64]
    type: NDArray[np.int64]
    labels: NDArray[np.int64]
    stack: NDArray[np.int64]
    value: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Readings:
    """Points (n,): index into metrics, Unix ns, value."""

    metric: NDArray[np.int64]
    time: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batch:
    digest: int  # 64-bit content hash of the request's bytes, signed
    second: int  # of its earliest content; with digest it identifies the batch
    kind: str  # profiles or metrics
    label_sets: list[LabelSet] = field(default_factory=list)
    # functions: (name, kind, module, file, reason); frames index functions; stacks are frames root first, as CSR
    functions: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    frame_function: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    frame_line: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    stack_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    stack_frames: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    types: list[SampleType] = field(default_factory=list)
    samples: Columns | None = None
    windows: list[ProfileWindow] = field(default_factory=list)
    metrics: list[MetricSeries] = field(default_factory=list)
    readings: Readings | None = None
    resources: list[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=list)  # (node, attributes)
    ignored: int = 0  # metric points of kinds that are not kept (histograms)

    @property
    def rows(self) -> int:
        return len(self.samples.value) if self.samples else 0


def digest64(data: bytes) -> int:
    """Signed 64-bit content hash, the same on every machine."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def hashes(rows: Iterable[tuple]) -> NDArray[np.uint64]:
    """Content hashes (n,) of tuples of text and numbers."""
    return text_hashes([repr(row) for row in rows])


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Content hashes (n,): the same on every machine, in every process."""
    digests = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def label_set(attributes: Mapping[str, str]) -> LabelSet:
    """Canonical label set of OTLP attributes: known labels as columns, the rest as sorted pairs."""
    known: dict[str, str] = {}
    rest = []
    for name, value in attributes.items():
        label = ATTRIBUTE_LABEL.get(name)
        if label is None:
            rest.append((MAP_LABELS.get(name, name), value))
        elif label == "container":
            known[label] = value if name == "container.name" or label not in known else known[label]
        else:
            known[label] = value
    numbers = []
    for label, names in NUMBER_LABELS.items():
        text = known.get(label, "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 19):
            rest.append((names[0], text))  # "anything else under its own name": a number label that is no number
            text = ""
        numbers.append(int(text) if text else -1)
    container = known.get("container", "")
    if len(container) == 64 and all(c in "0123456789abcdef" for c in container):
        known["container"] = container[:12]
    return (*(known.get(label, "") for label in TEXT_LABELS), *numbers, tuple(sorted(rest)))
