"""Waiting and leading, step by step, with a queue that does what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import append, memory_table, noted_runtime, overwrite, plant, reopened, version_count
from tiltyard.errors import NotFound, StorageError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.interfaces import NOT_TAKEN, Offer
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore
from tiltyard.transaction import turns
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.group import members_of
from tiltyard.transaction.head import HeadCheck
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.operations import Append
from tiltyard.transaction.recent import RecentVersions
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT

Step = int | None | Callable[[], int | None]


@dataclass
class ScriptedPlace:
    """A place that gets the answers it was given, one by one, and then the lead."""

    answers: list[Step] = field(default_factory=list)
    joins: list[bool] = field(default_factory=list)
    offered: list[Offer] = field(default_factory=list)
    note: bytes = b""
    leads: bool = False
    hangs: bool = False
    joined: list[bytes] = field(default_factory=list)
    answered: dict[str, int] = field(default_factory=dict)
    waited: list[float] = field(default_factory=list)
    gathered: int = 0
    looks: bool = False
    newest: list[int] = field(default_factory=list)
    safe: bool = True
    strangers: list[float] = field(default_factory=list)

    def lead(self) -> bool:
        self.leads = not self.answers
        return self.leads

    def join(self, data: bytes) -> bool:
        self.joined.append(data)
        return self.joins.pop(0) if self.joins else True

    def wait(self, seconds: float) -> int | None:
        self.waited.append(seconds)
        step = self.answers.pop(0)
        answer = step() if callable(step) else step
        self.leads = answer is None and not self.answers and not self.hangs
        return answer

    def leave(self) -> None:
        self.leads = False

    def meet_strangers(self, share: float) -> None:
        self.strangers.append(share)

    def gather(self, newest: Callable[[], int]) -> None:
        self.gathered += 1
        self.newest += [newest()] if self.looks else []

    def offers(self, most: int) -> list[Offer]:
        return self.offered[:most]

    def tell(self, data: bytes) -> None:
        self.note = data

    def told(self) -> bytes:
        return self.note

    def answer(self, transaction_id: str, version: int = NOT_TAKEN) -> None:
        self.answered[transaction_id] = version


@dataclass
class ScriptedQueue:
    ready: ScriptedPlace

    def place(self, transaction_id: str, since: float) -> ScriptedPlace:
        return self.ready


def _queued(store: Any, place: ScriptedPlace, runtime: Any = None) -> ty.Table:
    table = reopened(store, runtime=runtime or noted_runtime())
    table._access.__dict__["committer"] = replace(table._access.committer, queue=ScriptedQueue(place))
    return table


def _commit(table: ty.Table, operation: Append | None = None) -> ty.CommitResult:
    """As a verb does: the files are its own, so that others may commit them."""
    access = table._access
    transaction = Transaction(table.version, access.runtime.random.uuid(), operation or append("mine"))
    return access.committer.commit(transaction, table._file, table._scheme, RetryPolicy())[0]


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    memory_table(store)
    return store


def test_whoever_leads_commits(store: MemoryStore) -> None:
    place = ScriptedPlace()
    assert _commit(_queued(store, place)).version == 2
    assert place.joined == []


def test_a_leader_tells_of_writers_who_know_of_no_queue(store: MemoryStore) -> None:
    place = ScriptedPlace()
    table = _queued(store, place)
    table.commit(append("one"))
    assert place.strangers == []
    for number in (3, 4):
        plant(store, append(f"v{number}"))  # plant stands for other software: it signs with another name
    reopened(store).commit(append("ours"))
    table.commit(append("two"))
    assert place.strangers == [2 / 4], "two of the four since version 2"
    plant(store, append("v7"))
    waiting = ScriptedPlace(answers=[None], hangs=True)
    _commit(_queued(store, waiting))
    assert waiting.strangers == [], "who does not lead has nobody to tell"


def test_who_waits_for_others_can_see_how_far_the_table_is(store: MemoryStore) -> None:
    """By asking for one version after the other, without a listing."""
    place = ScriptedPlace(looks=True)
    table = _queued(store, place)
    for number in (2, 3):
        plant(store, append(f"v{number}"))
    assert _commit(table).version == 4
    assert place.newest == [3]


def test_without_a_queue_to_join_it_goes_on_alone(store: MemoryStore) -> None:
    place = ScriptedPlace(answers=[7], joins=[False])
    assert _commit(_queued(store, place)).version == 2
    assert place.waited == []


def test_a_transaction_is_offered_with_what_it_stands_on(store: MemoryStore) -> None:
    place = ScriptedPlace(answers=[None])
    result = _commit(_queued(store, place))
    (data,) = place.joined
    offered = Transaction.from_bytes(data)
    assert (offered.uuid, offered.read_version) == (result.transaction_id, 1)
    assert offered.properties[PARENT] == reopened(store).transactions.describe(1).transaction_id
    assert place.waited == [pytest.approx(turns.PATIENCE)]


@pytest.mark.parametrize("why", ["hangs", "deadline"])
def test_how_long_it_waits(store: MemoryStore, why: str) -> None:
    place = ScriptedPlace(answers=[None], hangs=why == "hangs")
    table = _queued(store, place)
    transaction = Transaction(1, table._access.runtime.random.uuid(), append("mine"))
    policy = RetryPolicy(deadline=0.5 if why == "deadline" else None)
    table._access.committer.commit(transaction, table._file, table._scheme, policy)
    assert place.waited == [pytest.approx(0.5 if why == "deadline" else turns.NO_PATIENCE)]


def test_what_others_may_not_commit_waits_for_its_turn(store: MemoryStore) -> None:
    for bound in (RetryPolicy(max_retries=3), None):
        place = ScriptedPlace(answers=[None])
        table = _queued(store, place)
        transaction = Transaction(table.version, table._access.runtime.random.uuid(), append("mine") if bound else overwrite("all"))
        table._access.committer.commit(transaction, table._file, table._scheme, bound or RetryPolicy())
        assert place.joined == [b""]


def test_files_that_cannot_be_made_safe_are_not_offered(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ScriptedPlace(answers=[None])
    table = _queued(store, place)
    real = Committer.sync_files
    failed: list[int] = []

    def sync(self: Committer, race: Any, *, announced: bool = False) -> None:
        if not failed:
            failed.append(1)
            raise StorageError("Cannot flush.", name="x", transient=True)
        real(self, race, announced=announced)

    monkeypatch.setattr(Committer, "sync_files", sync)
    assert _commit(table).version == 2
    assert place.joined == [b""]


def test_an_answer_that_names_the_wrong_version_is_not_believed(store: MemoryStore) -> None:
    def others() -> int:
        plant(store, append("others"))
        return 2

    place = ScriptedPlace(answers=[others, 99, None])
    result = _commit(_queued(store, place))
    assert len(place.waited) == 3
    assert (result.version, [winner.version for winner in result.rebased_over]) == (3, [2])


def test_who_was_committed_by_a_leader_gets_its_own_result(store: MemoryStore) -> None:
    mine, theirs = ScriptedPlace(), ScriptedPlace()
    leader = _queued(store, theirs)

    def led() -> int:
        """Somebody else comes first, and a leader takes ours along."""
        plant(store, append("before"))
        data = mine.joined[0]
        theirs.offered = [Offer(Transaction.from_bytes(data).uuid, data)]
        version = _commit(leader, append("leader")).version
        mine.note = theirs.note
        return version

    mine.answers = [led]
    table = _queued(store, mine)
    result = _commit(table)
    assert (result.version, result.attempts, result.read_version) == (3, 1, 1)
    assert [winner.version for winner in result.rebased_over] == [2]
    made = table._access.log.committed(3, table._scheme)
    assert result.transaction_id in [member.transaction_id for member in members_of(made.transaction)]
    assert not any(result.transaction_id in name for name in store.names("_transactions/"))


@pytest.mark.parametrize(
    "error", [None, NotFound("Gone.", name="x"), StorageError("Cannot flush.", name="x")], ids=["flushed", "cleaned up", "fails"]
)
def test_what_a_leader_left_unsafe_is_flushed_or_unknown(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """A version that was cleaned up since has later ones upon it; one that cannot be flushed is not acknowledged."""
    mine, theirs = ScriptedPlace(safe=False), ScriptedPlace()
    leader = _queued(store, theirs)
    flushed: list[str] = []

    def sync(self: MemoryStore, paths: Iterable[str]) -> None:
        flushed.extend(paths)
        if error is not None:
            raise error

    def led() -> int:
        data = mine.joined[0]
        theirs.offered = [Offer(Transaction.from_bytes(data).uuid, data)]
        version = _commit(leader, append("leader")).version
        monkeypatch.setattr(MemoryStore, "sync", sync)
        return version

    mine.answers = [led]
    if isinstance(error, StorageError):
        with pytest.raises(ty.OutcomeUnknown) as caught:
            _commit(_queued(store, mine))
        assert caught.value.version == 2
    else:
        assert _commit(_queued(store, mine)).version == 2
    assert flushed[0] == manifest_path(2, Scheme.V2)
    assert len(flushed) == (1 if error else 3), "with the files of both"


def test_offers_that_are_no_use_are_refused(store: MemoryStore) -> None:
    good = _member(store, 1, "good")
    other = _member(store, 1, "other")
    stranger = replace(_member(store, 1, "stranger"), properties={PARENT: "nobody"})
    offered = [Offer("rubbish", b"\xff\xff"), Offer("name", other.to_bytes()), *_offers([stranger, good])]
    place = ScriptedPlace(offered=offered)
    assert _commit(_queued(store, place)).version == 2
    assert place.answered == {"rubbish": NOT_TAKEN, "name": NOT_TAKEN, "stranger": NOT_TAKEN, "good": 2}


def test_who_is_refused_waits_for_its_turn(store: MemoryStore) -> None:
    place = ScriptedPlace(answers=[NOT_TAKEN, None])
    assert _commit(_queued(store, place)).version == 2
    assert place.joined[1:] == [b""]
    alone = ScriptedPlace(answers=[NOT_TAKEN, None], joins=[True, False])
    assert _commit(_queued(store, alone)).version == 3
    free = ScriptedPlace(answers=[NOT_TAKEN])
    assert _commit(_queued(store, free)).version == 4
    assert len(free.joined) == 1


def test_who_waited_in_vain_remembers_what_others_may_try(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def run(self: Committer, race: Any, policy: Any) -> Any:
        tried.append(race.tried_by_others)
        raise StorageError("The disk is full.", name="x")

    monkeypatch.setattr(Committer, "run_race", run)
    with pytest.raises(ty.OutcomeUnknown) as caught:
        _commit(_queued(store, ScriptedPlace(answers=[None], hangs=True)))
    assert f"1-{caught.value.transaction_id}.txn" in store.names("_transactions/"), "so that whoever asks for it is not told that it failed"

    def away(self: VersionLog) -> None:
        raise StorageError("Away.", name="x")

    table = _queued(store, ScriptedPlace(answers=[None], hangs=True))
    monkeypatch.setattr(VersionLog, "head", away)
    with pytest.raises(ty.OutcomeUnknown):
        _commit(table)
    assert tried == [2, turns.NOBODY_KNOWS]


def test_who_offered_nothing_and_waited_in_vain_knows_that_it_failed(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Committer, race: Any, policy: Any) -> Any:
        raise StorageError("The disk is full.", name="x")

    monkeypatch.setattr(Committer, "run_race", run)
    table = _queued(store, ScriptedPlace(answers=[None], hangs=True))
    with pytest.raises(StorageError, match="disk is full"):
        table.commit(overwrite("all"))


@pytest.mark.parametrize("gone", [False, True], ids=["the store fails", "the version was cleaned up"])
def test_who_leads_next_and_cannot_see_what_a_leader_did_does_not_know(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """To call it a failure would have the verb remove its files, which the version of a leader that died may name."""
    mine, theirs = ScriptedPlace(), ScriptedPlace()
    leader = _queued(store, theirs)

    def away(self: VersionLog) -> None:
        raise StorageError("Away.", name="x")

    def led() -> None:
        data = mine.joined[0]
        theirs.offered = [Offer(Transaction.from_bytes(data).uuid, data)]
        assert _commit(leader, append("leader")).version == 2
        if gone:
            plant(store, append("later"))
            store.delete(manifest_path(2, Scheme.V2))
        else:
            monkeypatch.setattr(VersionLog, "head", away)
            monkeypatch.setattr(HeadCheck, "is_newest", lambda *_arguments, **_options: False)

    mine.answers = [led]
    with pytest.raises(ty.OutcomeUnknown) as caught:
        _commit(_queued(store, mine))
    monkeypatch.undo()
    table, asked = reopened(store), caught.value
    assert asked.version == turns.NOBODY_KNOWS
    for tried in (asked.version, None):
        found = table.transactions.outcome(asked.transaction_id, version=tried)
        assert isinstance(found, ty.outcomes.Unknown) if gone else found == ty.outcomes.Committed(2)


def test_who_leads_and_has_gone_over_all_versions_knows(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise StorageError("The disk is full.", name="x")

    monkeypatch.setattr(Committer, "announce", full)
    with pytest.raises(StorageError, match="disk is full"):
        _commit(_queued(store, ScriptedPlace(answers=[None])))


def test_a_conflict_is_a_conflict_whoever_hangs(store: MemoryStore) -> None:
    def others() -> None:
        plant(store, overwrite("theirs"))

    with pytest.raises(ty.IncompatibleConflict):
        _commit(_queued(store, ScriptedPlace(answers=[others], hangs=True)))


# ---- leading ---------------------------------------------------------------------------------------------------------------------------


def _member(store: MemoryStore, read: int, name: str) -> Transaction:
    parent = reopened(store).transactions.describe(read).transaction_id
    return Transaction(read, name, append(name), {PARENT: parent})


def _offers(members: Sequence[Transaction]) -> list[Offer]:
    return [Offer(member.uuid, member.to_bytes()) for member in members]


def test_members_are_committed_with_the_leader(store: MemoryStore) -> None:
    members = [_member(store, 1, "a"), _member(store, 1, "b")]
    place = ScriptedPlace(offered=_offers(members))
    table = _queued(store, place)
    result = _commit(table)
    assert (result.version, place.answered) == (2, {"a": 2, "b": 2})
    made = table._access.log.committed(2, table._scheme)
    assert [member.transaction_id for member in members_of(made.transaction)] == ["a", "b"]
    told = RecentVersions()
    told.learn(place.note)
    newest = told.newest()
    assert newest is not None
    assert newest.made_by == (result.transaction_id, "a", "b")


def test_a_leader_whose_rows_come_with_something_unknown_leads_alone(store: MemoryStore) -> None:
    place = ScriptedPlace(offered=_offers([_member(store, 1, "a")]))
    assert _commit(_queued(store, place), replace(append("mine"), unknown=b"\x98\x06\x01")).version == 2
    assert place.answered == {}, "the next leader will take it"


def test_a_member_that_is_there_already_learns_where(store: MemoryStore) -> None:
    member = _member(store, 1, "a")
    first = ScriptedPlace(offered=_offers([member]))
    table = _queued(store, first)
    _commit(table)
    table.refresh()
    again = ScriptedPlace(offered=_offers([member]), note=first.note)
    assert _commit(_queued(store, again)).version == 3
    assert again.answered == {"a": 2}


def test_a_member_that_is_there_and_cannot_be_flushed_looks_for_itself(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    member = _member(store, 1, "a")
    first = ScriptedPlace(offered=_offers([member]))
    table = _queued(store, first)
    _commit(table)

    def settle(*_: object) -> None:
        raise ty.OutcomeUnknown("Cannot flush.", transaction_id="a", version=2, uri="x")

    monkeypatch.setattr(turns, "settle", settle)
    again = ScriptedPlace(offered=_offers([member]), note=first.note)
    assert _commit(_queued(store, again)).version == 3
    assert again.answered == {"a": NOT_TAKEN}


def test_a_cleanup_that_counts_on_a_member_not_to_come(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What members were built on may be gone, and the leader's own not: then it commits alone."""
    plant(store, append("others"))

    def check(self: HeadCheck, transaction: Any, scheme: Any, *, oldest: int | None = None, floor: Any = None) -> None:
        if oldest is not None:
            raise ty.HistoryUnavailable("gone", missing=[oldest])

    monkeypatch.setattr(HeadCheck, "check_ground", check)
    place = ScriptedPlace(offered=_offers([_member(store, 2, "a")]))
    assert _commit(_queued(store, place)).version == 3
    assert place.answered == {"a": NOT_TAKEN}


