"""What must hold for the rows of a step, and what becomes of rows it does not hold for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.spec import Expectation, Step
from tiltyard.pipeline.steps import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class ExpectationFailed(InvalidInput):
    """Rows of a step broke an expectation that says ``fail``.

    Nothing was committed, or only on the branch that the run was on.

    Attributes:
        step, expectation: which one.
        rows: how many rows.
        branch: where they can be looked at; empty if nothing was committed.
    """

    kind = "expectation-failed"

    def __init__(self, step: str, broken: Expectation | str, rows: int, *, branch: str = "") -> None:
        name, check = (broken, "") if isinstance(broken, str) else (broken.name, f" ({broken.check.strip()})")
        where = f"Nothing was merged: branch {branch!r} has the rows. Look at it, and delete it." if branch else "Nothing was committed."
        super().__init__(
            f"steps.{step}: {rows:,} row{'' if rows == 1 else 's'} broke {name!r}{check}.",
            argument=f"steps.{step}.expect.{name}",
            advice=f"{where} Correct the data, or set otherwise = 'drop' or 'warn'.",
        )
        self.step = step
        self.expectation = name
        self.rows = rows
        self.branch = branch


@dataclass(frozen=True, slots=True)
class Broken:
    """How often an expectation was broken."""

    name: str
    otherwise: str
    rows: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of a step, sorted.

    Attributes:
        kept: those that go on.
        rows: how many these are.
        broken: how often each expectation was broken.
        dropped: how many rows do not go on.
        quarantined: those that go into quarantine tables, by table.
    """

    kept: DataFrame
    rows: int
    broken: tuple[Broken, ...]
    dropped: int
    quarantined: dict[str, DataFrame]


def judge(frame: DataFrame, step: Step, pipeline: str, run: str, at: datetime, *, audited: bool = False) -> Judged:
    """Looks at all rows of a step once, and sorts them.

    With ``audited`` a run is judged by its report before it reaches anybody, and rows that break what says ``fail`` go on until then.

    Raises:
        ExpectationFailed: an expectation that says ``fail`` is broken.
        InvalidInput: Spark does not understand a condition.
    """
    from pyspark.sql import functions as sql

    from tiltyard.spark.spark_expressions import whole_expression

    with spark_errors(f"steps.{step.name}.expect"):
        fine = {
            expectation.name: sql.coalesce(whole_expression(expectation.check).cast("boolean"), sql.lit(False))
            for expectation in step.expect
        }
        dropping = [expectation for expectation in step.expect if expectation.otherwise == "drop"]
        kept = frame.filter(_all([fine[expectation.name] for expectation in dropping])) if dropping else frame
        sums = [sql.count_if(~fine[expectation.name]).alias(f"broken_{number}") for number, expectation in enumerate(step.expect)]
        good = sql.count_if(_all([fine[expectation.name] for expectation in dropping])) if dropping else sql.count(sql.lit(1))
        counted: Any = frame.agg(sql.count(sql.lit(1)).alias("total"), good.alias("kept"), *sums).collect()[0]
    broken = tuple(
        Broken(expectation.name, expectation.otherwise, int(counted[f"broken_{number}"])) for number, expectation in enumerate(step.expect)
    )
    for expectation, found in zip(step.expect, broken, strict=True):
        if expectation.otherwise == "fail" and found.rows and not audited:
            raise ExpectationFailed(step.name, expectation, found.rows)
    rows_of = {each_broken.name: each_broken.rows for each_broken in broken}
    caught: dict[str, DataFrame] = {}
    for table in dict.fromkeys(expectation.quarantine for expectation in dropping if expectation.quarantine and rows_of[expectation.name]):
        wanted = [expectation for expectation in dropping if expectation.quarantine == table]
        caught[str(table)] = _caught(frame, wanted, fine, (run, at, pipeline, step.name))
    return Judged(kept, int(counted["kept"]), broken, int(counted["total"]) - int(counted["kept"]), caught)


def _all(conditions: Sequence[Column]) -> Column:
    return reduce(lambda one, other: one & other, conditions)


def _caught(frame: DataFrame, wanted: Sequence[Expectation], fine: dict[str, Column], about: tuple[str, datetime, str, str]) -> DataFrame:
    """Rows as a quarantine table has them: what they broke, and themselves as JSON, so that one table can hold those of any step."""
    from pyspark.sql import functions as sql

    run, at, pipeline, step = about
    names = sql.concat_ws(", ", *(sql.when(~fine[expectation.name], sql.lit(expectation.name)) for expectation in wanted))
    row = sql.to_json(sql.struct(*(frame[f"`{name}`"] for name in frame.columns)), {"ignoreNullFields": "false"})
    return frame.filter(~_all([fine[expectation.name] for expectation in wanted])).select(
        sql.lit(run).alias("run"),
        sql.lit(at).cast("timestamp").alias("at"),
        sql.lit(pipeline).alias("pipeline"),
        sql.lit(step).alias("step"),
        names.alias("broken"),
        row.alias("row"),
    )
