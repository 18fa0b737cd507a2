"""Looks that are good for a while: what a commit asks of a store where each question is a request, and what it may not leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import FIELDS, append, memory_table, noted_runtime, overwrite, plant, reopened, version_count
from tiltyard import ops
from tiltyard.errors import HistoryUnavailable, NotFound, StorageError
from tiltyard.format.digests import digest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import manifest_path
from tiltyard.interfaces import Runtime
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.thread_queue import ThreadQueue
from tiltyard.testing import CountingStore, ManualClock
from tiltyard.testing.stores import Request, T
from tiltyard.transaction import new_files
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.head import FLOORS, Floor, FloorRecord
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.looks import ALWAYS, LOOKS, Looks
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.rebaser import Rebaser
from tiltyard.transaction.recent import RecentVersions
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.keys.primary_keys import AnyKeys

GOOD_FOR = 5.0


def _top(path: str) -> str:
    return path.partition("/")[0]


class Remote(CountingStore):
    """An object store in memory: looks are good for a while, and each call takes a moment. ``before`` runs once, ahead of a call."""

    look_seconds = GOOD_FOR

    def __init__(self, inner: MemoryStore, clock: ManualClock, takes: float = 0.05) -> None:
        super().__init__(inner)
        self.clock, self.takes = clock, takes
        self.before: dict[str, Callable[[], object]] = {}
        self.unsent: dict[str, bytes] = {}
        self.failures = 0
        self.failing: dict[str, int] = {}

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if method != "sync":
            self.clock.advance(self.takes)
        if self.failing.get(path):
            self.failing[path] -= 1
            raise StorageError("no answer", name=path, transient=True)
        action = self.before.pop(method, None)
        if action is not None:
            action()
        return super()._call(method, path, request, data=data)

    def put_later(self, path: str, data: bytes) -> None:
        self.unsent[path] = data

    def sync(self, paths: Any) -> None:
        for path in [path for path in paths if path in self.unsent]:
            if self.failures:
                self.failures -= 1
                raise StorageError("no answer", name=path, transient=True)
            self.put(path, self.unsent.pop(path))

    def delete(self, path: str) -> None:
        self.unsent.pop(path, None)
        super().delete(path)

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in calls]

    @property
    def asked(self) -> list[str]:
        """What was asked since the last time somebody wanted to know, without names of files."""
        found = [f"{method} {_top(path)}" for method, path in self.log if method != "sync" and not path.startswith("data/")]
        self.reset()
        return found


class Site:
    """A table in a remote store, and one writer who holds on to the version it made."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        memory_table(self.memory)
        self.clock = ManualClock()
        self.store = Remote(self.memory, self.clock)
        self.table = reopened(self.store, runtime=Runtime(self.clock, noted_runtime().random))
        self.file: ManifestFile = self.table._file
        self.store.reset()

    @property
    def committer(self) -> Committer:
        return self.table._access.committer

    def commit(self, operation: Operation | None = None) -> ty.CommitResult:
        transaction = Transaction(self.file.manifest.version, self.committer.runtime.random.uuid(), operation or append("mine"))
        result, self.file = self.committer.commit(transaction, self.file, self.table._scheme, RetryPolicy())
        return result


@pytest.fixture
def site() -> Site:
    return Site()


FIRST = ["names _versions", "get_range _versions", "names _tiltyard", "put _transactions", "put_if_absent _versions"]
WARM = ["put _transactions", "put_if_absent _versions"]


def test_a_warm_commit_asks_nothing(site: Site) -> None:
    assert site.commit().version == 2
    assert site.store.asked == FIRST
    for version in range(3, 40):
        assert site.commit().version == version
        asked = site.store.asked
        assert asked == WARM or (version > 30 and asked in (FIRST, [*WARM, "names _versions"]))  # a look was due, or became so
    assert version_count(site.memory) == 39


def test_a_look_is_good_for_so_long_and_no_longer(site: Site) -> None:
    site.commit()
    site.store.asked  # noqa: B018 - from here on
    site.clock.advance(GOOD_FOR - 1.0)
    site.commit()
    assert site.store.asked == WARM
    site.clock.advance(1.0)
    site.commit()
    assert site.store.asked == FIRST


