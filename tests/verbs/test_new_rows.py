"""Rows that make or replace a table: none of its keys may come twice, and the result counts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, files_below, handle, is_version, rows
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput, KeyConflict, UnsupportedFeature
from tiltyard.storage.local import LocalStore

As = Callable[[pa.Table], Any]


def _as_table(data: pa.Table) -> pa.Table:
    return data


def _as_stream(data: pa.Table) -> pa.RecordBatchReader:
    return data.to_reader(max_chunksize=2)


@pytest.fixture(params=[_as_table, _as_stream], ids=["table", "stream"])
def given(request: pytest.FixtureRequest) -> As:
    found: As = request.param
    return found


# ---- keys that come twice ----------------------------------------------------------------------------------------------------


def test_a_table_is_not_made_of_keys_that_come_twice(tmp_path: Path, given: As) -> None:
    with pytest.raises(KeyConflict, match=r"2 duplicate keys: id 1; id 2\.") as caught:
        ty.Table.create(tmp_path / "t", given(rows(1, 2, 3, 1, 2, 1)), primary_key=["id"])
    assert (caught.value.sample, caught.value.retryable, caught.value.transaction_id) == (("id 1", "id 2"), False, "")
    assert files_below(tmp_path / "t", "data") == set()
    assert files_below(tmp_path / "t", "_versions") == set()
    table = ty.Table.create(tmp_path / "t", given(rows(1, 2, 3)), primary_key=["id"])
    assert table.count_rows() == 3


def test_nor_is_one_replaced_by_them(tmp_path: Path, given: As) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(0), primary_key=["id"])
    before = files_below(root, "data")
    with pytest.raises(KeyConflict, match=r"1 duplicate key: id 5\."):
        table.overwrite(given(rows(5, 6, 5)))
    assert (table.layout.latest_version(), files_below(root, "data")) == (1, before)
    assert table.overwrite(given(rows(5, 6))).version == 2
    assert table.check().ok


def test_who_says_so_may_have_them(tmp_path: Path, given: As) -> None:
    table = ty.Table.create(tmp_path / "t", given(rows(1, 1)), primary_key=["id"], options=ty.TableOptions(on_duplicate="allow"))
    assert table.overwrite(given(rows(2, 2, 2)), on_duplicate="allow").rows == {"inserted": 3}
    assert [one.invariant for one in table.check().problems] == ["I4"], "the check still tells"
    for wrong in ("no", None, 1):
        with pytest.raises(InvalidInput, match="on_duplicate"):
            table.overwrite(rows(1), on_duplicate=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="on_duplicate"):
            ty.Table.create(tmp_path / "u", rows(1), options=ty.TableOptions(on_duplicate=wrong))  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="on_duplicate"):
            table.append(rows(1), on_duplicate=wrong)  # type: ignore[arg-type]


def test_only_the_key_counts(tmp_path: Path, given: As) -> None:
    pairs = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [0, 0, 0]})
    ty.Table.create(tmp_path / "both", given(pairs), primary_key=["a", "b"])
    with pytest.raises(KeyConflict, match="a 1"):
        ty.Table.create(tmp_path / "one", given(pairs), primary_key=["a"])
    table = ty.Table.create(tmp_path / "none", given(pairs))
    with pytest.raises(KeyConflict, match="b 'x'"):
        table.overwrite(given(pairs), primary_key=["b"])
    assert table.overwrite(given(pairs), primary_key=["a", "b"]).version == 2
    with pytest.raises(KeyConflict, match="a 1"):
        table.overwrite(given(pa.concat_tables([pairs, pairs])))
    assert table.overwrite(given(pa.concat_tables([pairs, pairs])), primary_key=[]).version == 3


def test_keys_that_cannot_be_compared(tmp_path: Path) -> None:
    """As for an append: they are refused unless the caller takes the duplicates."""
    table = pa.table({"j": pa.array(['{"a": 1}'], pa.json_())})
    empty = ty.Table.create(tmp_path / "empty", table.schema, primary_key=["j"])
    assert empty.version == 1
    with pytest.raises(UnsupportedFeature, match="cannot be compared"):
        ty.Table.create(tmp_path / "t", table, primary_key=["j"])
    assert ty.Table.create(tmp_path / "t", table, primary_key=["j"], options=ty.TableOptions(on_duplicate="allow")).count_rows() == 1


def test_a_second_run_checks_what_it_has_to(tmp_path: Path, given: As) -> None:
    """The table gets a key while we replace it: our rows have to have one, too."""
    root = tmp_path / "t"
    ty.Table.create(root, rows(0), durability="os")

    def action() -> None:
        ty.Table.open(root, durability="os").overwrite(rows(9), primary_key=["id"])

    raced = handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, action))
    with pytest.raises(ty.RetryableConflict) as caught:
        raced.overwrite(given(rows(1, 1)))
    assert isinstance(caught.value, KeyConflict) == (given is _as_table), "a stream cannot be read again"
    assert ty.Table.open(root).to_arrow()["id"].to_pylist() == [9]
    assert ty.Table.open(root).check().orphans == ()


# ---- counts ------------------------------------------------------------------------------------------------------------------


def test_results_count_rows_and_runs(tmp_path: Path, given: As) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(1))
    first = table.append(given(rows(2, 3)))
    assert (first.rows, first.executions, first.attempts) == ({"inserted": 2}, 1, 1)
    assert table.append(given(rows(2).slice(0, 0))).rows == {"inserted": 0}
    assert table.overwrite(given(rows(4, 5, 6, 7)), files=ty.FileLimits(rows=2)).rows == {"inserted": 4}

    def action() -> None:
        ty.Table.open(root).overwrite(rows(9))

    raced = handle(root, InterruptedStore(LocalStore(root), is_version, action, times=2))
    result = raced.overwrite(given(rows(8)))
    assert (result.rows, result.executions) == ({"inserted": 1}, 3)
    assert open_stock(str(root)).count_rows() == 1
    assert table.refresh().delete("id = 8").executions == 1
    assert table.delete("id = 8").executions == 1


# ---- rows that were made of a version ----------------------------------------------------------------------------------------


def test_an_overwrite_of_an_expected_version(tmp_path: Path, given: As) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1, 2), durability="os")
    table.append(rows(3))
    table.compact()
    table.indices.create("id", "BTREE")
    done = ty.Table.open(tmp_path / "t", durability="os").overwrite(given(rows(5)), commit=ty.CommitOptions(expected_version=2))
    assert (done.read_version, len(done.rebased_over) > 0) == (2, True), "upkeep changes no rows"
    before, late = done.version, ty.Table.open(tmp_path / "t", durability="os")
    table.refresh().append(rows(6))
    for stale in (late, table):
        with pytest.raises(ty.ExpectedVersionMismatch, match="then came version") as caught:
            stale.overwrite(given(rows(7)), commit=ty.CommitOptions(expected_version=before))
        assert (caught.value.expected, caught.value.actual) == (before, before + 1)
        task = stale.distributed.write_task(overwrite=True, schema=rows(7).schema)
        with pytest.raises(ty.ExpectedVersionMismatch):
            stale.distributed.overwrite(
                task, [task.write(given(rows(7)))], leftovers=True, commit=ty.CommitOptions(expected_version=before)
            )
    assert sorted(table.refresh().to_arrow()["id"].to_pylist()) == [5, 6]
    assert table.overwrite(given(rows(7))).version == before + 2, "without it, whatever is there is replaced"
    for wrong in (0, True, "1"):
        with pytest.raises(InvalidInput, match="expected_version"):
            ty.CommitOptions(expected_version=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="for an overwrite and"):
        table.append(given(rows(7)), commit=ty.CommitOptions(expected_version=1))
    with pytest.raises(ty.HistoryUnavailable):
        table.overwrite(given(rows(7)), commit=ty.CommitOptions(expected_version=99))
