# SPDX-License-Identifier: Apache-2.0
"""The store's errors. The store imports nothing of the agent, so it has a tree of its own.

StoreError            the store cannot run here: exit status 3, one sentence and a fix
QueryError            a question that cannot be answered: an HTTP status, a code and a hint
├── TooLarge (413)    the hint proposes a narrower range
├── TimeLimit (504)
└── Unavailable (503)
Refused               a request of a sender that is not taken: reason is the label it is counted under
├── Invalid           its content is wrong; sending it again is no use
├── Oversized
├── DiskFull          send it again later
└── Stopping          send it again
"""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot start or go on in this environment. `fix` says what to do."""

    exit_code = 3

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n{self.fix}" if self.fix else self.message


class QueryError(Exception):
    status = 400

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class TooLarge(QueryError):
    status = 413

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("too_large", message, hint)


class TimeLimit(QueryError):
    status = 504

    def __init__(self, seconds: float) -> None:
        super().__init__("time_limit", f"the query took longer than {seconds:g} s", "choose a shorter range")


class Unavailable(QueryError):
    status = 503


class Refused(Exception):
    """A request that is not stored. `reason` comes from REFUSALS."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Invalid(Refused):
    pass


class Oversized(Refused):
    pass


class DiskFull(Refused):
    pass


class Stopping(Refused):
    pass


# Every reason a request can be refused for, listed once: metric label -> what a person reads.
REFUSALS = {
    "malformed": "not a protobuf message of this service",
    "bad_index": "an index points outside its table",
    "bad_zero": "the first element of a table is not the zero element",
    "bad_time": "before 2020 or more than a day ahead",
    "bad_value": "a sample with a negative value, or with neither value nor timestamps",
    "bad_type": "a sample type without a usable name",
    "too_deep": "a stack deeper than the limit",
    "oversized": "larger than 16 MiB",
    "bad_encoding": "a content type or encoding that is not taken",
    "disk_full": "no room on the disk",
    "busy": "too many requests waiting",
    "stopping": "the store was stopping",
}