def test_a_clock_that_stood_still_while_the_machine_slept_does_not_fool_it(site: Site) -> None:
    site.commit()
    site.store.reset()
    site.clock.jump(timedelta(hours=1).total_seconds())  # the other clock did not move
    site.commit()
    assert site.store.asked == FIRST


def test_a_create_that_took_long_is_looked_after(site: Site) -> None:
    site.commit()
    site.store.reset()
    site.store.before["put_if_absent"] = lambda: site.clock.advance(GOOD_FOR)
    site.commit()
    assert site.store.asked == [*WARM, "names _versions"]


def test_whoever_came_too_late_is_told(site: Site) -> None:
    """Two others commit and a cleanup removes what they were put on, all of it while our request is under way."""
    site.commit()

    def meanwhile() -> None:
        for _ in range(3):
            plant(site.memory, append("theirs"))
        for version in (1, 2, 3, 4):
            site.memory.delete(manifest_path(version, site.table._scheme))
        site.clock.advance(GOOD_FOR)  # which a cleanup waits for

    site.store.before["put_if_absent"] = meanwhile
    with pytest.raises(HistoryUnavailable):
        site.commit(append("late"))
    assert version_count(site.memory) == 1


def test_a_table_that_asks_for_it_is_looked_at_always(site: Site) -> None:
    site.commit(ops.UpdateConfig(config_updates=ops.UpdateMap(((LOOKS, ALWAYS),))))
    site.store.reset()
    site.commit()
    looked = ["names _versions", "get_range _versions", "names _tiltyard"]
    assert site.store.asked == [*looked, "names _tiltyard", "put _transactions", "put_if_absent _versions", "names _versions"]


def test_who_is_behind_by_one_reads_that_one(site: Site) -> None:
    site.commit()
    plant(site.memory, append("theirs"))
    site.store.reset()
    result = site.commit()
    assert (result.version, [winner.version for winner in result.rebased_over], result.attempts) == (4, [3], 2)
    assert site.store.asked == [*WARM, "get _versions", "put_if_absent _versions"]


def test_who_loses_again_reads_further_at_once(site: Site) -> None:
    site.commit()
    plant(site.memory, append("theirs"))

    def again() -> None:
        plant(site.memory, append("theirs"))
        plant(site.memory, append("theirs"))

    site.store.before["get"] = again  # after the first race was lost, before what won it is read
    site.store.reset()
    assert site.commit().version == 6
    assert site.store.asked == [
        *WARM,
        "get _versions",
        "put_if_absent _versions",
        "get _versions",
        "get _versions",
        "put_if_absent _versions",
    ]


def test_who_is_far_behind_reads_all_at_once(site: Site) -> None:
    for _ in range(20):
        plant(site.memory, append("theirs"))
    at_once: list[int] = []
    plain = site.store.at_once
    site.store.at_once = lambda calls: at_once.append(len(calls)) or plain(calls)  # type: ignore[func-returns-value, method-assign]
    assert site.commit().version == 22
    assert at_once == [3, 16, 4]


def test_a_failure_on_the_way_does_not_hide_what_the_look_saw(site: Site) -> None:
    """The simulator found this: the second try took the version it had come to for the latest, as the look was still good."""
    for _ in range(2):
        plant(site.memory, append("theirs"))
    third = manifest_path(3, site.table._scheme)
    site.store.failing = {third: 2}  # when it is read ahead, and when it is asked for by itself
    assert site.commit().version == 4
    assert site.store.failing == {third: 0}
    assert site.store.calls["put_if_absent"] == 1, "nobody tried to make version 3"


def test_keys_that_cannot_be_compared_are_an_unreadable_history(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Rebaser, at: object) -> bool:
        raise NotFound("a file of the rows that came is gone", name="data")

    monkeypatch.setattr(Rebaser, "compare_keys", gone)
    transaction = Transaction(1, site.committer.runtime.random.uuid(), append("mine"))
    with pytest.raises(HistoryUnavailable):
        site.committer.commit(transaction, site.file, site.table._scheme, RetryPolicy(), keys=AnyKeys())


