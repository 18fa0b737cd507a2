"""Results for people: plain when piped, coloured and fitted to the width on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Final

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

import tiltyard as ty
from tiltyard.cli.cells import cell, rows_of, safe
from tiltyard.cli.facts import Diff, LogPage, Page, RowAddress, Shown, rebased_over
from tiltyard.cli.layout import UNBOUNDED, page_console, print_hanging, print_rows, total_width
from tiltyard.cli.messages import NOTHING, CommandMessage, count, size, span
from tiltyard.cli.output import Progress
from tiltyard.redact import redact

ROOM_FOR_NOTES: Final = 110
WIDEST_CELL: Final = 60
SHOWN_AT_MOST: Final = 10

_MESSAGE: Final = "__lance_commit_message"


class TextOutput:
    """Tables and short lines on standard output; errors on standard error."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._out = page_console()
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def log(self, found: LogPage) -> None:
        self._title(found.where, f"latest version {found.where.latest}")
        header = ("version", "time (UTC)", "operation", "rows", "writer")
        rows = [_log_row(entry) for entry in found.entries]
        notes = [_note(entry) for entry in found.entries]
        with_notes = [(*row, note) for row, note in zip(rows, notes, strict=True)]
        if self._out.width >= min(ROOM_FOR_NOTES, total_width([(*header, ""), *with_notes])):
            print_rows(self._out, (*header, ""), with_notes, numbers={0, 3})
        else:
            print_rows(self._out, header, rows, numbers={0, 3}, below=notes)
        if found.older:
            self._line(f"and {count(found.older, 'older version')}; --all shows them", "dim")

    def show(self, found: Shown) -> None:
        version, latest = found.entry.version, found.where.latest
        self._title(found.where, f"version {version}" if version == latest else f"version {version} of {latest}")
        print_hanging(self._out, [(name, safe(value)) for name, value in _version_facts(found)], label="dim")
        self._schema(found)
        self._fragments(found.fragments)

    def check(self, report: ty.CheckReport) -> None:
        looked = f"  {safe(report.uri)}: {count(report.versions, 'version')}, {count(report.files, 'file')}"
        if report.data:
            looked += f"; {report.verified:,} compared with their digests, {report.unverified:,} without one"
        verdict = ("sound", "bold green") if report.ok else (count(len(report.problems), "problem"), "bold red")
        self._out.print(Text.assemble(verdict, looked), soft_wrap=True)
        problems = [
            (problem.invariant, f"version {problem.version}" if problem.version else "", safe(problem.text)) for problem in report.problems
        ]
        print_hanging(self._out, problems, indent=2, label="red")
        print_hanging(self._out, [("not checked", safe(text)) for text in report.not_checked], indent=2, label="yellow")
        if report.orphans:
            self._line(
                f"  {count(len(report.orphans), 'file')} that no version names (from a failed attempt, or from a write in progress):", "dim"
            )
            for path in report.orphans[:SHOWN_AT_MOST]:
                self._line(f"    {safe(path)}", "dim")
            if len(report.orphans) > SHOWN_AT_MOST:
                self._line(f"    and {len(report.orphans) - SHOWN_AT_MOST:,} more; --json lists all", "dim")

    def cat(self, found: Page) -> None:
        schema = found.rows.schema
        if schema.names:
            self._rows(found.rows)
        self._line(_how_many(found), "dim")

    def diff(self, found: Diff) -> None:
        total = sum(found.counts.values())
        parts = ", ".join(f"{number:,} {how}" for how, number in found.counts.items() if number)
        self._title(found.where, f"after version {found.first} up to {found.last}: {parts or 'no row changed'}")
        first = ["_version", "_change"]
        if found.rows.num_rows:
            self._rows(found.rows.select([*first, *(name for name in found.rows.column_names if name not in first)]))
        if left := total - found.rows.num_rows:
            self._line(f"and {count(left, 'more change')}; --all shows them", "dim")

    def told(self, told: CommandMessage) -> None:
        if not told.verdict and told.line:
            self._line(_clean(told.line))
        elif told.verdict:
            style = "bold red" if told.warning else "bold yellow" if told.verdict == NOTHING else "bold green"
            self._out.print(Text.assemble((_clean(told.verdict), style), f"  {_clean(told.line)}"), soft_wrap=True)
        print_hanging(self._out, [(name, _clean(text)) for name, text in told.facts], indent=2, label="dim")
        if told.grid is not None and told.grid.rows:
            shown = [tuple(map(_clean, row)) for row in told.grid.rows]
            print_rows(self._out, told.grid.header, shown, numbers=told.grid.numbers)
        for note in told.notes:
            self._line(_clean(note), "dim")

    def error(self, error: ty.TiltyardError) -> None:
        self._failure(redact(str(error), self._secrets), error.kind)

    def usage(self, message: str) -> None:
        self._failure(message, "usage")

    def working(self, what: str) -> AbstractContextManager[object]:
        return self._err.status(safe(what))

    @contextmanager
    def progress(self, what: str, *, in_bytes: bool = False) -> Iterator[Progress]:
        """A bar on standard error while somebody watches it; nothing in a pipe or a log."""
        amount: ProgressColumn = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeElapsedColumn())
        with Bars(*columns, console=self._err, transient=True, disable=not self._err.is_terminal) as bars:
            task = bars.add_task(safe(what), total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    # ---- pieces --------------------------------------------------------------------------------------------------------------

    def _failure(self, message: str, kind: str) -> None:
        self._err.print(Text.assemble(("error: ", "bold red"), safe(message), (f" [{kind}]", "dim")))

    def _line(self, text: str, style: str = "") -> None:
        self._out.print(Text(text, style), soft_wrap=True)

    def _title(self, where: RowAddress, what: str) -> None:
        branch = f", branch {safe(where.branch)}" if where.branch else ""
        self._out.print(Text.assemble((safe(where.uri), "bold"), f"  {what}{branch}"), soft_wrap=True)

    def _rows(self, rows: pa.Table) -> None:
        limit = WIDEST_CELL if self._out.width < UNBOUNDED else UNBOUNDED
        cells = [[cell(value, limit) for value in row.values()] for row in rows_of(rows)]
        numbers = {column for column, item in enumerate(rows.schema) if _is_number(str(item.type))}
        fitted = print_rows(self._out, [safe(name) for name in rows.column_names], cells, numbers=numbers)
        if hidden := rows.column_names[fitted:]:
            self._line(f"no room for {count(len(hidden), 'more column')}: {safe(', '.join(hidden))}", "dim")

    def _schema(self, found: Shown) -> None:
        rows = [
            (safe(item.name), "key" if item.name in found.primary_key else "null" if item.nullable else "not null", safe(str(item.type)))
            for item in found.schema
        ]
        self._out.print()
        print_hanging(self._out, [("column", "", "type"), *rows], header=True)

    def _fragments(self, fragments: Sequence[ty.ops.DataFragment]) -> None:
        if not fragments:
            return
        self._out.print()
        header = ("fragment", "rows", "deleted", "files", "size", "format")
        print_rows(self._out, header, [_fragment_row(fragment) for fragment in fragments[:SHOWN_AT_MOST]], numbers=range(len(header)))
        if len(fragments) > SHOWN_AT_MOST:
            self._line(f"and {count(len(fragments) - SHOWN_AT_MOST, 'more fragment')}; --json lists all", "dim")


def _clean(text: str) -> str:
    return safe(redact(text))


def _log_row(entry: ty.HistoryEntry) -> tuple[str, ...]:
    return str(entry.version), _time(entry.timestamp), safe(entry.operation) or "?", f"{entry.rows:,}", safe(entry.writer) or "?"


def _note(entry: ty.HistoryEntry) -> str:
    over = rebased_over(entry)
    along = f"with {count(len(entry.members), 'transaction')} of other writers" if entry.members else ""
    parts = [f"rebased over {span(over)}" if over else "", along, safe(entry.message)]
    return "; ".join(part for part in parts if part)


def _version_facts(found: Shown) -> Iterator[tuple[str, str]]:
    entry = found.entry
    yield "time", f"{_time(entry.timestamp)} UTC"
    yield "operation", (entry.operation or "not recorded") + (f", built on version {entry.read_version}" if entry.read_version else "")
    if over := rebased_over(entry):
        yield "rebased over", span(over)
    yield "writer", entry.writer or "not recorded"
    if entry.message:
        yield "message", entry.message
    yield "transaction", entry.transaction_id or "not recorded"
    deleted = f", {found.deleted_rows:,} deleted" if found.deleted_rows else ""
    held = size(sum(file.size for fragment in found.fragments for file in fragment.files))
    yield "rows", f"{entry.rows:,} in {count(entry.fragments, 'fragment')}{deleted}, {held}"
    if found.primary_key:
        yield "primary key", ", ".join(found.primary_key)
    yield "data format", found.data_format
    if found.features != "none":
        yield "features", found.features
    if found.tags:
        yield "tags", ", ".join(found.tags)
    if found.indices is None:
        yield "indices", "not known: pylance cannot open this version"
    for index in found.indices or ():
        yield "index", f"{index.name} ({index.kind} on {', '.join(index.columns)})"
    yield from _mapping("config", found.config)
    yield from _mapping("metadata", found.metadata)
    yield from _mapping("properties", {key: value for key, value in entry.properties.items() if key != _MESSAGE})


def _mapping(title: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for number, (key, value) in enumerate(sorted(values.items())):
        yield title if number == 0 else "", f"{key} = {value}"


def _fragment_row(fragment: ty.ops.DataFragment) -> tuple[str, ...]:
    deleted = fragment.physical_rows - fragment.live_rows
    formats = ", ".join(sorted({f"{file.major}.{file.minor}" for file in fragment.files}))
    held = size(sum(file.size for file in fragment.files))
    return str(fragment.id), f"{fragment.live_rows:,}", f"{deleted:,}", str(len(fragment.files)), held, formats


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


def _how_many(found: Page) -> str:
    rows = count(found.rows.num_rows, "row")
    if found.total is not None:
        return f"{rows} of {found.total:,} at version {found.version}"
    more = ", perhaps more" if found.rows.num_rows == found.limit else ""
    return f"{rows} that match{more}, at version {found.version}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
