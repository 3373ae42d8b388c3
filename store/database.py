# SPDX-License-Identifier: Apache-2.0
"""The DuckDB file: opening it (or saying why not), cursors with time and row limits, and its size."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
from gpustrobe.store import sql
from gpustrobe.store.errors import QueryError, StoreError, TimeLimit, TooLarge, Unavailable
from gpustrobe.store.schema import MACROS, VERSION, create_statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FILE = "gpustrobe.duckdb"

SETTINGS = {
    "threads": 2,
    "memory_limit": "512MB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "preserve_insertion_order": True,
    "checkpoint_threshold": "32MB",
    "default_block_size": 65_536,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one query. Rows are what SQL may hand to Python, not what it may read."""

    seconds: float = 10.0
    rows: int = 4_000_000


def open_database(folder: Path, memory: str = "512MB", threads: int = 2) -> duckdb.DuckDBPyConnection:
    """Open or create the database in `folder`. Raises StoreError with what to do."""
    path = _prepare(folder)
    settings = {**SETTINGS, "memory_limit": memory, "threads": threads, "temp_directory": str(folder / "tmp")}
    try:
        connection = duckdb.connect(str(path), config=settings)
    except duckdb.Error as error:
        raise _why_not(path, error) from None
    try:
        _check_version(path, connection)
        for statement in create_statements():
            connection.execute(statement)
        prepare_cursor(connection)
    except duckdb.Error as error:
        connection.close()
        raise _why_not(path, error) from None
    except StoreError:
        connection.close()
        raise
    return connection


def _prepare(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"The data directory {folder} is not writable: {error.strerror}.",
            "Choose another with --data, or give the user of this process the right to write there.",
        ) from None
    return folder / FILE


