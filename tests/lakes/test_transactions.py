"""A transaction over several tables: what it sees, when others see it, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.support.lakes import Site, add_to_both, both, foreign_append, ids, numbers, stock, two_tables, uri_of
from tiltyard.errors import ExpectedVersionMismatch, InvalidInput, NotFound
from tiltyard.lake import Lake
from tiltyard.lakes.lake_tables import TransactionTable

BEGIN = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "n": pa.array([10, 20, 30], pa.int64())})


def merge(table: TransactionTable) -> None:
    rows = pa.table({"id": pa.array([3, 4], pa.int64()), "n": pa.array([33, 40], pa.int64())})
    table.merge(rows, on="id").when_matched_update_all().when_not_matched_insert_all().execute()


def as_is(table: Any) -> dict[int, int]:
    return {row["id"]: row["n"] for row in table.to_pylist()}


VERBS: dict[str, tuple[Callable[[TransactionTable], Any], Callable[[pa.Table], Any], Any]] = {
    "append": (lambda t: t.append(BEGIN.slice(0, 1)), lambda rows: rows.num_rows, 4),
    "overwrite": (lambda t: t.overwrite(BEGIN.slice(2, 1)), as_is, {3: 30}),
    "delete": (lambda t: t.delete("id = 1"), as_is, {2: 20, 3: 30}),
    "update": (lambda t: t.update({"n": "n + 1"}, where="id < 3"), as_is, {1: 11, 2: 21, 3: 30}),
    "update columns": (lambda t: t.update({"n": "n + 1"}, mode="columns"), as_is, {1: 11, 2: 21, 3: 31}),
    "merge": (merge, as_is, {1: 10, 2: 20, 3: 33, 4: 40}),
    "add columns": (lambda t: t.add_columns({"m": "n * 2"}), lambda rows: rows["m"].to_pylist(), [20, 40, 60]),
    "drop columns": (lambda t: t.drop_columns(["n"]), lambda rows: rows.column_names, ["id"]),
    "alter columns": (lambda t: t.alter_columns({"path": "n", "name": "k"}), lambda rows: rows.column_names, ["id", "k"]),
    "compact": (lambda t: (t.append(BEGIN.slice(0, 1)), t.compact()), lambda rows: sorted(rows["id"].to_pylist()), [1, 1, 2, 3]),
    "create index": (lambda t: t.create_index("id", "BTREE"), as_is, {1: 10, 2: 20, 3: 30}),
    "restore": (lambda t: (t.delete("true"), t.restore(1)), as_is, {1: 10, 2: 20, 3: 30}),
    "config": (lambda t: t.update_config({"k": "v"}), as_is, {1: 10, 2: 20, 3: 30}),
    "metadata": (lambda t: t.settings.update_metadata({"k": "v"}), as_is, {1: 10, 2: 20, 3: 30}),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_seen_inside_at_once_and_outside_when_it_is_committed(site: Site, verb: str) -> None:
    act, look, expected = VERBS[verb]
    lake = site.open()
    lake.create_table("t", BEGIN)
    reader = site.open()
    before = look_at(stock(lake, "t"))
    versions_before = stock(lake, "t").versions()
    with lake.transaction() as tx:
        inside = tx.table("t")
        act(inside)
        assert look(inside.to_arrow()) == expected, "our own reads"
        assert look(inside.lance.to_table()) == expected, "pylance's dataset of the handle"
        assert inside.count_rows() == inside.lance.count_rows()
        assert reader.table("t").version == 1
        assert look_at(stock(lake, "t")) == before
        assert stock(lake, "t").versions() == versions_before
    assert tx.result is not None
    after = reader.table("t")
    assert after.version == tx.result.tables["t"] > 1
    assert look(after.to_arrow()) == expected
    assert look(stock(lake, "t").to_table()) == expected, "plain pylance reads it by its path alone"
    assert after.check().problems == ()


def look_at(dataset: lance.LanceDataset) -> Any:
    return dataset.version, dataset.schema, dataset.to_table().to_pylist()


def test_a_second_write_builds_on_the_first(lake: Lake) -> None:
    with lake.transaction() as tx:
        table = tx.table("a")
        table.append(numbers(2))
        table.delete("id = 1")
        table.update({"id": "id + 10"})
        table.add_columns({"m": "id * 2"})
        assert table.to_arrow().to_pylist() == [{"id": 12, "m": 24}]
        assert table is tx.table("a")
        assert [one.version for one in table.history()] == [5, 4, 3, 2, 1]
    assert tx.result is not None
    assert tx.result.tables == {"a": 5}
    assert lake.table("a").to_arrow().to_pylist() == stock(lake, "a").to_table().to_pylist() == [{"id": 12, "m": 24}]
    assert lake.table("a").check().problems == ()


def test_nothing_of_several_tables_is_seen_before_and_all_of_it_after(site: Site, lake: Lake) -> None:
    other = site.open()
    tx = add_to_both(lake.transaction(), 2)
    assert both(tx) == ([1, 2], [1, 2])
    assert both(other) == both(other.snapshot()) == both(lake) == ([1], [1])
    assert ids(stock(lake, "a")) == ids(stock(lake, "b")) == [1]
    result = tx.commit()
    assert result.tables == {"a": 2, "b": 2}
    assert both(other) == both(other.snapshot()) == both(lake) == ([1, 2], [1, 2])
    assert ids(stock(lake, "a")) == ids(stock(lake, "b")) == [1, 2]


class Stop(Exception):
    pass


@pytest.mark.parametrize("how", ["rollback", "exception", "exception of a verb"])
def test_a_transaction_that_is_not_committed_leaves_nothing_behind(site: Site, lake: Lake, how: str) -> None:
    before, snapshot = site.files(".lance/"), lake.snapshot().id
    if how == "rollback":
        tx = add_to_both(lake.transaction(), 2)
        assert both(tx) == ([1, 2], [1, 2])
        tx.create_table("c", numbers(1)).append(numbers(2))
        tx.rollback()
    elif how == "exception":
        with pytest.raises(Stop), lake.transaction() as tx:  # noqa: PT012
            add_to_both(tx, 2)
            tx.table("a").update({"id": "id + 1"})
            tx.table("b").create_index("id", "BTREE")
            raise Stop
    else:
        with pytest.raises(InvalidInput), lake.transaction() as tx:  # noqa: PT012
            add_to_both(tx, 2)
            tx.table("a").append(pa.table({"other": [1]}))
    assert both(lake) == ([1], [1])
    assert lake.tables() == ["a", "b"]
    assert lake.snapshot().id == snapshot
    assert site.files(".lance/") == before
    assert tx.result is None


def test_an_exception_in_the_block_is_the_one_that_is_raised(lake: Lake) -> None:
    with pytest.raises(Stop), lake.transaction() as tx:  # noqa: PT012
        tx.rollback()
        raise Stop


def test_committing_inside_the_block_is_enough(lake: Lake) -> None:
    with lake.transaction() as tx:
        add_to_both(tx, 2)
        result = tx.commit()
    assert tx.result is result
    assert both(lake) == ([1, 2], [1, 2])


def test_a_transaction_that_changes_nothing_makes_no_snapshot(lake: Lake) -> None:
    before = lake.snapshot().id
    with lake.transaction(isolation="serializable") as tx:
        assert both(tx) == ([1], [1])
        assert tx.table("a").delete("id = 99").version == 1
    assert lake.snapshot().id == before
    assert tx.result is not None
    assert (tx.result.snapshot, tx.result.tables) == (before, {})


# ---- the base is captured once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("touched", ["before", "after"])
@pytest.mark.parametrize("who", ["plain pylance", "another handle", "a verb of the same lake"])
def test_an_open_transaction_stays_on_its_base(site: Site, lake: Lake, who: str, touched: str) -> None:
    """Somebody advances the heads from outside; whether the table was opened before or after, the transaction reads its base."""
    tx = lake.transaction()
    if touched == "before":
        assert both(tx) == ([1], [1])
    if who == "plain pylance":
        foreign_append(uri_of(lake, "a"), 7)
        foreign_append(uri_of(lake, "b"), 7)
    elif who == "another handle":
        with site.open().transaction() as theirs:
            add_to_both(theirs, 7)
    else:
        lake.table("a").append(numbers(7))
        lake.table("b").append(numbers(7))
    assert both(lake) == ([1, 7], [1, 7])
    assert both(tx) == ([1], [1])
    table = tx.table("a")
    assert table.version == table.layout.latest_version() == table.refresh().version == 1
    assert table.layout.versions() == [1]
    assert table.lance.version == 1
    table.append(numbers(2))
    assert ids(table) == [1, 2], "its own writes are on its base, too"
    assert table.layout.latest_version() == table.version
    tx.rollback()
    assert both(lake) == ([1, 7], [1, 7])


def test_tables_made_or_dropped_by_others_are_not_seen(site: Site, lake: Lake) -> None:
    tx = lake.transaction()
    with site.open().transaction() as theirs:
        theirs.create_table("c", numbers(1))
        theirs.drop_table("b")
        theirs.rename_table("a", "renamed")
    assert tx.tables() == ["a", "b"]
    assert both(tx) == ([1], [1])
    for name in ("c", "renamed"):
        with pytest.raises(NotFound):
            tx.table(name)


# ---- a transaction that is used up -------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[TransactionTable], Any]] = {
    "version": lambda t: t.version,
    "schema": lambda t: t.schema,
    "fragments": lambda t: t.layout.fragments,
    "config": lambda t: t.settings.config,
    "metadata": lambda t: t.settings.metadata,
    "indices": lambda t: t.indices.segments,
    "primary key": lambda t: t.primary_key,
    "count": lambda t: t.count_rows(),
    "count of some": lambda t: t.count_rows("id > 0"),
    "rows": lambda t: t.to_arrow(),
    "scan": lambda t: t.scan(),
    "lance": lambda t: t.lance,
    "append": lambda t: t.append(numbers(9)),
    "overwrite": lambda t: t.overwrite(numbers(9)),
    "delete": lambda t: t.delete("true"),
    "update": lambda t: t.update({"id": "id"}),
    "merge": lambda t: t.merge(numbers(9), on="id").when_not_matched_insert_all().execute(),
    "add columns": lambda t: t.add_columns({"m": "id"}),
    "drop columns": lambda t: t.drop_columns(["id"]),
    "compact": lambda t: t.compact(),
    "create index": lambda t: t.create_index("id", "BTREE"),
    "restore": lambda t: t.restore(1),
    "refresh": lambda t: t.refresh(),
    "latest version": lambda t: t.layout.latest_version(),
    "versions": lambda t: t.layout.versions(),
    "history": lambda t: t.history(),
    "check": lambda t: t.check(),
    "changes": lambda t: t.changes(1),
}
ENDS = ["committed", "rolled back", "conflicted"]


@pytest.fixture(scope="module", params=ENDS)
def used_up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a transaction does not allow any more is no question of the catalog, so one kind is enough."""
    lake = two_tables(Lake.open(tmp_path_factory.mktemp("used") / "lake", durability="os"))
    tx = lake.transaction()
    tables = tx.table("a"), tx.table("b"), tx.create_table("c", numbers(1))
    tables[0].append(numbers(2))
    if request.param == "committed":
        tx.commit()
    elif request.param == "rolled back":
        tx.rollback()
    else:
        lake.drop_table("a")
        with pytest.raises(ExpectedVersionMismatch, match=r"a was dropped; .* was built on version 1"):
            tx.commit()
    yield lake, tx, tables
    lake.close()


