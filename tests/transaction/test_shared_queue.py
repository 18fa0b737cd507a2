"""Writers of one process and of one machine in a queue: what they share, and what a leader leaves for those of other processes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import append, memory_table, noted_runtime, plant, reopened, version_count
from tests.transaction.test_looks import WARM, Remote, Site
from tests.transaction.test_turns import ScriptedPlace
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.interfaces import Offer
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.thread_queue import ThreadQueue
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.group import members_of
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.recent import MOST_KEPT, RecentVersions
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import with_parent

PATIENCE = 30.0


def commit(committer: Committer, file: ManifestFile, name: str = "mine", at: Any = None) -> tuple[ty.CommitResult, ManifestFile]:
    transaction = Transaction(file.manifest.version, noted_runtime().random.uuid(), append(name))
    return committer.commit(transaction, file, at.table._scheme if at else reopened(committer.log.store)._scheme, RetryPolicy())


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("remote", [True, False])
def test_those_who_wait_are_committed_in_one_version(site: Site, remote: bool) -> None:
    queue = ThreadQueue()
    made = site.committer if remote else reopened(site.memory)._access.committer
    committers = [replace(made, queue=queue, log=VersionLog(made.log.store)) for _ in range(5)]
    held = queue.place("nobody", -1.0)
    assert held.lead()
    results: list[tuple[ty.CommitResult, ManifestFile]] = []
    threads = [
        threading.Thread(target=lambda number=number: results.append(commit(committers[number], site.file, f"f{number}", site)))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + PATIENCE
    while len(queue.waiting) < 5 and time.monotonic() < until:
        time.sleep(0.001)
    site.store.reset()
    held.leave()
    for thread in threads:
        thread.join(PATIENCE)
    assert {result.version for result, _ in results} == {2}
    assert len({id(file) for _, file in results}) == 1, "all have the same object: nobody read it"
    created = VersionLog(site.memory).committed(2, site.table._scheme)
    assert len(members_of(created.transaction)) == 4
    assert len(created.manifest.fragments) == 6
    assert site.store.calls["put"] == (1 if remote else 0), "the leader announced all of them, and nobody else"
    assert len(list(site.memory.names("_transactions/"))) == 2


def test_who_leads_after_a_group_waits_for_its_own_file_first(site: Site) -> None:
    test_those_who_wait_are_committed_in_one_version(site, True)
    queue = ThreadQueue()
    committer = replace(site.committer, queue=queue)
    first = VersionLog(site.memory).committed(2, site.table._scheme)
    committer.recent.note(first, site.file)
    assert commit(committer, first.file, at=site)[0].version == 3


def test_only_the_last_versions_are_kept(site: Site) -> None:
    recent = RecentVersions(keeps=True)
    below: ManifestFile | None = None
    for _ in range(MOST_KEPT + 2):
        plant(site.memory, append("theirs"))
    log = VersionLog(site.memory)
    for version in range(2, MOST_KEPT + 4):
        created = log.committed(version, site.table._scheme)
        recent.note(created, below)
        below = created.file
    assert recent.kept(2) is None
    assert recent.kept(MOST_KEPT + 3) is not None
    newest = recent.newest()
    assert newest is not None
    recent.note(log.committed(1, site.table._scheme), None)
    assert recent.newest() == newest, "who is slow does not undo what others know"


# ---- one machine -------------------------------------------------------------------------------------------------------------


@dataclass
class CarryingPlace(ScriptedPlace):
    """A place whose leader hands versions over."""

    left: dict[str, bytes] = field(default_factory=dict)

    def carry(self, path: str, data: bytes) -> None:
        self.left = {path: data}

    def carried(self, path: str) -> bytes:
        return self.left.get(path, b"")


@dataclass
class MachineDouble:
    """The queue of a machine as one process sees it."""

    ready: CarryingPlace
    shared: dict[str, Any] = field(default_factory=dict)
    slowness: float = 15.0

    def place(self, transaction_id: str, since: float) -> CarryingPlace:
        return self.ready


def in_process(site: Site, place: CarryingPlace) -> Committer:
    """A committer of a process that knows nothing yet but what the place tells it."""
    return replace(site.committer, queue=MachineDouble(place), log=VersionLog(site.store))


def test_a_leader_leaves_its_version_for_the_next_in_another_process(site: Site) -> None:
    first, second = in_process(site, CarryingPlace()), in_process(site, CarryingPlace())
    assert isinstance(first.queue, MachineDouble)
    assert isinstance(second.queue, MachineDouble)
    start = site.file
    commit(first, start, at=site)
    commit(second, start, at=site)  # has to look, and to read version 2
    for number in range(4):
        mine, other = (first, second) if number % 2 == 0 else (second, first)
        assert isinstance(mine.queue, MachineDouble)
        assert isinstance(other.queue, MachineDouble)
        mine.queue.ready.note, mine.queue.ready.left = other.queue.ready.note, other.queue.ready.left
        site.store.reset()
        result, _ = commit(mine, start, at=site)
        assert result.version == 4 + number
        assert [version.version for version in result.rebased_over] == list(range(2, 4 + number))
        assert site.store.asked == WARM, "neither a look nor a read: both are known on this machine"


def test_a_member_in_another_process_takes_its_version_over(site: Site) -> None:
    leader = CarryingPlace()
    committer = in_process(site, leader)
    member = Transaction(1, noted_runtime().random.uuid(), append("theirs"))
    leader.offered = [Offer(member.uuid, with_parent(member, site.file).to_bytes())]
    commit(committer, site.file, at=site)
    assert leader.answered == {member.uuid: 2}
    waiting = CarryingPlace(answers=[2], note=leader.note, left=leader.left)
    other = in_process(site, waiting)
    site.store.reset()
    result, file = other.commit(member, site.file, site.table._scheme, RetryPolicy())
    assert (result.version, file.manifest.version) == (2, 2)
    assert site.store.asked == []
    assert waiting.waited[0] == pytest.approx(30.0, abs=1.0)
    assert other.recent.newest() is not None
    assert version_count(site.memory) == 2


def test_a_note_that_goes_further_than_what_can_be_read_is_no_reason_to_fail(site: Site) -> None:
    place = CarryingPlace()
    first = in_process(site, place)
    start = site.file
    for _ in range(2):
        start = commit(first, start, at=site)[1]
    for path in list(site.memory.names("_versions/")):
        site.memory.delete("_versions/" + path)
    site.memory.delete("_versions/none")
    memory_table(site.memory)  # another one, where the first was
    fresh = reopened(Remote(site.memory, site.clock))
    second = in_process(site, CarryingPlace(note=place.note, left=place.left))
    assert commit(second, fresh._file, at=site)[0].version == 2


def test_who_goes_on_alone_leaves_nothing(site: Site) -> None:
    place = CarryingPlace(answers=[None], joins=[False])
    assert commit(in_process(site, place), site.file, at=site)[0].version == 2
    assert (place.note, place.left) == (b"", {})


def test_memory_is_shared_by_a_store_and_not_by_a_name() -> None:
    stores = [MemoryStore("memory://same") for _ in range(2)]
    tables = [memory_table(store) for store in stores]
    assert tables[0]._access.committer.recent is not tables[1]._access.committer.recent
    assert tables[0]._access.committer.recent is reopened(stores[0])._access.committer.recent


def test_a_version_without_a_known_one_below_is_not_passed_on(site: Site) -> None:
    """Others would take it for one that new rows cannot go over."""
    place = CarryingPlace(answers=[2])
    committer = in_process(site, place)
    member = Transaction(1, noted_runtime().random.uuid(), append("theirs"))
    other = reopened(site.memory)._access.committer
    other.commit(member, site.file, site.table._scheme, RetryPolicy())
    committer.commit(member, site.file, site.table._scheme, RetryPolicy())
    assert committer.recent.newest() is None
    created = VersionLog(site.memory).committed(2, site.table._scheme)
    assert isinstance(created, CreatedVersion)
