"""Backups of a catalog: one moment, whatever others do meanwhile; a damaged one changes nothing; any kind can be restored into any."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest

from tests.support.lakes import LosingRecords, Site, add_to_both, both, numbers, through
from tests.support.lost_catalogs import all_contents, commits, contents, lose_catalog, restore, whole
from tiltyard.errors import AlreadyExists, CorruptTable, InvalidInput, NotFound, OwnershipError, UnsupportedFeature
from tiltyard.lake import Lake
from tiltyard.lakes.recovery.backup import read_backup
from tiltyard.options import RecoveryOptions, Storage


def test_a_backup_is_restored_as_it_was(site: Site, lake: Lake, tmp_path: Path) -> None:
    with lake.transaction(message="two", properties={"why": "test"}) as tx:
        add_to_both(tx, 2)
    lake.tags.create("two")
    lake.branches.create("trial")
    lake.on_branch("trial").table("a").append(numbers(9))
    lake.table("b").append(numbers(3))
    made = lake.backup(tmp_path / "backup")
    assert made.snapshots == {"main": 3, "trial": 3}
    assert made.catalog == {"sqlite": "sqlite", "postgres": "postgresql", "manifest": "manifest"}[site.kind]
    before, past = whole(lake), all_contents(lake)
    lose_catalog(site)
    report = restore(site, tmp_path / "backup")
    assert report.complete
    assert report.adopted == ()
    lake = site.open()
    assert (whole(lake), all_contents(lake)) == (before, past)
    assert lake.check().problems == ()
    lake.table("a").append(numbers(4))
    assert contents(lake)["a"] == [1, 2, 4]


def test_it_is_of_one_moment_while_others_write(site: Site, lake: Lake, tmp_path: Path) -> None:
    over = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as other:
                for value in range(2, 200):
                    if over.is_set():
                        return
                    with other.transaction() as tx:
                        add_to_both(tx, value)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tips = []
        for number in range(4):
            while lake.catalog.cut().snapshot < number + 2 and writer.is_alive():
                pass
            _, records = read_backup(lake.backup(tmp_path / f"{number}").path)
            tip = records["tip/main"]["snapshot"]
            tips.append(tip)
            steps = [body for key, body in records.items() if key.startswith("snapshot/main/")]
            assert sorted(step["id"] for step in steps) == list(range(1, tip + 1))
            heads = [body["version"] for key, body in records.items() if key.startswith("table/main/")]
            assert heads == [tip, tip], "both tables move together"
    finally:
        over.set()
        writer.join()
    assert not failures
    assert tips == sorted(tips)
    assert tips[-1] > tips[0]


@pytest.mark.parametrize("into", ["sqlite", "postgres", "manifest"])
def test_any_kind_is_restored_into_any(site: Site, lake: Lake, into: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = site.directory
    lake.table("a").append(numbers(2))
    lake.backup(tmp_path / "backup")
    before = whole(lake)
    lose_catalog(site)
    uri: str = str(tmp_path / "elsewhere") if into != "postgres" else request.getfixturevalue("fresh_postgres")
    kind = {"catalog": into} if into != "postgres" else {}
    report = Lake.restore(uri, tmp_path / "backup", root=root, **kind, storage=Storage(durability="os"))  # type: ignore[arg-type]
    assert report.complete
    with Lake.open(uri, durability="os", **kind) as found:  # type: ignore[arg-type]
        assert whole(found) == before
        found.table("b").append(numbers(5))
        assert found.check().problems == ()
    old = {"durability": "os", **site.arguments}  # where the catalog was there is none any more
    if site.kind == into == "postgres":  # one database has many addresses, so that an emptied one is opened; but nothing is made there
        with Lake.open(site.uri, **old) as emptied, pytest.raises(OwnershipError):
            emptied.create_table("new", numbers(1))
    else:
        with pytest.raises(OwnershipError):
            Lake.open(site.uri, **old)


DAMAGES = ["cut short", "empty", "no gzip", "a bit flipped", "header changed", "a record gone", "a record changed", "a record twice",
           "no header", "no JSON", "another kind"]  # fmt: skip


def damaged(data: bytes) -> dict[str, bytes]:
    lines = gzip.decompress(data).split(b"\n")
    header = json.loads(lines[0])
    other = json.dumps({**header, "snapshots": {"main": 77}}, separators=(",", ":")).encode()
    return {
        "cut short": data[: len(data) // 2],
        "empty": b"",
        "no gzip": b"hello",
        "a bit flipped": data[:60] + bytes([data[60] ^ 1]) + data[61:],
        "header changed": gzip.compress(b"\n".join([other, *lines[1:]])),
        "a record gone": gzip.compress(b"\n".join([lines[0], *lines[2:]])),
        "a record changed": gzip.compress(b"\n".join(lines).replace(b'"version":1', b'"version":2')),
        "a record twice": gzip.compress(b"\n".join([*lines[:2], *lines[1:]])),
        "no header": gzip.compress(b"\n".join(lines[1:])),
        "no JSON": gzip.compress(b"{{{"),
        "another kind": gzip.compress(json.dumps({**header, "kind": "x"}).encode()),
    }


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_backup_changes_nothing(how: str, tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("a", numbers(1))
    file = tmp_path / "backup"
    lake.backup(file)
    file.write_bytes(damaged(file.read_bytes())[how])
    before = whole(lake)
    with pytest.raises(CorruptTable, match="backup"):
        Lake.restore(tmp_path / "lake", file, options=RecoveryOptions(replace=True), storage=Storage(durability="os"))
    assert whole(lake) == before
    lake.close()
    with pytest.raises(CorruptTable):
        Lake.restore(tmp_path / "other", file, root=tmp_path / "lake", storage=Storage(durability="os"))
    assert not (tmp_path / "other").exists()


def test_a_backup_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.backup(tmp_path / "backup")
    lines = gzip.decompress((tmp_path / "backup").read_bytes()).split(b"\n")
    lines[0] = json.dumps({**json.loads(lines[0]), "format": 99}).encode()
    (tmp_path / "backup").write_bytes(gzip.compress(b"\n".join(lines)))
    with pytest.raises(UnsupportedFeature, match="format 99"):
        Lake.restore(tmp_path / "lake", tmp_path / "backup", options=RecoveryOptions(replace=True))


def test_what_is_there_is_replaced_only_when_asked(site: Site, lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    with pytest.raises(AlreadyExists, match="replace"):
        restore(site, tmp_path / "backup")
    before = commits(lake)
    report = restore(site, tmp_path / "backup", replace=True)
    assert [len(found.tables) for found in report.adopted] == [2]
    assert commits(site.open()) == before


def test_the_catalog_of_another_lake_is_never_replaced(site: Site, lake: Lake, tmp_path: Path) -> None:
    with Lake.open(tmp_path / "other", durability="os") as other:
        other.create_table("c", numbers(1))
        other.backup(tmp_path / "backup")
    before = whole(lake)
    with pytest.raises(OwnershipError):
        restore(site, tmp_path / "backup", replace=True)
    assert whole(site.open()) == before


def test_mistakes_are_told(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no backup"):
        Lake.restore(tmp_path / "x", tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="directory"):
        lake.backup(tmp_path)
    with pytest.raises(InvalidInput, match="local file"):
        lake.backup("s3://bucket/backup")
    assert not (tmp_path / "x").exists()


def test_a_backup_that_fails_leaves_the_old_one(sqlite_lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    sqlite_lake.backup(file)
    before = file.read_bytes()
    tmp_path.chmod(0o500)
    try:
        if __import__("os").geteuid() != 0:
            with pytest.raises(OSError):
                sqlite_lake.backup(file)
    finally:
        tmp_path.chmod(0o700)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


def test_writers_in_the_way_of_a_replacement_are_not_lost(site: Site, lake: Lake, tmp_path: Path) -> None:
    """Somebody commits between the look at the catalog and its replacement: it is looked at again."""
    lake.backup(tmp_path / "backup")
    records = through(lake, LosingRecords)
    assert not records.fired
    other = site.open()
    with other.transaction() as tx:
        add_to_both(tx, 2)
    restore(site, tmp_path / "backup", replace=True)
    assert both(site.open()) == ([1, 2], [1, 2])
