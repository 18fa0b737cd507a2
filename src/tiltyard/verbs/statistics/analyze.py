"""Reads columns without statistics, and says what is known of a table's.

Nothing is committed: statistics belong to data files, and are as true of any other version that has these. Every row of a file counts, also
those that are deleted in this version, since another version may have them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.statistics import ColumnStatistics, FileStatistics
from tiltyard.format.values import DataFragment, Field
from tiltyard.verbs.columns.column_files import quoted
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import ROW_ID, dataset_at
from tiltyard.verbs.statistics.distinct import estimate
from tiltyard.verbs.statistics.gather_statistics import Counted, RunningStatistics, bounded, is_long
from tiltyard.verbs.statistics.lookup import FragmentStatistics, column_file, countable, fragment_statistics, records_of
from tiltyard.verbs.statistics.statistics_records import join_records, write_record

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many of how many fragments were looked at."""

_BATCH: Final = 1 << 16
_EPOCH: Final = date(1970, 1, 1)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """What is known of one column of a version.

    Attributes:
        name: the column.
        nulls: how many rows have no value, at most; None where it is not known of every fragment.
        least: no value is below it; None where that is not known, or there is none.
        greatest: no value is above it.
        exact: whether ``nulls``, ``least`` and ``greatest`` are those of this version's rows, not only bounds.
        distinct: about how many distinct values there are; None where they were not counted.
        fragments: how many fragments are known of.
    """

    name: str
    nulls: int | None
    least: Any
    greatest: Any
    exact: bool
    distinct: int | None
    fragments: int


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """What is known of a version's columns, from statistics of its data files.

    Attributes:
        uri: the table.
        version: the version.
        rows: live rows.
        fragments: how many fragments there are.
        analyzed: how many of them were read for this.
        columns: by name; columns without an order that all readers share, such as nested ones, are not among them.
    """

    uri: str
    version: int
    rows: int
    fragments: int
    analyzed: int
    columns: Mapping[str, ColumnSummary]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        shown = {
            name: {**asdict(column), "least": _text(column.least), "greatest": _text(column.greatest)}
            for name, column in self.columns.items()
        }
        return {**{name: getattr(self, name) for name in ("uri", "version", "rows", "fragments", "analyzed")}, "columns": shown}


def analyze_table(
    access: TableAccess, manifest: Manifest, columns: Sequence[str] | None = None, progress: Progress | None = None
) -> TableStatistics:
    """Reads the columns that are not fully known yet, keeps what it finds, and says what is known.

    Args:
        access: the table.
        manifest: the version.
        columns: which; all that statistics are kept of without.
        progress: is told how far it is.
    """
    fields = _chosen(manifest, columns)
    known = {fragment.id: fragment for fragment in fragment_statistics(access, manifest, fields)}
    missing = [(fragment, wanted) for fragment in manifest.fragments if (wanted := _missing(fragment, fields, known[fragment.id]))]
    found: dict[str, FileStatistics] = {}
    for done, files in enumerate(_read(access, manifest, missing, distinct=True), 1):
        found.update({name: _joined(found.get(name), file) for name, file in files.items()})
        if progress is not None:
            progress(done, len(missing))
    if found:
        unique = access.runtime.random.uuid()
        write_record(access.store, unique, found)
        join_records(access.store, unique)
        records_of(access, "").forget()
    return table_statistics(access, manifest, list(fields), len(missing))


def table_statistics(access: TableAccess, manifest: Manifest, columns: Sequence[str] | None = None, analyzed: int = 0) -> TableStatistics:
    """What is known of a version's columns; no data is read."""
    fields = _chosen(manifest, columns)
    known = fragment_statistics(access, manifest, fields)
    summaries = {name: summary(known, name, field) for name, field in fields.items()}
    return TableStatistics(
        access.store.uri, manifest.version, manifest.fragments.live_rows(), len(manifest.fragments), analyzed, summaries
    )  # fmt: skip


def gathered(
    access: TableAccess, manifest: Manifest, fragments: Iterable[DataFragment], *, short: bool = False
) -> dict[str, FileStatistics]:
    """Statistics of fragments that a version has by now, read back; of those that are long enough, unless short ones matter too."""
    fields = {field.name: field for field in countable(manifest.fields).values()}
    wanted = [(fragment, list(fields.values())) for fragment in fragments if short or is_long(fragment.physical_rows)]
    found: dict[str, FileStatistics] = {}
    for files in _read(access, manifest, wanted, distinct=False):
        found.update(files)
    return found


