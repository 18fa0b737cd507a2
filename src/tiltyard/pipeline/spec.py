"""What a pipeline is: sources, steps, outputs and upkeep, as plain values. Invalid values are refused when they are made."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.reader_options import check_reader_options

FORMATS: Final = ("csv", "json", "parquet")
SCHEMES: Final = ("file", "s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "memory")
ORDERS: Final = ("any", "name")
ON_CHANGE: Final = ("again", "fail", "ignore")
READS: Final = ("changes", "snapshot")
STARTS: Final = ("beginning", "now")
OTHERWISE: Final = ("drop", "fail", "warn")
MODES: Final = ("append", "merge", "overwrite", "overwrite where", "scd2")
MATCHED: Final = ("ignore", "update")
NOT_MATCHED: Final = ("ignore", "insert")
ISOLATIONS: Final = ("serializable", "snapshot")
KINDS: Final = ("cleanup", "compact", "index")

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9_])?", re.ASCII)

_NO_NAMES: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Texts and comments in a query: a word in them names nothing."""

Format: TypeAlias = Literal["csv", "json", "parquet"]
Otherwise: TypeAlias = Literal["drop", "fail", "warn"]
Mode: TypeAlias = Literal["append", "merge", "overwrite", "overwrite where", "scd2"]


def must(fine: bool, key: str, what: str, advice: str = "") -> None:
    """Refuses a value; ``key`` is where it stands."""
    if not fine:
        raise InvalidInput(f"{key} {what}.", argument=key, advice=advice)


def one_of(value: object, allowed: tuple[str, ...], key: str) -> None:
    must(value in allowed, key, f"is {value!r}, and may be {' or '.join(map(repr, allowed))}")


def _named(name: object, key: str) -> None:
    fine = isinstance(name, str) and NAME.fullmatch(name) is not None
    must(fine, key, f"is called {name!r}; a name is up to 63 letters, digits and _, as in SQL")


def _positive(number: int | None, key: str) -> None:
    fine = number is None or (isinstance(number, int) and not isinstance(number, bool) and number > 0)
    must(fine, key, f"is {number!r}, and must be a whole number above 0")


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files that come one after the other; each is consumed once.

    Attributes:
        name: the view that steps read.
        files: a pattern, or several, below the pipeline's directory: ``landing/**/*.json``; or in an object store: ``s3://bucket/in/*.json``.
        format: ``"parquet"``, ``"csv"`` or ``"json"`` (one object a line).
        schema: columns as Spark's DDL; found out where it is missing.
        options: for Spark's reader. What cannot be read fails, unless ``mode`` says otherwise; CSV has a header, unless ``header`` does.
        max_files: how many one run takes at most.
        order: ``"name"`` takes them by name; ``"any"`` lets several runners begin at different ones, where order does not matter.
        changed: a file that was consumed and then changed: ``"fail"``, ``"ignore"``, or consume it ``"again"``.
        min_age: files that changed more recently may still be written, and wait.
        file_column: a column with the file's name.
        quarantine: a table of the lake for files that cannot be read, with the reason; the other files are processed. Without one the run
            fails.
        rescued: a column for what files have and the schema has not, as JSON.
        storage: options of the object store, as ``storage_options`` of a table.
    """

    name: str
    files: tuple[str, ...]
    format: Format
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    max_files: int | None = None
    order: Literal["any", "name"] = "name"
    changed: Literal["again", "fail", "ignore"] = "fail"
    min_age: timedelta = timedelta(0)
    file_column: str | None = None
    quarantine: str | None = None
    rescued: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    kind = "files"

    def __post_init__(self) -> None:
        key = f"sources.{self.name}"
        _named(self.name, key)
        must(bool(self.files), f"{key}.files", "is empty, and must name at least one pattern")
        for pattern in self.files:
            scheme = pattern.partition("://")[0] if "://" in pattern else "file"
            must(scheme in SCHEMES, f"{key}.files", f"is {pattern!r}; files are on a file system, or at {', '.join(SCHEMES[1:])}")
        one_of(self.format, FORMATS, f"{key}.format")
        check_reader_options(self.name, self.format, self.options)
        one_of(self.order, ORDERS, f"{key}.order")
        one_of(self.changed, ON_CHANGE, f"{key}.changed")
        _positive(self.max_files, f"{key}.max_files")
        must(self.min_age >= timedelta(0), f"{key}.min_age", "is negative")
        fine = self.quarantine is None or not self.quarantine.startswith("_tiltyard.")
        must(
            fine and self.quarantine != "",
            f"{key}.quarantine",
            f"is {self.quarantine!r}, and must be a table name that does not begin with _tiltyard",
        )
        if self.rescued is not None:
            _named(self.rescued, f"{key}.rescued")
            must(self.schema is not None, f"{key}.rescued", "is for sources with a schema: without one all columns are read")
            given = {name.lower() for name in self.options}
            for option in ("mode", "columnNameOfCorruptRecord", "multiLine"):
                must(option.lower() not in given, f"{key}.options.{option}", "cannot be combined with rescued")
            must(
                self.options.get("header", "true").lower() == "true",
                f"{key}.rescued",
                "needs a header: without column names no column is unexpected",
            )


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of the lake: what changed in it since the last run, or all of it.

    Attributes:
        name: the view that steps read.
        table: its name in the lake.
        read: ``"changes"`` for rows that changed, with ``_change`` and ``_version``; ``"snapshot"`` for all rows.
        start: where changes begin the first time: all existing rows count as inserted, or none do.
        max_versions: how many versions one run takes at most.
        trigger: whether new data in it is a reason to run; by default changes are, and snapshots only where there is nothing else.
    """

    name: str
    table: str
    read: Literal["changes", "snapshot"] = "changes"
    start: Literal["beginning", "now"] = "beginning"
    max_versions: int | None = None
    trigger: bool | None = None

    kind = "table"

    def __post_init__(self) -> None:
        key = f"sources.{self.name}"
        _named(self.name, key)
        must(bool(self.table), f"{key}.table", "is empty")
        one_of(self.read, READS, f"{key}.read")
        one_of(self.start, STARTS, f"{key}.start")
        _positive(self.max_versions, f"{key}.max_versions")
        must(self.read == "changes" or self.max_versions is None, f"{key}.max_versions", "is for read = 'changes' only")
        must(self.read == "changes" or self.start == "beginning", f"{key}.start", "is for read = 'changes' only")


