"""Whether a version is the newest, and whether one we made came in time: in memory, on a store that lists in no order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

import tiltyard as ty
from tests.support.commits import (
    FIELDS,
    InterruptedStore,
    append,
    is_version,
    last_id,
    memory_place,
    memory_table,
    noted_runtime,
    plant,
    reopened,
    version_count,
)
from tiltyard import ops
from tiltyard.errors import CorruptTable, HistoryUnavailable, OutcomeUnknown, StorageError
from tiltyard.format.names import HINT_PATH, Scheme, decode_hint, encode_hint, manifest_path
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore, ManualClock, WrapperStore
from tiltyard.testing.stores import Match, Request, T
from tiltyard.transaction.head import FLOORS, LOOKS, Floor, FloorRecord, HeadCheck
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.verify import PARENT


class Directory(WrapperStore):
    """Lists in no order, as a directory on a disk does; then the head is asked for instead of listed."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ordered = False


class Failing(WrapperStore):
    """Fails calls that match, without any effect, as often as told."""

    def __init__(self, inner: ObjectStore, match: Match, error: Callable[[], Exception] | None = None, times: int = 1000) -> None:
        super().__init__(inner)
        self._match, self._error, self.left = match, error or (lambda: StorageError("no answer", transient=True)), times

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self.left and self._match(method, path):
            self.left -= 1
            raise self._error()
        return request(self.inner)


def _looks(store: ObjectStore) -> HeadCheck:
    return HeadCheck(VersionLog(store), noted_runtime())


def _path(store: ObjectStore, version: int) -> str:
    return manifest_path(version, Scheme.V2)


def _table(store: ObjectStore, table: ty.Table) -> ty.Table:
    """A handle on the same version whose calls go through another store."""
    return ty.Table(memory_place(store), table._file, Scheme.V2)


def _asks(method: str, path: str) -> Match:
    return lambda asked, where: (asked, where) == (method, path)


# ---- the head without a listing ----------------------------------------------------------------------------------------------


def _hinted(store: MemoryStore, versions: int) -> Directory:
    """A directory with so many versions, and a hint that names the last."""
    directory = Directory(store)
    table = memory_table(directory)
    for number in range(2, versions + 1):
        table.commit(append(f"v{number}"))
    return directory


def test_the_newest_version_is_known_by_its_hint_and_what_is_not_there() -> None:
    store = _hinted(MemoryStore(), 2)
    counting = CountingStore(store)
    assert _looks(counting).is_newest(2, Scheme.V2)
    assert ("names", "_versions/") not in counting.log
    assert not _looks(counting).is_newest(1, Scheme.V2), "the hint says 2"


@pytest.mark.parametrize("hint", [None, b"?", b'{"version":1}', b'{"version":9}'])
def test_another_hint_proves_nothing(hint: bytes | None) -> None:
    store = _hinted(MemoryStore(), 2)
    if hint is None:
        store.delete(HINT_PATH)
    else:
        store.put(HINT_PATH, hint)
    assert not _looks(store).is_newest(2, Scheme.V2)


@pytest.mark.parametrize(("hint", "known"), [(3, True), (2, True), (1, False), (4, False)])
def test_of_a_version_that_was_just_made_the_hint_may_not_tell_yet(hint: int, known: bool) -> None:
    store = _hinted(MemoryStore(), 3)
    store.put(HINT_PATH, encode_hint(hint))
    assert _looks(store).is_newest(3, Scheme.V2, just_made=True) is known
    assert _looks(store).is_newest(3, Scheme.V2) is (hint == 3)


def test_who_lost_a_race_reads_the_winner_once_and_lists_nothing() -> None:
    inner = MemoryStore()
    store = _hinted(inner, 2)
    counting = CountingStore(InterruptedStore(store, is_version, lambda: plant(inner, append("theirs"))))
    result = _table(counting, reopened(store)).commit(append("ours"))
    assert (result.version, result.attempts) == (4, 2)
    assert counting.log.count(("get", _path(store, 3))) == 1
    assert ("names", "_versions/") not in counting.log


