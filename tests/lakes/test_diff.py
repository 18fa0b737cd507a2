"""What differs between two snapshots of a lake, and how little is read to find it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.lakes import Site, numbers, reads_of_rows
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.lake import Lake
from tiltyard.merges import LakeDiff

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["ada", "bob", "cyd"]})


def people(lake: Lake, **how: Any) -> Any:
    lake.create_table("people", PEOPLE, **how)
    lake.branches.create("side")
    return lake.on_branch("side").table("people")


def counts(found: LakeDiff) -> dict[str, tuple[int, int, int]]:
    return {table.table: (table.added, table.removed, table.changed) for table in found.tables}


def rows(found: LakeDiff, table: str, **how: Any) -> list[tuple[str, Any, Any]]:
    return [(row.change, row.before, row.after) for row in found.rows(table, **how).rows]


def test_a_branch_and_its_beginning_do_not_differ(lake: Lake) -> None:
    lake.branches.create("side")
    found = lake.diff("main", "side")
    assert (found.tables, bool(found)) == ((), False)


@pytest.mark.parametrize("key", [["id"], None])
def test_rows_that_were_added_removed_and_changed(lake: Lake, key: list[str] | None) -> None:
    table = people(lake, primary_key=key)
    table.append(pa.table({"id": pa.array([4], pa.int64()), "name": ["dan"]}))
    table.delete("id = 1")
    table.update({"name": "'rob'"}, where="id = 2")
    found = lake.diff("main", "side")
    old, new = {"id": 2, "name": "bob"}, {"id": 2, "name": "rob"}
    if key:
        assert counts(found) == {"people": (1, 1, 1)}
        assert ("changed", old, new) in rows(found, "people")
    else:  # nothing says that the two are one row
        assert counts(found) == {"people": (2, 2, 0)}
        assert ("removed", old, None) in rows(found, "people")
        assert ("added", None, new) in rows(found, "people")
    assert ("added", None, {"id": 4, "name": "dan"}) in rows(found, "people")
    assert ("removed", {"id": 1, "name": "ada"}, None) in rows(found, "people")
    back = counts(lake.diff("side", "main"))["people"]
    assert back == ((1, 1, 1) if key else (2, 2, 0))


@pytest.mark.parametrize("stable", [True, False])
def test_a_compaction_changes_nothing(lake: Lake, stable: bool) -> None:
    table = people(lake, stable_row_ids=stable)
    table.append(PEOPLE)
    before = lake.on_branch("side").snapshot()
    table.maintenance.compact()
    assert not lake.diff(before, "side").tables
    assert counts(lake.diff("main", "side")) == {"people": (3, 0, 0)}


def test_columns_settings_and_names(lake: Lake) -> None:
    table = people(lake)
    table.add_columns({"size": "id * 2"})
    table.settings.update_config({"color": "red"})
    side = lake.on_branch("side")
    side.rename_table("people", "persons")
    side.drop_table("a")
    side.create_table("new", numbers(7))
    found = {part.table: part for part in lake.diff("main", "side").tables}
    assert {name: part.change for name, part in found.items()} == {"persons": "changed", "a": "removed", "new": "added"}
    assert found["persons"].former == "people"
    assert dict(found["persons"].columns) == {"size": (None, "int64")}
    assert dict(found["persons"].settings) == {"config.color": (None, "red")}
    assert (found["new"].added, found["a"].removed) == (1, 1)
    assert rows(lake.diff("main", "side"), "new") == [("added", None, {"id": 7})]
    assert rows(lake.diff("main", "side"), "a") == [("removed", {"id": 1}, None)]


def test_refs_and_pages(lake: Lake) -> None:
    first = lake.snapshot().id
    lake.table("a").append(numbers(*range(2, 12)))
    lake.tags.create("then", at=first)
    for before in ("then", first, f"main@{first}", lake.snapshot(first)):
        found = lake.diff(before, "main")
        assert counts(found) == {"a": (10, 0, 0)}
    seen, after = [], None
    while True:
        page = found.rows("a", limit=4, after=after)
        seen += [row.after["id"] for row in page.rows if row.after]
        after = page.next
        if after is None:
            break
    assert seen == list(range(2, 12))
    with pytest.raises(NotFound):
        found.rows("nope")
    with pytest.raises(NotFound):
        lake.diff("main", "nope")
    with pytest.raises(InvalidInput):
        found.rows("a", limit=0)
    lake.branches.create("then")
    with pytest.raises(InvalidInput):
        lake.diff("then", "main")


def test_a_name_that_was_used_again_is_another_table(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.drop_table("a")
    side.create_table("a", numbers(1))
    changes = sorted((part.table, part.change, part.added, part.removed) for part in lake.diff("main", "side").tables)
    assert changes == [("a", "added", 1, 0), ("a", "removed", 0, 1)]


def test_rows_are_read_only_where_some_went_and_others_came(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:

    lake = site.open()
    lake.create_table("grown", numbers(*range(100)))
    lake.create_table("shrunk", numbers(*range(100)))
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("grown").append(numbers(*range(100, 200)))
    side.table("shrunk").delete("id < 50")
    read = reads_of_rows(monkeypatch)
    found = lake.diff("main", "side")
    assert counts(found) == {"grown": (100, 0, 0), "shrunk": (0, 50, 0)}
    assert read == []
    assert len(found.rows("grown", limit=10).rows) == 10
    assert len(read) == 1
