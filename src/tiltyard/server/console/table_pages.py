"""The pages about tables: the list, and one table at a snapshot: rows, schema, versions, differences, indices and fragments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.catalog.lake_values import TableHead
from tiltyard.errors import CorruptTable, NotFound, TiltyardError
from tiltyard.lakes.lake_tables import LakeReader
from tiltyard.merges import RowDifference, TableDifference
from tiltyard.redact import redact_options
from tiltyard.server.console.lake_viewer import HistoryFilter, LakeViewer, table_of, versions_rebased_over
from tiltyard.server.console.page_values import LONGEST_CELL, ConsolePage, PageRequest, cell, page_of, said
from tiltyard.verbs.indices.index_list import IndexInfo

PAGE_ROWS: Final = 50
PAGE_COLUMNS: Final = 30
PAGE_FIELDS: Final = 200
PAGE_TABLES: Final = 200
PAGE_VERSIONS: Final = 50
PAGE_FRAGMENTS: Final = 100
_BATCH: Final = 5
"""Rows that are read at once: cells may be large, and of each only the beginning is kept."""
VIEWS: Final = ("rows", "schema", "versions", "diff", "indices", "fragments")


@dataclass(frozen=True, slots=True)
class TableLine:
    """A table in the list."""

    name: str
    version: int
    changed: int
    quarantine: str


@dataclass(frozen=True, slots=True)
class TablesView:
    """Tables, a page of them."""

    tables: tuple[TableLine, ...]
    total: int
    begin: int
    wanted: str
    tip: int


def tables_page(asked: PageRequest) -> ConsolePage:
    """All tables that the role shows."""
    viewer, begin, wanted = asked.viewer, asked.number("from", 0), asked.text("name")
    tip = viewer.tip()
    heads = {name: head for name, head in viewer.heads().items() if wanted.lower() in name.lower()}
    lines = tuple(_line(name, head) for name, head in list(heads.items())[begin : begin + PAGE_TABLES])
    return page_of(asked, "tables.html", "Tables", "tables", TablesView(lines, len(heads), begin, wanted, tip), live=tip)


def _line(name: str, head: TableHead) -> TableLine:
    return TableLine(name, head.version, head.changed, head.quarantine)


# ---- one table ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowsView:
    """Some rows and some columns of a table, as text."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    begin: int
    total: int
    first_column: int
    all_columns: int
    numeric: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class FieldLine:
    """A column of the schema."""

    name: str
    type: str
    nullable: bool
    key: bool
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SchemaView:
    """Columns, a page of them, and settings."""

    fields: tuple[FieldLine, ...]
    begin: int
    total: int
    config: tuple[tuple[str, str], ...]
    format: str
    features: str


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A version of the table, and the snapshot that made it."""

    version: int
    snapshot: int
    at: datetime
    author: str
    message: str
    operations: tuple[str, ...]
    kind: str
    rebased: int


@dataclass(frozen=True, slots=True)
class VersionsView:
    """Versions, latest first, a page of them."""

    versions: tuple[VersionLine, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class DiffView:
    """How two snapshots of a table differ.

    Attributes:
        before, after: the snapshots; None until they are chosen.
        choices: snapshots that can be compared, latest first.
        difference: numbers of rows, and whether anything differs; None where nothing does.
        defined: columns and settings that differ: what, before, after. Some of them, where there are many.
        more_defined: how many are left out.
        columns: of the rows that are shown.
        rows: kind and values of each; a changed value has what it was beside what it is.
        begin, next: for paging.
    """

    before: int | None
    after: int | None
    choices: tuple[VersionLine, ...]
    difference: TableDifference | None
    defined: tuple[tuple[str, str, str], ...] = ()
    more_defined: int = 0
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = ()
    begin: int = 0
    next: int | None = None


@dataclass(frozen=True, slots=True)
class FragmentLine:
    """A fragment."""

    id: int
    rows: int
    deleted: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FragmentsView:
    """Fragments, a page of them."""

    fragments: tuple[FragmentLine, ...]
    begin: int
    total: int
    rows: int
    deleted: int
    bytes: int


TablePart: TypeAlias = "RowsView | SchemaView | VersionsView | DiffView | tuple[IndexInfo, ...] | FragmentsView"


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at a snapshot, and one of its views."""

    name: str
    version: int
    snapshot: int
    latest: int
    rows: int
    columns: int
    key: tuple[str, ...]
    quarantine: str
    view: str
    views: tuple[str, ...]
    part: TablePart