def test_a_later_version_a_tag_a_failure_or_an_order_ask_for_a_listing() -> None:
    inner = MemoryStore()
    store = _hinted(inner, 2)
    assert not _looks(inner).is_newest(2, Scheme.V2), "where names come in order"
    assert not _looks(Failing(store, _asks("head", _path(store, 3)))).is_newest(2, Scheme.V2)
    for ref in ("_refs/tags/a.json", "_refs/branches/b.json"):
        store.put(ref, b"{}")
        assert not _looks(store).is_newest(2, Scheme.V2)
        store.delete(ref)
    assert _looks(store).is_newest(2, Scheme.V2)
    plant(inner, append("theirs"))
    assert not _looks(store).is_newest(2, Scheme.V2)


def test_a_hint_is_left_where_names_come_in_no_order_and_may_fail_to_be() -> None:
    inner = MemoryStore()
    memory_table(inner)
    _looks(inner).leave_hint(1)
    assert list(inner.names("_versions/")) == [_path(inner, 1).removeprefix("_versions/")]
    store = Directory(inner)
    _looks(Failing(store, _asks("put", HINT_PATH))).leave_hint(1)
    _looks(store).leave_hint(7)
    assert decode_hint(store.get(HINT_PATH)) == 7


def test_a_commit_at_the_head_does_not_list_and_one_behind_it_does() -> None:
    inner = MemoryStore()
    store = _hinted(inner, 3)
    counting = CountingStore(store)
    table = ty.Table._open(memory_place(counting))
    counting.reset()
    assert table.commit(append("a")).version == 4
    assert ("names", "_versions/") not in counting.log
    assert decode_hint(store.get(HINT_PATH)) == 4
    plant(inner, append("theirs"))
    assert table.commit(append("b")).version == 6
    assert ("names", "_versions/") in counting.log


def test_a_lost_race_is_not_looked_for_by_the_hint_again() -> None:
    """The other one may not have left its hint yet: that it took a version is known, whatever the hint says."""
    inner = MemoryStore()
    store = _hinted(inner, 2)
    table = ty.Table._open(memory_place(InterruptedStore(store, is_version, lambda: plant(inner, append("theirs")))))
    result = table.commit(append("ours"))
    assert (result.version, result.attempts) == (4, 2)
    assert [one.version for one in result.rebased_over] == [3]


# ---- in time, or late --------------------------------------------------------------------------------------------------------


def _late(store: MemoryStore, *, kept: Iterable[int], ordered: bool = False, foreign: bool = True) -> ty.Table:
    """A writer of version 2 that comes when there were four versions, of which a cleanup kept some."""
    outer: ObjectStore = store if ordered else Directory(store)

    def others() -> None:
        for number in (2, 3, 4):
            if foreign:
                plant(store, append(f"theirs{number}"))
            else:
                reopened(store).commit(append(f"theirs{number}"))
        _looks(outer).leave_hint(4)
        for number in (1, 2, 3, 4):
            if number not in set(kept):
                store.delete(_path(store, number))

    return _table(InterruptedStore(outer, is_version, others), memory_table(outer))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kept", [[4], [1, 4]], ids=["the head alone", "also the one below"])
def test_a_number_that_a_cleanup_set_free_is_given_back(ordered: bool, kept: list[int]) -> None:
    store = MemoryStore()
    table = _late(store, kept=kept, ordered=ordered)
    with pytest.raises(HistoryUnavailable, match="cleaned up") as caught:
        table.commit(append())
    assert (caught.value.missing, caught.value.head) == ((2,), 4)
    assert [one.version for one in VersionLog(store).versions()] == kept
    assert not any(last_id(table) in name for name in store.names("_transactions/"))


def test_a_later_version_that_says_on_what_it_stands_settles_it() -> None:
    store = MemoryStore()
    table = _late(store, kept=[1, 3, 4], foreign=False)
    with pytest.raises(HistoryUnavailable, match="cleaned up"):
        table.commit(append())
    assert [one.version for one in VersionLog(store).versions()] == [1, 3, 4]


def test_a_later_version_that_does_not_say_on_what_it_stands_leaves_it_open() -> None:
    store = MemoryStore()
    table = _late(store, kept=[1, 3, 4])
    with pytest.raises(OutcomeUnknown, match="do not show"):
        table.commit(append())
    assert any(last_id(table) in name for name in store.names("_transactions/")), "nothing is deleted"
    assert [one.version for one in VersionLog(store).versions()] == [1, 2, 3, 4]


