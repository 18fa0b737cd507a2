"""Tables made, dropped, renamed and altered inside transactions; names."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from tests.support.lakes import Site, both, ids, numbers, stock, together, uri_of
from tiltyard.errors import AlreadyExists, ConflictError, ExpectedVersionMismatch, InvalidInput, NotFound, TiltyardError
from tiltyard.lake import Lake
from tiltyard.options import TableOptions


def test_a_new_table_is_there_with_the_commit_and_not_before(site: Site, lake: Lake) -> None:
    other = site.open()
    before = site.files(".lance/_versions")
    with lake.transaction() as tx:
        new = tx.create_table("sales.new", pa.table({"id": [1], "t": ["x"]}), primary_key=["id"], options=TableOptions(config={"k": "v"}))
        new.append(pa.table({"id": [2], "t": ["y"]}))
        assert ids(new) == ids(new.lance) == [1, 2]
        assert tx.table("sales.new") is new
        assert tx.tables() == ["a", "b", "sales.new"]
        assert other.tables() == lake.tables() == ["a", "b"]
        for path in sorted(site.files(".lance/_versions") - before):
            if site.root is None:
                pytest.skip("looks at files on this machine")
            with pytest.raises((ValueError, OSError)):
                lance.dataset(str(site.root / path.partition("/")[0]))
        with pytest.raises(NotFound):
            other.table("sales.new")
        with pytest.raises(AlreadyExists):
            tx.create_table("sales.new", numbers(1))
    table = other.table("sales.new")
    assert (ids(table), ids(stock(lake, "sales.new")), table.version) == ([1, 2], [1, 2], 2)
    assert (table.primary_key, table.settings.config["k"], table.name) == (("id",), "v", "sales.new")
    assert table.check().problems == ()


def test_a_table_that_could_not_be_made_is_not_there(lake: Lake) -> None:
    with lake.transaction() as tx:
        with pytest.raises(TiltyardError):
            tx.create_table("c", pa.table({"id": [1, 1]}), primary_key=["id"])
        assert tx.tables() == ["a", "b"]
        tx.create_table("c", numbers(5))
    assert ids(lake.table("c")) == [5]


def test_a_dropped_table_is_gone_with_the_commit(site: Site, lake: Lake) -> None:
    before = lake.snapshot().id
    with lake.transaction() as tx:
        handle = tx.table("a")
        handle.append(numbers(2))
        tx.drop_table("a")
        assert tx.tables() == ["b"]
        for use in (
            lambda: tx.table("a"),
            lambda: tx.drop_table("a"),
            lambda: tx.rename_table("a", "c"),
            lambda: handle.append(numbers(3)),
        ):
            with pytest.raises(NotFound):
                use()
        assert site.open().tables() == ["a", "b"]
    assert lake.tables() == site.open().tables() == ["b"]
    with pytest.raises(NotFound, match="'a'"):
        lake.table("a")
    assert ids(lake.snapshot(before).table("a")) == [1], "snapshots before still have it"


def test_a_table_made_and_dropped_at_once_leaves_no_trace(site: Site, lake: Lake) -> None:
    before, snapshot = site.files(".lance/"), lake.snapshot().id
    with lake.transaction() as tx:
        handle = tx.create_table("c", numbers(1))
        tx.drop_table("c")
        with pytest.raises(NotFound):
            handle.append(numbers(2))
    assert lake.tables() == ["a", "b"]
    assert lake.snapshot().id == snapshot
    assert site.files(".lance/") == before


def test_a_name_can_be_dropped_and_made_again_in_one_transaction(lake: Lake) -> None:
    before, old = lake.snapshot().id, uri_of(lake, "a")
    with lake.transaction() as tx:
        tx.drop_table("a")
        tx.create_table("a", pa.table({"other": ["x"]}))
        assert tx.tables() == ["a", "b"]
        assert tx.table("a").to_arrow().to_pylist() == [{"other": "x"}]
    assert lake.table("a").to_arrow().to_pylist() == [{"other": "x"}]
    assert lake.table("a").version == 1
    assert uri_of(lake, "a") != old
    assert ids(lake.snapshot(before).table("a")) == [1]
    assert sorted(one.kind for one in lake.history()[0].changes) == ["create", "drop"]
    with lake.transaction() as tx:
        tx.drop_table("a")
        tx.create_table("a", numbers(1))
        tx.drop_table("a")
    assert lake.tables() == ["b"]


def test_renaming_keeps_the_table(site: Site, lake: Lake) -> None:
    before, where = lake.snapshot().id, uri_of(lake, "a")
    with lake.transaction() as tx:
        handle = tx.table("a")
        tx.rename_table("a", "sales.a2")
        assert tx.tables() == ["b", "sales.a2"]
        assert tx.table("sales.a2") is handle
        assert handle.name == "sales.a2"
        handle.append(numbers(2))
        with pytest.raises(NotFound):
            tx.table("a")
        with pytest.raises(AlreadyExists):
            tx.rename_table("sales.a2", "b")
    other = site.open()
    assert other.tables() == ["b", "sales.a2"]
    assert ids(other.table("sales.a2")) == [1, 2]
    assert uri_of(lake, "sales.a2") == where
    assert (lake.snapshot(before).tables(), ids(lake.snapshot(before).table("a"))) == (["a", "b"], [1])
    lake.create_table("a", numbers(9))
    assert ids(lake.table("a")) == [9]


def test_two_names_can_be_swapped(lake: Lake) -> None:
    lake.table("b").append(numbers(2))
    with lake.transaction() as tx:
        tx.rename_table("a", "between")
        tx.rename_table("b", "a")
        tx.rename_table("between", "b")
        assert both(tx) == ([1, 2], [1])
        assert tx.tables() == ["a", "b"]
    assert both(lake) == ([1, 2], [1])
    assert lake.tables() == ["a", "b"]
    lake.rename_table("a", "c")
    lake.rename_table("c", "a")
    assert both(lake) == both(lake.snapshot()) == ([1, 2], [1])


def test_a_name_can_be_taken_over_from_a_dropped_table(lake: Lake) -> None:
    lake.table("b").append(numbers(2))
    with lake.transaction() as tx:
        tx.drop_table("a")
        tx.rename_table("b", "a")
        assert tx.tables() == ["a"]
        assert ids(tx.table("a")) == [1, 2]
    assert (lake.tables(), ids(lake.table("a"))) == (["a"], [1, 2])


def test_columns_of_two_tables_change_together(site: Site, lake: Lake) -> None:
    before = lake.snapshot().id
    with lake.transaction() as tx:
        for name in ("a", "b"):
            tx.table(name).alter_columns({"path": "id", "name": "key"})
            tx.table(name).add_columns({"twice": "key * 2"})
            assert tx.table(name).to_arrow().to_pylist() == [{"key": 1, "twice": 2}]
        assert site.open().table("a").schema.names == ["id"]
    assert [lake.table(name).schema.names for name in "ab"] == [["key", "twice"]] * 2
    assert lake.snapshot(before).table("a").schema.names == ["id"]


# ---- against others ---------------------------------------------------------------------------------------------------------------


def test_of_several_who_make_one_name_exactly_one_does(site: Site, lake: Lake) -> None:
    lakes = [site.open() for _ in range(4)]
    results = together(*(lambda lake=one, n=n: lake.create_table("c", numbers(n)).uri for n, one in enumerate(lakes)))
    won = [n for n, one in enumerate(results) if isinstance(one, str)]
    assert len(won) == 1, results
    assert ids(lake.table("c")) == won
    for error in (one for one in results if not isinstance(one, str)):
        assert isinstance(error, AlreadyExists), error
    assert {path.partition("/")[0] for path in site.files("_c.lance/data")} == {lake.table("c").uri.rpartition("/")[2]}


def test_the_loser_of_a_name_is_told(lake: Lake) -> None:
    tx = lake.transaction()
    tx.create_table("c", numbers(1))
    tx.table("a").append(numbers(2))
    lake.create_table("c", numbers(2))
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.table, caught.value.cause, caught.value.retryable) == ("c", "incompatible", False)
    assert (ids(lake.table("c")), ids(lake.table("a"))) == ([2], [1])


def test_dropping_beats_writing(lake: Lake) -> None:
    tx = lake.transaction()
    tx.table("a").append(numbers(2))
    tx.table("b").append(numbers(2))
    lake.drop_table("a")
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.table, caught.value.cause, caught.value.actual) == ("a", "incompatible", None)
    assert ids(lake.table("b")) == [1]


def test_writing_beats_dropping_until_somebody_looks_again(lake: Lake) -> None:
    tx = lake.transaction()
    tx.drop_table("a")
    lake.table("a").append(numbers(2))
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert ids(lake.table("a")) == [1, 2]


def test_a_verb_on_a_table_that_was_dropped_does_nothing(lake: Lake) -> None:
    handle = lake.table("a")
    lake.drop_table("a")
    lake.create_table("a", numbers(7))
    with pytest.raises(TiltyardError, match="dropped"):
        handle.append(numbers(2))
    assert ids(lake.table("a")) == [7]


def test_writing_goes_on_when_the_table_is_renamed(lake: Lake) -> None:
    tx = lake.transaction()
    tx.table("a").append(numbers(2))
    handle = lake.table("a")
    lake.rename_table("a", "c")
    assert tx.commit().snapshot == lake.snapshot().id
    handle.append(numbers(3))
    assert (lake.tables(), ids(lake.table("c"))) == (["b", "c"], [1, 2, 3])
    assert ids(lake.snapshot().table("c")) == ids(lake.snapshot(lake.snapshot().id).table("c")) == [1, 2, 3]


def test_renaming_goes_on_when_the_table_is_written_to_or_is_run_again(lake: Lake) -> None:
    def work(tx: object) -> None:
        tx.rename_table("a", "c")  # type: ignore[attr-defined]
        if not done:
            done.append(True)
            lake.table("a").append(numbers(2))

    done: list[bool] = []
    lake.run(work)
    assert (lake.tables(), ids(lake.table("c"))) == (["b", "c"], [1, 2])


def test_of_two_renames_of_one_table_one_wins(lake: Lake) -> None:
    tx = lake.transaction()
    tx.rename_table("a", "c")
    lake.rename_table("a", "d")
    with pytest.raises(ConflictError):
        tx.commit()
    assert lake.tables() == ["b", "d"]
    tx = lake.transaction()
    tx.rename_table("b", "e")
    lake.rename_table("d", "e")
    with pytest.raises(ConflictError):
        tx.commit()
    assert lake.tables() == ["b", "e"]


def test_a_table_that_is_there_can_be_registered(site: Site, lake: Lake) -> None:
    if site.root is None:
        pytest.skip("looks at files on this machine")
    uri = str(site.root.parent / "elsewhere.lance")
    lance.write_dataset(numbers(1), uri)
    lance.write_dataset(numbers(2), uri, mode="append")
    table = lake.register_table("theirs", uri)
    assert (table.version, ids(table)) == (2, [1, 2])
    with lake.transaction() as tx:
        tx.table("theirs").append(numbers(3))
        tx.table("a").append(numbers(3))
    assert ids(site.open().table("theirs")) == ids(lance.dataset(uri)) == [1, 2, 3]
    for name, where in [("a", uri), ("again", uri), ("again", uri_of(lake, "a"))]:
        with pytest.raises(AlreadyExists):
            lake.register_table(name, where)
    with pytest.raises(NotFound):
        lake.register_table("none", uri + "x")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a.",
        ".a",
        "a..b",
        "a/b",
        "a\\b",
        "a b",
        "a\0",
        "a\n",
        "\x7f",
        "a$b",
        "ä",
        "-a",
        "a-",
        "x" * 101,
        "a" + ".a" * 8,
        "../a",
        None,
        7,
    ],
)
def test_names_are_checked_at_the_edge(sqlite_lake: Lake, name: str) -> None:
    lake = sqlite_lake
    tx = lake.transaction()
    for use in (
        lambda: lake.table(name),
        lambda: lake.create_table(name, numbers(1)),
        lambda: lake.drop_table(name),
        lambda: lake.rename_table("a", name),
        lambda: lake.rename_table(name, "c"),
        lambda: lake.register_table(name, uri_of(lake, "a")),
        lambda: lake.snapshot().table(name),
        lambda: tx.table(name),
        lambda: tx.create_table(name, numbers(1)),
        lambda: tx.drop_table(name),
        lambda: tx.rename_table("a", name),
    ):
        with pytest.raises(InvalidInput):
            use()
    assert lake.tables() == ["a", "b"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\0", "a\n", ".a", "a.", "a..b", "x" * 101, "a.lock", "ä", None])
def test_names_of_tags_are_checked_at_the_edge(sqlite_lake: Lake, name: str) -> None:
    lake = sqlite_lake
    with pytest.raises(InvalidInput):
        lake.tags.create(name)
    assert lake.tags.list() == []


def test_names_that_look_alike_are_told_apart(lake: Lake) -> None:
    names = ["x.y", "x_y", "X.y", "x-y", "x.y.z", "xy", "_x"]
    with lake.transaction() as tx:
        for number, name in enumerate(names):
            tx.create_table(name, numbers(number))
    assert [ids(lake.table(name)) for name in names] == [[number] for number in range(len(names))]
    assert {*lake.tables()} == {"a", "b", *names}