def table_page(asked: PageRequest) -> ConsolePage:
    """One table."""
    viewer, name = asked.viewer, asked.viewer.check_table(asked.path["table"])
    view = asked.text("view") or VIEWS[0]
    if view not in VIEWS:
        raise NotFound(f"There is no view {view[:40]!r} of a table.", name=view[:40])
    at, tip = asked.optional_number("at"), viewer.tip()
    shot = viewer.snapshot(at)
    head = shot.cut.find(name.replace(".", "$"))
    try:
        reader = shot.table(name)
    except CorruptTable:
        if head is None or not head.quarantine:
            raise
        shot = viewer.snapshot(head.changed - 1)  # what was before can still be read
        reader = shot.table(name)
    made = TableView(
        name,
        reader.version,
        shot.id,
        tip,
        reader.count_rows(),
        len(reader.schema),
        reader.primary_key,
        head.quarantine if head else "",
        view,
        VIEWS,
        _PARTS[view](asked, reader, name),
    )
    return page_of(asked, "table.html", name, "tables", made, live=tip if at is None and view in ("rows", "versions") else None)


def _rows(asked: PageRequest, reader: LakeReader, name: str) -> RowsView:
    schema = reader.schema
    first = asked.number("column", 0, most=max(len(schema) - 1, 0))
    begin = asked.number("from", 0)
    fields = [schema.field(number) for number in range(first, min(first + PAGE_COLUMNS, len(schema)))]
    rows: list[tuple[str, ...]] = []
    total = reader.count_rows()
    if fields and begin < total:
        found = reader.scan([field.name for field in fields], limit=PAGE_ROWS, offset=begin, options={"batch_size": _BATCH})
        for batch in found:
            rows += zip(*(texts_of(column) for column in batch.columns), strict=True)
    numeric = tuple(pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in fields)
    names = tuple((said(field.name, 60), said(str(field.type), 60)) for field in fields)
    return RowsView(names, tuple(rows), begin, total, first, len(schema), numeric)