Source: TypeAlias = FileSource | TableSource


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must hold for each row of a step.

    Attributes:
        name: what it is called in reports.
        check: a condition in Spark SQL; null counts as broken.
        otherwise: ``"warn"`` counts, ``"drop"`` takes the row out (into ``quarantine``, if there is one), ``"fail"`` ends the run.
        quarantine: a table of the lake for dropped rows.
    """

    name: str
    check: str
    otherwise: Otherwise = "warn"
    quarantine: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A query or a function; its result is a view of its name.

    Attributes:
        name: the view that later steps and outputs read.
        sql: a query in Spark SQL over sources and earlier steps.
        function: instead of it, ``"module:function"`` or a function; it is called with a ``StepContext`` and returns a DataFrame.
        inputs: the sources and steps it reads; by default those whose names the query has in it, or all for a function.
        expect: what must hold for its rows.
    """

    name: str
    sql: str | None = None
    function: str | Callable[..., Any] | None = None
    inputs: tuple[str, ...] | None = None
    expect: tuple[Expectation, ...] = ()

    def __post_init__(self) -> None:
        key = f"steps.{self.name}"
        _named(self.name, key)
        must((self.sql is None) != (self.function is None), key, "needs either sql or python, and not both")
        if isinstance(self.function, str):
            module, colon, function = self.function.partition(":")
            must(bool(module and colon and function), f"{key}.python", f"is {self.function!r}, and must be 'module:function'")
        names = [expectation.name for expectation in self.expect]
        must(len(set(names)) == len(names), f"{key}.expect", "has two expectations of one name")
        for expectation in self.expect:
            at = f"{key}.expect.{expectation.name}"
            must(bool(expectation.check.strip()), f"{at}.check", "is empty")
            one_of(expectation.otherwise, OTHERWISE, f"{at}.otherwise")
            must(expectation.quarantine is None or expectation.otherwise == "drop", f"{at}.quarantine", "is for otherwise = 'drop' only")


