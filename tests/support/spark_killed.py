"""The data source as it is, but a process of Spark's dies, by SIGKILL, at a point that is named before; once.

``KilledSource`` has options of its own: ``kill_at``, a point; ``kill_note``, a file that is there once somebody has died; ``kill_also``, a
process that dies too: the JVM, for a driver that is gone altogether. ``killed_by_name`` takes the real source's place, for streams into
tables of a catalog: there the driver commits, which ``die_in_driver`` is for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.source_options import Options
from tiltyard.spark.stream.stream_writing import TiltyardStreamWriter
from tiltyard.spark.write.writing import TiltyardWriter
from tiltyard.storage.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

IN_TASKS: Final = ("task begins", "half of the rows", "files written, not synced", "task done, not told")
IN_COMMIT: Final = (
    "commit begins", "before the transaction file", "after the transaction file", "before the version", "after the version",
    "commit done, not told",
)  # fmt: skip
POINTS: Final = (*IN_TASKS, *IN_COMMIT)
IN_DECISION: Final = ("before the decision", "after the decision")
"""Of a lake's catalog; a table without one has none."""
_OWN: Final = ("kill_at", "kill_note", "kill_also")


class Death:
    """Comes at one point, to whoever gets there first."""

    def __init__(self, point: str | None, note: str | None, also: str | None = None) -> None:
        self.point = point
        self.note = note
        self.also = int(also) if also else None

    @classmethod
    def among(cls, options: Options) -> Death:
        return cls(*map(options.text, _OWN))

    def at(self, point: str) -> None:
        if point != self.point or self.note is None:
            return
        try:
            os.close(os.open(self.note, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        Path(self.note).write_text(point)
        if self.also is not None:
            os.kill(self.also, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def half_way(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = max(batch.num_rows // 2, 1)
            yield batch.slice(0, half)
            self.at("half of the rows")
            yield batch.slice(half)

    def watch_store(self) -> None:
        """From now on the writes of this process are points too."""
        if self.point is None:
            return
        _around(LocalStore, "sync", lambda *_: self.at("files written, not synced"), None)
        for put in ("put", "put_unsynced"):  # the second where it is flushed together with other files
            _around(
                LocalStore,
                put,
                self._about("_transactions/", "before the transaction file"),
                self._about("_transactions/", "after the transaction file"),
            )
        _around(
            LocalStore, "put_if_absent", self._about("_versions/", "before the version"), self._about("_versions/", "after the version")
        )
        _around(SqlRecords, "transact", self._of_a_tip("before the decision"), self._of_a_tip("after the decision"))

    def _about(self, prefix: str, point: str) -> Callable[..., None]:
        return lambda _, path, *__: self.at(point) if str(path).startswith(prefix) else None

    def _of_a_tip(self, point: str) -> Callable[..., None]:
        return lambda _, exclusive, *__: self.at(point) if any(key.startswith("tip/") for key in exclusive) else None


def _around(owner: type, name: str, before: Callable[..., None] | None, after: Callable[..., None] | None) -> None:
    inner = getattr(owner, name)
    inner = getattr(inner, "watched", inner)  # a worker may be used for several tasks

    def method(self: Any, *args: Any) -> Any:
        if before is not None:
            before(self, *args)
        found = inner(self, *args)
        if after is not None:
            after(self, *args)
        return found

    method.watched = inner  # type: ignore[attr-defined]
    setattr(owner, name, method)


class KilledWriter(TiltyardWriter):
    def __init__(self, options: Options, schema: StructType, overwrite: bool, death: Death) -> None:
        super().__init__(options, schema, overwrite)
        self.death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        self.death.at("task begins")
        self.death.watch_store()
        done = super().write(self.death.half_way(iterator))
        self.death.at("task done, not told")
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.death.at("commit begins")
        self.death.watch_store()
        super().commit(messages)
        self.death.at("commit done, not told")


class KilledStreamWriter(TiltyardStreamWriter):
    def __init__(self, options: Options, schema: StructType, overwrite: bool, death: Death) -> None:
        super().__init__(options, schema, overwrite)
        self.death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        self.death.at("task begins")
        self.death.watch_store()
        done = super().write(self.death.half_way(iterator))
        self.death.at("task done, not told")
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.death.at("commit begins")
        self.death.watch_store()
        super().commit(messages, batchId)
        self.death.at("commit done, not told")


class KilledSource(TiltyardSource):
    """Registered beside the real one."""

    @classmethod
    def name(cls) -> str:
        return "tiltyard_killed"

    def _given(self) -> Options:
        return Options({name: value for name, value in dict(self.options).items() if name.lower() not in _OWN})

    def _death(self) -> Death:
        return Death.among(Options(dict(self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return KilledWriter(self._given(), schema, overwrite, self._death())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return KilledStreamWriter(self._given(), schema, overwrite, self._death())


def killed_by_name(death: Death) -> type[TiltyardSource]:
    """A source to be registered in the real one's place. Workers get it by value, what is said of the death with it."""

    class Killed(TiltyardSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return KilledStreamWriter(self._given(), schema, overwrite, death)

    return Killed


def die_in_driver(death: Death) -> None:
    """From now on the commits of streams by name are points of this process."""

    def begins(*_: object) -> None:
        death.at("commit begins")
        death.watch_store()

    _around(TiltyardStreamWriter, "commit", begins, lambda *_: death.at("commit done, not told"))
