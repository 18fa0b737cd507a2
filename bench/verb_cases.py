"""What the verbs are measured on: the tables, the rows brought to them, and each verb as we and as pylance call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa

import tiltyard as ty

TIME_AIM: Final = 1.15
MEMORY_AIM: Final = 1.2

MERGED_SHARE: Final = 10
"""The source of a merge has one row for so many of the table; half of them are in the table."""
FRAGMENTS: Final = 10
SMALL_FRAGMENTS: Final = 200
_SEED: Final = 7

Ours = Callable[[ty.Table, pa.Table], object]
Stock = Callable[[lance.LanceDataset, pa.Table], object]


@dataclass(frozen=True)
class Case:
    """One verb on one table. ``aimed``: whether there is a ratio we want to stay below."""

    name: str
    table: str
    ours: Ours
    stock: Stock
    source: str = "none"
    durability: Any = "os"
    aimed: bool = True


# ---- rows ------------------------------------------------------------------------------------------------------------------


def rows_of(numbers: np.ndarray[Any, np.dtype[np.int64]], changed: int) -> pa.Table:
    """Rows of these numbers, the same ones each time; ``changed`` makes their values differ."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words = [f"note {value % 9973} on order {value % 99991}, part {changed}" for value in mixed.tolist()]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "key": pa.array([f"customer-{value:016x}" for value in mixed.tolist()], pa.string()),
            "count": pa.array((mixed % np.uint64(1000)).astype(np.int32) + changed, pa.int32()),
            "amount": pa.array((mixed % np.uint64(100_003)).astype(np.float64) / 7 + changed),
            "changed": pa.array(numbers * 1000 + changed, pa.timestamp("us")),
            "note": pa.array(words, pa.string()),
        }
    )


def upserted(rows: int) -> pa.Table:
    """A tenth as many rows as the table has, half of them in it, in no order."""
    random = np.random.default_rng(_SEED)
    count = max(rows // MERGED_SHARE, 2)
    old = random.choice(rows, count // 2, replace=False)
    new = rows + random.choice(rows, count - count // 2, replace=False)
    return rows_of(random.permutation(np.concatenate([old, new])).astype(np.int64), changed=1)


def appended(rows: int) -> pa.Table:
    return rows_of(np.arange(rows, rows + max(rows // MERGED_SHARE, 2), dtype=np.int64), changed=1)


SOURCES: Final[Mapping[str, Callable[[int], pa.Table]]] = {
    "none": lambda rows: pa.table({"id": pa.array([], pa.int64())}),
    "upserted": upserted,
    "appended": appended,
}


# ---- tables ----------------------------------------------------------------------------------------------------------------


def _keyed(root: Path, rows: int, key: str) -> None:
    data = rows_of(np.arange(rows, dtype=np.int64), changed=0)
    ty.Table.create(
        root, data, primary_key=[key], durability="os", options=ty.TableOptions(files=ty.FileLimits(rows=-(-rows // FRAGMENTS)))
    )


def _small(root: Path, rows: int) -> None:
    data = rows_of(np.arange(rows, dtype=np.int64), changed=0)
    ty.Table.create(root, data, durability="os", options=ty.TableOptions(files=ty.FileLimits(rows=-(-rows // SMALL_FRAGMENTS))))


def _worn(root: Path, rows: int) -> None:
    data = rows_of(np.arange(rows, dtype=np.int64), changed=0)
    ty.Table.create(root, data, durability="os", options=ty.TableOptions(files=ty.FileLimits(rows=-(-rows // FRAGMENTS)))).delete(
        "id % 5 = 2"
    )


TABLES: Final[Mapping[str, Callable[[Path, int], None]]] = {
    "by id": partial(_keyed, key="id"),
    "by key": partial(_keyed, key="key"),
    "small": _small,
    "worn": _worn,
}


# ---- verbs -----------------------------------------------------------------------------------------------------------------


def _our_upsert(table: ty.Table, rows: pa.Table) -> object:
    return table.merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()


def _stock_upsert(key: str) -> Stock:
    return lambda dataset, rows: dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _deleting(name: str, where: str) -> Case:
    return Case(name, "by id", lambda table, _: table.delete(where), lambda dataset, _: dataset.delete(where))


def _updating(name: str, where: str | None, mode: Any) -> Case:
    values = {"amount": "amount * 1.5"}
    return Case(
        name, "by id", lambda table, _: table.update(values, where, mode=mode), lambda dataset, _: dataset.update(values, where=where)
    )


def _compacting(name: str, table: str) -> Case:
    return Case(name, table, lambda table, _: table.compact(), lambda dataset, _: dataset.optimize.compact_files())


def cases(rows: int) -> list[Case]:
    upsert = f"upsert {max(rows // MERGED_SHARE, 2)} rows"
    part = f"id >= {rows * 4 // 10} AND id < {rows * 5 // 10}"
    return [
        Case(f"{upsert}, int64 key", "by id", _our_upsert, _stock_upsert("id"), "upserted"),
        Case(f"{upsert}, string key", "by key", _our_upsert, _stock_upsert("key"), "upserted"),
        Case(f"{upsert}, flushed", "by id", _our_upsert, _stock_upsert("id"), "upserted", "fsync", aimed=False),
        _deleting("delete 1 % of rows, scattered", "id % 100 = 7"),
        _deleting("delete 10 % of rows, a range", part),
        _updating("update one column of 5 % of rows", "id % 20 = 3", "rows"),
        _updating("update one column of all rows", None, "auto"),
        _compacting(f"compact {SMALL_FRAGMENTS} small fragments", "small"),
        _compacting("compact, 20 % of rows deleted", "worn"),
        Case("append to a table with a key", "by id", lambda t, new: t.append(new), _stock_append, "appended", aimed=False),
    ]


def _stock_append(dataset: lance.LanceDataset, rows: pa.Table) -> object:
    return lance.write_dataset(rows, dataset, mode="append")