def _check_version(path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "meta" not in tables:
        if tables:
            raise StoreError(
                f"{path} is a DuckDB database, but not one of gpustrobe.", "Choose another folder with --data."
            )
        connection.execute("CREATE TABLE meta (name VARCHAR, value VARCHAR)")
        connection.execute("INSERT INTO meta VALUES ('version', $version)", {"version": str(VERSION)})
        return
    found = int(connection.execute("SELECT max(value) FROM meta WHERE name = 'version'").fetchall()[0][0] or 0)
    if found > VERSION:
        raise StoreError(
            f"{path} was written by a newer gpustrobe (schema {found}, this one knows {VERSION}).",
            "Install that version or a later one, or choose another folder with --data.",
        )


def _why_not(path: Path, error: duckdb.Error) -> StoreError:
    text = str(error).splitlines()[0]
    if "lock" in text.lower():
        holder = f" ({text[text.index('held in') :].split('. ')[0].rstrip('.')})" if "held in" in text else ""
        return StoreError(
            f"Another process uses the database {path}{holder}.",
            "Stop it, or choose another folder with --data. Readers go through its HTTP API.",
        )
    if "newer version" in text or "version number" in text:
        return StoreError(
            f"{path} was written by a newer DuckDB: {text}", "Upgrade gpustrobe and duckdb, or choose another folder."
        )
    if "No space left" in text:
        return StoreError(f"No room on the disk of {path}.", "Free some space, or choose another folder with --data.")
    return StoreError(
        f"The database {path} cannot be opened: {text}",
        "Move the file away to start afresh, or restore it from a copy.",
    )


def prepare_cursor(cursor: duckdb.DuckDBPyConnection) -> None:
    for macro in MACROS:
        cursor.execute(macro)


class Reader:
    """A cursor of one reader thread inside one read transaction: every answer is of one moment."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, limits: Limits) -> None:
        self.cursor = cursor
        self.limits = limits

    def columns(self, text: str, parameters: dict[str, object] | None = None) -> dict[str, NDArray]:
        """Result columns by name. Raises TooLarge when a text with {limit:UInt64} gives more rows than allowed."""
        rendered, used = sql.render(text, {**(parameters or {}), "limit": self.limits.rows + 1})
        result = self.cursor.execute(rendered, used).fetchnumpy()
        if "limit" in used and len(next(iter(result.values()))) > self.limits.rows:
            raise TooLarge(
                f"the answer is made of more than {self.limits.rows:,} rows",
                "choose a shorter range or a narrower match",
            )
        return {name: _filled(column) for name, column in result.items()}

    def rows(self, text: str, parameters: dict[str, object] | None = None) -> list[tuple]:
        rendered, used = sql.render(text, {**(parameters or {}), "limit": self.limits.rows + 1})
        return self.cursor.execute(rendered, used).fetchall()

    def lookup(self, text: str, ids: NDArray[np.int64]) -> dict[str, NDArray]:
        """Run `text`, which joins the relation `wanted(id)`, over distinct ids."""
        wanted = {"id": np.ascontiguousarray(ids, dtype=np.int64)}  # noqa: F841 - DuckDB finds it by its name
        return {name: _filled(column) for name, column in self.cursor.execute(text).fetchnumpy().items()}


def _filled(column: NDArray) -> NDArray:
    return column.filled() if isinstance(column, np.ma.MaskedArray) and not column.mask.any() else column


class Readers:
    """Hands each thread its own cursor; interrupts what runs past its time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._local = threading.local()
        self._lock = threading.Lock()
        self._active: set[duckdb.DuckDBPyConnection] = set()
        self._stopping = False
        self.replaced = 0

    def stop(self) -> None:
        """Interrupt what runs, refuse what comes."""
        with self._lock:
            self._stopping = True
            for cursor in self._active:
                cursor.interrupt()

    def replace(self, connection: duckdb.DuckDBPyConnection) -> None:
        """The database was opened again: cursors of the old one are dropped when next used."""
        self._connection = connection
        self.replaced += 1

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        held = getattr(self._local, "held", None)
        if held is None or held[0] != self.replaced:
            cursor = self._connection.cursor()
            prepare_cursor(cursor)
            held = self._local.held = (self.replaced, cursor)
        return held[1]

    @contextmanager
    def reader(self, limits: Limits) -> Iterator[Reader]:
        """A Reader in a read transaction. Raises TimeLimit, TooLarge, Unavailable (memory) and QueryError (a bad
        regular expression)."""
        try:
            cursor = self._cursor()
            cursor.begin()
        except duckdb.Error as error:
            raise _unavailable(error) from None
        late = threading.Event()

        def stop() -> None:
            late.set()
            cursor.interrupt()

        timer = threading.Timer(limits.seconds, stop)
        timer.daemon = True
        timer.start()
        with self._lock:
            self._active.add(cursor)
        try:
            if self._stopping:
                raise Unavailable("stopping", "the store is stopping", "ask again")
            yield Reader(cursor, limits)
        except duckdb.InterruptException:
            if self._stopping:
                raise Unavailable("stopping", "the store is stopping", "ask again") from None
            raise TimeLimit(limits.seconds) from None
        except duckdb.OutOfMemoryException:
            raise TooLarge(
                "the query needs more memory than the store may use", "choose a shorter range or a narrower match"
            ) from None
        except duckdb.InvalidInputException as error:
            if late.is_set():
                raise TimeLimit(limits.seconds) from None
            raise QueryError("bad_regex", str(error).splitlines()[0], "regular expressions are RE2") from None
        except (duckdb.FatalException, duckdb.ConnectionException, duckdb.IOException) as error:
            raise _unavailable(error) from None
        finally:
            timer.cancel()
            with self._lock:
                self._active.discard(cursor)
            _end(cursor)


def _unavailable(error: duckdb.Error) -> Unavailable:
    return Unavailable(
        "unavailable", f"the database does not answer: {str(error).splitlines()[0]}", "ask again in a moment"
    )


def _end(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.rollback()
    except duckdb.Error:
        return  # an error in the transaction has ended it already


def used_bytes(cursor: duckdb.DuckDBPyConnection) -> int:
    """Bytes of the file that hold data, and of the log. Free blocks inside the file are reused and do not count."""
    row = dict(
        zip(
            ("used", "block", "wal"),
            cursor.execute("SELECT used_blocks, block_size, wal_size FROM pragma_database_size()").fetchall()[0],
            strict=True,
        )
    )
    return row["used"] * row["block"] + _size(row["wal"])


def _size(text: str) -> int:
    number, unit = text.split(" ")
    factor = {
        "bytes": 1,
        "byte": 1,
        "KiB": 1 << 10,
        "MiB": 1 << 20,
        "GiB": 1 << 30,
        "TiB": 1 << 40,
        "KB": 1000,
        "MB": 10**6,
        "GB": 10**9,
    }
    return int(float(number) * factor[unit])
