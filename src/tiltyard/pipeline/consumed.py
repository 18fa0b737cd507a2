"""What was consumed: one row for each file, and one for each table, in a table of the lake that is written with the outputs.

It has a primary key, so of two runs that consume the same thing only one is committed, and the other begins again and finds it done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import pyarrow as pa

import tiltyard as ty

STATE: Final = "_tiltyard.pipeline_state"
RUNS: Final = "_tiltyard.pipeline_runs"

WHOLE: Final = ""
"""The item of a mark that is about the source as a whole."""

_STATE_SCHEMA: Final = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("value", pa.string()),
        pa.field("run", pa.string()),
        pa.field("snapshot", pa.int64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
_RUNS_SCHEMA: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("pipeline", pa.string()),
        pa.field("status", pa.string()),
        pa.field("started", pa.timestamp("us", tz="UTC")),
        pa.field("seconds", pa.float64()),
        pa.field("rows_in", pa.int64()),
        pa.field("rows_out", pa.int64()),
        pa.field("quarantined", pa.int64()),
        pa.field("attempts", pa.int64()),
        pa.field("snapshot", pa.int64()),
        pa.field("transaction", pa.string()),
        pa.field("author", pa.string()),
        pa.field("error", pa.string()),
        pa.field("report", pa.string()),
    ]
)


class Sight(Protocol):
    """Something tables can be read from: a snapshot of the lake, or a transaction."""

    def tables(self) -> list[str]: ...

    def table(self, name: str) -> ty.TableReader: ...


@dataclass(frozen=True, slots=True)
class Mark:
    """That an item of a source was consumed, and how far.

    Attributes:
        source: its name in the pipeline.
        item: a file, or ``WHOLE``.
        value: what is to be remembered of it.
    """

    source: str
    item: str
    value: Mapping[str, Any]


Marks = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By source and item, what is remembered."""


def ensure_tables(lake: ty.Lake) -> None:
    """Makes the two tables where they are missing; somebody else may do so at the same moment."""
    made = ((STATE, _STATE_SCHEMA, ["pipeline", "source", "item"]), (RUNS, _RUNS_SCHEMA, ["run"]))
    for _ in range(10):
        missing = [pair for pair in made if pair[0] not in lake.tables()]
        if not missing:
            return
        try:
            with lake.transaction(message="tables for pipelines") as tx:
                tx.keeps_refusal = False
                for name, schema, key in missing:
                    tx.create_table(name, schema, primary_key=key, stable_row_ids=True)
        except (ty.ConflictError, ty.AlreadyExists, ty.ContentionError):
            continue  # somebody else made one of them meanwhile
    raise ty.ContentionError(f"{STATE} could not be created: other writers committed first each time.", operation="pipeline", attempts=10)


def marks_of(sight: Sight, pipeline: str) -> Marks:
    """What a pipeline has consumed, as far as this snapshot knows."""
    if STATE not in sight.tables():
        return {}
    rows = sight.table(STATE).to_arrow(columns=["source", "item", "value"], filter=f"pipeline = {quoted(pipeline)}")
    found: dict[str, dict[str, Any]] = {}
    for row in rows.to_pylist():
        found.setdefault(row["source"], {})[row["item"]] = json.loads(row["value"])
    return found


def record(tx: ty.LakeTransaction, pipeline: str, marks: Iterable[Mark], run: str, at: datetime) -> None:
    """Writes marks inside a transaction: in one operation, so that it can be carried over what others write to other rows."""
    rows = [
        {
            "pipeline": pipeline,
            "source": mark.source,
            "item": mark.item,
            "value": json.dumps(dict(mark.value), sort_keys=True),
            "run": run,
            "snapshot": tx.base,
            "at": at,
        }
        for mark in marks
    ]
    if rows:
        merge = tx.table(STATE).merge(pa.Table.from_pylist(rows, schema=_STATE_SCHEMA))
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def oldest_needed(sight: Sight) -> int | None:
    """The oldest snapshot from which some pipeline still has to read changes; None where none reads any."""
    if STATE not in sight.tables():
        return None
    rows = sight.table(STATE).to_arrow(columns=["value"], filter=f"item = {quoted(WHOLE)}").to_pylist()
    values = [json.loads(row["value"]) for row in rows]
    return min((int(value.get("since", 0)) for value in values if value.get("read") == "changes"), default=None)


def run_rows(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=_RUNS_SCHEMA)


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"
