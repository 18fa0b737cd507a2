"""Where a verb's cost can jump: very many fragments, rows or columns. The tables, and each call as we and as pylance make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa

import tiltyard as ty

TIME_AIM: Final = 1.2
MEMORY_AIM: Final = 1.2

OWN_KEYS: Final = 10
"""Fragments of a table of many that have a key of their own; the others hold copies of one row."""
_OTHER_KEY: Final = -1
_VERSIONS: Final = 5
"""Versions of a table of many fragments after the one that brought them."""

Ours = Callable[[ty.Table], object]
Stock = Callable[[lance.LanceDataset], object]


@dataclass(frozen=True)
class Case:
    """One call on one table of a given size. ``aimed``: whether there is a ratio we want to stay below."""

    name: str
    label: str
    table: str
    size: int
    ours: Ours
    stock: Stock
    aimed: bool = True


# ---- tables ----------------------------------------------------------------------------------------------------------------


def _fragments(root: Path, count: int, *, shared: bool) -> None:
    """Many fragments of one row each, and a few versions on top.

    Args:
        root: where.
        count: how many.
        shared: whether nearly all name one data file, so that a scan costs least beside what the engine does; or each a copy of its own.
    """
    keys = range(min(OWN_KEYS, count))
    table = ty.Table.create(root, _keyed([0]), durability="os")
    for key in keys[1:]:
        table.append(_keyed([key]))
    table.append(_keyed([_OTHER_KEY]))
    sample = table.layout.fragments[-1]
    content = (root / "data" / sample.files[0].path).read_bytes()
    more = []
    for number in range(count - len(keys) - 1):
        path = sample.files[0].path if shared else f"copy-{number:08}.lance"
        if not shared:
            (root / "data" / path).write_bytes(content)
        more.append(replace(sample, id=0, files=(replace(sample.files[0], path=path),)))
    if more:
        table.commit(ty.ops.Append(tuple(more)))
    for _ in range(_VERSIONS):
        table.update_config({"step": "next"})


def _keyed(keys: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "text": pa.array(["text"] * len(keys))})


def _rows(root: Path, count: int) -> ty.Table:
    """Plain rows in five fragments, whose ids stay."""
    numbers = np.arange(count, dtype=np.int64)
    rows = pa.table({"id": numbers, "amount": numbers / 7, "kind": (numbers % 11).astype(np.int32)})
    options = ty.TableOptions(files=ty.FileLimits(rows=max(-(-count // 5), 1)))
    return ty.Table.create(root, rows, durability="os", stable_row_ids=True, options=options)


def _plain(root: Path, count: int) -> None:
    _rows(root, count)


def _updated(root: Path, count: int, mode: Any) -> None:
    """A second version has other values in each row."""
    _rows(root, count).update({"amount": "amount + 1"}, mode=mode)


def _inserted(root: Path, count: int) -> None:
    """A second version has all the rows but one."""
    table = _rows(root, 1)
    numbers = np.arange(1, count + 1, dtype=np.int64)
    table.append(pa.table({"id": numbers, "amount": numbers / 7, "kind": (numbers % 11).astype(np.int32)}))


def _wide(root: Path, columns: int) -> None:
    """A thousand rows of many columns."""
    numbers = np.arange(1000, dtype=np.int64)
    rows = pa.table({"id": numbers, **{f"c{column}": numbers + column for column in range(columns - 1)}})
    ty.Table.create(root, rows, durability="os")


TABLES: Final[Mapping[str, Callable[[Path, int], None]]] = {
    "fragments": partial(_fragments, shared=True),
    "files": partial(_fragments, shared=False),
    "rows": _plain,
    "moved": partial(_updated, mode="rows"),
    "in place": partial(_updated, mode="columns"),
    "inserted": _inserted,
    "wide": _wide,
}


# ---- calls -----------------------------------------------------------------------------------------------------------------


def _merged() -> pa.Table:
    """Ten rows, half of them in the table."""
    return _keyed([*range(OWN_KEYS // 2), *range(1000, 1000 + OWN_KEYS // 2)])


def _our_merge(table: ty.Table) -> object:
    return table.merge(_merged(), on="id").when_matched_update_all().when_not_matched_insert_all().execute()


def _stock_merge(dataset: lance.LanceDataset) -> object:
    return dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(_merged())


def _counted(batches: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in batches)


def _our_feed(table: ty.Table) -> object:
    return _counted(table.changes(table.version - 1))


def _stock_feed(dataset: lance.LanceDataset, *, inserted: bool) -> object:
    delta = dataset.delta(compared_against=dataset.version - 1)
    return _counted(delta.get_inserted_rows() if inserted else delta.get_updated_rows())


def _our_check(table: ty.Table) -> object:
    report = table.check()
    if not report.ok:
        raise SystemExit(f"the table is not sound: {report.problems[:3]}")
    return report.ok


def _stock_check(dataset: lance.LanceDataset) -> object:
    dataset.validate()  # type: ignore[no-untyped-call]
    return True


def _our_cleanup(table: ty.Table) -> object:
    table.cleanup(keep_versions=1, grace=timedelta(0))
    return None


def _stock_cleanup(dataset: lance.LanceDataset) -> object:
    dataset.cleanup_old_versions(retain_versions=1)
    return None


def _our_tag(table: ty.Table) -> object:
    table.tags.create("marked")
    return None


def _stock_tag(dataset: lance.LanceDataset) -> object:
    dataset.tags.create("marked", dataset.version)
    return None


def _deleting(where: str) -> tuple[Ours, Stock]:
    return lambda table: table.delete(where), lambda dataset: dataset.delete(where)


def _updating(values: dict[str, str], where: str) -> tuple[Ours, Stock]:
    return lambda table: table.update(values, where), lambda dataset: dataset.update(values, where=where)


def cases(scale: float) -> list[Case]:
    """All cases, on tables of so much of their full size."""

    def sized(full: int) -> int:
        return max(int(full * scale), 2 * OWN_KEYS)

    many, most, rows, feed, fresh, columns = map(sized, (100_000, 300_000, 5_000_000, 1_000_000, 4_000_000, 5000))
    updates = _our_feed, partial(_stock_feed, inserted=False)
    one_row = _deleting("id = 3"), _updating({"text": "'other'"}, "id = 3")
    return [
        Case("merge", f"merge 10 rows, {many} fragments", "fragments", many, _our_merge, _stock_merge),
        Case("merge-most", f"merge 10 rows, {most} fragments", "fragments", most, _our_merge, _stock_merge),
        Case("delete-row", f"delete a row, {many} fragments", "fragments", many, *one_row[0]),
        Case("update-row", f"update a row, {many} fragments", "fragments", many, *one_row[1]),
        Case("check", f"check, {many} fragments", "fragments", many, _our_check, _stock_check, aimed=False),
        Case("cleanup", f"cleanup, {many} fragments", "fragments", many, _our_cleanup, _stock_cleanup),
        Case("tag", f"make a tag, {most} fragments", "fragments", most, _our_tag, _stock_tag),
        Case("feed-moved", f"feed of {feed} updated rows", "moved", feed, *updates),
        Case("feed-in-place", f"feed of {feed} rows updated in place", "in place", feed, *updates),
        Case("feed-inserts", f"feed of {fresh} inserts", "inserted", fresh, _our_feed, partial(_stock_feed, inserted=True)),
        Case("delete-half", f"delete half of {rows} rows", "rows", rows, *_deleting("id % 2 = 0")),
        Case("update-wide", f"update 100 of 1000 rows, {columns} columns", "wide", columns, *_updating({"c7": "c7 + 1"}, "id < 100")),
    ]
