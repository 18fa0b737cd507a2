"""Tables and rows for tests of distributed verbs: made from a seed, small, in several fragments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiltyard as ty
from tiltyard.spark import Work

SEED = 4
EVERYWHERE = Work(driver_bytes=0, driver_table_rows=0, partitions=3)
"""Nothing is done by the driver that executors can do."""

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("s", pa.string()), ("n", pa.int32())])


def rows(first: int, last: int, seed: int = SEED) -> pa.Table:
    """Rows with these ids; some values are null, some are no number."""
    chance = random.Random(f"{seed} {first} {last}")
    made = [
        {
            "id": number,
            "x": chance.choice([None, float("nan"), chance.random(), -0.0]),
            "s": chance.choice([None, "", "a", "ß", f"row {number}"]),
            "n": chance.choice([None, chance.randrange(100)]),
        }
        for number in range(first, last)
    ]
    return pa.Table.from_pylist(made, SCHEMA)


def table(where: Path, *, count: int = 120, stable: bool = False, key: bool = True, **options: Any) -> ty.Table:
    """A table of some fragments, of which one has lost rows."""
    made = ty.Table.create(
        str(where),
        rows(0, count),
        primary_key=["id"] if key else None,
        stable_row_ids=stable,
        durability="os",
        **options,
        options=ty.TableOptions(files=ty.FileLimits(rows=30)),
    )
    made.delete("id % 11 = 3")
    return made


def content(found: ty.Table) -> list[dict[str, Any]]:
    """All rows in order, comparable."""
    return plain(found.refresh().to_arrow())


def plain(found: pa.Table) -> list[dict[str, Any]]:
    listed = found.to_pylist()
    return sorted(({name: repr(value) for name, value in one.items()} for one in listed), key=lambda one: (int(one["id"]), str(one)))
