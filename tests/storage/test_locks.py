"""The two locks: they exclude, they end with their holder, and they say so when they were lost."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
import pytest

from tests.support.races import PATIENCE, WRITERS, CarelessStore, holder, increment, manifest, process_pool, together
from tiltyard.errors import AlreadyExists, InvalidInput, StorageError, UnsupportedFeature
from tiltyard.interfaces import SystemClock
from tiltyard.storage import file_lock
from tiltyard.storage.file_lock import FileLock
from tiltyard.storage.handlers import CommitLock, LockHandler
from tiltyard.storage.local import LocalStore
from tiltyard.storage.postgres_lock import PostgresLock, lock_key

pytest_plugins = ("tests.support.postgres",)

MakeLock = Callable[..., FileLock | PostgresLock]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with process_pool() as processes:
        yield processes


@pytest.fixture(params=["file", "postgres"])
def make_lock(request: pytest.FixtureRequest, tmp_path: Path) -> MakeLock:
    """Makes locks that all stand for one table, each with a timeout of its own."""
    if request.param == "file":
        return lambda timeout=PATIENCE: FileLock(tmp_path / "lock", timeout=timeout)
    url = request.getfixturevalue("postgres_url")
    return lambda timeout=PATIENCE: PostgresLock(url, str(tmp_path), timeout=timeout)


class TestBothLocks:
    def test_eight_processes_exclude_each_other(self, make_lock: MakeLock, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
        counter = tmp_path / "counter"
        counter.write_text("0")
        together(pool, increment, make_lock(), counter, 20)
        assert counter.read_text() == str(WRITERS * 20)

    @pytest.mark.parametrize("shared", [True, False], ids=["one lock", "a lock each"])
    def test_eight_threads_exclude_each_other(self, make_lock: MakeLock, tmp_path: Path, shared: bool) -> None:
        counter = tmp_path / "counter"
        counter.write_text("0")
        one = make_lock()
        with ThreadPoolExecutor(WRITERS) as threads:
            jobs = [threads.submit(increment, one if shared else make_lock(), counter, 20) for _ in range(WRITERS)]
            for job in jobs:
                job.result(PATIENCE)
        assert counter.read_text() == str(WRITERS * 20)

    def test_it_is_free_again_after_an_error_inside(self, make_lock: MakeLock) -> None:
        with pytest.raises(RuntimeError, match="inside"), make_lock()(1):
            raise RuntimeError("inside")
        with make_lock()(2):
            pass

    def test_it_may_be_left_by_another_thread(self, make_lock: MakeLock) -> None:
        lease = make_lock()(1)
        lease.__enter__()
        thread = threading.Thread(target=lease.__exit__, args=(None, None, None))
        thread.start()
        thread.join(PATIENCE)
        with make_lock(0)(1):
            pass

    def test_nobody_waits_for_ever_and_the_holder_is_named(self, make_lock: MakeLock) -> None:
        with holder(make_lock()) as process:
            with pytest.raises(StorageError) as caught, make_lock(0.05)(1):
                pytest.fail("two holders")
            assert caught.value.transient
            assert not caught.value.maybe_applied
            assert f"process {process.pid} " in str(caught.value)

    def test_within_one_process_too(self, make_lock: MakeLock) -> None:
        with make_lock()(1):
            with pytest.raises(StorageError) as caught, make_lock(0)(2):
                pytest.fail("two holders")
            assert f"process {os.getpid()} " in str(caught.value)

    def test_a_holder_that_is_killed_blocks_nobody(self, make_lock: MakeLock) -> None:
        with holder(make_lock()) as process:
            with pytest.raises(StorageError), make_lock(0)(1):
                pytest.fail("the other process is not inside")
            kill(process.pid)
            process.join(PATIENCE)
            assert process.exitcode == -signal.SIGKILL
            with make_lock()(1):  # or it raises, after PATIENCE
                pass

    def test_a_version_can_be_committed_after_a_holder_was_killed(self, make_lock: MakeLock, tmp_path: Path) -> None:
        store = CarelessStore(tmp_path / "t")
        with holder(make_lock()) as process:
            kill(process.pid)
            LockHandler(make_lock()).create(store, manifest(1), b"x")
        with pytest.raises(AlreadyExists):
            LockHandler(make_lock()).create(store, manifest(1), b"y")

    def test_it_can_move_to_another_process(self, make_lock: MakeLock) -> None:
        moved = pickle.loads(pickle.dumps(make_lock(0)))
        with make_lock()(1), pytest.raises(StorageError), moved(1):
            pytest.fail("two holders")

    @pytest.mark.parametrize("timeout", [-1, float("nan")])
    def test_an_impossible_timeout(self, make_lock: MakeLock, timeout: float) -> None:
        with pytest.raises(InvalidInput):
            make_lock(timeout)


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def enter(lock: CommitLock) -> bool:
    with lock(1):
        return True


class TestWithPylance:
    """pylance takes our locks as its ``commit_lock``, so that both libraries can share a store that needs one."""

    def test_it_commits_with_our_lock(self, make_lock: MakeLock, tmp_path: Path) -> None:
        uri = str(tmp_path / "t.lance")
        for mode in ("create", "append", "append"):
            lance.write_dataset(rows(), uri, mode=mode, commit_lock=make_lock())
        assert lance.dataset(uri).version == 3
        with make_lock(0)(4):
            pass

    def test_our_lock_keeps_it_out(self, make_lock: MakeLock, tmp_path: Path) -> None:
        uri = str(tmp_path / "t.lance")
        lance.write_dataset(rows(), uri)
        with make_lock()(2), pytest.raises(OSError, match="StorageError"):
            lance.write_dataset(rows(), uri, mode="append", commit_lock=make_lock(0))
        assert lance.dataset(uri).version == 1

    def test_eight_processes_of_it_lose_nothing(self, make_lock: MakeLock, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
        uri = str(tmp_path / "t.lance")
        lance.write_dataset(rows(), uri)
        together(pool, append_with_pylance, uri, make_lock(), 3)
        table = lance.dataset(uri)
        assert table.count_rows() == 1 + WRITERS * 3
        assert [version["version"] for version in table.versions()] == list(range(1, 2 + WRITERS * 3))

    def test_it_goes_on_from_a_version_our_handler_created(self, make_lock: MakeLock, tmp_path: Path) -> None:
        table, twin = tmp_path / "t.lance", tmp_path / "twin.lance"
        lance.write_dataset(rows(), str(table))
        stale = lance.dataset(str(table))
        shutil.copytree(table, twin)
        lance.write_dataset(rows(), str(twin), mode="append")
        shutil.copytree(twin / "data", table / "data", dirs_exist_ok=True)
        store, handler = LocalStore(table), LockHandler(make_lock())
        handler.create(store, manifest(2), LocalStore(twin).get(manifest(2)))
        lance.write_dataset(rows(), stale, mode="append", commit_lock=make_lock())
        assert (lance.dataset(str(table)).version, lance.dataset(str(table)).count_rows()) == (3, 3)
        with pytest.raises(AlreadyExists):
            handler.create(store, manifest(3), b"late")

    def test_its_messages_hold_no_password(self, tmp_path: Path) -> None:
        lock = PostgresLock("postgresql://me:secret-word@127.0.0.1:1/db", "t", timeout=0)
        with pytest.raises(OSError) as caught:
            lance.write_dataset(rows(), str(tmp_path / "t.lance"), commit_lock=lock)
        assert "secret-word" not in everything_said(caught.value)


def rows() -> pa.Table:
    return pa.table({"n": [1]})


def append_with_pylance(uri: str, lock: CommitLock, times: int) -> None:
    for _ in range(times):
        lance.write_dataset(rows(), uri, mode="append", commit_lock=lock)


class TestFileLock:
    def test_the_file_is_made_with_its_directory_and_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "lock"
        with FileLock(path)(1):
            pass
        assert path.is_file()

    def test_it_does_not_depend_on_the_working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        lock = FileLock("lock")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert lock.path == tmp_path / "lock"

    def test_different_files_are_different_locks(self, tmp_path: Path) -> None:
        with FileLock(tmp_path / "a")(1), FileLock(tmp_path / "b", timeout=0)(1):
            pass

    def test_a_link_to_the_file_is_the_same_lock(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "lock")
        with FileLock(tmp_path / "lock")(1), pytest.raises(StorageError), FileLock(tmp_path / "link", timeout=0)(1):
            pytest.fail("two holders")

    def test_a_lock_file_removed_meanwhile_leaves_the_outcome_open(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        with pytest.raises(StorageError) as caught, FileLock(path)(1):
            path.unlink()
        assert caught.value.maybe_applied

    def test_a_file_removed_just_before_it_was_locked_is_nobodys_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "lock"
        flock = file_lock._flock
        opened: list[int] = []

        def remove_first_then_lock(fd: int) -> bool:
            opened.append(os.fstat(fd).st_ino)
            if len(opened) == 1:
                path.rename(tmp_path / "removed")
            return flock(fd)

        monkeypatch.setattr(file_lock, "_flock", remove_first_then_lock)
        with FileLock(path)(1):
            assert path.stat().st_ino == opened[-1]
        assert len(opened) == 2

    def test_a_lock_file_replaced_meanwhile_leaves_the_outcome_open(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        store = CarelessStore(tmp_path / "t")

        class Replacing(CarelessStore):
            def put(self, path_of_object: str, data: bytes) -> None:
                super().put(path_of_object, data)
                (tmp_path / "other").touch()
                (tmp_path / "other").replace(path)

        with pytest.raises(StorageError) as caught:
            LockHandler(FileLock(path)).create(Replacing(tmp_path / "t"), manifest(1), b"x")
        assert caught.value.maybe_applied
        assert store.get(manifest(1)) == b"x"

    def test_a_file_with_other_content_is_not_written_over(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("my notes")
        with FileLock(path)(1), pytest.raises(StorageError, match="held by somebody"), FileLock(path, timeout=0)(1):
            pytest.fail("two holders")
        assert path.read_text() == "my notes"

    def test_a_place_that_cannot_be_locked(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError) as caught, FileLock(tmp_path)(1):
            pytest.fail("a directory was locked")
        assert not caught.value.maybe_applied
        assert str(tmp_path) in str(caught.value)

    def test_who_waits_already_gets_it_when_the_holder_is_killed(self, tmp_path: Path) -> None:
        waits = threading.Event()

        class Watched(SystemClock):
            def sleep(self, seconds: float) -> None:
                waits.set()  # it sleeps only when it found the lock taken
                super().sleep(seconds)

        path = tmp_path / "lock"
        with holder(FileLock(path)) as process, ThreadPoolExecutor(1) as thread:
            waiter = thread.submit(enter, FileLock(path, timeout=PATIENCE, clock=Watched()))
            assert waits.wait(PATIENCE)
            assert not waiter.done()
            kill(process.pid)
            assert waiter.result(PATIENCE)

    def test_threads_are_kept_apart_where_the_file_system_does_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on network file systems that know locks of processes alone, which are not to be had here."""
        monkeypatch.setattr(file_lock, "_flock", lambda fd: True)
        with FileLock(tmp_path / "lock")(1), pytest.raises(StorageError), FileLock(tmp_path / "lock", timeout=0)(1):
            pytest.fail("two holders")

    def test_a_forked_child_neither_holds_nor_keeps_the_lock(self, tmp_path: Path) -> None:
        """Runs in a process of its own without threads, since forking one with threads is not to be trusted."""
        script = f"""
import os
from tiltyard.errors import StorageError
from tiltyard.storage import file_lock
from tiltyard.storage.file_lock import FileLock

hold, release = os.pipe(), os.pipe()
lock = FileLock({str(tmp_path / "lock")!r}, timeout=0)
try:
    with lock(1):
        child = os.fork()
        if child == 0:
            os.close(release[1])
            os.write(hold[1], b"x")
            os.read(release[0], 1)  # until the parent is through, whatever way
        else:
            os.read(hold[0], 1)
except StorageError as error:
    os._exit(7 if child == 0 and error.maybe_applied else 8)
if child == 0:
    os._exit(9)  # left the block as if it had held the lock
with lock(2):  # although the child lives
    pass
os.close(release[1])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
        subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


class TestPostgresLock:
    def test_the_key_never_changes(self) -> None:
        assert lock_key("s3://lake/orders.lance") == lock_key("s3://lake/orders.lance/") == 4312292001772039544
        assert lock_key("s3://lake/stock.lance") != lock_key("s3://lake/orders.lance")

    def test_different_tables_are_different_locks(self, postgres_url: str) -> None:
        with PostgresLock(postgres_url, "a")(1), PostgresLock(postgres_url, "b", timeout=0)(1):
            pass

    def test_a_lost_connection_leaves_the_outcome_open(self, postgres_url: str, tmp_path: Path) -> None:
        lock = PostgresLock(postgres_url, str(tmp_path))

        class Cutting(CarelessStore):
            def put(self, path: str, data: bytes) -> None:
                super().put(path, data)
                end_holder(postgres_url, lock.key)

        store = Cutting(tmp_path)
        with pytest.raises(StorageError) as caught:
            LockHandler(lock).create(store, manifest(1), b"x")
        assert caught.value.maybe_applied
        assert store.get(manifest(1)) == b"x"
        with lock(2):
            pass

    def test_who_waits_already_gets_it_when_the_holder_is_killed(self, postgres_url: str, tmp_path: Path) -> None:
        lock = PostgresLock(postgres_url, str(tmp_path), timeout=PATIENCE)
        with holder(lock) as process, ThreadPoolExecutor(1) as thread, psycopg.connect(postgres_url, autocommit=True) as other:
            waiter = thread.submit(enter, lock)
            while not backends(other, lock.key, granted=False):
                assert not waiter.done()
            kill(process.pid)
            assert waiter.result(PATIENCE)

    def test_a_connection_lost_while_waiting_is_a_certain_failure(self, postgres_url: str, tmp_path: Path) -> None:
        lock = PostgresLock(postgres_url, str(tmp_path), timeout=PATIENCE)

        def wait() -> StorageError:
            with pytest.raises(StorageError) as caught, lock(1):
                pytest.fail("two holders")
            return caught.value

        with lock(1), ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(wait)
            while not end_backend(postgres_url, lock.key, granted=False):
                assert not waiting.done()
            error = waiting.result(PATIENCE)
        assert error.transient
        assert not error.maybe_applied

    def test_the_habits_of_the_server_do_not_end_a_hold(self, postgres_url: str) -> None:
        habits = ("idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout", "idle_session_timeout")
        options = " ".join(f"-c {habit}=50" for habit in habits)
        strict = psycopg.conninfo.make_conninfo(postgres_url, options=options)
        with PostgresLock(strict, "slow")(1), psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_sleep(0.2)")  # on the server's own clock, which is what would end it

    def test_a_catalog_address_will_do(self, postgres_url: str) -> None:
        with PostgresLock(postgres_url.replace("postgresql://", "postgresql+psycopg://"), "t")(1):
            pass

    def test_it_needs_a_table(self, postgres_url: str) -> None:
        with pytest.raises(InvalidInput):
            PostgresLock(postgres_url, "/")

    def test_it_holds_no_snapshot_that_would_hinder_vacuum(self, postgres_url: str) -> None:
        lock = PostgresLock(postgres_url, "t")
        query = "SELECT state, backend_xmin, backend_xid FROM pg_stat_activity WHERE pid = ANY(%s)"
        with lock(1), psycopg.connect(postgres_url, autocommit=True) as other:
            holders = backends(other, lock.key, granted=True)
            assert other.execute(query, (holders,)).fetchall() == [("idle in transaction", None, None)]

    def test_without_the_driver_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(UnsupportedFeature, match=r"tiltyard\[postgres\]"):
            PostgresLock("postgresql://host/db", "t")


def end_holder(url: str, key: int) -> None:
    assert end_backend(url, key, granted=True)


def end_backend(url: str, key: int, *, granted: bool) -> bool:
    """Cuts the connection that holds, or waits for, a lock; returns whether there was one, and then only when it is gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = backends(connection, key, granted=granted)
        rows = connection.execute("SELECT pg_terminate_backend(pid, 60000) FROM unnest(%s::int[]) AS found (pid)", (found,)).fetchall()
        return any(row[0] for row in rows)


