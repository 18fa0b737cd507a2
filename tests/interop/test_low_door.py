"""Committing what others prepared: fragments that pylance wrote, and whole transactions of pylance."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments

import tiltyard as ty
from tests.support.samples import table_of
from tests.support.stock_tables import KINDS, SCHEMA
from tests.support.tables import Chronicle, open_stock
from tiltyard.verbs.engine.data_files import fragment_from_lance

FOUR = table_of(SCHEMA, 4, 100)


@pytest.fixture(params=[False, True], ids=["addresses", "stable"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ty.Table:
    return ty.Table.create(tmp_path / "t", table_of(SCHEMA, 20), stable_row_ids=request.param, durability="os")


def test_fragments_that_pylance_wrote_are_appended(table: ty.Table) -> None:
    written = write_fragments(FOUR, table.uri, mode="append", max_rows_per_file=3)
    result = table.commit(ty.ops.Append(tuple(map(fragment_from_lance, written))), commit=ty.CommitOptions(properties={"who": "a worker"}))
    assert (result.version, result.operation) == (2, "Append")
    stock = open_stock(str(table.uri))
    assert stock.to_table().slice(20).equals(FOUR)
    assert [fragment.fragment_id for fragment in stock.get_fragments()] == [0, 1, 2]
    assert table.history()[0].properties == {"who": "a worker"}
    Chronicle(str(table.uri)).sound()


def test_fragments_may_be_described_by_hand(table: ty.Table) -> None:
    (written,) = write_fragments(FOUR, table.uri, mode="append")
    (file,) = written.files
    by_hand = ty.ops.DataFile(file.path, tuple(file.fields), tuple(file.column_indices), 2, 2)
    table.commit(ty.ops.Append((ty.ops.DataFragment(id=0, files=(by_hand,), physical_rows=4),)))
    assert open_stock(str(table.uri)).count_rows("id >= 100") == 4
    Chronicle(str(table.uri)).sound()


def _detached(uri: str, operation: Callable[[Any], Any]) -> bytes:
    """A transaction as pylance wrote it, of a commit beside the line of history: its files are there, its version is not."""
    stock = open_stock(uri)
    before = set((Path(uri) / "_transactions").iterdir())
    LanceDataset.commit(stock, operation(stock), read_version=stock.version, detached=True)
    (new,) = set((Path(uri) / "_transactions").iterdir()) - before
    return new.read_bytes()


def test_an_append_of_pylance_is_committed_by_us(table: ty.Table) -> None:
    uri = str(table.uri)
    data = _detached(uri, lambda stock: LanceOperation.Append(write_fragments(FOUR, stock)))
    assert ty.Table.open(uri).layout.versions() == [1]
    table.append(table_of(SCHEMA, 2, 50))  # in between: the transaction was built on version 1
    result = table.commit(ty.Transaction.from_bytes(data))
    assert (result.version, result.read_version, [winner.version for winner in result.rebased_over]) == (3, 1, [2])
    assert open_stock(uri).to_table().slice(22).equals(FOUR)
    assert table.transactions.outcome(result.transaction_id) == ty.outcomes.Committed(3)
    Chronicle(uri).agrees()
    Chronicle(uri).sound()


def test_an_overwrite_of_pylance_is_committed_by_us(table: ty.Table) -> None:
    uri, rows = str(table.uri), table_of(pa.schema([("a", pa.int8()), ("b", pa.list_(pa.string()))]), 6)
    data = _detached(uri, lambda _: LanceOperation.Overwrite(rows.schema, write_fragments(rows, uri, mode="overwrite")))
    assert table.commit(ty.Transaction.from_bytes(data)).operation == "Overwrite"
    assert open_stock(uri).to_table().equals(rows)
    Chronicle(uri).agrees()
    Chronicle(uri).sound()


OTHERS: dict[str, Callable[[Any], Any]] = {
    "Delete": lambda stock: LanceOperation.Delete([], [0], "true"),
    "Restore": lambda stock: LanceOperation.Restore(1),
    "Project": lambda stock: LanceOperation.Project(stock.schema),
    "Update": lambda stock: LanceOperation.Update(removed_fragment_ids=[0], new_fragments=write_fragments(FOUR, stock)),
    "Merge": lambda stock: LanceOperation.Merge([fragment.metadata for fragment in stock.get_fragments()], stock.lance_schema),
}


REFUSED_AFTER_AN_APPEND = {"Project", "Merge"}
"""The one makes no promise about nulls, the other brings a list of fragments without the new one."""


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_of_pylance_are_committed_by_us(name: str, stale: bool, table: ty.Table) -> None:
    uri = str(table.uri)
    before = table.to_arrow()
    transaction = ty.Transaction.from_bytes(_detached(uri, OTHERS[name]))
    if stale:
        table.append(FOUR)
    if stale and name in REFUSED_AFTER_AN_APPEND:
        with pytest.raises(ty.errors.RetryableConflict) as caught:
            table.commit(transaction)
        assert (caught.value.operation, [one.operation for one in caught.value.winners]) == (name, ["Append"])
        assert ty.Table.open(uri).layout.versions() == [1, 2]
        return
    assert table.commit(transaction).operation == name
    appended = [FOUR] if stale else []
    none = before.slice(0, 0)
    expected = {
        "Delete": pa.concat_tables([none, *appended]),
        "Restore": before,
        "Project": before,
        "Update": pa.concat_tables([*appended, FOUR]),
        "Merge": before,
    }[name]
    assert open_stock(uri).to_table().combine_chunks().equals(expected.combine_chunks())
    assert table.to_arrow().combine_chunks().equals(expected.combine_chunks())
    open_stock(uri).validate()
    Chronicle(uri).sound()


def test_a_transaction_is_committed_once(table: ty.Table) -> None:
    uri = str(table.uri)
    transaction = ty.Transaction.from_bytes(_detached(uri, lambda stock: LanceOperation.Append(write_fragments(FOUR, stock))))
    first = table.commit(transaction)
    again = ty.Table.open(uri, version=1).commit(transaction)
    assert (again.version, again.transaction_id) == (first.version, first.transaction_id)
    assert open_stock(uri).count_rows() == 24
    Chronicle(uri).sound()


def test_detached_versions_are_beside_the_history(tmp_path: Path) -> None:
    made = KINDS["detached"](tmp_path / "t")
    (detached,) = [int(path.name[1:-9]) for path in (tmp_path / "t" / "_versions").glob("d*.manifest")]
    table = ty.Table.open(made.uri)
    assert (table.version, table.layout.versions(), len(table.history())) == (1, [1], 1)
    with pytest.raises(ty.errors.InvalidInput, match="not a version number"):
        ty.Table.open(made.uri, version=detached)
    assert table.append(FOUR).version == 2
    assert lance.dataset(made.uri, version=detached).count_rows() == 50
    Chronicle(made.uri).sound()


def test_a_stale_handle_of_pylance_rebases_over_our_commits(table: ty.Table) -> None:
    uri = str(table.uri)
    stale = open_stock(uri)
    table.append(FOUR)
    shutil.rmtree(Path(uri) / "_transactions")  # the copy inside the manifest is enough for pylance
    stale.delete("id = 3")
    assert open_stock(uri).count_rows() == 23
    assert [entry.operation for entry in table.refresh().history()] == ["Delete", "Append", "Overwrite"]


def test_the_low_door_takes_a_message_and_a_deadline(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1]}), durability="os")
    result = table.commit(
        ty.ops.UpdateConfig(config_updates=ty.ops.UpdateMap((("a", "b"),))),
        message="by hand",
        commit=ty.CommitOptions(properties={"job": "7"}),
    )
    entry = table.transactions.describe()
    assert (entry.message, entry.properties["job"], entry.transaction_id) == ("by hand", "7", result.transaction_id)
    for wrong in (-1.0, "soon"):
        with pytest.raises(ty.InvalidInput, match="deadline"):
            table.commit(ty.ops.Append(), commit=ty.CommitOptions(deadline=wrong))  # type: ignore[arg-type]
    whole = ty.Transaction(table.version, "00000000-0000-4000-8000-000000000001", ty.ops.Append())
    with pytest.raises(ty.InvalidInput, match="message"):
        table.commit(whole, message="twice told")
    assert table.commit(whole, commit=ty.CommitOptions(deadline=60)).version == 3
