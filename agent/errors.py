# SPDX-License-Identifier: Apache-2.0
"""The one error tree. An error is a sentence that names what is missing and what to do; the CLI turns it into an exit code.

GpustrobeError (1)
├── UsageError (2)            what was asked makes no sense
└── EnvironmentProblem (3)    this machine cannot do it as it is: no BTF, no permission, port taken, disk full
    ├── KernelProblem         eBPF, BTF, perf events
    ├── StoreProblem          store unreachable, data directory, database
    └── DeviceProblem         NVML, CUPTI
"""

from __future__ import annotations


class GpustrobeError(Exception):
    """Base of all errors that are meant for a person. `fix` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n{self.fix}" if self.fix else self.message


class UsageError(GpustrobeError):
    exit_code = 2


class EnvironmentProblem(GpustrobeError):
    exit_code = 3


class KernelProblem(EnvironmentProblem):
    pass


class StoreProblem(EnvironmentProblem):
    pass


class DeviceProblem(EnvironmentProblem):
    pass
