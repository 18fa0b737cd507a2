"""Tables whose columns change: made, interrupted by others, and compared with what stock pylance sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.storage.local import LocalStore

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
FORMATS = pytest.mark.parametrize("data_format", ["2.0", "2.1", "2.2"])

GONE = (0, 7)
LIVE = [number for number in range(12) if number not in GONE]


def rows(count: int = 12) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "x": pa.array([n * 10 for n in range(count)], pa.int32()),
            "s": pa.array([{"a": n, "b": f"b{n}"} for n in range(count)], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        }
    )


def make(root: Path, *, stable: bool = False, data_format: str = "2.2", **options: Any) -> ty.Table:
    """Three fragments, of which two have lost a row."""
    table = ty.Table.create(
        root,
        rows(),
        stable_row_ids=stable,
        durability="os",
        **options,
        options=ty.TableOptions(data_format=data_format, files=ty.FileLimits(rows=5)),
    )
    table.delete("id in (0, 7)")
    assert [one.live_rows for one in table.layout.fragments] == [4, 4, 2]
    return table


def seen(root: Path, **options: Any) -> pa.Table:
    """The rows, the same for us and for pylance; nothing is wrong and nothing left behind."""
    table = ty.Table.open(root, **options)
    ours = table.to_arrow()
    stock = open_stock(str(root))
    stock.validate()
    assert stock.version == table.version
    assert stock.schema.equals(table.schema, check_metadata=True)
    assert stock.to_table().equals(ours)
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())
    return ours


def column(root: Path, name: str) -> dict[int, Any]:
    """One column by id."""
    found = seen(root)
    return dict(zip(found["id"].to_pylist(), found[name].to_pylist(), strict=True))


def interrupted(root: Path, act: Callable[[], Any]) -> ty.Table:
    """A handle whose first create of a version is preceded by somebody else's commit."""
    return handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, act))


def more(*ids: int) -> pa.Table:
    return rows(1 + max(ids)).filter(pa.compute.is_in(pa.array(range(1 + max(ids))), pa.array(ids)))