def _followed(store: MemoryStore, action: Callable[[], object]) -> ty.Table:
    """A writer that is held up right after its create, before it looks whether it was in time."""
    table = memory_table(store)

    class After(WrapperStore):
        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            answer = request(self.inner)
            if is_version(method, path):
                action()
            return answer

    return _table(After(store), table)


@pytest.mark.parametrize("foreign", [True, False])
def test_others_who_went_on_from_our_version_are_no_doubt(foreign: bool) -> None:
    store = MemoryStore()

    def others() -> None:
        if foreign:
            plant(store, append("theirs"))
        else:
            reopened(store).commit(append("theirs"))

    assert _followed(store, others).commit(append()).version == 2
    assert version_count(store) == 3


def test_our_rows_in_the_newest_version_are_no_doubt_whatever_lies_between() -> None:
    """They went on from ours, and a cleanup took all but the newest."""
    store = MemoryStore()

    def others() -> None:
        for number in (3, 4, 5):
            plant(store, append(f"theirs{number}"))
        for number in (1, 3, 4):
            store.delete(_path(store, number))

    assert _followed(store, others).commit(append()).version == 2


def test_our_version_that_was_cleaned_up_in_turn_leaves_it_open() -> None:
    store = MemoryStore()

    def others() -> None:
        plant(store, ops.Overwrite((), FIELDS))
        plant(store, append("theirs"))
        for number in (1, 2, 3):
            store.delete(_path(store, number))

    with pytest.raises(OutcomeUnknown, match="do not show"):
        _followed(store, others).commit(append())


def test_a_version_of_somebody_else_under_our_number_is_not_deleted() -> None:
    """A cleanup took ours, and then came a writer who was later still."""
    store = MemoryStore()

    def others() -> None:
        store.delete(_path(store, 2))
        plant(store, append("later still"))
        plant(store, append("theirs"), raw=ty.Transaction(2, "theirs", append("theirs"), {PARENT: "somebody"}).to_bytes())

    with pytest.raises(HistoryUnavailable):
        _followed(store, others).commit(append())
    assert [one.version for one in VersionLog(store).versions()] == [1, 2, 3]


@pytest.mark.parametrize("damage", [lambda: StorageError("no answer"), lambda: CorruptTable("3", "?")], ids=["silence", "damage"])
@pytest.mark.parametrize("times", [1, LOOKS - 1, LOOKS])
def test_a_look_that_fails_is_taken_again_before_anything_is_said(damage: Callable[[], Exception], times: int) -> None:
    store = MemoryStore()
    table = _followed(store, lambda: plant(store, append("theirs")))
    failing = Failing(table._access.store, _asks("get", _path(store, 3)), damage, times)
    table = _table(failing, table)
    if times < LOOKS:
        assert table.commit(append()).version == 2
    else:
        with pytest.raises(OutcomeUnknown, match="cannot be read"):
            table.commit(append())
        assert any(last_id(table) in name for name in store.names("_transactions/"))
    clock = table._access.runtime.clock
    assert isinstance(clock, ManualClock)
    assert len(clock.slept) == min(times, LOOKS - 1)


def test_where_nothing_else_tells_the_version_below_is_asked_for() -> None:
    """A hint that is behind: only that the version below is gone gives the cleanup away."""
    store = MemoryStore()
    directory = Directory(store)
    memory_table(directory)
    assert _looks(directory)._may_be_late(1, Scheme.V2), "the hint says so"
    assert not _looks(directory)._may_be_late(2, Scheme.V2)
    store.delete(_path(store, 1))
    assert _looks(directory)._may_be_late(2, Scheme.V2)
    tagged = Directory(MemoryStore())
    memory_table(tagged)
    tagged.put("_refs/tags/a.json", b"{}")
    assert _looks(tagged)._may_be_late(2, Scheme.V2)


