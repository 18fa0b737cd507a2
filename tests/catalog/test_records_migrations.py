"""The form of a catalog database: made once, brought up to date in order, and refused when it is newer than we are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.support.records import fresh_database
from tiltyard.catalog import migrations
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.errors import UnsupportedFeature
from tiltyard.testing.record_conformance import increment, together, write

pytest_plugins = ("tests.support.postgres",)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/x.db"
    else:
        with fresh_database(request.getfixturevalue("postgres_url")) as url:
            yield url


def version(url: str) -> int:
    records = open_records(url)
    assert isinstance(records, SqlRecords)
    try:
        return records._read(migrations.schema_version)
    finally:
        records.close()


def add_column(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE tiltyard_records ADD COLUMN note TEXT")


def fill_column(connection: Connection) -> None:
    connection.exec_driver_sql("UPDATE tiltyard_records SET note = 'old'")


def fails(connection: Connection) -> None:
    connection.exec_driver_sql("DELETE FROM tiltyard_records")
    raise RuntimeError("a migration that fails")


def test_many_open_a_new_catalog_at_once(url: str) -> None:
    handles = together([lambda: open_records(url)] * 6)
    for number, handle in enumerate(handles, 1):
        assert increment(handle, "n") == number
    for handle in handles:
        handle.close()
    assert version(url) == len(migrations.MIGRATIONS) == 1


def test_an_older_catalog_is_brought_up_to_date_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_records(url)
    write(old, {"a": {"n": 1}})
    old.close()
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, add_column, fill_column))
    handles = together([lambda: open_records(url)] * 4)
    for handle in handles:
        assert handle.get(["a"]) == {"a": {"n": 1}}
    new = handles[0]
    assert isinstance(new, SqlRecords)
    write(new, {"b": {}})
    notes = new._read(lambda c: c.exec_driver_sql("SELECT key, note FROM tiltyard_records ORDER BY key").all())
    assert [tuple(row) for row in notes] == [("a", "old"), ("b", None)]
    assert version(url) == 3
    for handle in handles:
        handle.close()


def test_a_newer_catalog_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, add_column))
        open_records(url).close()
    with pytest.raises(UnsupportedFeature, match="Upgrade tiltyard") as caught:
        open_records(url)
    assert caught.value.feature == "catalog schema 2"


def test_a_migration_that_fails_leaves_the_catalog_as_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_records(url)
    write(old, {"a": {"n": 1}})
    with monkeypatch.context() as later:
        later.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, add_column, fails))
        with pytest.raises(RuntimeError):
            open_records(url)
    assert version(url) == 1
    assert increment(old, "a") == 2
    old.close()
