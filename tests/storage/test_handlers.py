"""Commit handlers: of any number of writers exactly one creates a version, and failures tell the truth about what happened."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support.races import CarelessStore, check_race, content, manifest, process_pool, race_processes, race_threads
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, StorageError, TiltyardError, UnsafeStore, UnsupportedFeature
from tiltyard.interfaces import CommitHandler, ObjectStore, system_runtime
from tiltyard.options import Storage
from tiltyard.storage.file_lock import FileLock
from tiltyard.storage.handlers import (
    LOCK_FILE,
    ConditionalPutHandler,
    LockHandler,
    RenameHandler,
    ensure_usable,
    handler_for,
    version_of,
)
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.postgres_lock import PostgresLock
from tiltyard.verbs.engine.access import open_access

pytest_plugins = ("tests.support.postgres",)

VERSIONS = 20
HANDLERS = ("rename", "conditional-put", "file lock", "postgres lock")
STORES = ("local, synced", "local", "memory", "careless")


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with process_pool() as processes:
        yield processes


@pytest.fixture
def make_handler(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], CommitHandler]:
    def make(name: str) -> CommitHandler:
        if name == "postgres lock":
            return LockHandler(PostgresLock(request.getfixturevalue("postgres_url"), str(tmp_path)))
        if name == "file lock":
            return LockHandler(FileLock(tmp_path / "lock"))
        return RenameHandler() if name == "rename" else ConditionalPutHandler()

    return make


def make_store(name: str, root: Path) -> ObjectStore:
    if name == "memory":
        return MemoryStore()
    if name == "careless":
        return CarelessStore(root, durability="os")
    return LocalStore(root, durability="fsync" if name == "local, synced" else "os")


def is_sound(handler: str, store: str) -> bool:
    """Only a lock makes up for a store that ignores conditions."""
    return store != "careless" or handler.endswith("lock")


class TestRaces:
    @pytest.mark.parametrize(("handler", "store"), [(h, s) for h in HANDLERS for s in STORES if is_sound(h, s)])
    def test_of_eight_threads_one_wins_each_version(
        self, handler: str, store: str, make_handler: Callable[[str], CommitHandler], tmp_path: Path
    ) -> None:
        table = make_store(store, tmp_path / "t")
        won = race_threads(table, make_handler(handler), VERSIONS)
        check_race(table, won, VERSIONS)
        assert leftovers(table, tmp_path / "t") == []

    @pytest.mark.parametrize(("handler", "store"), [(h, s) for h in HANDLERS for s in STORES if is_sound(h, s) and s != "memory"])
    def test_of_eight_processes_one_wins_each_version(
        self, handler: str, store: str, make_handler: Callable[[str], CommitHandler], tmp_path: Path, pool: ProcessPoolExecutor
    ) -> None:
        table = make_store(store, tmp_path / "t")
        won = race_processes(pool, table, make_handler(handler), VERSIONS)
        check_race(table, won, VERSIONS)
        assert leftovers(table, tmp_path / "t") == []

    @pytest.mark.parametrize("handler", [RenameHandler(), ConditionalPutHandler()])
    def test_a_careless_store_has_two_winners_without_a_lock(self, handler: CommitHandler, tmp_path: Path) -> None:
        store = CarelessStore(tmp_path)
        handler.create(store, manifest(1), b"first")
        handler.create(store, manifest(1), b"second")
        assert store.get(manifest(1)) == b"second"

    def test_handlers_of_a_local_store_exclude_each_other(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        handlers = [handler_for(store, name) for name in ("rename", "conditional-put", "lock")]
        for version, winner in enumerate(handlers, start=1):
            winner.create(store, manifest(version), winner.name.encode())
            for loser in handlers:
                with pytest.raises(AlreadyExists):
                    loser.create(store, manifest(version), b"late")
            assert store.get(manifest(version)) == winner.name.encode()


def leftovers(store: ObjectStore, root: Path) -> list[str]:
    """Everything but the versions, temporary objects included, which a store's own listing hides."""
    found = list(store._objects) if isinstance(store, MemoryStore) else [str(path.relative_to(root)) for path in root.rglob("*.*")]
    return sorted(set(found) - {manifest(version) for version in range(1, VERSIONS + 1)})


