"""Every database of records runs the same suite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.records import fresh_database
from tests.support.served import served_here
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.manifest_records import ManifestRecords
from tiltyard.catalog.open_records import MemoryRecords, open_records
from tiltyard.catalog.records import Records
from tiltyard.catalog.server_link import ServerLink
from tiltyard.catalog.server_records import ServerRecords
from tiltyard.lake import Lake
from tiltyard.testing import CountingRecords, RecordsAcrossProcessesTests, RecordsTests, SharedLocksTests
from tiltyard.testing.record_conformance import Reopen

pytest_plugins = ("tests.support.postgres",)


class Opened:
    """The handle most tests use, closed in the end."""

    @pytest.fixture
    def records(self, reopen: Reopen) -> Iterator[Records]:
        records = reopen()
        yield records
        records.close()


class TestMemory(Opened, RecordsTests):
    rounds = 50

    @pytest.fixture
    def reopen(self) -> Reopen:
        records = MemoryRecords()
        return lambda: records


class TestCountingMemory(Opened, RecordsTests):
    @pytest.fixture
    def reopen(self) -> Reopen:
        records = CountingRecords(MemoryRecords())
        return lambda: records


class TestSqlite(Opened, RecordsTests, RecordsAcrossProcessesTests):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        return partial(open_records, f"sqlite:///{tmp_path}/lake/catalog.db")


class TestSqliteWithoutFlushes(Opened, RecordsTests):
    rounds = 30

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        return partial(open_records, f"sqlite:///{tmp_path}/catalog.db", durability="os")


class TestPostgres(Opened, RecordsTests, SharedLocksTests, RecordsAcrossProcessesTests):
    rounds = 20

    @pytest.fixture
    def reopen(self, postgres_url: str) -> Iterator[Reopen]:
        with fresh_database(postgres_url) as url:
            yield partial(open_records, url)


class TestManifest(Opened, RecordsTests, SharedLocksTests, RecordsAcrossProcessesTests):
    rounds = 4
    many = 1500

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        # Here they race on purpose, many at a time, so each may lose more often than is usual.
        return partial(ManifestRecords, tmp_path / "lake", durability="os", attempts=200, upkeep=8)


class TestServer(Opened, RecordsTests, SharedLocksTests, RecordsAcrossProcessesTests):
    rounds = 6
    many = 1500

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Reopen]:
        with Lake.open(tmp_path / "lake") as lake, served_here(lake) as (url, server):
            # Records of their own: the suite counts them all.
            server.door._catalog = Catalog(open_records(f"sqlite:///{tmp_path}/records.db", durability="os"), lake.catalog.runtime)
            yield partial(ServerRecords, ServerLink(url))
