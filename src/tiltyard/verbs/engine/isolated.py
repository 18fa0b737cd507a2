"""Reads tables that others made in a child process with a memory limit.

pylance decodes data and index files in our process, and some bytes make it abort or ask for more memory than there is. Manifests and
deletion files are decoded by us, and stay here. Of a child that dies, runs out of memory or falls silent the caller gets a typed error.
"""

from __future__ import annotations

import builtins
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, StorageError, UnsupportedFeature
from tiltyard.format.manifest import DETACHED
from tiltyard.format.schema import arrow_from_fields
from tiltyard.verbs.engine.isolated_child import FRAME

if TYPE_CHECKING:
    from tiltyard.verbs.engine.access import TableAccess

_CHILD: Final = Path(__file__).with_name("isolated_child.py")
_MOST_SAID: Final = 200
_STOPPING: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of the child process that reads a table with ``isolate``.

    Attributes:
        memory: bytes it may take beyond what loading pylance takes; None for no limit.
        seconds: how long it may be silent: until it is ready, and between two batches of rows.
    """

    memory: int | None = 4 * 1024**3
    seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.memory is not None and (not isinstance(self.memory, int) or isinstance(self.memory, bool) or self.memory < 1):
            raise InvalidInput("memory must be a number of bytes, at least 1, or None.", argument="isolate")
        if not isinstance(self.seconds, int | float) or not self.seconds > 0:
            raise InvalidInput("seconds is a number above 0.", argument="isolate")


def read_limits(isolate: bool | ReadLimits) -> ReadLimits | None:
    """The limits that a caller asks for; None for reading in this process."""
    if isinstance(isolate, ReadLimits):
        return isolate
    if not isinstance(isolate, bool):
        raise InvalidInput(f"isolate is True, False or ReadLimits, not {type(isolate).__name__}.", argument="isolate")
    return ReadLimits() if isolate else None


class _Child:
    """One child, from its start to its certain end."""

    def __init__(self, access: TableAccess, limits: ReadLimits, request: Mapping[str, Any]) -> None:
        self._access = access
        self._limits = limits
        self._silent = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by end
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us, who then end it
        )
        try:
            data = pickle.dumps({**request, "memory": limits.memory})
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # it died: reading tells
                self._process.stdin.write(FRAME.pack(b"q", len(data)) + data)
                self._process.stdin.flush()
        except BaseException:
            self.end()
            raise

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """What it sends, up to the result or error.

        Raises:
            CorruptTable: it died, or sent what it should not.
            StorageError: it was silent for too long.
        """
        while True:
            timer = threading.Timer(self._limits.seconds, self._fall_silent)
            timer.daemon = True
            timer.start()
            try:
                frame = self._next()
            finally:
                timer.cancel()
            if frame is None:
                raise self._death()
            yield frame
            if frame[0] != b"b":
                return

    def _next(self) -> tuple[bytes, bytes] | None:
        out = self._process.stdout
        assert out is not None
        head = _exactly(out, FRAME.size)
        if head is None:
            return None
        kind, length = FRAME.unpack(head)
        if kind not in (b"b", b"r", b"e") or (self._limits.memory is not None and length > self._limits.memory):
            raise CorruptTable(self._what(), "the process that read it sent no rows")
        data = _exactly(out, length)
        return None if data is None else (kind, data)

    def _fall_silent(self) -> None:
        self._silent = True
        self._process.kill()

    def _what(self) -> str:
        return f"a data or index file of {self._access.store.uri}"

    def _death(self) -> CorruptTable | StorageError:
        self._process.wait()
        if self._silent:
            return StorageError(
                f"Reading {self._access.store.uri} in a child process took longer than {self._limits.seconds:g} s without a row.",
                advice="Give ReadLimits more seconds; if that does not help, check the table's files.",
            )
        self._said.seek(0)
        said = " ".join(self._said.read()[-4000:].decode(errors="replace").split())
        at = said.find("memory allocation of")
        why = said[at : at + _MOST_SAID] if at >= 0 else said[-_MOST_SAID:]
        status = self._process.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        reason = f"the process that read it ended with {how}" + (f": {why}" if at >= 0 or why.startswith("thread") else "")
        return CorruptTable(
            self._what(),
            reason.rstrip("."),
            advice="Restore the file from a copy; if the table has no damage, give ReadLimits more memory.",
        )

    def end(self) -> None:
        """Leaves no process behind, whatever it was doing."""
        try:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait(_STOPPING)
        finally:
            for stream in (self._process.stdin, self._process.stdout, self._said):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()


def _exactly(source: IO[bytes], count: int) -> bytes | None:
    """So many bytes; None if there are fewer."""
    parts: list[bytes] = []
    while count:
        data = source.read(min(count, 1 << 24))
        if not data:
            return None
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def _raised(told: Mapping[str, Any], access: TableAccess) -> BaseException:
    """The error that pylance raised in the child, as it would have been here."""
    text = str(told.get("text", ""))
    if told.get("class") == "PanicException" or told.get("builtin") == "MemoryError":
        shown = "it does not fit into the memory that was given" if told.get("builtin") == "MemoryError" else " ".join(text.split())[:200]
        return CorruptTable(f"a data or index file of {access.store.uri}", shown.rstrip("."))
    kind = getattr(builtins, str(told.get("builtin")), RuntimeError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError(text)


def _rows(data: bytes) -> pa.Table:
    found = pa.ipc.open_stream(data).read_all()
    found.validate()
    return found


class IsolatedDataset:
    """Stands for pylance's dataset where rows are read in a child; each call has a child of its own."""

    def __init__(self, access: TableAccess, version: int, limits: ReadLimits) -> None:
        self._access = access
        self._limits = limits
        self._base: dict[str, Any] = {"uri": access.lance_uri, "version": version, "options": access.lance_options()}

    @property
    def version(self) -> int:
        return int(self._base["version"])

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the manifest, which is read here and not by pylance."""
        if self.version >= DETACHED:
            return self.to_table(limit=1).schema
        manifest = self._access.load(self.version, self._access.head()[1], lazily=True).manifest
        return arrow_from_fields(manifest.fields, manifest.schema_metadata)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedFeature(
            f"A handle opened with isolate cannot do this ({name.strip('_')}).",
            feature="isolate",
            advice="Open the table without isolate, if you trust it.",
        )

    @contextmanager
    def _running(self, do: str, **arguments: Any) -> Iterator[_Child]:
        child = _Child(self._access, self._limits, {**self._base, "do": do, "arguments": arguments})
        try:
            yield child
        finally:
            child.end()

    def _tables(self, do: str, **arguments: Any) -> Iterator[pa.Table]:
        """The rows that it sends, a batch at a time; first an empty one that tells the columns."""
        with self._running(do, **arguments) as child:
            for kind, data in child.frames():
                if kind == b"b":
                    yield _rows(data)
                elif kind == b"e":
                    raise _raised(json.loads(data), self._access)

    def _result(self, do: str, **arguments: Any) -> Any:
        with self._running(do, **arguments) as child:
            for kind, data in child.frames():
                if kind == b"e":
                    raise _raised(json.loads(data), self._access)
                if kind == b"r":
                    return json.loads(data)
        return None

    def count_rows(self, filter: str | None = None) -> int:
        return int(self._result("count", filter=filter))

    def validate(self) -> None:
        self._result("validate")

    def get_fragment(self, number: int) -> int:
        return number

    def scanner(self, **scan: Any) -> IsolatedScanner:
        return IsolatedScanner(self, scan)

    def to_table(self, **scan: Any) -> pa.Table:
        return self.scanner(**scan).to_table()

    def take(self, rows: Sequence[int], columns: Any = None) -> pa.Table:
        return self._bounded(self._tables("take", rows=list(rows), columns=columns))

    def _take_rows(self, rows: pa.Array, columns: Any = None) -> pa.Table:
        return self._bounded(self._tables("take_rows", rows=pa.array(rows).to_pylist(), columns=columns))

    def _bounded(self, tables: Iterable[pa.Table]) -> pa.Table:
        """All of it, in this process: as much as the child may take, and no more."""
        kept: list[pa.Table] = []
        size = 0
        for table in tables:
            size += table.nbytes
            if self._limits.memory is not None and size > self._limits.memory:
                raise InvalidInput(
                    f"The rows take more than the {self._limits.memory} bytes that isolate allows.",
                    argument="isolate",
                    advice="Use scan, choose columns or rows, or give ReadLimits more memory.",
                )
            kept.append(table)
        return pa.concat_tables(kept)


@dataclass(frozen=True, slots=True)
class IsolatedScanner:
    """One scan in a child."""

    _dataset: IsolatedDataset
    _scan: Mapping[str, Any]

    def to_table(self) -> pa.Table:
        return self._dataset._bounded(self._dataset._tables("scan", **self._scan))

    def to_reader(self) -> pa.RecordBatchReader:
        tables = self._dataset._tables("scan", **self._scan)
        first = next(tables)
        return pa.RecordBatchReader.from_batches(first.schema, _batches(tables))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return _batches(self._dataset._tables("scan", **self._scan))


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches()
