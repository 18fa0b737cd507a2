"""A clone of a whole lake: one commit, no data copied, and files that cleanups keep."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pytest

from tests.lakes.test_merging import TEN, rows, shop, table_of
from tests.support.lakes import LosingRecords, Site, foreign_append, ids, numbers, through, uri_of
from tests.support.served import served_here
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, StorageError
from tiltyard.lake import Lake
from tiltyard.lakes.lake_clone import clone_lake
from tiltyard.options import RecoveryOptions, Storage

NO_GRACE = timedelta(0)


def size_of(path: Path, below: str = "data") -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and below in file.parts)


def opened(uri: Path) -> Lake:
    return Lake.open(uri, author="clone", durability="os", create=False)


def test_a_clone_shows_what_the_lake_had_and_goes_its_own_way(site: Site, lake: Lake, tmp_path: Path) -> None:
    main, side = shop(lake, ["id"], True)
    main.update({"v": "'new'"}, where="id = 3", mode="rows")
    main.delete("id = 4")
    main.create_index("id", "BTREE")
    side.append(table_of({100: "x"}))
    lake.branches.merge("side")
    lake.create_table("sales.deep", numbers(1, 2))
    foreign_append(uri_of(lake, "a"), 77)
    expected = rows(lake)
    made = lake.clone(tmp_path / "clone", message="a trial")
    assert (made.tables, made.snapshot, made.source_snapshot) == (("a", "b", "sales.deep", "t"), 1, lake.snapshot().id)
    assert size_of(tmp_path / "clone") == 0, "no data file was copied"
    with opened(tmp_path / "clone") as clone:
        assert (clone.tables(), rows(clone), ids(clone.table("a"))) == (lake.tables(), expected, ids(lake.table("a")))
        assert [index.name for index in clone.table("t").indices.list()] == [index.name for index in lake.table("t").indices.list()]
        step = clone.history()[0]
        assert (len(clone.history()), step.message, step.properties["cloned-from"].split()[0]) == (
            1,
            "a trial",
            f"main@{lake.snapshot().id}",
        )
        clone.table("t").append(table_of({500: "clone"}))
        clone.table("t").update({"v": "'changed'"}, where="id = 1", mode="rows")
        clone.table("t").maintenance.compact()
        with clone.transaction() as tx:
            tx.table("a").append(numbers(9))
            tx.drop_table("b")
        assert rows(lake) == expected
        lake.table("t").append(table_of({600: "lake"}))
        assert rows(clone) == {**expected, 1: "changed", 500: "clone"}
        clone.branches.create("deep")
        clone.on_branch("deep").table("t").delete("id = 2")
        clone.branches.merge("deep")
        assert 2 not in rows(clone)
        clone.cleanup(keep_snapshots=1, grace=NO_GRACE)
        assert clone.check(data=True).problems == ()
        head = clone.snapshot().cut.tables["t"]
        assert lance.dataset(clone.uri_of(head.location), version=head.version).count_rows() == clone.table("t").count_rows()
    assert lake.check(data=True).problems == ()


def test_cleanups_of_the_lake_keep_what_the_clone_names_until_its_tag_goes(site: Site, lake: Lake, tmp_path: Path) -> None:
    shop(lake)
    lake.branches.delete("side")
    made = lake.clone(tmp_path / "clone")
    assert made.tag in lake.tags
    lake.table("t").overwrite(table_of({1: "all new"}))
    lake.drop_table("a")
    lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
    lance.dataset(uri_of(lake, "t")).cleanup_old_versions(
        older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
    with opened(tmp_path / "clone") as clone:
        assert (rows(clone), ids(clone.table("a"))) == (TEN, [1])
        assert clone.check(data=True).problems == ()
        lake.tags.delete(made.tag)
        lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
        assert clone.check(data=True).problems != (), "the files are gone, and a check says so"


def test_of_a_branch_a_tag_and_of_a_clone(site: Site, lake: Lake, tmp_path: Path) -> None:
    _, side = shop(lake)
    side.append(table_of({100: "x"}))
    lake.tags.create("early", 1)
    lake.on_branch("side").clone(tmp_path / "one")
    lake.clone(tmp_path / "two", "early", catalog="manifest")
    with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        assert (rows(one), two.tables()) == ({**TEN, 100: "x"}, lake.snapshot("early").tables())
        one.table("t").append(table_of({200: "y"}))
        one.clone(tmp_path / "three")
    with opened(tmp_path / "three") as three:
        assert rows(three) == {**TEN, 100: "x", 200: "y"}
        three.table("t").delete("id = 100")
        assert three.check(data=True).problems == ()


def test_a_clone_without_its_catalog_says_what_it_was_allowed_to_read(lake: Lake, tmp_path: Path) -> None:
    lake.clone(tmp_path / "clone")
    for path in (tmp_path / "clone").glob("catalog.db*"):
        path.unlink()
    report = Lake.rebuild(tmp_path / "clone")
    assert not report.complete
    assert all(any(f"whether {name} may be read" in what for what in report.unknown) for name in lake.tables())
    trusting = Storage(durability="os", allowed_bases=[lake.root_uri])
    report = Lake.rebuild(tmp_path / "clone", storage=trusting, options=RecoveryOptions(replace=True))
    assert report.complete
    with opened(tmp_path / "clone") as clone:
        assert (clone.tables(), ids(clone.table("a"))) == (lake.tables(), ids(lake.table("a")))
        assert clone.check(data=True).problems == ()
        clone.backup(tmp_path / "backup")
    assert Lake.restore(tmp_path / "clone", tmp_path / "backup", options=RecoveryOptions(replace=True)).complete
    with opened(tmp_path / "clone") as clone, served_here(clone) as (url, _), Lake.open(url) as remote:
        assert ids(remote.table("a")) == ids(lake.table("a"))


def test_a_clone_that_was_not_finished_and_places_that_are_taken(site: Site, lake: Lake, tmp_path: Path) -> None:
    shop(lake)
    target = Lake.open(tmp_path / "clone", durability="os")
    losing = through(target, LosingRecords)
    losing.lose(2, "before")
    with pytest.raises(StorageError):
        clone_lake(lake, target, lake.snapshot(), tmp_path / "clone", None)
    assert (losing.fired, target.tables()) == (True, []), "nothing of it"
    target.close()
    lake.table("t").append(table_of({11: "later"}))
    made = lake.clone(tmp_path / "clone")
    assert [tag.snapshot for tag in lake.tags.list()] == [made.source_snapshot]
    with opened(tmp_path / "clone") as clone:
        assert rows(clone) == rows(lake)
    with pytest.raises(AlreadyExists):
        lake.clone(tmp_path / "clone")
    assert site.root is not None
    for inside in (site.root, site.root / "below"):
        with pytest.raises((InvalidInput, AlreadyExists)):
            lake.clone(inside, storage=Storage(durability="os"))
    with pytest.raises(NotFound):
        lake.clone(tmp_path / "never", 99)
    assert not (tmp_path / "never").exists()