def _noted(store: MemoryStore, count: int) -> bytes:
    """What a leader leaves that made so many versions."""
    place = ScriptedPlace(offered=_offers([_member(store, version_count(store), "first")]))
    table = _queued(store, place)
    for number in range(count):
        place.offered = _offers([_member(store, version_count(store), f"m{number}")])
        _commit(table)
        table.refresh()
    return place.note


def test_versions_are_gone_over_by_the_note_of_the_last_leader(store: MemoryStore) -> None:
    counting = CountingStore(store)
    place = ScriptedPlace(answers=[None])
    table = _queued(counting, place)
    place.note = _noted(store, 9)
    counting.reset()
    result = _commit(table)
    assert (result.version, [winner.version for winner in result.rebased_over]) == (11, list(range(2, 11)))
    versions = [path for method, path in counting.log if method == "get" and path.endswith(".manifest")]
    assert len(versions) == 1, "the head alone"


BEHIND = ["nothing", "one behind", "another history", "not calm", "note changed", "head replaced", "already there", "newer versions"]


@pytest.mark.parametrize("what", BEHIND)
def test_what_the_note_does_not_tell_is_read(store: MemoryStore, what: str) -> None:
    place = ScriptedPlace(answers=[None])
    table = _queued(store, place)
    if what == "another history":
        other = MemoryStore()
        memory_table(other)
        place.note = _noted(other, 4)
        plant(store, append("theirs"))
    elif what == "note changed":
        note = _noted(store, 3)
        place.note = note.replace(b"m2", b"m9")
        recent = RecentVersions()
        recent.learn(place.note)
        assert recent.newest() is None, "a note that was changed is no note"
    elif what != "nothing":
        place.note = _noted(store, 1 if what == "one behind" else 3)
    if what == "newer versions":
        plant(store, append("theirs"))
    before = version_count(store)
    operation = append("mine")
    if what == "not calm":
        table._access.committer.recent.learn(place.note)
        run = table._access.committer.recent._run
        table._access.committer.recent._run = tuple(replace(seen, calm=False) for seen in run)
    if what == "head replaced":
        recent = table._access.committer.recent
        recent.learn(place.note)
        recent._run = (*recent._run[:-1], replace(recent._run[-1], made_by=("another",)))
    if what == "already there":
        transaction = Transaction(1, "m1", operation)
        result = table._access.committer.commit(transaction, table._file, table._scheme, RetryPolicy())[0]
        assert result.version == 3, "found among those who made version 3"
        assert version_count(store) == before
        assert not any("m1" in name for name in store.names("_transactions/")), "what it had offered goes"
        return
    result = _commit(table, operation)
    assert result.version == before + 1
    assert [winner.version for winner in result.rebased_over] == list(range(2, before + 1))
