"""Tests of a pipeline: it runs on a few rows, in a lake that is made for it, and the tables are compared with what is expected."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import TiltyardError
from tiltyard.lake import Lake
from tiltyard.pipeline.runner import Runner
from tiltyard.pipeline.spark_session import Spark
from tiltyard.pipeline.spec import FileSource, Output, PipelineSpec, SampleTest, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN: Final = 5
"""Rows that a difference names."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of a test: what differs from the expectation; nothing if it passed."""

    __test__ = False

    name: str
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def run_tests(spec: PipelineSpec, spark: SparkSession | None = None) -> list[TestResult]:
    """Runs all tests of a pipeline in one session.

    Raises:
        TiltyardError: rows that a test gives do not fit each other.
    """
    session = Spark(spark, spec.name, spec.spark)
    try:
        return [TestResult(test.name, tuple(_problems(spec, test, session))) for test in spec.tests]
    finally:
        session.stop()


def _problems(spec: PipelineSpec, test: SampleTest, session: Spark) -> Iterable[str]:
    with TemporaryDirectory() as home, Lake.open(Path(home) / "lake", author="test") as lake:
        for table, rows in _tables(spec, test).items():
            lake.create_table(table, rows, primary_key=list(_key_of(spec, table)) or None, stable_row_ids=True)
        files = Path(home) / "sources"
        sources = tuple(_with_rows(source, test.given.get(source.name, ()), files) for source in spec.sources)
        # Functions are found beside the pipeline; patterns of the sources are absolute.
        changed = replace(spec, sources=sources, maintenance=(), retries=0, tests=(), lineage=None)
        try:
            Runner(changed, lake, session).run()
        except TiltyardError as error:
            if test.fails is None:
                return [f"it failed: {error}"]
            return [] if test.fails in str(error) else [f"it failed with {str(error)!r}, not with {test.fails!r}"]
        if test.fails is not None:
            return [f"it did not fail with {test.fails!r}"]
        there = lake.tables()
        found = {name: lake.table(name).to_arrow().to_pylist() if name in there else None for name in test.expect}
    return [problem for name, rows in test.expect.items() for problem in _compared(name, rows, found[name])]


def _tables(spec: PipelineSpec, test: SampleTest) -> dict[str, pa.Table]:
    """Tables that are there before the run: what sources read, and what outputs have."""
    found = {source.table: test.given.get(source.name, ()) for source in spec.sources if not isinstance(source, FileSource)}
    return {name: pa.Table.from_pylist([dict(row) for row in rows]) for name, rows in {**found, **test.before}.items() if rows}


def _key_of(spec: PipelineSpec, table: str) -> tuple[str, ...]:
    output: Output | None = next((output for output in spec.outputs if output.table == table), None)
    return () if output is None else output.primary_key or output.on


def _with_rows(source: Source, rows: Iterable[Row], files: Path) -> Source:
    """A source that has these rows and no others: files of it become one file of JSON."""
    if not isinstance(source, FileSource):
        return source
    place = files / source.name
    place.mkdir(parents=True)
    lines = [json.dumps(dict(row), default=str) for row in rows]
    if lines:
        (place / "rows.json").write_text("\n".join(lines) + "\n")
    return replace(
        source, files=(f"{place}/*.json",), format="json", options={}, max_files=None, changed="fail", min_age=type(source.min_age)(0)
    )


def _compared(table: str, expected: Iterable[Row], found: list[dict[str, Any]] | None) -> list[str]:
    """What differs, in any order of rows; columns that no expected row names are not looked at."""
    wanted = [dict(row) for row in expected]
    if found is None:
        return [f"{table}: there is no such table"] if wanted else []
    names = list(dict.fromkeys(name for row in wanted for name in row))
    missing = [name for name in names if found and name not in found[0]]
    if missing:
        return [f"{table}: there is no column {missing[0]!r}"]
    left = [{name: row[name] for name in names} if wanted else row for row in found]
    problems = []
    for row in wanted:
        full = {name: row.get(name) for name in names}
        same = next((other for other in left if all(_same(full[name], other[name]) for name in names)), None)
        if same is None:
            problems.append(f"{table}: no row {_shown(full)}")
        else:
            left.remove(same)
    problems += [f"{table}: unexpected row {_shown(row)}" for row in left]
    more = len(problems) - SHOWN
    return [*problems[:SHOWN], f"{table}: and {more} more"] if more > 0 else problems


def _same(expected: Any, found: Any) -> bool:
    """Whether two values are the same, as far as TOML can say: times as text, numbers up to rounding."""
    if isinstance(found, date | datetime | time) and isinstance(expected, str):
        return str(found) == expected or found.isoformat() == expected
    if isinstance(found, Decimal):
        found = float(found)
    if isinstance(expected, float) or isinstance(found, float):
        if not isinstance(expected, int | float) or not isinstance(found, int | float):
            return False
        return math.isclose(expected, found, rel_tol=1e-9) or (math.isnan(expected) and math.isnan(found))
    return bool(expected == found)


def _shown(row: Row) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())[:200]
