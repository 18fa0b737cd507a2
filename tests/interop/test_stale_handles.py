"""An append of ours whose handle has not seen what pylance did meanwhile: carried over, or turned away with the right word.

| pylance's commit in between | our append |
|---|---|
| Append, Delete, Update, CreateIndex, Rewrite, UpdateConfig, UpdateBases | committed |
| Merge: a null column added; Project: a column renamed, dropped or made nullable | committed |
| Merge: a column computed | ``RetryableConflict``: the new column is not nullable for all pylance says |
| Merge: a column cast | ``RetryableConflict``: the values would stay behind in the old field (pylance commits, and they read as null) |
| Overwrite, Restore | ``IncompatibleConflict`` |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath

import tiltyard as ty
from tests.support.samples import table_of
from tests.support.stock_tables import SCHEMA
from tests.support.tables import Chronicle, open_stock

NEW: Final = table_of(SCHEMA, 4, 700)


def _upsert(stock: Any) -> None:
    stock.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table_of(SCHEMA, 10, 35))


BETWEEN: Final[dict[str, Callable[[Any], Any]]] = {
    "append": lambda stock: lance.write_dataset(table_of(SCHEMA, 5, 100), stock.uri, mode="append"),
    "delete": lambda stock: stock.delete("id < 3"),
    "delete_all": lambda stock: stock.delete("true"),
    "update": lambda stock: stock.update({"s": "'x'"}, where="id = 5"),
    "upsert": _upsert,
    "index": lambda stock: stock.create_scalar_index("id", "BTREE"),
    "compact": lambda stock: stock.optimize.compact_files(),
    "config": lambda stock: stock.update_config({"a": "b"}),
    "schema_metadata": lambda stock: stock.update_schema_metadata({"a": "b"}),
    "bases": lambda stock: stock.add_bases([DatasetBasePath(f"{stock.uri}/more", name="more")]),
    "add_columns": lambda stock: stock.add_columns({"double": "id * 2"}),
    "add_null_column": lambda stock: stock.add_columns(pa.field("later", pa.string())),
    "rename": lambda stock: stock.alter_columns({"path": "s", "name": "t"}),
    "cast": lambda stock: stock.alter_columns({"path": "s", "data_type": pa.large_string()}),
    "drop_column": lambda stock: stock.drop_columns(["l"]),
    "nullable": lambda stock: stock.alter_columns({"path": "id", "nullable": True}),
}
AGAIN: Final = {"add_columns": "nulls", "cast": "read as null"}
"""Where the append has to be made anew, and why."""
REPLACING: Final[dict[str, Callable[[Any], Any]]] = {
    "overwrite": lambda stock: lance.write_dataset(table_of(SCHEMA, 5), stock.uri, mode="overwrite"),
    "restore": lambda stock: open_stock(stock.uri, 1).restore(),
}


@pytest.fixture(params=[False, True], ids=["addresses", "stable"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ty.Table:
    made = ty.Table.create(tmp_path / "t", table_of(SCHEMA, 20), stable_row_ids=request.param, durability="os")
    made.append(table_of(SCHEMA, 20, 20))
    return made


@pytest.mark.parametrize("between", BETWEEN)
def test_it_is_carried_over_what_does_not_touch_it(between: str, table: ty.Table) -> None:
    uri = str(table.uri)
    chronicle = Chronicle(uri)
    BETWEEN[between](open_stock(uri))
    after = open_stock(uri).to_table()
    if between in AGAIN:
        with pytest.raises(ty.errors.RetryableConflict, match=AGAIN[between]) as caught:
            table.append(NEW, commit=ty.CommitOptions(reexecutions=0))
        assert [winner.operation for winner in caught.value.winners] == ["Merge"]
        assert table.layout.latest_version() == 3
        table.refresh().append(table_of(table.schema, 4, 700))
    else:
        result = table.append(NEW)
        assert [winner.version for winner in result.rebased_over] == list(range(3, result.version))
    chronicle.agrees()
    chronicle.sound()
    stock = open_stock(uri)
    assert stock.to_table().slice(0, after.num_rows).equals(after)
    assert stock.to_table(columns=["id"])["id"].to_pylist()[after.num_rows :] == NEW["id"].to_pylist()
    shared = [
        name for name in stock.schema.names if name in NEW.schema.names and stock.schema.field(name).type == NEW.schema.field(name).type
    ]
    assert stock.to_table(columns=shared).slice(after.num_rows).to_pylist() == NEW.select(shared).to_pylist()
    stock.optimize.compact_files()
    chronicle.agrees()
    assert open_stock(uri).count_rows() == after.num_rows + 4


@pytest.mark.parametrize("between", REPLACING)
def test_it_is_turned_away_where_its_table_is_gone(between: str, table: ty.Table) -> None:
    uri = str(table.uri)
    REPLACING[between](open_stock(uri))
    files = set((Path(uri) / "data").iterdir())
    with pytest.raises(ty.errors.IncompatibleConflict) as caught:
        table.append(NEW)
    (winner,) = caught.value.winners
    assert (winner.version, winner.operation.lower()) == (3, between)
    # pylance leaves the old manifest's writer in place when it restores it.
    assert winner.writer == (f"lance {lance.__version__}" if between == "overwrite" else f"tiltyard {ty.__version__}")
    assert set((Path(uri) / "data").iterdir()) == files
    assert table.layout.latest_version() == 3
    Chronicle(uri).sound()


def test_columns_that_pylance_renamed_get_the_rows_written_under_their_old_name(table: ty.Table) -> None:
    """Fields are told apart by their ids, so what was written as ``s`` is read as ``t``."""
    uri = str(table.uri)
    open_stock(uri).alter_columns({"path": "s", "name": "t"})
    table.append(NEW)
    assert open_stock(uri).to_table(filter="id >= 700")["t"].to_pylist() == NEW["s"].to_pylist()
