"""What a version of a stock client costs the server, counted; and that what is remembered of tables misleads nobody."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    ConcurrentModificationError,
    CreateNamespaceRequest,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DropNamespaceRequest,
    InvalidTableStateError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
)

import tiltyard as ty
from tests.support.lakes import through
from tests.support.served import ARROW, ipc, served_here
from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.server_link import NOT_BEGUN
from tiltyard.catalog.sqlite import Sqlite
from tiltyard.errors import ContentionError
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.lakes.namespaces import declared_tables, namespace_versions
from tiltyard.lakes.namespaces.namespace_versions import NotAtOnceError
from tiltyard.server.at_once import LoopTime
from tiltyard.server.lake_server import LakeServer
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import create_token, principal_of
from tiltyard.testing import CountingRecords


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ty.Lake]:
    with ty.Lake.open(tmp_path / "lake") as lake:
        lake.create_table("t", pa.table({"id": [0]}))
        yield lake


def add(namespace: LakeNamespace, number: int, name: str = "t") -> None:
    lance.write_dataset(pa.table({"id": [number]}), namespace_client=namespace, table_id=[name], mode="append")


def directory(lake: ty.Lake, name: str = "t") -> Path:
    return Path(lake.plain_access_of(lake.snapshot().cut.tables[name]).lance_uri)


def stage(lake: ty.Lake, number: int, name: str = "t") -> CreateTableVersionRequest:
    """The next version of a table, staged as stock clients do it, and the request to publish it."""
    at = directory(lake, name)
    copy = at.parent / f"copy-{uuid.uuid4()}"
    shutil.copytree(at, copy)
    made = lance.write_dataset(pa.table({"id": [number]}), str(copy), mode="append").version
    for below in ("data", "_transactions"):
        shutil.copytree(copy / below, at / below, dirs_exist_ok=True)
    (version,) = {file.name for file in (copy / "_versions").glob("*.manifest")} - {file.name for file in (at / "_versions").iterdir()}
    staged = at / "_versions" / f"{version}-{uuid.uuid4()}"
    shutil.move(copy / "_versions" / version, staged)
    shutil.rmtree(copy)
    return CreateTableVersionRequest(id=[name], version=made, manifest_path=str(staged).lstrip("/"), naming_scheme="V2")


def published(answer: CreateTableVersionResponse) -> int:
    assert answer.version is not None
    return answer.version.version


class Counting(LakeNamespace):
    """Counts what publishing a version asks of the catalog."""

    def __init__(self, lake: ty.Lake) -> None:
        super().__init__(lake)
        self.records = through(lake, CountingRecords)
        self.counts: list[tuple[int, int, int]] = []

    def create_table_version(self, request: Any) -> CreateTableVersionResponse:
        before = self._asked()
        answer = super().create_table_version(request)
        self.counts.append(tuple(now - then for now, then in zip(self._asked(), before, strict=True)))  # type: ignore[arg-type]
        return answer

    def _asked(self) -> tuple[int, int, int]:
        return self.records.gets, self.records.scans, self.records.transacts


def test_a_version_is_one_step_of_the_catalog(lake: ty.Lake) -> None:
    namespace = Counting(lake)
    namespace.settle_by(lambda settlement: None)
    for number in range(1, 5):
        add(namespace, number)
    assert namespace.counts == [(1, 0, 1), *[(0, 0, 1)] * 3]  # looked up once
    lake.catalog.records = namespace.records.inner
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert lake.check().ok


def remembering(lake: ty.Lake) -> LakeNamespace:
    """A namespace that has published a version of ``t``, and a second version of it that is staged."""
    namespace = LakeNamespace(lake)
    add(namespace, 1)
    assert namespace._known.before("t", lake.table("t").version + 1) is not None
    return namespace


def test_a_table_with_another_name_by_now_is_not_written_to(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    lake.rename_table("t", "u")
    with pytest.raises(TableNotFoundError):
        namespace.create_table_version(request)
    assert Path("/" + request.manifest_path).exists()  # it is the client's
    assert sorted(lake.table("u").to_arrow()["id"].to_pylist()) == [0, 1]
    lake.rename_table("u", "t")
    assert published(namespace.create_table_version(request)) == request.version
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_another_table_of_the_name_is_not_written_to(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    lake.drop_table("t")
    with pytest.raises(TableNotFoundError):
        namespace.create_table_version(request)
    lake.create_table("t", pa.table({"id": [5]}))
    with pytest.raises(InvalidTableStateError, match="another directory"):
        namespace.create_table_version(request)
    assert lake.table("t").to_arrow()["id"].to_pylist() == [5]


def test_two_tables_that_changed_names_keep_their_rows_apart(lake: ty.Lake) -> None:
    lake.create_table("u", pa.table({"id": [100]}))
    namespace = remembering(lake)
    add(namespace, 101, "u")
    request = stage(lake, 2)

    def swap(tx: ty.LakeTransaction) -> None:
        tx.rename_table("t", "x")
        tx.rename_table("u", "t")
        tx.rename_table("x", "u")

    lake.run(swap)
    with pytest.raises(InvalidTableStateError, match="another directory"):
        namespace.create_table_version(request)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [100, 101]
    assert sorted(lake.table("u").to_arrow()["id"].to_pylist()) == [0, 1]


def test_whoever_lost_is_told_so_and_wins_with_the_next_number(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    lake.table("t").append(pa.table({"id": [3]}))
    with pytest.raises(ConcurrentModificationError):
        namespace.create_table_version(request)
    add(namespace, 4)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 3, 4]
    assert lake.check().ok


def test_the_same_request_sent_again_finds_its_number_taken(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    namespace.create_table_version(request)
    with pytest.raises(ConcurrentModificationError):
        namespace.create_table_version(request)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_the_author_is_who_asks_now(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    other = LakeNamespace(lake.signed("ada"))
    other.remember_in(namespace._known)
    other.create_table_version(stage(lake, 2))
    assert lake.history()[0].author == "ada"


# ---- without a thread --------------------------------------------------------------------------------------------------------------


def holding(lake: ty.Lake) -> sqlite3.Connection:
    """Another process that writes to the catalog, and takes its time."""
    other = sqlite3.connect(Path(lake.root_uri) / "catalog.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_what_is_known_and_free_is_done_at_once(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    assert published(namespace.create_at_once(request)) == request.version
    with pytest.raises(ConcurrentModificationError):
        namespace.create_table_version(request)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_nobody_waits_for_a_catalog_that_others_hold(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    other = holding(lake)
    with pytest.raises(NotAtOnceError):
        namespace.create_at_once(request)
    assert Path("/" + request.manifest_path).exists()
    other.execute("ROLLBACK")
    other.close()
    assert published(namespace.create_table_version(request)) == request.version
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_what_is_not_known_or_large_is_not_done_at_once(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace, stranger = remembering(lake), LakeNamespace(lake)
    request = stage(lake, 2)
    with pytest.raises(NotAtOnceError):
        stranger.create_at_once(request)
    monkeypatch.setattr(namespace_versions, "MOST_KEPT", 10)
    with pytest.raises(NotAtOnceError):
        namespace.create_at_once(request)
    assert Path("/" + request.manifest_path).exists()


def test_the_loop_rests_after_a_commit_that_took_long() -> None:
    now = [100.0]
    loop = LoopTime(lambda: now[0])
    loop.spend(99.999)
    assert loop.is_free()
    loop.spend(99.0)
    assert not loop.is_free()
    now[0] = 149.9
    assert not loop.is_free()
    now[0] = 150.0
    assert loop.is_free()


class Threads:
    """Counts what a server hands to threads, by what was asked for."""

    def __init__(self, door: LakeServer) -> None:
        self.handed, self._door = 0, door
        self._real = door.in_thread
        door.in_thread = self  # type: ignore[method-assign]

    async def __call__(self, work: Callable[[], Any], *, prompt: bool = False) -> Any:
        self.handed += 1
        return await self._real(work, prompt=prompt)


def post(url: str, request: CreateTableVersionRequest, token: str = "") -> int:
    body = request.model_dump_json(exclude_none=True).encode()
    told = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    asked = urllib.request.Request(f"{url}/v1/table/t/version/create", body, told)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return int(answer.status)


def test_a_server_that_has_nothing_else_to_do_needs_no_thread(lake: ty.Lake) -> None:
    with served_here(lake) as (url, door):
        door._loop_time = LoopTime(lambda: 0.0)  # however slow this machine is
        threads = Threads(door)
        assert post(url, stage(lake, 1)) == 200
        assert threads.handed == 1  # the table had to be looked up
        for number in (2, 3, 4):
            assert post(url, stage(lake, number)) == 200
        assert threads.handed == 1
        for line in (Path(lake.root_uri).parent / "audit.jsonl").read_text().splitlines():
            assert json.loads(line)["verdict"] == "allowed"
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert lake.check().ok


def test_a_server_answers_others_while_a_commit_waits_for_the_catalog(lake: ty.Lake) -> None:
    with served_here(lake) as (url, door), ThreadPoolExecutor(1) as pool:
        door._loop_time = LoopTime(lambda: 0.0)
        assert post(url, stage(lake, 1)) == 200
        request = stage(lake, 2)
        other = holding(lake)
        waits = pool.submit(post, url, request)
        while door._in_flight == 0 and not waits.done():
            pass
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            assert answer.status == 200
        assert not waits.done()
        other.execute("ROLLBACK")
        other.close()
        assert waits.result(60) == 200
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_the_loop_asks_no_catalog_but_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a token in a database may take long, and nobody is served meanwhile."""
    real, seen = principal_of, list[str]()

    def looked(*given: Any) -> Any:
        seen.append(threading.current_thread().name)
        return real(*given)

    monkeypatch.setattr("tiltyard.server.authentication.principal_of", looked)
    with ty.Lake.open(tmp_path / "lake", catalog="manifest") as lake:
        lake.create_table("t", pa.table({"id": [0]}))
        with served_here(lake, required=True) as (url, door):
            door._loop_time = LoopTime(lambda: 0.0)
            token = create_token(lake, "ada", [Grant.parse("writer")])[0]
            for number in (1, 2, 3):
                assert post(url, stage(lake, number), token) == 200
    assert len(seen) >= 3
    assert all(name.startswith("tiltyard") for name in seen), seen