def backends(connection: psycopg.Connection[Any], key: int, *, granted: bool) -> list[int]:
    """Who holds, or waits for, a lock."""
    query = """
        SELECT pid FROM pg_locks
        WHERE locktype = 'advisory' AND granted = %s AND ((classid::bigint << 32) | objid::bigint) = %s"""
    return [row[0] for row in connection.execute(query, (granted, key)).fetchall()]


SECRET = "secret-word"
ADDRESSES = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/db",
    f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db",
    f"host=127.0.0.1 port=1 user=me password={SECRET}",
    f"postgresql://me:{SECRET}@127.0.0.1:no-port/db",
    f"postgresql://me:{SECRET}@[broken/db",
    f"password {SECRET}",
    f"mysql://me:{SECRET}@host/db",
]


class TestSecrets:
    @pytest.mark.parametrize("address", ADDRESSES)
    def test_no_password_in_what_is_said(self, address: str) -> None:
        with pytest.raises((StorageError, InvalidInput)) as caught:
            use(address)
        assert SECRET not in everything_said(caught.value)
        assert len(str(caught.value)) < 300

    def test_no_password_in_a_repr(self) -> None:
        lock = PostgresLock(ADDRESSES[0], "t")
        handler = LockHandler(lock)
        assert repr(lock) == "PostgresLock('127.0.0.1:1/db', 't', timeout=30.0)"
        assert SECRET not in f"{lock!r}{lock!s}{handler!r}{handler!s}"

    def test_no_password_in_a_refused_login(self, postgres_url: str) -> None:
        address = psycopg.conninfo.make_conninfo(postgres_url, user="nobody_here", password=SECRET)
        with pytest.raises(StorageError) as caught:
            use(address)
        assert SECRET not in everything_said(caught.value)

    def test_no_password_where_a_lock_is_lost_or_busy(self, postgres_url: str) -> None:
        address = psycopg.conninfo.make_conninfo(postgres_url, password=SECRET)
        lock, impatient = PostgresLock(address, "t"), PostgresLock(address, "t", timeout=0)
        with lock(1), pytest.raises(StorageError) as busy, impatient(1):
            pytest.fail("two holders")
        with pytest.raises(StorageError) as lost, lock(1):
            end_holder(postgres_url, lock.key)
        assert lost.value.maybe_applied
        assert SECRET not in everything_said(busy.value) + everything_said(lost.value)


def use(address: str) -> None:
    with PostgresLock(address, "t", timeout=0)(1):
        pytest.fail("the lock was given")


def everything_said(error: BaseException) -> str:
    """Text, attributes and traceback of an error and of all errors chained to it, shown or suppressed."""
    said: list[Any] = []
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None:
            said += [repr(one), str(one), vars(one), "".join(traceback.format_exception(one))]
            pending += [one.__cause__, one.__context__]
    return repr(said)
