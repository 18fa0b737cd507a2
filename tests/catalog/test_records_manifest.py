"""Records in a ``__manifest`` table: who meets whom, what it costs in the long run, and what other Lance clients see."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace import CreateNamespaceRequest, CreateTableRequest, DescribeTableRequest, ListNamespacesRequest, ListTablesRequest

import tiltyard as ty
from tests.support.servers import S3Server, seaweedfs
from tiltyard.catalog.manifest_records import ManifestRecords
from tiltyard.catalog.manifest_rows import access_of, row_of
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Found, Records, Writes
from tiltyard.errors import AlreadyExists, ContentionError, StorageError
from tiltyard.interfaces import Runtime
from tiltyard.storage import open_store
from tiltyard.testing import CountingRecords, ManualClock, RecordsTests, SeededRandomness, SharedLocksTests, WrapperStore
from tiltyard.testing.record_conformance import ODD_KEYS, Reopen, increment, write
from tiltyard.testing.stores import CREATES, READS, Request, T


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def records(root: Path) -> ManifestRecords:
    return ManifestRecords(root, durability="os")


def manifest(root: Path) -> ty.Table:
    return ty.Table.open(root / "__manifest")


class TestMeeting:
    def test_writers_of_different_records_meet(self, root: Path, records: ManifestRecords) -> None:
        other = CountingRecords(ManifestRecords(root, durability="os"))

        def decide(found: Found) -> Writes[int]:
            if counting.decisions == 1:
                write(other, {"elsewhere": {}})
            return Writes(len(found), put={"a": {}})

        counting = CountingRecords(records)
        counting.transact(["a"], [], decide)
        assert counting.decisions == 2
        assert [key for key, _ in records.scan([""])] == ["a", "elsewhere"]

    def test_a_decision_to_write_nothing_meets_nobody(self, root: Path, records: ManifestRecords) -> None:
        write(records, {"a": {"n": 1}})
        other, before = ManifestRecords(root), manifest(root).version
        asked: list[Found] = []

        def decide(found: Found) -> Writes[None]:
            asked.append(found)
            write(other, {"a": {"n": 2}})
            return Writes(None)

        records.transact(["a"], [], decide)
        assert asked == [{"a": {"n": 1}}]
        assert manifest(root).version == before + 1

    def test_a_compaction_in_between_is_gone_over(self, root: Path, records: ManifestRecords) -> None:
        for number in range(4):
            write(records, {f"k/{number}": {"n": number}})
        asked: list[int] = []

        def decide(found: Found) -> Writes[None]:
            asked.append(len(found))
            assert manifest(root).compact().version > 5
            return Writes(None, put={"k/0": {"n": 10}, "new": {}}, delete=["k/1"])

        records.transact(["k/0", "k/1"], ["k/2"], decide)
        assert asked == [2 + 1]
        assert dict(records.scan([""])) == {"k/0": {"n": 10}, "k/2": {"n": 2}, "k/3": {"n": 3}, "new": {}}

    def test_the_end_of_patience(self, root: Path) -> None:
        clock = ManualClock()
        records = ManifestRecords(root, durability="os", runtime=Runtime(clock, SeededRandomness(1)))
        other = ManifestRecords(root, durability="os")
        asked: list[int] = []

        def decide(found: Found) -> Writes[None]:
            asked.append(increment(other, "faster"))
            return Writes(None, put={"slow": {}})

        with pytest.raises(ContentionError) as caught:
            records.transact(["slow"], [], decide)
        assert (caught.value.attempts, asked, len(clock.slept)) == (5, [1, 2, 3, 4, 5], 4)
        assert dict(records.scan([""])) == {"faster": {"n": 5}}


class Deaf(WrapperStore):
    """Carries out the creation of a version, or not, and answers nothing about it, nor lets anybody read it, until it hears again."""

    applied = True
    armed = False
    asked = ""

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self.armed and method in CREATES and path.startswith("_versions/"):
            self.asked = path
            if self.applied:
                request(self.inner)
        if path == self.asked and method in CREATES | READS:
            raise StorageError("no answer", name=path, maybe_applied=True)
        return request(self.inner)


class TestUnknown:
    @pytest.mark.parametrize("applied", [True, False])
    def test_a_lost_answer_is_told_as_one(self, root: Path, applied: bool) -> None:
        store = Deaf(open_store(root / "__manifest", durability="os"))
        records = ManifestRecords(root, store=store)
        write(records, {"a": {"n": 1}})
        store.applied, store.armed = applied, True
        with pytest.raises(StorageError) as caught:
            write(records, {"a": {"n": 2}, "b": {}})
        assert (caught.value.maybe_applied, caught.value.transient) == (True, True)
        store.armed, store.asked = False, ""
        assert dict(records.scan([""])) == ({"a": {"n": 2}, "b": {}} if applied else {"a": {"n": 1}})
        assert increment(records, "c") == 1

    def test_what_failed_before_the_commit_was_not_done(self, root: Path) -> None:
        class Full(WrapperStore):
            full = False

            def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
                if self.full and data is not None and path.startswith("_transactions/"):
                    raise StorageError("no space", name=path, maybe_applied=True)
                return request(self.inner)

        store = Full(open_store(root / "__manifest", durability="os"))
        records = ManifestRecords(root, store=store)
        write(records, {"a": {"n": 1}})
        store.full = True
        with pytest.raises(StorageError) as caught:
            write(records, {"a": {"n": 2}})
        assert not caught.value.maybe_applied
        store.full = False
        assert dict(records.scan([""])) == {"a": {"n": 1}}


class TestUpkeep:
    def test_publishes_leave_no_trail(self, root: Path) -> None:
        records = ManifestRecords(root, durability="os", upkeep=8, kept=timedelta(0))
        sizes: list[tuple[int, int]] = []
        for number in range(1, 193):
            write(records, {f"k/{number % 10}": {"n": number}})
            if number % 8 == 0:
                sizes.append((len(manifest(root).layout.fragments), sum(1 for _ in (root / "__manifest").rglob("*.manifest"))))
        assert max(fragments for fragments, _ in sizes) <= 8
        assert max(versions for _, versions in sizes[8:]) <= 32 + (8 + 1) * 8, "what is kept, and what came since the last cleanup"
        assert dict(records.scan(["k/"])) == {f"k/{number % 10}": {"n": number} for number in range(183, 193)}

    def test_upkeep_that_fails_does_no_harm(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        class Stubborn(WrapperStore):
            stubborn = False

            def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
                if self.stubborn and method == "list":
                    raise StorageError("no listing today", name=path)
                return request(self.inner)

        store = Stubborn(open_store(root / "__manifest", durability="os"))
        records = ManifestRecords(root, store=store, upkeep=2)
        store.stubborn = True
        with caplog.at_level("INFO", logger="tiltyard.lake"):
            for _ in range(16):
                increment(records, "n")
        assert [record.message for record in caplog.records if "upkeep" in record.message and "no listing today" in record.message]
        assert records.get(["n"]) == {"n": {"n": 16}}

    def test_a_reader_whose_version_was_removed_takes_the_next(self, root: Path) -> None:
        records = ManifestRecords(root, durability="os")
        write(records, {"a": {"n": 1}})
        old = records._newest()
        write(records, {"a": {"n": 2}})
        fast = ManifestRecords(root, durability="os", upkeep=1, kept=timedelta(0))
        for _ in range(40):
            increment(fast, "n")
        assert old.manifest.version not in manifest(root).layout.versions()
        found = [old, records._newest()]
        records._newest = lambda: found.pop(0)  # type: ignore[method-assign]
        assert records.get(["a"]) == {"a": {"n": 2}}
        assert found == []


class TestOtherClients:
    @pytest.fixture
    def namespace(self, root: Path) -> DirectoryNamespace:
        # All names are in the manifest; without it a client would look for directories called like the tables of the root.
        return DirectoryNamespace(root=str(root), dir_listing_enabled="false")  # type: ignore[no-untyped-call]

    def test_they_list_and_open_our_tables(self, root: Path, records: ManifestRecords, namespace: DirectoryNamespace) -> None:
        rows = pa.table({"id": [1, 2, 3]})
        for location in ("tables/one", "tables/two"):
            ty.Table.create(root / location, rows)
        names = {"orders": "tables/one", "sales$orders": "tables/two"}
        put: dict[str, dict[str, Any]] = {
            f"name/main/{name}": {"table": name, "location": location, "more": [1]} for name, location in names.items()
        }
        put |= {"namespace/sales": {"made": 1}, "snapshot/main/1": {}, "name/branch/hidden": {"location": "tables/one"}, "lake": {}}
        write(records, put)
        assert dict(records.scan([""])) == put
        assert [key for key, _ in records.scan(["name/main/s", "name/main/o"])] == ["name/main/orders", "name/main/sales$orders"]
        assert namespace.list_tables(ListTablesRequest(id=[])).tables == ["orders"]
        assert namespace.list_namespaces(ListNamespacesRequest(id=[])).namespaces == ["sales"]
        assert namespace.list_tables(ListTablesRequest(id=["sales"])).tables == ["orders"]
        described = namespace.describe_table(DescribeTableRequest(id=["sales", "orders"]))
        assert str(described.location).endswith("/lake/tables/two")
        assert lance.dataset(namespace_client=namespace, table_id=["sales", "orders"]).to_table() == rows
        write(records, {}, delete=["name/main/orders"])
        assert namespace.list_tables(ListTablesRequest(id=[])).tables == []

    def test_a_catalog_that_another_client_made_can_be_taken_over(self, root: Path, namespace: DirectoryNamespace) -> None:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, pa.schema({"id": pa.int64()})) as stream:
            stream.write_table(pa.table({"id": [1]}))
        namespace.create_namespace(CreateNamespaceRequest(id=["theirs"], properties={"who": "they"}))
        namespace.create_table(CreateTableRequest(id=["theirs", "t"]), sink.getvalue())
        records = ManifestRecords(root)
        found = dict(records.scan(["name/", "namespace/"]))
        assert set(found) == {"name/main/theirs$t", "namespace/theirs"}
        assert found["name/main/theirs$t"]["foreign"] is True
        assert found["name/main/theirs$t"]["location"]
        write(records, {"name/main/ours": {"location": "x"}})
        assert increment(records, "n") == 1
        assert namespace.list_tables(ListTablesRequest(id=["theirs"])).tables == ["t"]
        assert namespace.list_tables(ListTablesRequest(id=[])).tables == ["ours"]

    def test_a_table_and_a_namespace_cannot_share_a_name(self, records: ManifestRecords) -> None:
        write(records, {"namespace/sales": {}})
        with pytest.raises(AlreadyExists, match="namespace 'sales'"):
            write(records, {"name/main/sales": {"location": "x"}})
        with pytest.raises(AlreadyExists):
            write(records, {"name/main/both": {}, "namespace/both": {}})
        assert dict(records.scan([""])) == {"namespace/sales": {}}
        write(records, {"name/main/sales": {"location": "x"}}, delete=["namespace/sales"])
        assert dict(records.scan([""])) == {"name/main/sales": {"location": "x"}}
        write(records, {}, delete=["namespace/sales"])
        assert dict(records.scan([""])) == {"name/main/sales": {"location": "x"}}


KEYS = (
    *ODD_KEYS,
    *("name/main/t", "name/main/a$b", "name/main/a/b", "name/main/", "name/dev/t", "namespace/n", "namespace/", "/namespace/n"),
    *("lake", "/lake", "//lake", "tiltyard/head", "/tiltyard/head", "t", "n"),
)


def test_every_key_has_a_place_of_its_own_and_comes_back_from_it() -> None:
    rows = {key: row_of(key, {"key": key}) for key in KEYS}
    assert {key: row.key() for key, row in rows.items()} == {key: key for key in KEYS}
    assert len({row.object_id for row in rows.values()}) == len(KEYS)
    assert all(row.body("") == {"key": key} for key, row in rows.items())
    assert access_of("name/main/t") == ("table", "t")
    assert access_of("namespace/n") == ("namespace", "n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.create_bucket("lakes")
        yield server


class TestOnS3(RecordsTests, SharedLocksTests):
    rounds = 2
    many = 300

    @pytest.fixture
    def reopen(self, server: S3Server, request: pytest.FixtureRequest) -> Reopen:
        uri = f"s3://lakes/{request.node.name}"
        return lambda: ManifestRecords(uri, storage_options=server.storage_options, attempts=100, upkeep=8)

    @pytest.fixture
    def records(self, reopen: Reopen) -> Records:
        return reopen()

    def test_the_address_is_enough(self, server: S3Server) -> None:
        records = open_records("s3://lakes/by-address", storage_options=server.storage_options)
        assert isinstance(records, ManifestRecords)
        assert increment(records, "n") == 1
        assert records.url == "s3://lakes/by-address/__manifest"
        assert not any(secret in repr(records) + records.url for secret in server.storage_options.values())
