"""Every backend runs the same suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.proving import pick
from tests.support.servers import S3Server
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import LocalStore, MemoryStore, open_store
from tiltyard.testing import CountingStore, ManualClock, ObjectStoreTests, PowerLossStore
from tiltyard.testing.stores import LatencyStore


class TestLocalOs(ObjectStoreTests):
    rounds = pick(30, 100)

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(tmp_path / "root", durability="os")


class TestLocalFsync(ObjectStoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(tmp_path / "root", durability="fsync")


class TestMemory(ObjectStoreTests):
    rounds = pick(30, 100)

    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


class TestCountingLocal(ObjectStoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return CountingStore(LocalStore(tmp_path, durability="os"))


class TestLatencyMemory(ObjectStoreTests):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return LatencyStore(MemoryStore(), ManualClock(), lambda method: 0.02)


class TestPowerLossBeforeAnyCrash(ObjectStoreTests):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return PowerLossStore()


class TestSeaweedFS(ObjectStoreTests):
    rounds = pick(3, 8)

    @pytest.fixture
    def store(self, seaweedfs_server: S3Server, fresh_s3_uri: str) -> ObjectStore:
        return open_store(fresh_s3_uri, storage_options=seaweedfs_server.storage_options)
