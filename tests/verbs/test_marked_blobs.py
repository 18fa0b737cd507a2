"""Binary columns that metadata marks as blobs, in every data format: all verbs keep the bytes, and stock pylance reads the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import UnsupportedFeature

MARK = {"lance-encoding:blob": "true"}
NESTED = pa.struct([pa.field("n", pa.large_binary(), metadata=MARK), pa.field("k", pa.int32())])
SCHEMA = pa.schema(
    [
        pa.field("b", pa.large_binary(), metadata=MARK),  # first: an overwrite that numbers its members wrongly breaks what follows
        pa.field("id", pa.int64(), False),
        pa.field("s", NESTED),
        pa.field("last", pa.string()),
    ]
)
LARGE = b"z" * (5 << 20)
MIDDLE = b"m" * (100 << 10)


def rows(*values: tuple[int, bytes | None]) -> pa.Table:
    columns = [
        pa.array([blob for _, blob in values], pa.large_binary()),
        pa.array([number for number, _ in values], pa.int64()),
        pa.array([None if number % 3 == 2 else {"n": blob, "k": number} for number, blob in values], NESTED),
        pa.array([f"row {number}" for number, _ in values]),
    ]
    return pa.table(columns, schema=SCHEMA)


BEGIN = {0: b"x0", 1: LARGE, 2: None, 3: MIDDLE, 4: b""}


def stored(uri: Path) -> dict[int, bytes | None]:
    """What stock pylance reads, by both of its ways."""
    dataset = lance.dataset(str(uri))
    found = dataset.scanner(blob_handling="all_binary", with_row_id=True).to_table()
    for row in found.to_pylist():
        [taken] = dataset.take_blobs("b", ids=[row["_rowid"]])
        assert (None if taken is None else taken.readall()) == row["b"]
        assert row["s"] is None or row["s"]["n"] == row["b"]
    return dict(zip(found["id"].to_pylist(), found["b"].to_pylist(), strict=True))


VERBS: dict[str, tuple[Callable[[ty.Table], object], dict[int, bytes | None]]] = {
    "create": (lambda table: None, BEGIN),
    "append": (lambda table: table.append(rows((7, b"seven"), (8, None))), {**BEGIN, 7: b"seven", 8: None}),
    "overwrite": (lambda table: table.overwrite(rows((9, MIDDLE))), {9: MIDDLE}),
    "delete": (lambda table: table.delete("id = 1"), {number: blob for number, blob in BEGIN.items() if number != 1}),
    "move rows": (lambda table: table.update({"last": "'new'"}, where="id in (1, 2)", mode="rows"), BEGIN),
    "another column in place": (lambda table: table.update({"last": "'new'"}, mode="columns"), BEGIN),
    "new bytes": (
        lambda table: table.update({"b": "X'6162'", "s": "NULL"}, where="id = 1"),
        {**BEGIN, 1: b"ab"},
    ),
    "no bytes": (lambda table: table.update({"b": "NULL", "s": "NULL"}, where="id = 3"), {**BEGIN, 3: None}),
    "merge": (
        lambda table: (
            table.merge(rows((1, b"one"), (5, b"five")), on="id").when_matched_update_all().when_not_matched_insert_all().execute()
        ),
        {**BEGIN, 1: b"one", 5: b"five"},
    ),
    "compact": (
        lambda table: (table.delete("id = 0"), table.append(rows((7, LARGE))), table.compact()),
        {1: LARGE, 2: None, 3: MIDDLE, 4: b"", 7: LARGE},
    ),
}  # fmt: skip


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("data_format", ["2.1", "2.2"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_bytes_stay(tmp_path: Path, verb: str, data_format: str, stable: bool) -> None:
    work, expected = VERBS[verb]
    table = ty.Table.create(
        tmp_path / "t", rows(*BEGIN.items()), stable_row_ids=stable, durability="os", options=ty.TableOptions(data_format=data_format)
    )
    work(table)
    assert stored(tmp_path / "t") == expected
    assert table.check().ok


def test_blobs_are_not_rewritten_in_place(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(*BEGIN.items()), durability="os")
    with pytest.raises(UnsupportedFeature, match="'b' cannot be rewritten in place"):
        table.update({"b": "X'6162'"}, mode="columns")
    assert table.layout.latest_version() == 1
