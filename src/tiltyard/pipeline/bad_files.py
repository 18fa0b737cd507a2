"""Files that cannot be read: put into quarantine with the reason, so that one bad file does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.portions import FilePortion
from tiltyard.pipeline.source_files import FoundFile, check_unchanged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA: Final = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("pipeline", pa.string()),
        pa.field("source", pa.string()),
        pa.field("file", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
"""Columns of a table of bad files."""

Read = Callable[[FilePortion], "tuple[DataFrame, int]"]
"""Reads all rows of some files, and counts them; fails with ``InvalidInput`` where it cannot."""


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The rows of a portion.

    Attributes:
        frame: the rows.
        rows: how many.
        bad: why each of the other files could not be read.
    """

    frame: DataFrame
    rows: int
    bad: Mapping[FoundFile, str] = field(default_factory=dict)


def read_good(portion: FilePortion, read: Read) -> ReadFiles:
    """Reads the files of a portion that can be read. Where all of them can, none is looked at by itself.

    Raises:
        InvalidInput: each of some files can be read, but not all of them together; or the source has no quarantine.
        RetryableConflict: a file was changed while it was read: that is no fault of the file.
    """
    try:
        return ReadFiles(*read(portion))
    except InvalidInput:
        if portion.source.quarantine is None:
            raise
        check_unchanged(portion.source, portion.files)
    bad: dict[FoundFile, str] = {}
    for file in portion.files:
        try:
            read(only(portion, (file,)))
        except InvalidInput as error:
            bad[file] = str(error)[:500]
    check_unchanged(portion.source, portion.files)
    good = tuple(file for file in portion.files if file not in bad)
    return ReadFiles(*read(only(portion, good)), bad)


def only(portion: FilePortion, files: tuple[FoundFile, ...]) -> FilePortion:
    return replace(portion, found=replace(portion.found, new=files))


def bad_rows(bad: Mapping[FoundFile, str], pipeline: str, source: str, run: str, at: datetime) -> pa.Table:
    """Bad files as their table has them."""
    rows = [
        {"run": run, "at": at, "pipeline": pipeline, "source": source, "file": file.item, "bytes": file.size, "reason": reason}
        for file, reason in bad.items()
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