def texts_of(column: pa.Array) -> list[str]:
    """The values of a column as texts. Of long ones only the beginning becomes an object of Python."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = pc.utf8_slice_codeunits(column, 0, LONGEST_CELL + 1)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        column = pc.binary_slice(column, 0, LONGEST_CELL + 1)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        column = pc.list_slice(column, 0, 21)
    return [cell(_value(column, number)) for number in range(len(column))]


def _value(column: pa.Array, number: int) -> Any:
    try:
        return column[number].as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return f"({column.type})"  # a moment beyond what Python has, for example


def _schema(asked: PageRequest, reader: LakeReader, name: str) -> SchemaView:
    schema, begin = reader.schema, asked.number("from", 0)
    lines = tuple(
        FieldLine(said(field.name), said(str(field.type), 200), field.nullable, field.name in reader.primary_key, _metadata(field.metadata))
        for field in (schema.field(number) for number in range(begin, min(begin + PAGE_FIELDS, len(schema))))
    )
    config = tuple((said(key), said(value)) for key, value in sorted(redact_options(reader.settings.config).items()))
    return SchemaView(lines, begin, len(schema), config, reader.layout.data_format, reader.layout.features)


def _metadata(found: Mapping[bytes, bytes] | None) -> tuple[tuple[str, str], ...]:
    plain = redact_options({key.decode(errors="replace"): value.decode(errors="replace") for key, value in (found or {}).items()})
    return tuple((said(key, 80), said(value, 80)) for key, value in plain.items())


def versions_of(viewer: LakeViewer, name: str, limit: int, before: int | None = None) -> VersionsView:
    """Versions of a table, as the history of the lake has them."""
    page = viewer.history(limit, before, HistoryFilter(table=name))
    lines = []
    for snapshot in page.snapshots:
        for change in snapshot.changes:
            if table_of(change) == name and (change.steps or change.kind != "write"):
                done = tuple(dict.fromkeys(change.operations))
                rebased, message = len(versions_rebased_over(change)), said(snapshot.message, 120)
                authors = ", ".join(snapshot.authors)
                line = VersionLine(change.version, snapshot.id, snapshot.at, authors, message, done, change.kind, rebased)
                lines.append(line)
    return VersionsView(tuple(lines), page.next)


def _versions(asked: PageRequest, reader: LakeReader, name: str) -> VersionsView:
    return versions_of(asked.viewer, name, PAGE_VERSIONS, asked.optional_number("before"))


def _diff(asked: PageRequest, reader: LakeReader, name: str) -> DiffView:
    choices = versions_of(asked.viewer, name, PAGE_VERSIONS).versions
    before, after = asked.optional_number("first"), asked.optional_number("second")
    if before is None or after is None:
        latest = choices[0].snapshot if choices else None
        return DiffView(choices[1].snapshot if len(choices) > 1 else latest, latest, choices, None)
    begin = asked.number("from", 0)
    found = asked.viewer.lake.diff(before, after)
    difference = found.table(name)
    if difference is not None and difference.former != asked.viewer.former(difference.former):
        raise NotFound(f"There is no table {name!r} at snapshot {before}.", name=name)
    page = found.rows(name, limit=PAGE_ROWS, after=begin)
    columns = tuple(dict.fromkeys(key for row in page.rows for side in (row.before, row.after) if side for key in side))[:PAGE_COLUMNS]
    rows = tuple((row.change, _sides(row, columns)) for row in page.rows)
    defined = _defined(difference)
    more = len(defined) - PAGE_FIELDS
    return DiffView(before, after, choices, difference, tuple(defined[:PAGE_FIELDS]), max(more, 0), columns, rows, begin, page.next)


def _defined(found: TableDifference | None) -> list[tuple[str, str, str]]:
    """Columns and settings that differ, as texts without credentials."""
    if found is None:
        return []
    settings = [redact_options({name: pair[side] or "not set" for name, pair in found.settings.items()}) for side in (0, 1)]
    columns = [(f"column {said(name, 80)}", pair[0] or "not there", pair[1] or "not there") for name, pair in found.columns.items()]
    return [
        *((name, said(was, 120), said(now, 120)) for name, was, now in columns),
        *((said(name, 80), said(was, 120), said(settings[1][name], 120)) for name, was in settings[0].items()),
    ]


def _sides(row: RowDifference, columns: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Each value as it is, and beside it what it was, where that differs."""
    now, was = row.after or row.before or {}, row.before if row.change == "changed" else None
    return tuple(
        (cell(now.get(column)), cell(was.get(column)) if was is not None and was.get(column) != now.get(column) else None)
        for column in columns
    )


def _indices(asked: PageRequest, reader: LakeReader, name: str) -> tuple[IndexInfo, ...]:
    try:
        return reader.indices.list()
    except TiltyardError:
        return ()


def _fragments(asked: PageRequest, reader: LakeReader, name: str) -> FragmentsView:
    fragments, begin = reader.layout.fragments, asked.number("from", 0)
    lines = [
        FragmentLine(
            fragment.id,
            fragment.live_rows,
            fragment.physical_rows - fragment.live_rows,
            len(fragment.files),
            sum(file.size for file in fragment.files),
        )
        for fragment in fragments
    ]
    shown = tuple(lines[begin : begin + PAGE_FRAGMENTS])
    return FragmentsView(
        shown, begin, len(lines), sum(line.rows for line in lines), sum(line.deleted for line in lines), sum(line.bytes for line in lines)
    )


_PARTS: Final[Mapping[str, Callable[[PageRequest, LakeReader, str], TablePart]]] = {
    "rows": _rows,
    "schema": _schema,
    "versions": _versions,
    "diff": _diff,
    "indices": _indices,
    "fragments": _fragments,
}
"""What each view reads."""