def _chosen(manifest: Manifest, columns: Sequence[str] | None) -> dict[str, Field]:
    """The columns that are meant, by name.

    Raises:
        InvalidInput: there is no such column, or none of a type that statistics are kept of.
    """
    every = {field.name: field for field in countable(manifest.fields).values()}
    if columns is None:
        return every
    if isinstance(columns, str):
        columns = [columns]
    top = [field.name for field in manifest.fields if field.parent_id < 0]
    for name in columns:
        if name not in every:
            what = "statistics are not kept of its type" if name in top else "there is no such column"
            raise InvalidInput(f"Column {str(name)[:80]!r} cannot be analyzed: {what}.", argument="columns", advice="Leave it out.")
    return {name: every[name] for name in columns}


def _missing(fragment: DataFragment, fields: Mapping[str, Field], known: FragmentStatistics) -> list[Field]:
    """The columns that were not looked at in full."""
    return [
        field
        for name, field in fields.items()
        if column_file(fragment, field.id) is not None and (name not in known.columns or known.columns[name].distinct is None)
    ]


def _read(
    access: TableAccess, manifest: Manifest, wanted: Sequence[tuple[DataFragment, list[Field]]], *, distinct: bool
) -> Iterator[dict[str, FileStatistics]]:
    """The statistics of columns of fragments, by files."""
    dataset = dataset_at(access, manifest) if wanted else None
    for fragment, fields in wanted:
        columns = [Counted(at, field.name, field.logical_type) for at, field in enumerate(fields)]
        running = RunningStatistics(columns, distinct=distinct)
        schema = arrow_from_fields(fields)
        with lance_errors(access, "analyze columns", manifest.version):
            assert dataset is not None
            scanner = dataset.scanner(
                columns={field.name: quoted(field.name) for field in fields},
                fragments=[dataset.get_fragment(fragment.id)],  # type: ignore[list-item]
                batch_size=_BATCH,
                with_row_id=True,
                include_deleted_rows=True,
            )
            for batch in scanner.to_batches():
                running.add(batch.drop_columns([ROW_ID]).cast(schema) if schema.names else batch)
        yield _by_file(fragment, fields, running)


def _by_file(fragment: DataFragment, fields: Sequence[Field], running: RunningStatistics) -> dict[str, FileStatistics]:
    if running.rows != fragment.physical_rows:
        return {}  # rows that were not handed out may be anything
    found: dict[str, dict[int, ColumnStatistics]] = {}
    sizes: dict[str, int] = {}
    columns = bounded(running.columns())
    for at, field in enumerate(fields):
        place = column_file(fragment, field.id)
        if place is not None and place[0].size and at in columns:
            sizes[place[0].path] = place[0].size
            found.setdefault(place[0].path, {})[place[1]] = columns[at]
    return {name: FileStatistics(sizes[name], fragment.physical_rows, told) for name, told in found.items()}


def _joined(before: FileStatistics | None, after: FileStatistics) -> FileStatistics:
    return after if before is None else FileStatistics(after.size, after.rows, {**before.columns, **after.columns})


# ---- summaries -------------------------------------------------------------------------------------------------------------


def summary(known: Collection[FragmentStatistics], name: str, field: Field) -> ColumnSummary:
    """What several fragments come to."""
    found = [(fragment, fragment.columns[name]) for fragment in known if name in fragment.columns]
    told = [column for _, column in found]
    whole = len(found) == len(known)
    lows = [column.low for column in told if column.low is not None]
    highs = [column.high for column in told if column.high is not None]
    bounds = whole and all(column.low is not None or column.nulls == fragment.rows for fragment, column in found)
    sketches = [column.distinct for column in told if column.distinct is not None]
    exact = bounds and all(column.exact and fragment.live == fragment.rows for fragment, column in found)
    return ColumnSummary(
        name,
        sum(column.nulls for column in told) if whole else None,
        shown_value(min(lows), field) if bounds and lows else None,
        shown_value(max(highs), field) if bounds and highs else None,
        exact,
        estimate(sketches) if whole and len(sketches) == len(found) else None,
        len(found),
    )


def shown_value(value: Any, field: Field) -> Any:
    """A bound as Python shows values of its column; as a number where Python has no such date."""
    kind = field.logical_type
    try:
        if kind == "bool":
            return bool(value)
        if kind == "date32:day":
            return _EPOCH + timedelta(days=value)
        if kind.startswith("decimal:"):
            sign, scale = (1 if value < 0 else 0), int(kind.rpartition(":")[2])
            return Decimal((sign, tuple(map(int, str(abs(value)))), -scale))
        if kind.startswith("timestamp:"):
            return pa.scalar(value, arrow_from_fields([field]).field(0).type).as_py()
    except (OverflowError, ValueError, pa.ArrowException):
        return value
    return value


def _text(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else value.isoformat() if isinstance(value, date | datetime) else str(value)
