"""CSV files with a header: columns go by the names in it, whatever their order. Spark's own reader goes by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.source_files import FoundFile
from tiltyard.pipeline.spec import FileSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.types import StructType

_PLAIN: Final = frozenset({"", ".csv", ".tsv", ".txt"})
"""How names end of files that no codec was at."""

_OWN_LINES: Final = frozenset({"charset", "comment", "encoding", "linesep", "multiline"})
"""Options with which a header may be something else than the first line that is not blank."""

_CORRUPT: Final = "_corrupt_record"
"""The column for what cannot be read, where nobody says otherwise."""

Reader = Callable[[], "DataFrameReader"]


def read_by_header(source: FileSource, files: Sequence[FoundFile], reader: Reader, finish: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """The rows of CSV files with headers, under the columns of the source.

    Args:
        source: whose files they are, with the schema if it has one.
        files: all of them.
        reader: makes a reader with the options of the source.
        finish: what is done to the rows of some files while it is known which file they are of.

    Raises:
        InvalidInput: a header lacks a column, or has one that the others, or the schema, do not have. It names the file and the column.
    """
    groups = _by_header(source, files, reader)
    if not groups:  # blank files: no header, and no rows
        ready = reader() if source.schema is None else reader().schema(source.schema)
        return finish(ready.load([found.address for found in files]))
    wanted = _wanted(source, next(iter(groups)))
    frames = [finish(_read(source, group, header, wanted, reader)) for header, group in groups.items()]
    whole = frames[0]
    for frame in frames[1:]:
        _check_types(source, whole.schema, frame.schema)
        whole = whole.unionByName(frame)
    return whole


def _by_header(source: FileSource, files: Sequence[FoundFile], reader: Reader) -> dict[tuple[str, ...], list[FoundFile]]:
    """The files of each header, as Spark reads it: blank files have none."""
    found: dict[tuple[str, ...], list[FoundFile]] = {}
    own_lines = any(name.lower() in _OWN_LINES for name in source.options)
    for group in _alike(files, own_lines=own_lines):
        header = tuple(reader().option("inferSchema", "false").load(group[0].address).columns)
        if header:
            found.setdefault(header, []).extend(group)
    return found


def columns_of(source: FileSource, files: Sequence[FoundFile], reader: Reader) -> list[tuple[tuple[str, ...], list[FoundFile]]]:
    """Files by the columns they have; in Parquet files these have types, which must agree, too."""
    if source.format == "csv":
        return list(_by_header(source, files, reader).items())
    found: dict[str, tuple[tuple[str, ...], list[FoundFile]]] = {}
    for file in files:
        frame = reader().load(file.address)
        found.setdefault(frame.schema.json(), (tuple(frame.columns), []))[1].append(file)
    return list(found.values())


def _alike(files: Iterable[FoundFile], *, own_lines: bool) -> Iterable[list[FoundFile]]:
    """Files that must have the same header, because they begin with the same line; asking Spark once for them is enough."""
    groups: dict[bytes | str, list[FoundFile]] = {}
    for found in files:
        if own_lines or found.path.suffix.lower() not in _PLAIN:
            groups[found.item] = [found]
            continue
        with found.path.open("rb") as stream:
            first = next((line for line in stream if line.strip()), b"")
        groups.setdefault(first.rstrip(b"\r\n"), []).append(found)
    return groups.values()


def _wanted(source: FileSource, first: Sequence[str]) -> StructType:
    """The schema of the source; without one, the columns of the first file as text."""
    from pyspark.sql.types import StringType, StructField, StructType

    if source.schema is None:
        return StructType([StructField(name, StringType()) for name in first])
    found = StructType.fromDDL(source.schema)
    if not isinstance(found, StructType):
        key = f"sources.{source.name}.schema"
        raise InvalidInput(f"{key} is {source.schema!r}, and must be columns.", argument=key, advice="Say schema = 'column TYPE, ...'.")
    return found


def _read(source: FileSource, group: list[FoundFile], header: Sequence[str], wanted: StructType, reader: Reader) -> DataFrame:
    """The rows of files of one header, in the order of the wanted columns."""
    from pyspark.sql.types import StructType

    corrupt = next((value for name, value in source.options.items() if name.lower() == "columnnameofcorruptrecord"), _CORRUPT)
    fields = {field.name.lower(): field for field in wanted if field.name != corrupt}
    _check_names(source, group[0], header, fields)
    paths = [found.address for found in group]
    if source.schema is None:
        return reader().load(paths)
    extra = [field for field in wanted if field.name == corrupt]
    frame = reader().schema(StructType([*(fields[name.lower()] for name in header), *extra])).load(paths)
    return frame.select(*(frame[f"`{name.replace('`', '``')}`"] for name in wanted.names))


def _check_names(source: FileSource, file: FoundFile, header: Sequence[str], fields: dict[str, Any]) -> None:
    given = [name.lower() for name in header]
    if unknown := [name for name in header if name.lower() not in fields]:
        raise _refused(source, file, f"has the column {unknown[0]!r} in its header, which {_others(source)} not")
    if lacking := [field.name for name, field in fields.items() if name not in given]:
        raise _refused(source, file, f"lacks the column {lacking[0]!r} in its header, which {_others(source)}")
    if len(set(given)) < len(given):
        raise _refused(source, file, "names a column twice in its header")


def _others(source: FileSource) -> str:
    return "other files have" if source.schema is None else "the schema has"


def _refused(source: FileSource, file: FoundFile, what: str) -> InvalidInput:
    return InvalidInput(
        f"sources.{source.name}: {file.item} {what}. Nothing was consumed.", argument=f"sources.{source.name}.schema",
        advice="Correct the file, or give it a source of its own.",
    )  # fmt: skip


def _check_types(source: FileSource, one: StructType, other: StructType) -> None:
    """Types that were found out file by file must agree, or rows would change with the files that come together."""
    types = {field.name.lower(): field.dataType for field in one}
    for field in other:
        if types[field.name.lower()] != field.dataType:
            raise InvalidInput(
                f"sources.{source.name}: column {field.name!r} looks like {types[field.name.lower()].simpleString()} in some files and"
                f" {field.dataType.simpleString()} in others. Nothing was consumed.",
                argument=f"sources.{source.name}.schema", advice="Say schema = 'column TYPE, ...'.",
            )  # fmt: skip