def test_a_replaced_table_is_noticed_by_the_next_look(site: Site) -> None:
    site.commit()
    for path in [info.path for info in site.memory.list("")]:
        site.memory.delete(path)
    memory_table(site.memory)
    site.clock.advance(GOOD_FOR + 1)
    with pytest.raises(HistoryUnavailable):
        site.commit()


def test_a_dropped_table_is_noticed_by_the_next_look(site: Site) -> None:
    site.commit()
    for path in [info.path for info in site.memory.list("")]:
        site.memory.delete(path)
    site.clock.advance(GOOD_FOR + 1)
    with pytest.raises(HistoryUnavailable):
        site.commit()


def test_what_a_cleanup_refused_by_the_last_look_is_not_committed(site: Site) -> None:
    plant(site.memory, append("theirs"))
    record = FloorRecord(Floor(2, 2))
    site.memory.put(record.path("0" * 8 + "-0000-0000-0000-" + "0" * 12), record.to_bytes())
    with pytest.raises(HistoryUnavailable):
        site.commit()
    assert list(site.memory.names(FLOORS)) != []


def test_a_transaction_file_that_did_not_arrive_is_sent_again(site: Site) -> None:
    site.store.failures = 1
    assert site.commit().version == 2
    assert site.file.manifest.transaction_file in site.memory.names("_transactions/")


def test_an_operation_that_may_change_is_announced_after_the_look(site: Site) -> None:
    plant(site.memory, append("theirs"))
    site.commit(overwrite("mine"))
    assert site.store.asked.index("put _transactions") > 3


def test_handles_of_one_process_share_what_they_know(site: Site) -> None:
    queue = ThreadQueue()
    others = [replace(site.committer, queue=queue) for _ in range(2)]
    file = site.file
    for number in range(6):
        transaction = Transaction(file.manifest.version, others[0].runtime.random.uuid(), append("mine"))
        # Each stands on the first version, as handles do that know nothing of each other.
        result, _ = others[number % 2].commit(transaction, file, site.table._scheme, RetryPolicy())
        assert result.version == number + 2
        assert site.store.asked == (WARM if number else FIRST)


def test_a_digest_is_taken_of_parts_that_are_read_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_files, "_REMOTE_PART", 10)
    data = bytes(range(95))
    site.memory.put("data/large", data)
    site.memory.put("data/empty", b"")
    at_once: list[int] = []
    plain = site.store.at_once
    site.store.at_once = lambda calls: at_once.append(len(calls)) or plain(calls)  # type: ignore[func-returns-value, method-assign]
    assert new_files.digest_of(site.store, "data/large") == digest(data)
    assert new_files.digest_of(site.store, "data/empty") == digest(b"")
    assert at_once == [4, 4, 1], "the first by itself: most files have no more"


class TestLooks:
    def test_nothing_seen_yet(self, site: Site) -> None:
        looks = Looks(GOOD_FOR)
        assert looks.at(site.file) is None
        assert looks.along(RecentVersions(), site.file) is None

    def test_another_version(self, site: Site) -> None:
        first = site.file
        site.commit()
        looks = site.committer.looks
        assert looks.at(first) is None
        again = VersionLog(site.memory).load(2, site.table._scheme)
        assert again is not site.file
        assert looks.at(again) is not None
        assert looks.along(RecentVersions(), first) is None
        assert looks.along(RecentVersions(), again) is not None


class TestReadingAhead:
    def test_what_cannot_be_read_is_asked_for_again(self, site: Site) -> None:
        log = VersionLog(site.store)
        plant(site.memory, append("theirs"))
        log.read_ahead(1, 3, site.table._scheme)
        assert log.newest_ahead == 2
        with pytest.raises(NotFound):
            log.load(3, site.table._scheme)

    def test_what_somebody_left_is_checked_like_any_other(self, site: Site) -> None:
        log = VersionLog(site.store)
        log.take(1, site.table._scheme, b"not a version")
        with pytest.raises(ty.CorruptTable):
            log.load(1, site.table._scheme)
        assert log.load(1, site.table._scheme).manifest.fields == FIELDS


def test_nobody_keeps_versions_for_others_without_a_queue_of_the_process(site: Site) -> None:
    site.commit()
    assert site.committer.recent.kept(2) is None
