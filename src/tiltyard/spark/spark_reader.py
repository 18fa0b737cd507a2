"""One table in a Spark session, to be read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

import tiltyard as ty
from tiltyard.spark.placement import Work, same_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkReader:
    """A table in a Spark session, to be read: its rows, its history, its changes."""

    def __init__(self, session: SparkSession, table: ty.TableReader, work: Work | None = None) -> None:
        same_python(session)
        self.session = session
        self.table = table
        self.work = work or Work()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table!r})"

    @property
    def version(self) -> int:
        """The version this handle is at."""
        return self.table.version

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of this version."""
        return self.table.schema

    def refresh(self) -> Self:
        """Moves to the latest version."""
        self.table.refresh()
        return self

    def to_df(
        self,
        version: int | str | None = None,
        *,
        timestamp: datetime | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows as a data frame, pinned at one version: the latest one now, or another.

        Args:
            version: a version of the table, or a tag.
            timestamp: the version the table had then.
            options: further options of the data source, such as ``columns``.
        """
        from tiltyard.spark.read.reading_tables import data_frame

        self.table.refresh()
        return data_frame(self.session, self.table, version=version, timestamp=timestamp, options=options)

    def history(self, limit: int | None = None) -> DataFrame:
        """Who committed what, latest first, as a data frame."""
        from tiltyard.spark.read.reading_tables import history_frame

        return history_frame(self.session, self.table.refresh(), limit)

    def changes(self, since: int, until: int | None = None, *, old_values: bool = False) -> DataFrame:
        """Rows that were inserted, updated or deleted after a version; see ``Table.changes``."""
        from tiltyard.spark.read.reading_tables import changes_frame

        tasks = self.work.tasks(self.session)
        return changes_frame(self.session, self.table.refresh(), since, until, tasks, old_values=old_values)
