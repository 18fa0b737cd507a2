"""Sharded tables: one logical table over several, each verb one lake transaction."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.arrow_types import STORABLE
from tests.support.lakes import InterposedRecords, Site, stock, through, together
from tests.support.lost_catalogs import lose_catalog, rebuild, restore
from tests.support.samples import table_of
from tiltyard.lakes.sharded.shard_hash import shard_numbers
from tiltyard.lakes.sharded.sharded_reader import INSTEAD, ShardedReader
from tiltyard.lakes.sharded.sharded_tables import ShardedTable, ShardedTransactionTable

SHARDS = 4


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [float(number) for number in ids]})


def ids(table: ty.TableReader, **how: Any) -> list[int]:
    return sorted(table.to_arrow(["id"], **how)["id"].to_pylist())


def home(number: int, shards: int = SHARDS) -> int:
    """The shard of a key."""
    return int(shard_numbers(rows(number), ["id"], shards)[0])


def ids_of_shard(shard: int, count: int, first: int = 100) -> list[int]:
    """Some keys that belong into one shard."""
    found = (number for number in range(first, first + 10_000) if home(number) == shard)
    return [next(found) for _ in range(count)]


@pytest.fixture
def lake(site: Site) -> ty.Lake:
    made = site.open()
    made.create_table("t", rows(*range(20)), primary_key=["id"], shard_by="id", shards=SHARDS)
    return made


@pytest.fixture
def table(lake: ty.Lake) -> ShardedTable:
    opened = lake.table("t")
    assert isinstance(opened, ShardedTable)
    return opened


# ---- what it is --------------------------------------------------------------------------------------------------------------------


def test_it_is_one_table(site: Site, lake: ty.Lake, table: ShardedTable) -> None:
    assert (table.shards, table.shard_by, table.primary_key, table.schema.names) == (SHARDS, ("id",), ("id",), ["id", "v"])
    assert lake.tables() == lake.snapshot().tables() == lake.transaction().tables() == ["t"]
    assert ids(table) == ids(site.open().table("t")) == list(range(20))
    assert (table.count_rows(), table.version, lake.snapshot().id) == (20, 1, 1), "made in one transaction"
    for number in range(SHARDS):
        assert {home(one) for one in ids(table.shard(number))} == {number}
        assert sorted(stock(lake, f"t.__shard_{number}").to_table()["id"].to_pylist()) == ids(table.shard(number))
    assert pa.table(table).num_rows == 20
    assert "ShardedTable('t', shards=4" in repr(table)


def test_every_member_is_sharded_or_refused_by_name() -> None:
    """A member that is inherited would do its work on the anchor, which has no rows."""
    safe = {"branch", "config", "create_index", "drop_index", "list_indices", "compact", "name", "primary_key", "schema", "uri"}
    safe |= {"update_config", "update_field_metadata", "refresh"}
    done_by = {"append": "_append", "overwrite": "_overwrite", "delete": "_delete", "update": "_update", "merge": "_merge"}
    done_by |= {"add_columns": "_add_columns", "writer": "_batch_target", "scan": "_batches", "to_arrow": "_rows"}
    for kind, base in ((ShardedTable, ty.LakeTable), (ShardedTransactionTable, ty.TransactionTable), (ShardedReader, ty.LakeReader)):
        own = {name for one in kind.__mro__ if "sharded" in one.__module__ for name in vars(one)}
        own |= {verb for verb, step in done_by.items() if step in own}  # which checks what it is given, and leaves the rest to that
        left = {name for name in dir(base) if not name.startswith("_")} - own - safe
        assert left <= ({"settings"} if kind is ShardedReader else set()), kind


@pytest.mark.parametrize("member", INSTEAD)
def test_what_several_tables_do_not_have(lake: ty.Lake, table: ShardedTable, member: str) -> None:
    with lake.transaction() as tx:
        for handle in (table, lake.snapshot().table("t"), tx.table("t")):
            with pytest.raises(ty.UnsupportedFeature, match=f"has no {member}") as caught:
                getattr(handle, member)
            assert caught.value.advice


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"shard_by": "v", "shards": 2, "primary_key": ["id"]}, "not part of the primary key"),
        ({"shard_by": "id", "shards": 2}, "not part of the primary key"),
        ({"shard_by": ["id", "v"], "shards": 2, "primary_key": ["id"]}, "not part of the primary key"),
        ({"shard_by": "nothing", "shards": 2, "primary_key": ["id"]}, "no column"),
        ({"shard_by": [], "shards": 2, "primary_key": ["id"]}, "at least one"),
        ({"shard_by": "id", "shards": 0, "primary_key": ["id"]}, "from 1"),
        ({"shard_by": "id", "shards": 5000, "primary_key": ["id"]}, "from 1"),
        ({"shard_by": "id", "shards": 2.0, "primary_key": ["id"]}, "from 1"),
        ({"shard_by": "id", "primary_key": ["id"]}, "needs shard_by and shards"),
        ({"shards": 3, "primary_key": ["id"]}, "needs shard_by and shards"),
    ],
)
def test_definitions_that_cannot_hold(site: Site, how: dict[str, Any], why: str) -> None:
    lake = site.open()
    with pytest.raises(ty.InvalidInput, match=why):
        lake.create_table("t", rows(1), **how)
    assert lake.tables() == []
    assert lake.snapshot().id == 0


def test_a_name_is_taken_once(site: Site, lake: ty.Lake) -> None:
    for how in ({}, {"primary_key": ["id"], "shard_by": "id", "shards": 2}):
        with pytest.raises(ty.AlreadyExists):
            lake.create_table("t", rows(1), **how)  # type: ignore[arg-type]
    other = site.open()
    made = together(
        lambda: lake.create_table("u", rows(1), primary_key=["id"], shard_by="id", shards=2),
        lambda: other.create_table("u", rows(2)),
        lambda: site.open().create_table("u", rows(3), primary_key=["id"], shard_by="id", shards=3),
    )
    assert sum(isinstance(one, ty.AlreadyExists) for one in made) == 2
    assert lake.table("u").count_rows() == 1
    assert lake.check().ok


# ---- verbs -------------------------------------------------------------------------------------------------------------------------


def test_an_append_over_several_shards_is_one_snapshot(lake: ty.Lake, table: ShardedTable) -> None:
    result = table.append(rows(*range(100, 120)), message="more")
    assert (result.version, result.rows, result.read_version) == (2, {"inserted": 20}, 1)
    assert lake.snapshot().id == 2
    assert len(lake.history()[0].tables) == SHARDS
    assert lake.history()[0].message == "more"
    assert table.version == 2
    assert table.count_rows() == 40
    assert lake.snapshot(1).table("t").count_rows() == 20


def test_an_append_to_one_shard_changes_that_shard_alone(lake: ty.Lake, table: ShardedTable) -> None:
    table.append(rows(*ids_of_shard(2, 3)))
    assert lake.history()[0].tables == ("t.__shard_2",)


def test_commits_to_different_shards_never_meet(lake: ty.Lake) -> None:
    """Each is published while the other is under way; neither is tried again."""
    other = ids_of_shard(1, 1)
    through(lake, lambda records: InterposedRecords(records, lambda: lake_two.table("t").append(rows(*other))))
    lake_two = ty.Lake(lake._where, lake.catalog.records.inner, lake.catalog.runtime, "two")  # type: ignore[attr-defined]
    with lake.transaction() as tx:
        tx.table("t").append(rows(*ids_of_shard(0, 1)))
    assert tx.result is not None
    assert tx.result.rebased == {}
    assert lake.table("t").count_rows() == 22


def test_streams(table: ShardedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.lakes.sharded.shard_verbs.AT_ONCE", 64)
    table.append(rows(*range(100, 150)).to_reader(max_chunksize=7))
    assert ids(table) == [*range(20), *range(100, 150)]
    assert table.version == 2


def test_keys_hold_over_the_whole_table(table: ShardedTable) -> None:
    with pytest.raises(ty.KeyConflict, match="id 7"):
        table.append(rows(100, 7))
    with pytest.raises(ty.KeyConflict, match="duplicate key"):
        table.append(rows(101, 101))
    assert (table.count_rows(), table.version) == (20, 1), "of a refused append nothing is there"
    table.append(rows(7), on_duplicate="allow")
    assert table.count_rows("id = 7") == 2


def test_two_writers_with_one_key(site: Site, lake: ty.Lake) -> None:
    done = together(*(lambda: site.open().table("t").append(rows(500)) for _ in range(3)))
    assert sum(isinstance(one, ty.CommitResult) for one in done) == 1
    assert {type(one) for one in done} <= {ty.CommitResult, ty.KeyConflict}
    assert lake.table("t").count_rows("id = 500") == 1


def test_rows_that_do_not_fit(table: ShardedTable) -> None:
    for bad in ({"id": ["x"], "v": [1.0]}, {"v": [1.0]}, {"id": [1], "w": [2]}, {"id": [None], "v": [1.0]}):
        with pytest.raises(ty.InvalidInput):
            table.append(bad)
    assert table.version == 1


def test_delete_and_update_find_their_shards(lake: ty.Lake, table: ShardedTable) -> None:
    assert table.delete("id = 3").rows == {"deleted": 1}
    assert lake.history()[0].tables == (f"t.__shard_{home(3)}",)
    assert table.update({"v": "v + 100"}, where="id in (4, 5)").rows == {"updated": 2}
    assert table.to_arrow(filter="v >= 100")["id"].to_pylist() in ([4, 5], [5, 4])
    assert table.delete("v < 3").rows == {"deleted": 3}
    assert table.delete("id = 999").version == table.version, "nothing to delete, no snapshot"
    assert ids(table) == list(range(4, 20))
    with pytest.raises(ty.InvalidInput, match="which shard"):
        table.update({"id": "id + 1"})


def test_merge(table: ShardedTable) -> None:
    source = pa.table({"id": pa.array([1, 2, 100, 101], pa.int64()), "v": [0.1, 0.2, 0.3, 0.4]})
    done = table.merge(source).when_matched_update_all().when_not_matched_insert_all().execute(message="upsert")
    assert done.rows == {"inserted": 2, "updated": 2, "deleted": 0}
    assert table.version == 2
    table.merge(rows(1)).when_not_matched_by_source_delete().execute()
    assert ids(table) == [1], "rows of all shards that the source does not have"
    with pytest.raises(ty.InvalidInput, match="must match on id"):
        table.merge(rows(1), on="v").when_matched_delete().execute()
    with pytest.raises(ty.KeyConflict):
        table.merge(rows(5, 5)).when_not_matched_insert_all().execute()


def test_overwrite(lake: ty.Lake, table: ShardedTable) -> None:
    table.overwrite(pa.table({"id": pa.array([1, 2, 3], pa.int64()), "other": ["a", "b", "c"]}))
    assert (ids(table), table.schema.names, table.primary_key, table.version) == ([1, 2, 3], ["id", "other"], ("id",), 2)
    with pytest.raises(ty.InvalidInput):
        table.overwrite({"other": ["x"]})
    with pytest.raises(ty.InvalidInput, match="primary key"):
        table.overwrite({"id": [1], "other": ["x"]}, primary_key=[])
    assert table.check().ok
    assert lake.check().ok


def test_columns(lake: ty.Lake, table: ShardedTable) -> None:
    table.add_columns({"w": "id * 2"})
    table.add_columns(pa.field("empty", pa.string()))
    table.add_columns(pa.table({"id": pa.array([1, 2], pa.int64()), "note": ["one", "two"]}).to_reader(), on="id")
    assert table.schema.names == ["id", "v", "w", "empty", "note"]
    assert table.to_arrow(["w", "note"], "id = 2").to_pylist() == [{"w": 4, "note": "two"}]
    table.alter_columns({"path": "w", "name": "double", "data_type": pa.int32()})
    table.drop_columns(["empty"])
    assert table.schema.field("double").type == pa.int32()
    with pytest.raises(ty.InvalidInput, match="which shard"):
        table.drop_columns(["id"])
    with pytest.raises(ty.InvalidInput, match="which shard"):
        table.alter_columns({"path": "id", "name": "key"})
    assert [stock(lake, f"t.__shard_{number}").schema.names for number in range(SHARDS)] == [["id", "v", "double", "note"]] * SHARDS
    table.update_field_metadata("v", {"unit": "m"})
    assert table.schema.field("v").metadata[b"unit"] == b"m"
    table.append({"id": [77], "v": [1.0], "double": pa.array([7], pa.int32()), "note": ["x"]})
    assert table.check().ok


def test_settings(table: ShardedTable) -> None:
    table.update_config({"lance.auto_cleanup.interval": "20"})
    assert table.config["lance.auto_cleanup.interval"] == "20"
    assert table.shard(1).config["lance.auto_cleanup.interval"] == "20"
    with pytest.raises(ty.InvalidInput, match="reserved for Tiltyard"):
        table.update_config({"tiltyard.sharding": "{}"})
    with pytest.raises(ty.UnsupportedFeature):
        table.settings.update_config({"a": "b"}, replace=True)


def test_indices(lake: ty.Lake, table: ShardedTable) -> None:
    table.create_index("v", "BTREE")
    assert lake.snapshot().id == 2
    (index,) = table.list_indices()
    assert (index.name, index.type, index.columns, index.rows, index.missing_rows) == ("v_idx", "BTREE", ("v",), 20, 0)
    table.append(rows(100))
    assert table.list_indices()[0].missing_rows == 1
    table.indices.optimize()
    assert table.list_indices()[0].missing_rows == 0
    assert ids(table, filter="v = 7.0") == [7]
    table.drop_index("v_idx")
    assert table.list_indices() == ()


def test_vector_search_ranks_rows_of_all_shards(site: Site) -> None:
    lake = site.open()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([float(one) for number in range(40) for one in (number, 0)], pa.float32()), 2)
    table = lake.create_table("t", pa.table({"id": range(40), "e": vectors}), primary_key=["id"], shard_by="id", shards=4)
    found = table.to_arrow(["id"], options={"nearest": {"column": "e", "q": [20.2, 0.0], "k": 5}})
    assert found["id"].to_pylist() == [20, 21, 19, 22, 18]
    with pytest.raises(ty.UnsupportedFeature, match="with_row_id"):
        table.to_arrow(options={"with_row_id": True})
    with pytest.raises(ty.UnsupportedFeature, match="row id"):
        table.to_arrow(["id", "_rowid"])


def test_limits_are_over_all_shards(table: ShardedTable) -> None:
    everything = table.to_arrow()["id"].to_pylist()
    assert table.to_arrow(limit=7)["id"].to_pylist() == everything[:7]
    assert table.to_arrow(offset=12)["id"].to_pylist() == everything[12:]
    assert table.to_arrow(limit=5, offset=13)["id"].to_pylist() == everything[13:18]
    assert table.to_arrow(limit=0).num_rows == 0
    assert sum(batch.num_rows for batch in table.scan(filter="id < 10", limit=4)) == 4


def test_pruned_reads_open_few_shards(lake: ty.Lake) -> None:
    reader = lake.snapshot().table("t")
    assert isinstance(reader, ShardedReader)
    assert reader.count_rows("id = 3") == 1
    assert list(reader._shards._opened) == [home(3)]


def test_compaction(lake: ty.Lake, table: ShardedTable) -> None:
    for number in range(100, 112):
        table.append(rows(number))
    before = ids(table)
    table.compact()
    assert ids(table) == before
    assert [len(table.shard(number).layout.fragments) for number in range(SHARDS)] == [1] * SHARDS
    assert table.check().ok


# ---- transactions, snapshots, branches ---------------------------------------------------------------------------------------------


def test_in_a_transaction_with_other_tables(lake: ty.Lake, table: ShardedTable) -> None:
    lake.create_table("log", {"what": ["begin"]})
    with lake.transaction() as tx:
        mine = tx.table("t")
        assert isinstance(mine, ShardedTransactionTable)
        assert tx.table("t") is mine
        mine.append(rows(100, 101, 102))
        mine.delete("id < 5")
        tx.table("log").append({"what": ["change"]})
        assert ids(mine) == [*range(5, 20), 100, 101, 102]
        assert lake.table("t").count_rows() == 20
    assert ids(lake.table("t")) == [*range(5, 20), 100, 101, 102]
    assert lake.snapshot().id == 3
    tx = lake.transaction()
    tx.table("t").append(rows(*range(200, 220)))
    tx.rollback()
    assert lake.table("t").count_rows() == 18


def test_serializable_reads_of_any_shard_count(site: Site, lake: ty.Lake) -> None:
    lake.create_table("log", {"n": [0]})
    tx = lake.transaction(isolation="serializable")
    tx.table("log").append({"n": [tx.table("t").count_rows()]})
    site.open().table("t").append(rows(100))
    with pytest.raises(ty.ConflictError):
        tx.commit()


def test_branches(lake: ty.Lake, table: ShardedTable) -> None:
    lake.branches.create("dev")
    dev = lake.on_branch("dev").table("t")
    dev.append(rows(*range(100, 110)))
    dev.reshard(2)  # type: ignore[attr-defined]
    assert (dev.count_rows(), table.refresh().count_rows(), table.shards) == (30, 20, 4)
    lake.branches.fast_forward("dev")
    assert lake.table("t").count_rows() == 30
    assert lake.table("t").shards == 2  # type: ignore[attr-defined]
    assert lake.check().ok


def test_tags_and_snapshots_show_all_shards_at_one_moment(lake: ty.Lake, table: ShardedTable) -> None:
    lake.tags.create("before")
    table.append(rows(*range(100, 140)))
    table.reshard(3)
    then = lake.snapshot("before").table("t")
    assert isinstance(then, ShardedReader)
    assert (ids(then), then.shards, then.version) == (list(range(20)), 4, 1)
    assert then.check().ok
    assert not hasattr(then, "append")


# ---- names -------------------------------------------------------------------------------------------------------------------------


def test_rename_and_drop_move_all_of_it(site: Site, lake: ty.Lake, table: ShardedTable) -> None:
    lake.rename_table("t", "sales.orders")
    assert lake.tables() == ["sales.orders"]
    assert ids(lake.table("sales.orders")) == list(range(20))
    table.append(rows(100))
    assert table.refresh().name == "sales.orders", "a handle follows its table"
    lake.create_table("t", rows(1))
    assert table.count_rows() == 21
    lake.drop_table("sales.orders")
    assert lake.tables() == ["t"]
    assert set(lake.snapshot().versions()) == {"t"}
    with pytest.raises(ty.NotFound):
        table.append(rows(101))
    assert lake.snapshot(1).table("t").count_rows() == 20


def test_a_new_table_of_that_name_is_another_one(lake: ty.Lake, table: ShardedTable) -> None:
    lake.drop_table("t")
    lake.create_table("t", rows(1), primary_key=["id"], shard_by="id", shards=2)
    for verb in (lambda: table.append(rows(100)), table.refresh, lambda: table.delete("true")):
        with pytest.raises(ty.NotFound, match="dropped"):
            verb()
    assert ids(lake.table("t")) == [1]


def test_in_one_transaction_a_name_may_change_hands(lake: ty.Lake) -> None:
    with lake.transaction() as tx:
        tx.drop_table("t")
        assert tx.tables() == []
        tx.create_table("t", rows(7), primary_key=["id"], shard_by="id", shards=6)
        tx.rename_table("t", "u")
    assert lake.tables() == ["u"]
    assert ids(lake.table("u")) == [7]
    assert lake.check().ok


def test_shards_are_not_for_others(lake: ty.Lake) -> None:
    shard = "t.__shard_1"
    for refused in (
        lambda: lake.table(shard),
        lambda: lake.drop_table(shard),
        lambda: lake.rename_table(shard, "x"),
        lambda: lake.rename_table("t", "u.__shard_0"),
        lambda: lake.create_table("t.__shard_9", rows(1)),
        lambda: lake.register_table("t.__shard_9", "elsewhere"),
        lambda: lake.snapshot().table(shard),
        lambda: lake.new_table_task("t.__shard_9", rows(1).schema),
    ):
        with pytest.raises(ty.InvalidInput):
            refused()
    assert lake.check().ok


# ---- resharding --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 4, 9])
def test_reshard(lake: ty.Lake, table: ShardedTable, shards: int) -> None:
    table.create_index("v", "BTREE")
    table.update_config({"mine": "kept"})
    before = lake.snapshot().id
    done = table.reshard(shards, message="more room")
    assert (done.version, done.rows, lake.snapshot().id) == (before + 1, {"moved": 20}, before + 1)
    assert (table.shards, ids(table)) == (shards, list(range(20)))
    assert (table.config["mine"], table.shard(0).config["mine"]) == ("kept", "kept")
    assert [(index.name, index.rows) for index in table.list_indices()] == [("v_idx", 20)]
    assert table.check().ok
    assert lake.check().ok
    with pytest.raises(ty.KeyConflict):
        table.append(rows(3))


def test_what_is_committed_during_a_reshard_is_not_lost(site: Site, lake: ty.Lake, table: ShardedTable) -> None:
    other = site.open()
    calls: list[int] = []

    def once() -> None:
        if not calls:
            calls.append(1)
            other.table("t").append(rows(100, 101, 102, 103))

    through(lake, lambda records: InterposedRecords(records, once))
    table.reshard(2)
    assert ids(lake.table("t")) == [*range(20), 100, 101, 102, 103]
    assert calls
    assert lake.check().ok


def test_who_wrote_before_a_reshard_writes_to_the_new_shards(site: Site, lake: ty.Lake) -> None:
    stale = site.open().table("t")
    lake.table("t").reshard(7)  # type: ignore[attr-defined]
    stale.append(rows(*range(100, 130)))
    tx = site.open().transaction()
    tx.table("t").append(rows(200))
    lake.table("t").reshard(3)  # type: ignore[attr-defined]
    with pytest.raises(ty.ConflictError):
        tx.commit()
    assert ids(lake.table("t")) == [*range(20), *range(100, 130)]
    assert lake.check().ok


def test_a_transaction_that_wrote_does_not_reshard(lake: ty.Lake) -> None:
    tx = lake.transaction()
    tx.table("t").append(rows(100))
    with pytest.raises(ty.InvalidInput, match="Commit that first"):
        tx.table("t").reshard(2)  # type: ignore[attr-defined]
    tx.commit()
    assert lake.table("t").count_rows() == 21


# ---- what others do to the shards --------------------------------------------------------------------------------------------------


def test_a_row_in_the_wrong_shard_is_found_and_moved(lake: ty.Lake, table: ShardedTable) -> None:
    wrong = (home(100) + 1) % SHARDS
    lance.write_dataset(rows(100), stock(lake, f"t.__shard_{wrong}"), mode="append")
    assert table.refresh().count_rows() == 21
    assert table.count_rows("id = 100") == 0, "it is looked for where it belongs"
    report = table.check()
    assert [problem.invariant for problem in report.problems] == ["S1"]
    assert f"shard {wrong}: 1 rows belong into other shards, such as id 100" in report.problems[0].text
    assert [problem.invariant for problem in lake.check().problems] == ["S1"]
    table.reshard(SHARDS)
    assert table.count_rows("id = 100") == 1
    assert table.check().ok
    assert lake.check().ok


def test_a_row_in_the_right_shard_is_adopted(lake: ty.Lake, table: ShardedTable) -> None:
    lance.write_dataset(rows(100), stock(lake, f"t.__shard_{home(100)}"), mode="append")
    assert table.refresh().count_rows("id = 100") == 1
    assert table.check().ok
    with pytest.raises(ty.KeyConflict):
        table.append(rows(100))


def test_rows_in_the_anchor_are_found(lake: ty.Lake, table: ShardedTable) -> None:
    lance.write_dataset(rows(100), stock(lake, "t"), mode="append")
    assert table.refresh().count_rows() == 20
    assert "1 rows were appended to the table itself" in table.check().problems[0].text
    assert not lake.check().ok


def test_a_shard_that_is_gone(lake: ty.Lake, table: ShardedTable) -> None:
    with lake.transaction() as tx:  # as an earlier release, which knows no shards, would do it
        tx._drop_physical("t$__shard_1")
    table.refresh()
    with pytest.raises(ty.CorruptTable, match="shard 1 of 4 is gone"):
        table.count_rows()
    assert table.count_rows(f"id = {ids_of_shard(2, 1, 0)[0]}") == 1, "others can be read"
    with pytest.raises(ty.CorruptTable):
        table.append(rows(*range(100, 120)))
    assert any("shard 1" in problem.text for problem in table.check().problems)
    assert any("shard 1 of 4 is gone" in problem.text for problem in lake.check().problems)
    lake.drop_table("t")
    assert set(lake.snapshot().versions()) == {"t.__shard_2", "t.__shard_3"}, "what follows the gap is no part of it by name"


def test_another_table_with_the_name_of_a_shard(lake: ty.Lake, table: ShardedTable) -> None:
    with lake.transaction() as tx:
        tx._drop_physical("t$__shard_1")
        tx._create_physical("t$__shard_1", rows(1), primary_key=["id"], stable_row_ids=False, options=ty.TableOptions())
    table.refresh()
    with pytest.raises(ty.CorruptTable, match="has no shard number"):
        table.count_rows()
    assert not lake.check().ok


def test_shards_without_their_table(lake: ty.Lake) -> None:
    with lake.transaction() as tx:
        tx._drop_physical("t")
    assert lake.tables() == [f"t.__shard_{number}" for number in range(SHARDS)], "nothing is hidden that has no other name"
    assert {problem.invariant for problem in lake.check().problems} == {"S1"}
    lake.drop_table("t.__shard_0")
    assert len(lake.tables()) == SHARDS - 1


def test_a_newer_hash_is_refused(lake: ty.Lake, table: ShardedTable) -> None:
    with lake.transaction() as tx:
        definition = tx._physical("t").config["tiltyard.sharding"].replace('"hash":1', '"hash":2')
        tx._physical("t").update_config({"tiltyard.sharding": definition})
    with pytest.raises(ty.UnsupportedFeature, match="version 2 of the hash"):
        lake.table("t")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("no json", "not a definition of shards"),
        ('{"hash":1,"id":"x","columns":["id"]}', "not a definition of shards"),
        ('{"hash":1,"id":"x","columns":["id"],"shards":100000}', "not a definition of shards"),
        ('{"hash":1,"id":"x","columns":["gone"],"shards":4}', "does not fit its columns"),
        ('{"hash":1,"id":"x","columns":["v"],"shards":4}', "does not fit its columns"),
        ('{"hash":1,"id":"x","columns":[],"shards":4}', "does not fit its columns"),
    ],
)
def test_a_definition_is_not_trusted(lake: ty.Lake, what: str, why: str) -> None:
    with lake.transaction() as tx:
        tx._physical("t").update_config({"tiltyard.sharding": what})
    for opened in (lambda: lake.table("t"), lambda: lake.snapshot().table("t"), lambda: lake.transaction().table("t")):
        with pytest.raises(ty.CorruptTable, match=why):
            opened()
    assert any(problem.invariant == "S1" and why in problem.text for problem in lake.check().problems)
    lake.drop_table("t")
    assert lake.snapshot().versions() == {}


def test_idempotency_keys_are_the_lakes(lake: ty.Lake, table: ShardedTable) -> None:
    once = ty.CommitOptions(ty.distributed.once("me", 1))
    for refused in (lambda: table.append(rows(100), commit=once), lambda: table.writer(commit=once)):
        with pytest.raises(ty.InvalidInput, match="idempotency key"):
            refused()
    for _ in range(2):
        lake.run(lambda tx: tx.table("t").append(rows(100)), idempotency_key="me 1")
    assert table.refresh().count_rows("id = 100") == 1


def test_other_clients_are_sent_to_the_shards(lake: ty.Lake) -> None:
    namespace = lake.namespace()
    with pytest.raises(Exception, match=r"is sharded\. Open its shards one by one, the first as t\.__shard_0"):
        lance.dataset(namespace_client=namespace, table_id=["t"])
    found = [lance.dataset(namespace_client=namespace, table_id=["t", f"__shard_{number}"]).count_rows() for number in range(SHARDS)]
    assert sum(found) == 20


# ---- recovery ----------------------------------------------------------------------------------------------------------------------


def test_a_rebuilt_catalog_knows_the_shards(site: Site, lake: ty.Lake, table: ShardedTable) -> None:
    table.append(rows(*range(100, 120)))
    table.reshard(6)
    table.append(rows(200))
    lose_catalog(site)
    rebuild(site)
    found = site.open().table("t")
    assert isinstance(found, ShardedTable)
    assert (found.shards, ids(found)) == (6, [*range(20), *range(100, 120), 200])
    assert found.check().ok
    found.append(rows(300))
    assert site.open().check().ok


def test_a_copy_of_the_catalog_is_brought_up_to_date(site: Site, lake: ty.Lake, table: ShardedTable, tmp_path: Path) -> None:
    table.append(rows(100, 101, 102))
    lake.backup(tmp_path / "backup")
    table.append(rows(*range(103, 110)))
    table.delete("id < 5")
    table.reshard(3)
    table.append(rows(200))
    lose_catalog(site)
    restore(site, tmp_path / "backup")
    found = site.open().table("t")
    assert isinstance(found, ShardedTable)
    assert (found.shards, ids(found)) == (3, [*range(5, 20), *range(100, 110), 200])
    assert found.check().ok
    assert site.open().check().ok


def test_cleanup_keeps_what_is_needed(lake: ty.Lake, table: ShardedTable) -> None:
    table.reshard(2)
    table.append(rows(100))
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert ids(lake.table("t")) == [*range(20), 100]
    assert lake.check().ok


# ---- the batching writer -----------------------------------------------------------------------------------------------------------


def test_a_writer_over_shards(lake: ty.Lake, table: ShardedTable) -> None:
    with table.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(number)) for number in range(100, 130)]
        bad = writer.append(rows(7))
        writer.flush()
        assert isinstance(bad.exception(0), ty.KeyConflict)
        assert all(receipt.exception(0) is None for receipt in receipts)
    assert ids(lake.table("t")) == [*range(20), *range(100, 130)]


@pytest.mark.parametrize("name", sorted(STORABLE))
def test_rows_of_every_type_reach_their_shards(tmp_path: Path, name: str) -> None:
    schema = pa.schema({"id": pa.int64(), "c": STORABLE[name]})
    parts = [table_of(pa.schema({"c": STORABLE[name]}), 9, start) for start in (0, 9)]
    keyed = [
        pa.Table.from_arrays([pa.array(range(9 * number, 9 * number + 9), pa.int64()), part["c"]], schema=schema)
        for number, part in enumerate(parts)
    ]
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    try:
        plain = lake.create_table("plain", keyed[0], primary_key=["id"])
        plain.append(keyed[1])
    except (ty.InvalidInput, ty.UnsupportedFeature) as refused:
        with pytest.raises(type(refused)):
            lake.create_table("t", keyed[0], primary_key=["id"], shard_by="id", shards=3).append(keyed[1])
        return
    table = lake.create_table("t", keyed[0], primary_key=["id"], shard_by="id", shards=3)
    table.append(keyed[1])
    assert [row for _, row in _by_id(table)] == [row for _, row in _by_id(plain)]
    table.reshard(2)  # type: ignore[attr-defined]
    assert [row for _, row in _by_id(table)] == [row for _, row in _by_id(plain)]


def _by_id(table: ty.TableReader) -> list[tuple[int, str]]:
    rows = table.to_arrow()
    return sorted((rows["id"][row].as_py(), repr(rows["c"][row])) for row in range(rows.num_rows))