# ---- a catalog that others hold for long ---------------------------------------------------------------------------------------------


def test_a_busy_catalog_is_no_conflict(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that clients send were refused as if somebody had committed something that conflicts with them."""
    monkeypatch.setattr(Sqlite, "patience", Patience(first=0.001, longest=0.01, attempts=1_000_000, seconds=0.2))
    rows = pa.table({"id": [1]})
    with served_here(lake) as (url, _):

        def insert() -> int:
            asked = urllib.request.Request(f"{url}/v1/table/t/insert", ipc(rows), {"content-type": ARROW})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return int(answer.status)

        other = holding(lake)
        with pytest.raises(urllib.error.HTTPError) as refused:
            insert()
        with refused.value as answer:
            assert answer.code == 429
            assert json.loads(answer.read())["code"] == 21
            assert answer.headers["retry-after"] == "1"
            assert answer.headers.get(NOT_BEGUN) is None
        request = stage(lake, 2)
        with pytest.raises(urllib.error.HTTPError) as lost:
            post(url, request)
        with lost.value as answer:
            assert answer.code == 409  # after which stock clients look, find the number free and come again
        other.execute("ROLLBACK")
        other.close()
        assert post(url, request) == insert() == 200
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert lake.check().ok


def busy(*_: Any) -> None:
    raise ContentionError("The catalog was not written in 500 tries.", operation="catalog", attempts=500, seconds=10.0)


def test_what_is_left_to_tidy_after_a_commit_fails_nobody(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has made a declared table is not told that nothing was committed, and what is left of the declaration declares nothing."""
    monkeypatch.setattr(declared_tables, "forget_declared", busy)
    rows, namespace = pa.table({"id": [1]}), LakeNamespace(lake)
    lance.write_dataset(rows, namespace_client=namespace, table_id=["x"], mode="create")
    with lake.transaction() as tx:
        lance.write_dataset(rows, namespace_client=tx.namespace, table_id=["y"], mode="create")
    assert lake.tables() == ["t", "x", "y"]
    assert lake.table("x").to_arrow() == lake.table("y").to_arrow() == rows
    lake.drop_table("x")
    assert len(dict(lake.catalog.records.scan([declared_tables.DECLARED]))) == 2
    assert "x" not in declared_tables.list_declared(lake, [])
    monkeypatch.undo()
    lance.write_dataset(rows, namespace_client=namespace, table_id=["x"], mode="create")
    assert lake.table("x").to_arrow() == rows
    assert lake.check().ok


def test_a_namespace_whose_tables_are_gone_says_so(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = LakeNamespace(lake)
    namespace.create_namespace(CreateNamespaceRequest(id=["n"]))
    lake.create_table("n.a", pa.table({"id": [1]}))
    records, drop = lake.catalog.records, DropNamespaceRequest(id=["n"], behavior="Cascade")
    real = records.transact

    def transact(exclusive: Any, *given: Any) -> Any:
        return busy() if any(key.startswith("namespace/") for key in exclusive) else real(exclusive, *given)

    monkeypatch.setattr(records, "transact", transact)
    with pytest.raises(ServiceUnavailableError, match=r"tables were dropped.*Drop it again"):
        namespace.drop_namespace(drop)
    assert lake.tables() == ["t"]
    monkeypatch.undo()
    namespace.drop_namespace(drop)
    with pytest.raises(NamespaceNotFoundError):
        namespace.drop_namespace(drop)