@dataclass(frozen=True, slots=True)
class Output:
    """Where the rows of a step are written.

    Attributes:
        table: its name in the lake; made by the first run.
        source: the step or source it gets its rows from.
        mode: ``"append"``, ``"merge"`` on ``on``, ``"overwrite"``, ``"overwrite where"`` for the rows that ``where`` holds for, or
            ``"scd2"``: every version of a row, with the time that it held.
        on: the columns a merge matches rows by.
        where: a condition that the new rows must meet, too.
        matched: what a merge does with rows that exist: ``"update"`` them or ``"ignore"`` them.
        not_matched: and with those that are not: ``"insert"`` or ``"ignore"``.
        update: the columns a merge updates; all that the rows have, by default.
        primary_key: of a table that is made; that of a merge is ``on``.
        stable_row_ids: of a table that is made, so that its changes are known row by row.
        sequence: of mode ``"scd2"``: the column that says when a row begins to hold.
    """

    table: str
    source: str
    mode: Mode = "append"
    on: tuple[str, ...] = ()
    where: str | None = None
    matched: Literal["ignore", "update"] = "update"
    not_matched: Literal["ignore", "insert"] = "insert"
    update: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    stable_row_ids: bool = True
    sequence: str | None = None

    def __post_init__(self) -> None:
        key = f"outputs.{self.table}"
        must(bool(self.table), "outputs.table", "is empty")
        must(not self.table.startswith("_tiltyard."), key, "is a name reserved for tables of Tiltyard")
        one_of(self.mode, MODES, f"{key}.mode")
        one_of(self.matched, MATCHED, f"{key}.matched")
        one_of(self.not_matched, NOT_MATCHED, f"{key}.not_matched")
        merging, dated = self.mode == "merge", self.mode == "scd2"
        must(
            (merging or dated) == bool(self.on),
            f"{key}.on",
            "names the columns of mode = 'merge' or 'scd2', and is needed there and only there",
        )
        must(dated == (self.sequence is not None), f"{key}.sequence", "is needed for mode = 'scd2' only")
        must(not dated or not self.primary_key, f"{key}.primary_key", "must be left out in mode = 'scd2': the key is on and valid_from")
        must(merging or not self.update, f"{key}.update", "is for mode = 'merge' only")
        must((self.mode == "overwrite where") == (self.where is not None), f"{key}.where", "is needed for mode = 'overwrite where' only")
        must((self.matched, self.not_matched) != ("ignore", "ignore"), key, "would ignore all rows")


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Upkeep that runs beside the pipeline, in commits of its own.

    Attributes:
        name: what it is called.
        kind: ``"compact"``, ``"index"`` or ``"cleanup"``.
        tables: which tables; cleanup is for the whole lake.
        every: least time between two runs of it, over all runners; at each run if not given.
        min_fragments: compaction waits until a table has so many.
        column, index_type: what to index; an existing index is brought up to date.
        older_than, keep_snapshots: what cleanup leaves. What a pipeline has not consumed yet always stays.
    """

    name: str
    kind: Literal["cleanup", "compact", "index"]
    tables: tuple[str, ...] = ()
    every: timedelta | None = None
    min_fragments: int = 2
    column: str | None = None
    index_type: str = "BTREE"
    older_than: timedelta | None = None
    keep_snapshots: int | None = None

    def __post_init__(self) -> None:
        key = f"maintenance.{self.name}"
        _named(self.name, key)
        one_of(self.kind, KINDS, f"{key}.kind")
        must(bool(self.tables) == (self.kind != "cleanup"), f"{key}.tables", "is needed for compact and index, and not for cleanup")
        must((self.column is not None) == (self.kind == "index"), f"{key}.column", "is needed for kind = 'index' only")
        _positive(self.min_fragments, f"{key}.min_fragments")
        _positive(self.keep_snapshots, f"{key}.keep_snapshots")
        retention = self.older_than is not None or self.keep_snapshots is not None
        must(retention == (self.kind == "cleanup"), key, "needs older_than or keep_snapshots for kind = 'cleanup' only")


@dataclass(frozen=True, slots=True)
class SampleTest:
    """A pipeline run on a few rows, and what has to come out.

    Attributes:
        name: what it is called.
        given: rows of each source.
        before: rows that tables have before the run.
        expect: rows that tables have after it, in any order; columns that no row names are not compared.
        fails: a part of the message that the run has to fail with.
    """

    name: str
    given: Mapping[str, tuple[Mapping[str, Any], ...]]
    before: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    expect: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    fails: str | None = None

    def __post_init__(self) -> None:
        key = f"tests.{self.name}"
        must(bool(self.expect) != (self.fails is not None), key, "needs either expect or fails, and not both")


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """All of a pipeline.

    Attributes:
        name: what it is known by; what it consumed is kept under this name.
        lake: where its tables are, as for ``Lake.open``; a path is taken from ``directory``.
        sources, steps, outputs, maintenance: what it does; steps run in this order.
        isolation: of the transaction a run is.
        retries: how often a run is re-executed after a conflict.
        spark: settings of the session that is started for it, ``master`` among them.
        directory: what relative paths start from, and where modules of functions are found.
        parameters: values that queries take as ``:name`` and functions find in their context.
        tests: of the pipeline, on a few rows each.
        lineage: where OpenLineage events of its runs go: the URL of a server, or a file.
    """

    name: str
    lake: str = "lake"
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    outputs: tuple[Output, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    isolation: Literal["serializable", "snapshot"] = "snapshot"
    retries: int = 10
    spark: Mapping[str, str] = field(default_factory=dict)
    directory: Path = field(default_factory=Path.cwd)
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    tests: tuple[SampleTest, ...] = ()
    lineage: str | None = None

    def __post_init__(self) -> None:
        fine = isinstance(self.name, str) and PIPELINE_NAME.fullmatch(self.name) is not None
        must(fine, "name", f"is {self.name!r}; letters, digits, '.', '_' and '-' make up a name")
        one_of(self.isolation, ISOLATIONS, "isolation")
        must(isinstance(self.retries, int) and self.retries >= 0, "retries", f"is {self.retries!r}, and must be 0 or more")
        must(bool(self.outputs or self.maintenance), "outputs", "is missing: there is nothing to do")
        must(bool(self.sources) or not self.outputs, "sources", "is missing: outputs have nowhere to come from")
        self._check_names()

    def _check_names(self) -> None:
        known: set[str] = set()
        for source in self.sources:
            must(source.name not in known, f"sources.{source.name}", "occurs twice")
            known.add(source.name)
        for step in self.steps:
            key = f"steps.{step.name}"
            must(step.name not in known, key, "has the name of a source or of another step")
            for name in step.inputs or ():
                must(name in known, f"{key}.inputs", f"names {name!r}; before it come {', '.join(sorted(known)) or 'none'}")
            known.add(step.name)
        for output in self.outputs:
            must(output.source in known, f"outputs.{output.table}.from", f"is {output.source!r}, and may be {', '.join(sorted(known))}")
        for test in self.tests:
            for name in test.given:
                must(self.source(name) is not None, f"tests.{test.name}.given.{name}", "is not a source")
        upkeep = [maintenance.name for maintenance in self.maintenance]
        must(len({*upkeep, *known}) == len(upkeep) + len(known), "maintenance", "has a name that occurs twice")

    def source(self, name: str) -> Source | None:
        """A source by its name; None where there is none."""
        return next((source for source in self.sources if source.name == name), None)

    def lake_uri(self) -> str:
        """The lake, with a path made absolute."""
        return self.lake if "://" in self.lake else os.fspath(self.directory / self.lake)

    def triggers(self, source: Source) -> bool:
        """Whether something new in a source is a reason to run."""
        if isinstance(source, FileSource):
            return True
        if source.trigger is not None:
            return source.trigger
        return source.read == "changes" or not any(isinstance(source, FileSource) or source.read == "changes" for source in self.sources)

    def inputs_of(self, step: Step) -> tuple[str, ...]:
        """What a step reads, or may read."""
        if step.inputs is not None:
            return step.inputs
        before = list(self._names_before(step))
        if step.sql is None:
            return tuple(before)
        words = {word.lower() for word in re.findall(r"\w+", _NO_NAMES.sub(" ", step.sql))}
        return tuple(name for name in before if name.lower() in words)

    def _names_before(self, step: Step) -> Iterator[str]:
        yield from (source.name for source in self.sources)
        for each_step in self.steps:
            if each_step is step:
                return
            yield each_step.name