class FaultyStore(MemoryStore):
    """Fails the named call, before or after it was carried out."""

    def __init__(self, call: str, error: Exception, *, applied: bool, also: str = "") -> None:
        super().__init__()
        self._faults = {name: (error, applied) for name in (call, also) if name}
        self.calls: list[str] = []

    def _carry_out(self, name: str, *arguments: Any) -> None:
        self.calls.append(name)
        error, applied = self._faults.get(name, (None, True))
        if applied:
            getattr(super(), name)(*arguments)
        if error is not None:
            raise error

    def put(self, path: str, data: bytes) -> None:
        self._carry_out("put", path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._carry_out("put_if_absent", path, data)

    def rename_if_absent(self, source: str, target: str) -> None:
        self._carry_out("rename_if_absent", source, target)

    def delete(self, path: str) -> None:
        self._carry_out("delete", path)

    def everything(self) -> list[str]:
        return sorted(self._objects)


def certain() -> StorageError:
    return StorageError("down", transient=True)


def unsure() -> StorageError:
    return StorageError("no answer", maybe_applied=True, transient=True)


class TestRename:
    def test_the_temporary_object_is_never_taken_for_a_version(self) -> None:
        store = FaultyStore("rename_if_absent", unsure(), applied=False)
        with pytest.raises(StorageError):
            RenameHandler().create(store, manifest(1), b"x")
        (temporary,) = store.everything()
        assert temporary.startswith("_versions/.tmp.")
        assert not temporary.endswith("manifest")
        assert list(store.names("_versions/")) == []

    def test_a_lost_race_leaves_nothing_behind(self) -> None:
        store = FaultyStore("", certain(), applied=True)
        RenameHandler().create(store, manifest(1), b"winner")
        with pytest.raises(AlreadyExists):
            RenameHandler().create(store, manifest(1), b"loser")
        assert store.everything() == [manifest(1)]
        assert store.get(manifest(1)) == b"winner"

    @pytest.mark.parametrize("applied", [False, True])
    def test_an_open_outcome_is_passed_on_and_nothing_deleted(self, applied: bool) -> None:
        store = FaultyStore("rename_if_absent", unsure(), applied=applied)
        with pytest.raises(StorageError) as caught:
            RenameHandler().create(store, manifest(1), b"x")
        assert caught.value.maybe_applied
        assert "delete" not in store.calls
        assert (manifest(1) in store.everything()) == applied

    def test_a_certain_failure_removes_the_temporary_object(self) -> None:
        store = FaultyStore("rename_if_absent", certain(), applied=False)
        with pytest.raises(StorageError) as caught:
            RenameHandler().create(store, manifest(1), b"x")
        assert not caught.value.maybe_applied
        assert store.everything() == []

    @pytest.mark.parametrize("applied", [False, True])
    def test_failing_to_stage_is_certain_whatever_the_store_says(self, applied: bool) -> None:
        store = FaultyStore("put", unsure(), applied=applied)
        with pytest.raises(StorageError) as caught:
            RenameHandler().create(store, manifest(1), b"x")
        assert not caught.value.maybe_applied
        assert caught.value.transient
        assert store.everything() == []
        assert "rename_if_absent" not in store.calls

    def test_a_missing_source_may_be_a_rename_repeated_by_the_client(self) -> None:
        store = FaultyStore("rename_if_absent", NotFound("no source"), applied=True)
        with pytest.raises(StorageError) as caught:
            RenameHandler().create(store, manifest(1), b"x")
        assert caught.value.maybe_applied
        assert store.everything() == [manifest(1)]

    def test_a_failure_to_tidy_up_does_not_hide_the_conflict(self) -> None:
        store = FaultyStore("delete", certain(), applied=False)
        RenameHandler().create(store, manifest(1), b"winner")
        with pytest.raises(AlreadyExists):
            RenameHandler().create(store, manifest(1), b"loser")
        assert store.get(manifest(1)) == b"winner"


class RudeLock:
    """A foreign lock that fails on the way in or out, or hides what passes through it."""

    def __init__(self, *, entering: Exception | None = None, leaving: Exception | None = None, hides: bool = False) -> None:
        self.entering, self.leaving, self.hides = entering, leaving, hides
        self.versions: list[int] = []

    def __call__(self, version: int) -> RudeLock:
        self.versions.append(version)
        return self

    def __enter__(self) -> None:
        if self.entering is not None:
            raise self.entering

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if self.leaving is not None:
            raise self.leaving
        return self.hides


class LateStore(MemoryStore):
    """No conditions, and puts without an answer: each is carried out at once, when ``land`` is called, or never."""

    conditional_put_known = False

    def __init__(self, *fates: str) -> None:
        super().__init__()
        self.fates = list(fates)
        self.puts = 0
        self.under_way: list[tuple[str, bytes]] = []

    def put(self, path: str, data: bytes) -> None:
        self.puts += 1
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate in ("ok", "applied"):
            super().put(path, data)
        if fate == "late":
            self.under_way.append((path, data))
        if fate != "ok":
            raise certain() if fate == "refused" else unsure()

    def land(self) -> None:
        for path, data in self.under_way:
            super().put(path, data)


class TestAPutWithoutAnAnswerInsideTheLock:
    def test_it_cannot_replace_the_version_of_the_next_holder(self) -> None:
        store = LateStore("late")
        handler = LockHandler(nullcontext_lock)
        handler.create(store, manifest(1), b"ours")
        with pytest.raises(AlreadyExists):
            handler.create(store, manifest(1), b"the next holder's")
        store.land()
        assert store.get(manifest(1)) == b"ours"

    def test_if_it_was_carried_out_all_is_well(self) -> None:
        store = LateStore("applied")
        LockHandler(nullcontext_lock).create(store, manifest(1), b"ours")
        assert (store.get(manifest(1)), store.puts) == (b"ours", 1)

    @pytest.mark.parametrize("fates", [["lost"] * 9, ["lost", "refused", "refused", "ok"]])
    def test_it_is_not_sent_for_ever_and_the_doubt_stays(self, fates: list[str]) -> None:
        store = LateStore(*fates)
        with pytest.raises(StorageError) as caught:
            LockHandler(nullcontext_lock).create(store, manifest(1), b"ours")
        assert caught.value.maybe_applied
        assert store.puts == 3

    def test_a_certain_failure_is_not_repeated(self) -> None:
        store = LateStore("refused")
        with pytest.raises(StorageError) as caught:
            LockHandler(nullcontext_lock).create(store, manifest(1), b"ours")
        assert not caught.value.maybe_applied
        assert store.puts == 1

    def test_foreign_bytes_leave_the_outcome_open(self) -> None:
        class Shared(LateStore):
            def put(self, path: str, data: bytes) -> None:
                MemoryStore.put(self, path, b"by a writer without the lock")
                super().put(path, data)

        store = Shared("lost")
        with pytest.raises(StorageError) as caught:
            LockHandler(nullcontext_lock).create(store, manifest(1), b"ours")
        assert caught.value.maybe_applied
        assert store.puts == 1

    @pytest.mark.parametrize("flushed", [True, False])
    def test_what_is_there_but_not_flushed_is_flushed_or_reported(self, flushed: bool) -> None:
        class Unflushed(MemoryStore):
            conditional_put_known = False

            def put(self, path: str, data: bytes) -> None:
                super().put(path, data)
                raise StorageError("the directory", maybe_applied=True, unsynced=True)

            def sync(self, paths: Iterable[str]) -> None:
                synced.extend(paths)
                if not flushed:
                    raise StorageError("the disk")

        synced: list[str] = []
        handler, store = LockHandler(nullcontext_lock), Unflushed()
        if flushed:
            handler.create(store, manifest(1), b"x")
        else:
            with pytest.raises(StorageError) as caught:
                handler.create(store, manifest(1), b"x")
            assert (caught.value.maybe_applied, caught.value.unsynced) == (True, True)
        assert set(synced) == {manifest(1)}


class TestLock:
    def test_any_function_of_a_version_is_a_lock(self) -> None:
        seen: list[int] = []

        @contextmanager
        def lock(version: int) -> Iterator[None]:
            seen.append(version)
            yield

        LockHandler(lock).create(MemoryStore(), manifest(7), b"x")
        assert seen == [7]

    def test_existence_is_looked_up_inside_the_lock(self) -> None:
        store = MemoryStore()

        @contextmanager
        def lock(version: int) -> Iterator[None]:
            store.put(manifest(version), b"the holder before us")
            yield

        with pytest.raises(AlreadyExists):
            LockHandler(lock).create(store, manifest(1), b"ours")
        assert store.get(manifest(1)) == b"the holder before us"

    @pytest.mark.parametrize(("known", "call"), [(True, "put_if_absent"), (False, "put")])
    def test_the_condition_is_used_where_it_is_known_to_be_honoured(self, known: bool, call: str) -> None:
        store = FaultyStore("", certain(), applied=True)
        store.conditional_put_known = known
        LockHandler(nullcontext_lock).create(store, manifest(1), b"x")
        assert store.calls == [call]

    @pytest.mark.parametrize("error", [OSError("secret-word"), certain(), KeyError("secret-word")])
    def test_a_lock_that_is_not_given_is_a_certain_failure(self, error: Exception) -> None:
        store = MemoryStore()
        with pytest.raises(StorageError) as caught:
            LockHandler(RudeLock(entering=error)).create(store, manifest(1), b"x")
        assert not caught.value.maybe_applied
        assert caught.value.transient
        assert "secret-word" not in str(caught.value)
        with pytest.raises(NotFound):
            store.head(manifest(1))

    @pytest.mark.parametrize("error", [OSError("secret-word"), certain(), unsure(), KeyError("secret-word")])
    def test_a_lock_that_fails_after_the_write_leaves_the_outcome_open(self, error: Exception) -> None:
        store = MemoryStore()
        with pytest.raises(StorageError) as caught:
            LockHandler(RudeLock(leaving=error)).create(store, manifest(1), b"x")
        assert caught.value.maybe_applied
        assert "secret-word" not in str(caught.value)
        assert store.get(manifest(1)) == b"x"

    @pytest.mark.parametrize("lock", [RudeLock(hides=True), RudeLock(leaving=OSError())])
    def test_a_lock_cannot_hide_a_conflict(self, lock: RudeLock) -> None:
        store = MemoryStore()
        store.put(manifest(1), b"winner")
        with pytest.raises(AlreadyExists):
            LockHandler(lock).create(store, manifest(1), b"loser")
        assert store.get(manifest(1)) == b"winner"

    @pytest.mark.parametrize("lock", [RudeLock(hides=True), RudeLock(leaving=OSError()), RudeLock()])
    @pytest.mark.parametrize("error", [certain(), unsure()])
    def test_a_lock_cannot_change_what_the_store_said(self, lock: RudeLock, error: StorageError) -> None:
        with pytest.raises(StorageError) as caught:
            LockHandler(lock).create(FaultyStore("put_if_absent", error, applied=False), manifest(1), b"x")
        assert caught.value is error

    def test_a_lock_cannot_turn_a_crash_of_the_store_into_success(self) -> None:
        store = FaultyStore("put_if_absent", RuntimeError("a bug"), applied=False)
        with pytest.raises(StorageError) as caught:
            LockHandler(RudeLock(hides=True)).create(store, manifest(1), b"x")
        assert caught.value.maybe_applied

    def test_what_is_no_version_is_not_locked(self) -> None:
        lock = RudeLock()
        with pytest.raises(InvalidInput):
            LockHandler(lock).create(MemoryStore(), "_refs/tags/a.json", b"x")
        assert lock.versions == []

    def test_a_lock_must_be_callable(self) -> None:
        with pytest.raises(InvalidInput):
            LockHandler("postgresql://me:secret-word@host/db")  # type: ignore[arg-type]


class Trusting:
    """A handler of somebody's own that has other means than the store's conditions."""

    name = "trusting"
    needs_conditional_put = False

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        store.put(path, data)


class Silent:
    """One that says nothing about what it needs."""

    name = "silent"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        store.put_if_absent(path, data)


class TestWhatIsProbed:
    @pytest.mark.parametrize("handler", [Trusting(), LockHandler(RudeLock())])
    def test_a_handler_that_needs_no_condition_may_use_any_store(self, handler: CommitHandler, tmp_path: Path) -> None:
        store = CarelessStore(tmp_path)
        ensure_usable(handler, store, system_runtime())
        assert list(store.list("")) == []

    @pytest.mark.parametrize("handler", [Silent(), RenameHandler(), ConditionalPutHandler()])
    def test_all_others_are_refused_a_store_that_overwrites(self, handler: CommitHandler, tmp_path: Path) -> None:
        with pytest.raises(UnsafeStore) as caught:
            ensure_usable(handler, CarelessStore(tmp_path), system_runtime())
        assert "ty.locks.LockHandler(ty.locks.PostgresLock(" in str(caught.value)

    def test_a_table_asks_the_handler(self, tmp_path: Path) -> None:
        with pytest.raises(UnsafeStore):
            open_access(tmp_path / "t", Storage(handler=Silent()), store=CarelessStore(tmp_path / "t")).ensure_safe()
        open_access(tmp_path / "t", Storage(handler=Trusting()), store=CarelessStore(tmp_path / "t")).ensure_safe()


def nullcontext_lock(version: int) -> AbstractContextManager[None]:
    return nullcontext()


class TestVersionOf:
    @pytest.mark.parametrize(
        ("path", "version"),
        [
            ("_versions/18446744073709551614.manifest", 1),
            ("_versions/18446744073709551615.manifest", 0),
            ("_versions/00000000000000000000.manifest", 2**64 - 1),
            ("_versions/1.manifest", 1),
            ("tree/b/_versions/907.manifest", 907),
            ("_versions/d9223372036854775809.manifest", 2**63 + 1),
        ],
    )
    def test_names(self, path: str, version: int) -> None:
        assert version_of(path) == version

    @pytest.mark.parametrize(
        "path", ["", "manifest", "_versions/x.manifest", "_versions/-1.manifest", "1.manifest.tmp", "1" * 21 + ".manifest"]
    )
    def test_what_is_no_version(self, path: str) -> None:
        with pytest.raises(InvalidInput):
            version_of(path)


class TestChoice:
    @pytest.mark.parametrize(
        "uri", ["/data/t", "file:///data/t", "memory://1", "s3://b/t", "gs://b/t", "az://c/t", "abfss://c@a/t", "new://x"]
    )
    def test_by_uri(self, uri: str) -> None:
        assert handler_for(MemoryStore(uri)).name == "conditional-put"

    @pytest.mark.parametrize("name", ["rename", "conditional-put", "lock"])
    def test_by_name(self, name: str, tmp_path: Path) -> None:
        assert handler_for(LocalStore(tmp_path), name).name == name

    def test_an_instance_is_taken_as_it_is(self) -> None:
        handler = LockHandler(RudeLock())
        assert handler_for(MemoryStore(), handler) is handler

    def test_the_lock_of_a_local_table_lies_in_its_root(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "a b%20c")
        handler_for(store, "lock").create(store, manifest(1), b"x")
        assert (tmp_path / "a b%20c" / LOCK_FILE).is_file()

    @pytest.mark.parametrize("uri", ["s3://b/t", "memory://1"])
    def test_no_lock_is_invented_for_other_stores(self, uri: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            handler_for(MemoryStore(uri), "lock")
        assert "PostgresLock" in str(caught.value)

    def test_an_unknown_name(self) -> None:
        with pytest.raises(InvalidInput):
            handler_for(MemoryStore(), "hope")

    @pytest.mark.parametrize("choice", [5, FileLock, RenameHandler, {"password": "secret-word"}])
    def test_what_is_no_handler(self, choice: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            handler_for(MemoryStore(), choice)
        assert caught.value.argument == "handler"
        assert "secret-word" not in str(caught.value)

    @pytest.mark.parametrize("uri", ["s3+ddb://bucket/t", "S3+DDB://bucket/t", "gs+catalog://bucket/t"])
    def test_where_commits_are_decided_elsewhere_ours_are_refused(self, uri: str) -> None:
        store = MemoryStore(uri)
        handler = handler_for(store)
        with pytest.raises(UnsupportedFeature, match="handler=") as created:
            handler.create(store, manifest(1), b"x")
        with pytest.raises(UnsupportedFeature, match="handler=") as asked:
            ensure_usable(handler, store, system_runtime())
        for error in (created.value, asked.value):
            assert error.writing
            assert uri in str(error)
        assert list(store.list("")) == []

    def test_unless_somebody_chose_a_handler(self) -> None:
        store = MemoryStore("s3+ddb://bucket/t")
        handler_for(store, "conditional-put").create(store, manifest(1), b"x")
        assert store.get(manifest(1)) == b"x"

    def test_a_plus_in_a_path_is_no_scheme(self, tmp_path: Path) -> None:
        for store in (LocalStore(tmp_path / "a+b"), MemoryStore("s3://bucket/a+b")):
            assert handler_for(store).name == "conditional-put"

    @pytest.mark.parametrize("name", ["rename", "conditional-put", "lock"])
    def test_handlers_can_move_to_another_process(self, name: str, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        moved = pickle.loads(pickle.dumps(handler_for(store, name)))
        moved.create(store, manifest(1), content(0, 1))
        with pytest.raises(TiltyardError):
            handler_for(store, name).create(store, manifest(1), b"late")
