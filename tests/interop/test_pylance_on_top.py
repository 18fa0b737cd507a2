"""On a table of ours stock pylance does everything it can, step by step; after each step we read every version and append on top.

One run for each way a table can be made: both naming schemes, stable row ids or not, each file format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick
from tests.support.samples import table_of
from tests.support.stock_tables import SCHEMA
from tests.support.tables import Chronicle, manifest_message, open_stock, sorted_rows

Step = Callable[[Any], Any]
LINEAGE: Final = ["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def _upsert(table: Any) -> None:
    rows = table_of(table.schema, 10, 35)
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _restore(table: Any) -> None:
    open_stock(table.uri, table.version - 2).restore()


@dataclass(frozen=True, slots=True)
class Told:
    """A step and what the history must then say of it, newest last."""

    run: Step
    operations: Sequence[str]


STEPS: Final[dict[str, Told]] = {
    "append": Told(lambda table: lance.write_dataset(table_of(table.schema, 10, 200), table.uri, mode="append"), ["Append"]),
    "delete": Told(lambda table: table.delete("id % 7 = 0"), ["Delete"]),
    "delete_nothing": Told(lambda table: table.delete("id = -1"), ["Delete"]),
    "update": Told(lambda table: table.update({"s": "'updated'"}, where="id % 11 = 0"), ["Update"]),
    "merge_insert": Told(_upsert, ["Update"]),
    "add_columns": Told(lambda table: table.add_columns({"double": "id * 2"}), ["Merge"]),
    "add_null_column": Told(lambda table: table.add_columns(pa.field("later", pa.string())), ["Merge"]),
    "rename": Told(lambda table: table.alter_columns({"path": "double", "name": "twice"}), ["Project"]),
    "cast": Told(lambda table: table.alter_columns({"path": "twice", "data_type": pa.int32()}), ["Merge"]),
    "drop_columns": Told(lambda table: table.drop_columns(["twice"]), ["Project"]),
    "scalar_index": Told(lambda table: table.create_scalar_index("id", "BTREE"), ["CreateIndex"]),
    "text_index": Told(lambda table: table.create_scalar_index("s", "INVERTED"), ["CreateIndex"]),
    "vector_index": Told(lambda table: table.create_index("v", "IVF_FLAT", num_partitions=1), ["CreateIndex"]),
    "update_indexed": Told(lambda table: table.update({"s": "'again'"}, where="id % 13 = 0"), ["Update"]),
    "optimize_indices": Told(lambda table: table.optimize.optimize_indices(), ["CreateIndex"]),
    "compact": Told(lambda table: table.optimize.compact_files(), ["ReserveFragments", "Rewrite"]),
    "drop_index": Told(lambda table: table.drop_index("s_idx"), ["CreateIndex"]),
    "config": Told(lambda table: table.update_config({"team": "blue"}), ["UpdateConfig"]),
    "table_metadata": Told(lambda table: table.update_metadata({"owner": "me"}), ["UpdateConfig"]),
    "schema_metadata": Told(lambda table: table.update_schema_metadata({"more": "é"}), ["UpdateConfig"]),
    "field_metadata": Told(lambda table: table.update_field_metadata({"s": {"unit": "words"}}), ["UpdateConfig"]),
    "tag": Told(lambda table: table.tags.create("here", table.version), []),
    "branch": Told(lambda table: table.create_branch("side"), []),
    "restore": Told(_restore, ["Restore"]),
    "overwrite": Told(lambda table: lance.write_dataset(table_of(SCHEMA, 20, 500), table.uri, mode="overwrite"), ["Overwrite"]),
    "delete_all": Told(lambda table: table.delete("true"), ["Delete"]),
}
MATRIX: Final = pick(
    [("v1", False, "2.0"), ("v2", True, "2.1"), ("v1", True, "2.2")],
    [(naming, stable, data_format) for naming in ("v1", "v2") for stable in (False, True) for data_format in ("2.0", "2.1", "2.2")],
)
"""All of them; in the short form both namings, stable row ids and none, and each file format."""


@pytest.fixture(params=MATRIX, ids=[f"{naming}-{'stable' if stable else 'addresses'}-{fmt}" for naming, stable, fmt in MATRIX])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Chronicle:
    """A fresh table of ours with two versions and two fragments."""
    naming, stable, data_format = request.param
    uri = str(tmp_path / "t")
    options = ty.TableOptions(manifest_naming=naming, data_format=data_format)
    ty.Table.create(uri, table_of(SCHEMA, 40), stable_row_ids=stable, options=options, durability="os").append(table_of(SCHEMA, 20, 40))
    return Chronicle(uri)


def check_step(chronicle: Chronicle, told: Told, before: int) -> None:
    """pylance's commits since version ``before`` are in our history, and both see the same table.

    Older versions are looked at in the end.
    """
    table = chronicle.newest()
    chronicle.sound(range(before, table.version + 1))
    assert [entry.operation for entry in reversed(table.history(table.version - before))] == list(told.operations)


def append_on_top(chronicle: Chronicle, start: int) -> None:
    """Appends with us, by splicing, and lets pylance read it."""
    table = chronicle.open()
    held = table.to_arrow()
    old, body = table.version, table._file.message.body
    rows = table_of(table.schema, 6, start)
    result = table.append(rows.slice(0, 4) if start % 2 else rows.to_reader(), files=ty.FileLimits(rows=3))
    count = 4 if start % 2 else 6
    assert manifest_message(chronicle.uri, old).startswith(body)
    assert manifest_message(chronicle.uri, result.version).startswith(body)
    stock = open_stock(chronicle.uri)
    assert stock.version == result.version == old + 1
    assert sorted_rows(stock.to_table()) == sorted(held.to_pylist() + rows.slice(0, count).to_pylist(), key=repr)
    chronicle.newest()
    chronicle.sound([old + 1])
    if stock.has_stable_row_ids:
        check_lineage(stock, count)


def check_lineage(stock: Any, count: int) -> None:
    """Our rows have fresh ids, and were created and last changed in our version; no two rows share an id."""
    lineage = stock.to_table(columns=LINEAGE)
    ids = lineage["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids)
    new = [row for row in lineage.to_pylist() if row["_row_created_at_version"] == stock.version]
    assert [row["_rowid"] for row in new] == list(range(max(ids) - count + 1, max(ids) + 1))
    assert {row["_row_last_updated_at_version"] for row in new} == {stock.version}
    assert stock.take([len(ids) - 1], columns=["id"])["id"].to_pylist() == [new[-1]["id"]]


def test_pylance_goes_on_where_we_stopped_and_we_go_on_where_pylance_stopped(made: Chronicle) -> None:
    made.agrees()
    made.sound()
    for number, (name, told) in enumerate(STEPS.items()):
        before = made.open().version
        told.run(open_stock(made.uri))
        check_step(made, told, before)
        if name in ("scalar_index", "vector_index"):
            check_indices_used(made.uri)
        append_on_top(made, 1000 + 10 * number)
        if name in ("scalar_index", "vector_index"):
            check_indices_used(made.uri)
    made.agrees(anew=True)
    made.sound()
    assert made.open().tags["here"].version in made.seen
    assert "side" in made.open().branches


def check_indices_used(uri: str) -> None:
    """Queries go through the index and find rows it covers and rows it does not."""
    stock = open_stock(uri)
    for number in stock.to_table(columns=["id"])["id"].to_pylist()[::9]:
        assert stock.to_table(columns=["id"], filter=f"id = {number}")["id"].to_pylist() == [number]
    assert "ScalarIndexQuery" in stock.scanner(filter="id = 1").explain_plan(verbose=True)
    if "v_idx" in {index.name for index in stock.describe_indices()}:
        nearest = {"column": "v", "q": [0.0] * 8, "k": stock.count_rows()}
        assert "ANN" in stock.scanner(nearest=nearest).explain_plan(verbose=True)
        with_vector = stock.count_rows("v is not null")
        assert stock.to_table(columns=["id"], nearest=nearest, disable_scoring_autoprojection=True).num_rows == with_vector


def test_an_index_of_pylance_takes_in_the_rows_we_append(made: Chronicle) -> None:
    open_stock(made.uri).create_scalar_index("id", "BTREE")
    made.open().append(table_of(SCHEMA, 10, 300))
    assert open_stock(made.uri).stats.index_stats("id_idx")["num_unindexed_rows"] == 10
    open_stock(made.uri).optimize.optimize_indices()
    stock = open_stock(made.uri)
    assert stock.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
    assert stock.to_table(filter="id in (3, 305)", columns=["id"])["id"].to_pylist() == [3, 305]
    made.agrees()
    made.sound()


def test_pylance_cleans_up_what_we_wrote_and_keeps_what_is_tagged(made: Chronicle) -> None:
    table = made.open()
    for start in (100, 200, 300):
        table.append(table_of(SCHEMA, 5, start))
    open_stock(made.uri).tags.create("kept", 2)
    made.agrees()
    open_stock(made.uri).cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    for version in (1, 3, 4):
        made.forget(version)
    assert made.agrees().layout.versions() == [2, 5]
    made.sound()
    assert ty.Table.open(made.uri, version="kept").count_rows() == 60
    append_on_top(made, 400)


def test_we_overwrite_what_pylance_indexed_and_deleted_from(made: Chronicle) -> None:
    stock = open_stock(made.uri)
    stock.create_scalar_index("id", "BTREE")
    stock.delete("id < 10")
    table = made.open()
    table.overwrite(table_of(pa.schema([("id", pa.int64()), ("other", pa.string())]), 12))
    made.agrees()
    made.sound()
    after = open_stock(made.uri)
    assert after.describe_indices() == []
    after.delete("id = 1")
    after.create_scalar_index("other", "BTREE")
    append_on_top(made, 600)
    open_stock(made.uri, 4).restore()
    append_on_top(made, 700)
    assert open_stock(made.uri).stats.index_stats("id_idx")["num_unindexed_rows"] == 6
