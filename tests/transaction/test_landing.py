"""The step that decides, in memory: whose version it is, and who made the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import FIELDS, InterruptedStore, append, fragment, is_version, memory_place, memory_table, plant, version_count
from tiltyard import ops
from tiltyard.errors import AlreadyExists, NotFound, OutcomeUnknown, StorageError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import DataFormat
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.handlers import ConditionalPutHandler
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import WrapperStore
from tiltyard.testing.stores import Match, Request, T
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.log import Landing, VersionLog


class Failing(WrapperStore):
    """Fails calls that match, without any effect."""

    def __init__(self, inner: ObjectStore, match: Match, error: Callable[[], Exception] | None = None) -> None:
        super().__init__(inner)
        self._match, self._error = match, error or (lambda: StorageError("no answer", transient=True))

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self._match(method, path):
            raise self._error()
        return request(self.inner)


def _landing(store: ObjectStore) -> Landing:
    return Landing(VersionLog(store), ConditionalPutHandler())


def _path(store: ObjectStore, version: int) -> str:
    return manifest_path(version, Scheme.V2)


def _table(store: ObjectStore, table: ty.Table) -> ty.Table:
    """A handle on the same version whose calls go through another store."""
    return ty.Table(memory_place(store), table._file, Scheme.V2)


# ---- whose version it is ---------------------------------------------------------------------------------------------------


class Unflushed(WrapperStore):
    """Creates versions and says each time that they may not survive a power loss."""

    def __init__(self, inner: ObjectStore, *, first: bool = True, heals: bool = True, then: Callable[[], object] = lambda: None) -> None:
        super().__init__(inner)
        self.flushed: list[str] = []
        self._create, self._heals, self._then = first, heals, then

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if is_version(method, path):
            if self._create:
                request(self.inner)
            self._then()
            raise StorageError("not flushed", name=path, maybe_applied=True, unsynced=True)
        return request(self.inner)

    def sync(self, paths: Iterable[str]) -> None:
        wanted = [path for path in paths if path.endswith(".manifest")]
        self.flushed += wanted
        if wanted and not self._heals:
            raise StorageError("still not flushed", maybe_applied=True)


def test_a_version_that_is_ours_but_not_safe_is_flushed_before_it_is_acknowledged() -> None:
    store = MemoryStore()
    table = memory_table(store)
    unflushed = Unflushed(store)
    assert _table(unflushed, table).commit(append()).version == 2
    assert unflushed.flushed == [_path(store, 2)]


def test_a_flush_that_failed_is_not_believed_later() -> None:
    store = MemoryStore()
    table = memory_table(store)
    with pytest.raises(OutcomeUnknown) as caught:
        _table(Unflushed(store, heals=False), table).commit(append())
    assert store.get(f"_transactions/1-{caught.value.transaction_id}.txn"), "while the outcome is unknown nothing is deleted"


def test_somebody_elses_version_needs_no_flush_of_ours() -> None:
    store = MemoryStore()
    table = memory_table(store)
    unflushed = Unflushed(store, first=False, heals=False, then=lambda: plant(store, append("theirs")) if version_count(store) == 1 else 0)
    landing = _landing(unflushed)
    transaction = ty.Transaction(1, "ours", append())
    winner = landing.create(transaction, 2, Scheme.V2, b"never written").winner
    assert winner is not None
    assert winner.operation == "Append"
    assert not unflushed.flushed
    assert table.version == 1


def test_a_winner_whose_transaction_lies_in_a_file_is_told_by_its_name() -> None:
    store = MemoryStore()
    memory_table(store)
    planted = plant(store, append("theirs"), inline=False)
    winner = _landing(store).create(ty.Transaction(1, "ours", append()), 2, Scheme.V2, b"never written").winner
    assert winner == ty.Winner(2, planted.uuid, "", "stranger 9.9")
    nameless = plant(store, append("more"), inline=False, transaction_file="odd name")
    winner = _landing(store).create(ty.Transaction(1, "ours", append()), 3, Scheme.V2, b"never written").winner
    assert nameless.uuid
    assert winner == ty.Winner(3, "", "", "stranger 9.9")


def test_a_torn_version_that_vanishes_before_it_is_completed_is_unknown() -> None:
    store = MemoryStore()
    memory_table(store)
    store.put(_path(store, 2), b"torn")
    gets = iter([False, True])
    vanishing = Failing(
        store,
        lambda method, path: method == "get" and path.endswith(".manifest") and next(gets),
        lambda: NotFound("gone", name="2"),
    )
    with pytest.raises(OutcomeUnknown):
        _landing(vanishing).create(ty.Transaction(1, "ours", append()), 2, Scheme.V2, b"torn off here")


def test_a_create_after_one_without_an_answer_may_be_the_second() -> None:
    store = MemoryStore()
    memory_table(store)
    create = _landing(store).create(ty.Transaction(1, "ours", append()), 2, Scheme.V2, b"first")
    assert (create.winner, create.file, create.doubtful) == (None, None, False)
    answers = iter([True, False])
    silent = Failing(
        store,
        lambda method, path: is_version(method, path) and next(answers),
        lambda: StorageError("no answer", maybe_applied=True),
    )
    again = _landing(silent).create(ty.Transaction(1, "ours", append()), 3, Scheme.V2, b"second")
    assert (again.winner, again.file, again.doubtful) == (None, None, True)


# ---- a new table ---------------------------------------------------------------------------------------------------------------


def _create(store: ObjectStore, scheme: Scheme = Scheme.V2) -> Any:
    place = memory_place(store)
    operation = ops.Overwrite((fragment("first"),), FIELDS)
    transaction = ty.Transaction(0, place.runtime.random.uuid(), operation)
    return place.committer.create_table(transaction, Creation(DataFormat("lance", "2.2")), scheme)


def test_a_creator_who_meets_other_names_gives_way() -> None:
    store = MemoryStore()

    class Meeting(WrapperStore):
        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            if is_version(method, path):
                _create(self.inner, Scheme.V1)
            return request(self.inner)

    with pytest.raises(AlreadyExists):
        _create(Meeting(store))
    assert [one.scheme for one in VersionLog(store).versions()] == [Scheme.V1]
    assert len(list(store.names("_transactions/"))) == 1


def test_a_creator_whose_second_look_fails_has_made_the_table() -> None:
    store = MemoryStore()
    asked: list[str] = []

    def second(method: str, path: str) -> bool:
        asked.extend([path] if method == "names" and path == "_versions/" else [])
        return len(asked) == 2 and method == "names"

    result, _ = _create(Failing(store, second))
    assert result.version == 1
    assert version_count(store) == 1


def test_a_creator_who_comes_second_is_told() -> None:
    store = MemoryStore()
    with pytest.raises(AlreadyExists):
        _create(InterruptedStore(store, is_version, lambda: _create(store)))
    assert version_count(store) == 1
    with pytest.raises(AlreadyExists):
        _create(store)