def test_a_late_version_that_cannot_be_deleted_is_told_all_the_same() -> None:
    store = MemoryStore()
    table = _late(store, kept=[4])
    undeletable = Failing(table._access.store, lambda method, path: method == "delete" and path.endswith(".manifest"))
    with pytest.raises(HistoryUnavailable):
        _table(undeletable, table).commit(append())


# ---- what a cleanup recorded -------------------------------------------------------------------------------------------------


def _record(store: ObjectStore, version: int, refused: int, removed: Mapping[int, str] | None = None) -> None:
    record = FloorRecord(Floor(version, refused), removed or {})
    store.put(record.path(f"00000000-0000-4000-8000-{version:012d}"), record.to_bytes())


@pytest.mark.parametrize(("refused", "passes"), [(0, True), (3, True), (4, False), (5, False), (6, True)])
def test_a_transaction_whose_ground_was_taken_away_is_not_committed(refused: int, passes: bool) -> None:
    """It read version 3, and the head is 5. A record of more than there is speaks of another table, which was there before this one."""
    store = MemoryStore()
    table = memory_table(store)
    for number in range(2, 6):
        plant(store, append(f"v{number}"))
        if number == 3:
            table = reopened(store)
    _record(store, 6, refused)
    if passes:
        assert table.commit(append()).version == 6
    else:
        with pytest.raises(HistoryUnavailable, match="was cleaned up") as caught:
            table.commit(append())
        assert (caught.value.missing, caught.value.head) == ((3,), 5)
        assert version_count(store) == 5
        assert not any(last_id(table) in name for name in store.names("_transactions/"))


def test_that_is_asked_after_the_transaction_file_is_written_and_before_the_create() -> None:
    """A cleanup looks for transaction files after it has left its record: one of the two sees the other."""
    store = MemoryStore()
    memory_table(store)
    counting = CountingStore(store)
    table = reopened(counting)
    counting.reset()
    table.commit(append())
    steps = [method for method, path in counting.log if path.startswith(("_transactions/", FLOORS)) or method == "put_if_absent"]
    assert steps[:3] == ["put", "names", "put_if_absent"]


def test_a_version_to_restore_that_goes_at_the_last_moment() -> None:
    store = MemoryStore()
    table = memory_table(store)
    table.commit(append("more"))
    going = InterruptedStore(store, lambda method, path: path.endswith(".txn"), lambda: store.delete(_path(store, 1)))
    with pytest.raises(HistoryUnavailable, match="was cleaned up; Restore needs it"):
        _table(going, table).commit(ops.Restore(1))
    assert version_count(store) == 1


def test_a_floor_above_says_that_a_version_may_not_be_the_newest() -> None:
    store = _hinted(MemoryStore(), 2)
    _record(store, 2, 0)
    assert _looks(store).is_newest(2, Scheme.V2)
    assert not _looks(store)._may_be_late(3, Scheme.V2)
    _record(store, 4, 0)
    assert not _looks(store).is_newest(2, Scheme.V2)
    assert _looks(store)._may_be_late(3, Scheme.V2)


@pytest.mark.parametrize("ours", [True, False])
def test_who_had_the_number_of_a_version_that_was_cleaned_up_is_on_record(ours: bool) -> None:
    store = MemoryStore()
    table: ty.Table

    def others() -> None:
        for number in (3, 4):
            plant(store, ops.Overwrite((), FIELDS) if number == 3 else append("theirs"))
        for number in (1, 2, 3):
            store.delete(_path(store, number))
        _record(store, 4, 0, {2: last_id(table) if ours else "somebody"})

    table = _followed(store, others)
    if ours:
        assert table.commit(append()).version == 2
    else:
        with pytest.raises(HistoryUnavailable):
            table.commit(append())


def test_a_number_that_was_free_says_nothing_about_a_create_before() -> None:
    """Our first request had no answer; perhaps it made the version, and a cleanup took it before the second did."""
    store = MemoryStore()
    late = _late(store, kept=[4])
    answers = iter([True])
    silent = Failing(
        late._access.store,
        lambda method, path: is_version(method, path) and next(answers, False),
        lambda: StorageError("no answer", maybe_applied=True),
    )
    with pytest.raises(OutcomeUnknown, match="do not show"):
        _table(silent, late).commit(append())
    assert [one.version for one in VersionLog(store).versions()] == [2, 4]