@pytest.mark.parametrize("use", USES)
def test_every_use_of_every_handle_raises(used_up: Any, use: str) -> None:
    lake, _, tables = used_up
    before = lake.snapshot().versions()
    assert [repr(table) for table in tables] == ["TransactionTable('a')", "TransactionTable('b')", "TransactionTable('c')"]
    for table in tables:
        with pytest.raises(InvalidInput, match="begin another"):
            USES[use](table)
    assert lake.snapshot().versions() == before


@pytest.mark.parametrize(
    "use",
    [
        lambda tx: tx.commit(),
        lambda tx: tx.rollback(),
        lambda tx: tx.tables(),
        lambda tx: tx.table("a"),
        lambda tx: tx.create_table("new", numbers(1)),
        lambda tx: tx.drop_table("b"),
        lambda tx: tx.rename_table("b", "d"),
        lambda tx: tx.__enter__(),
    ],
    ids=["commit", "rollback", "tables", "table", "create", "drop", "rename", "with"],
)
def test_every_use_of_it_raises(used_up: Any, use: Callable[[Any], Any]) -> None:
    lake, tx, _ = used_up
    before = lake.snapshot().versions()
    with pytest.raises(InvalidInput, match="begin another"):
        use(tx)
    assert lake.snapshot().versions() == before
    assert tx.id in repr(tx)


def test_a_transaction_has_no_verbs_that_do_not_belong_into_it(lake: Lake) -> None:
    with lake.transaction() as tx:
        for name in ("tags", "branches", "cleanup", "clone", "create", "open"):
            assert not hasattr(tx.table("a"), name)
        assert not hasattr(tx.table("a").maintenance, "cleanup")
    with pytest.raises(InvalidInput):
        lake.transaction(isolation="read uncommitted")  # type: ignore[arg-type]


def test_a_table_of_a_snapshot_only_reads(lake: Lake) -> None:
    table = lake.snapshot().table("a")
    for name in ("append", "delete", "compact", "update_config", "commit", "tags", "branches", "maintenance"):
        assert not hasattr(table, name)
    assert not hasattr(table.settings, "update_config")
    assert not hasattr(table.indices, "create")
    lake.table("a").append(numbers(2))
    assert ids(table.refresh()) == [1]
