"""The queue before a table: one leads, the others wait in order, and nobody who dies or hangs holds up the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.support.own_time import own_time
from tiltyard.interfaces import NOT_TAKEN
from tiltyard.storage import queue_of
from tiltyard.storage.local import LocalStore
from tiltyard.storage.local_queue import QUEUE, LocalPlace, LocalQueue

SOON = 0.05
LONG = 30.0

CHILD = """
import sys, time
from tiltyard.storage.local_queue import LocalQueue
place = LocalQueue(sys.argv[1]).place("child", 1.0)
if sys.argv[2] == "lead":
    assert place.lead()
else:
    assert not place.lead()
    assert place.join(b"rows")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "_versions").mkdir()
    return tmp_path


def _place(root: Path, name: str, since: float = 0.0) -> LocalPlace:
    return LocalQueue(str(root)).place(name, since)


def _joined(root: Path, name: str, since: float = 0.0, data: bytes = b"rows") -> LocalPlace:
    """A place of somebody else: nobody waits for oneself."""

    def join() -> LocalPlace:
        place = _place(root, name, since)
        assert not place.lead()
        assert place.join(data)
        return place

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(join).result()


def _newest(root: Path) -> Callable[[], int]:
    return lambda: len(list((root / "_versions").glob("*.manifest")))


def _entries(root: Path) -> list[str]:
    queue = root / QUEUE
    return sorted(path.name for path in queue.glob(".tmp.q*"))


def _seats(root: Path) -> list[str]:
    return sorted(path.name for path in (root / QUEUE).glob(".tmp.seat*"))


def test_one_leads(root: Path) -> None:
    first, second = _place(root, "first"), _place(root, "second")
    assert first.lead()
    assert not second.lead()
    first.leave()
    assert [first.leads, second.leads] == [False, False]
    assert second.lead()
    second.leave()
    assert _entries(root) == [], "whoever is alone leaves no trace"
    assert not (root / "_tiltyard").exists()


def test_a_leader_sees_who_waits_in_the_order_they_began(root: Path) -> None:
    leader = _place(root, "leader")
    assert leader.lead()
    waiting = [_joined(root, name, since, name.encode()) for name, since in (("late", 3.0), ("early", 1.0), ("middle", 2.0))]
    assert [(offer.transaction_id, offer.data) for offer in leader.offers(9)] == [
        ("early", b"early"),
        ("middle", b"middle"),
        ("late", b"late"),
    ]
    assert [offer.transaction_id for offer in leader.offers(2)] == ["early", "middle"]
    for place in (*waiting, leader):
        place.leave()
    assert _entries(root) == []


def test_answers_reach_those_they_are_for(root: Path) -> None:
    leader = _place(root, "leader")
    assert leader.lead()
    first, second, third = (_joined(root, name) for name in ("first", "second", "third"))
    assert len(leader.offers(9)) == 3
    leader.answer("first", 7)
    leader.answer("second")
    leader.answer("nobody", 8)
    assert first.wait(LONG) == 7
    assert second.wait(LONG) == NOT_TAKEN
    assert third.wait(SOON) is None
    assert [offer.transaction_id for offer in leader.offers(9)] == ["third"], "who was answered is offered no more"
    for place in (first, second, third, leader):
        place.leave()


@pytest.mark.parametrize("version", [7, NOT_TAKEN])
def test_an_answer_that_comes_just_before_the_lead_is_free_is_heard(root: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    leader = _place(root, "leader")
    assert leader.lead()
    waiting = _joined(root, "waiting")
    assert [offer.transaction_id for offer in leader.offers(9)] == ["waiting"]
    lead = LocalPlace.lead

    def lead_late(self: LocalPlace) -> bool:
        if leader.leads:  # after one who waits has looked for an answer, and before it looks for the lead
            leader.answer("waiting", version)
            leader.leave()
        return lead(self)

    monkeypatch.setattr(LocalPlace, "lead", lead_late)
    waiting.queue.lasted = 5.0
    assert waiting.wait(LONG) == (None if version == NOT_TAKEN else version)
    assert waiting.leads
    waiting.leave()
    assert (waiting.queue.lasted >= 5.0) == (version != NOT_TAKEN), "how long our last version took is known still"
    assert _place(root, "next").lead()


def test_who_has_waited_longest_leads_next(root: Path) -> None:
    leader = _place(root, "leader")
    assert leader.lead()
    early, late = _joined(root, "early", 1.0), _joined(root, "late", 2.0)
    led: list[str] = []

    def wait(place: LocalPlace) -> None:
        assert place.wait(LONG) is None
        assert place.leads
        led.append(place.transaction_id)
        place.leave()

    leader.leave()
    threads = [threading.Thread(target=wait, args=(place,)) for place in (early, late)]
    threads[0].start()
    threads[0].join(LONG)
    threads[1].start()
    threads[1].join(LONG)
    assert led == ["early", "late"]


def test_messages_for_others_and_rubbish_say_nothing(root: Path) -> None:
    leader = _place(root, "leader")
    assert leader.lead()
    waiting = _joined(root, "waiting")
    assert waiting._seat is not None
    for message in (b"", b"somebody 3", b"waiting", b"waiting x", b"waiting -1", b"waiting " + b"9" * 30, b"\xff\xff"):
        waiting._seat.box.sendto(message, waiting._seat.box.getsockname())
    assert waiting.wait(SOON) is None
    assert not waiting.leads
    assert waiting.hangs
    waiting.leave()
    leader.leave()


def test_who_waited_in_vain_is_remembered_until_somebody_leads(root: Path) -> None:
    queue = LocalQueue(str(root))
    leader, waiting = _place(root, "leader"), queue.place("waiting", 0.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(leader.lead).result()
    assert not waiting.lead()
    assert waiting.join(b"")
    assert [waiting.hangs, waiting.wait(0.0), waiting.hangs] == [False, None, True]
    leader.leave()
    after = queue.place("next", 0.0)
    assert after.lead()
    assert not queue.hangs
    after.leave()
    waiting.leave()


def test_notes_go_from_leader_to_leader(root: Path) -> None:
    place = _place(root, "leader")
    assert place.told() == b""
    assert place.lead()
    place.tell(b"no queue yet, so nobody to tell")
    assert place.told() == b""
    other = _joined(root, "other")
    place.tell(b"a longer note than the next")
    place.tell(b"short")
    assert other.told() == b"short"
    place.leave()
    other.leave()


def test_there_is_no_queue_before_a_table_that_is_gone(tmp_path: Path) -> None:
    place = _place(tmp_path, "late")
    assert not place.lead()
    assert not place.join(b"rows")
    place.leave()
    assert list(tmp_path.iterdir()) == []


def test_nobody_waits_for_oneself(root: Path) -> None:
    outer = _place(root, "outer")
    assert outer.lead()
    inner = _place(root, "inner")
    assert not inner.lead()
    assert not inner.join(b"rows"), "in the thread that leads"
    inner.leave()
    assert outer.leads
    _joined(root, "other").leave()
    outer.leave()
    assert inner.lead()
    inner.leave()


def test_what_is_too_large_is_not_offered(root: Path) -> None:
    leader = _place(root, "leader")
    assert leader.lead()
    place = _place(root, "large")
    assert not place.lead()
    assert not place.join(b"x" * (2**20 + 1))
    assert leader.offers(9) == []
    assert _entries(root) == []
    place.leave()
    leader.leave()


def test_only_a_local_directory_has_such_a_queue(tmp_path: Path) -> None:
    assert queue_of(LocalStore(tmp_path)) is not None


@pytest.mark.parametrize("how", ["lead", "wait"])
def test_the_dead_hold_up_nobody(root: Path, how: str) -> None:
    mine = _place(root, "mine")
    if how == "wait":
        assert mine.lead()
    with subprocess.Popen([sys.executable, "-c", CHILD, str(root), how], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if how == "lead":
            assert not mine.lead()
        else:
            assert [offer.transaction_id for offer in mine.offers(9)] == ["child"]
        os.kill(child.pid, signal.SIGSTOP)
        assert mine.lead() is (how == "wait"), "a process that is stopped is not dead"
        if how == "wait":
            assert [offer.transaction_id for offer in mine.offers(9)] == ["child"]
        child.kill()
    if how == "lead":
        assert mine.lead()
    assert mine.offers(9) == []
    assert _entries(root) == []
    mine.leave()


# ---- one turn after the other --------------------------------------------------------------------------------------------------------


def _turn(queue: LocalQueue, root: Path, *, answered: bool = True) -> LocalPlace | None:
    """A turn of a leader who finds one in the queue, while another comes; the other, or None if it is not for the leader to lead."""
    leader = queue.place("leader", 0.0)
    if not leader.lead():
        leader.leave()
        return None
    first = _joined(root, "first", 1.0)
    assert [offer.transaction_id for offer in leader.offers(9)] == ["first"]
    second = _joined(root, "second", 2.0)
    if answered:
        leader.answer("first", 7)
    leader.leave()
    if not answered:
        assert _woken(first)
    first.leave()
    return second


def _woken(place: LocalPlace) -> bool:
    assert place._seat is not None
    place._seat.box.setblocking(False)
    try:
        return place._seat.box.recv(99) == b""
    except BlockingIOError:
        return False


def test_who_comes_back_at_once_leads_again_and_not_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the last version, and takes along whoever waits; nobody has to be woken to lead."""
    queue, hands, woken = LocalQueue(str(root)), Hands(monkeypatch, {}), list[bool]()
    hands.now = 100.0
    for _ in range(16):
        hands.now += 0.001
        second = _turn(queue, root)
        assert second is not None
        woken.append(_woken(second))
        second.leave()
    assert woken == [True, *[False] * 14, True], "of the first turn nobody knows that another one follows; the last leaves it to others"
    waiting = queue.place("waiting", 0.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(waiting.lead).result(), "without anybody in the queue there is nobody to leave it to"
        pool.submit(waiting.leave).result()


def test_who_was_committed_leaves_the_lead_to_who_is_about_to_lead_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever comes back first would lead, and would have to read the last version before."""
    leading, waiting, hands = LocalQueue(str(root)), LocalQueue(str(root)), Hands(monkeypatch, {})

    def turn(version: int) -> None:
        leader = leading.place("leader", 0.0)
        assert leader.lead()
        with ThreadPoolExecutor(1) as pool:
            member = waiting.place("member", 0.0)
            assert not pool.submit(member.lead).result()
            assert pool.submit(member.join, b"rows").result()
        assert len(leader.offers(9)) == 1
        leader.answer("member", version)
        leader.leave()
        assert member.wait(LONG) == version
        member.leave()

    def leads() -> bool:
        place = waiting.place("next", 0.0)
        try:
            return place.lead()
        finally:
            place.leave()

    turn(1)
    assert leads(), "nobody knows yet that the leader comes back"
    hands.now += 0.001
    turn(2)
    assert not leads()
    hands.now += 0.003
    assert leads(), "it did not come back"
    for version in range(3, 17):
        turn(version)
    assert leads(), "it has led for long"


def test_who_led_for_long_leaves_the_lead_to_one_who_waits(root: Path) -> None:
    queue = LocalQueue(str(root))
    with_lead = _place(root, "with lead")
    assert with_lead.lead()
    other = _joined(root, "other")
    with_lead.leave()
    queue.turns_in_a_row = 16
    mine = queue.place("mine", 5.0)
    assert not mine.lead(), "though it is free"
    assert mine.join(b"rows")
    assert other.wait(LONG) is None
    assert other.leads
    assert [offer.transaction_id for offer in other.offers(9)] == ["mine"]
    other.answer("mine", 3)
    assert mine.wait(LONG) == 3
    mine.leave()
    other.leave()


def test_who_leaves_the_lead_to_one_who_does_not_take_it_leads_again(root: Path) -> None:
    queue = LocalQueue(str(root))
    with_lead = _place(root, "with lead")
    assert with_lead.lead()
    other = _joined(root, "other")
    with_lead.leave()
    queue.turns_in_a_row = 16
    mine = queue.place("mine", 5.0)
    assert not mine.lead()
    assert mine.join(b"rows")
    assert mine.wait(LONG) is None
    assert mine.leads
    mine.leave()
    other.leave()


def test_who_was_passed_over_leads_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader does not take along those of another kind: they would wait for as long as it leads."""
    queue, hands = LocalQueue(str(root)), Hands(monkeypatch, {})
    hands.now = 100.0
    for _ in range(3):
        second = _turn(queue, root)
        assert second is not None
        second.leave()
    second = _turn(queue, root, answered=False)
    assert second is not None
    assert not _woken(second)
    assert _turn(queue, root) is None, "and it is not for the last leader to lead"
    second.leave()


def test_who_was_passed_over_leads_next_before_other_threads_of_the_leader(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, hands = LocalQueue(str(root)), Hands(monkeypatch, {})
    hands.now = 100.0
    second = _turn(queue, root, answered=False)
    assert second is not None
    queue.turns_in_a_row = 0  # another thread asked for the lead while we had it
    sibling, later = (queue.place(name, hands.now) for name in ("sibling", "later"))
    assert not sibling.lead()
    hands.now += 0.003
    assert later.lead(), "but not for long: whoever was woken may be dead"
    for place in (sibling, later, second):
        place.leave()


# ---- those who are about to come back ------------------------------------------------------------------------------------------------


class Hands:
    """A clock that goes on by each sleep alone, and lets writers in at given times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, arrivals: Mapping[float, Callable[[], object]]) -> None:
        self.now = 0.0
        self.slept = 0
        self._arrivals = dict(arrivals)
        own_time(monkeypatch, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        for moment in [moment for moment in self._arrivals if moment <= self.now]:
            self._arrivals.pop(moment)()


def _crowd(root: Path, company: int) -> LocalPlace:
    leader = _place(root, "leader")
    leader.queue.company = company
    assert leader.lead()
    return leader


def test_whoever_is_alone_waits_for_nobody(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, hands = _crowd(root, 0), Hands(monkeypatch, {})
    leader.gather(_newest(root))
    assert hands.slept == 0
    leader.leave()


def test_a_leader_waits_for_half_of_those_who_were_there_and_no_longer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = _crowd(root, 4)
    places: list[LocalPlace] = []
    arrivals = {0.001: lambda: places.append(_joined(root, "a")), 0.0025: lambda: places.append(_joined(root, "b"))}
    hands = Hands(monkeypatch, arrivals)
    leader.gather(_newest(root))
    assert 0.0025 <= hands.now < 0.003, "the second came within the time that is given for one, and with it half are there"
    assert [offer.transaction_id for offer in leader.offers(9)] == ["a", "b"]
    leader.leave()
    for place in places:
        place.leave()


def test_a_leader_does_not_wait_for_who_does_not_come_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, hands = _crowd(root, 5), Hands(monkeypatch, {})
    leader.gather(_newest(root))
    assert 0.002 <= hands.now < 0.003
    assert leader.offers(9) == []
    leader.gather(_newest(root))
    assert hands.now < 0.003, "nor does the next"
    leader.leave()


def test_those_who_trickle_in_do_not_hold_a_leader_for_long(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = _crowd(root, 200)
    places: list[LocalPlace] = []
    arrivals = {0.0015 * number: partial(lambda name: places.append(_joined(root, name)), f"w{number:03}") for number in range(1, 40)}
    hands = Hands(monkeypatch, arrivals)
    leader.gather(_newest(root))
    assert 0.02 <= hands.now < 0.021
    leader.leave()
    for place in places:
        place.leave()


def test_leaders_wait_longer_where_company_came_too_late_and_shorter_where_nobody_came(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, hands, names = LocalQueue(str(root)), Hands(monkeypatch, {}), map(str, count())

    def turn(late: bool) -> float:
        """The seconds that a leader waits for one who comes during the turn, or not at all."""
        queue.company, queue.until_room, begun = 1, 256, hands.now
        leader = queue.place("leader", 0.0)
        assert leader.lead()
        leader.gather(_newest(root))
        waited = hands.now - begun
        others = [_joined(root, next(names))] if late else []
        leader.leave()
        for other in others:
            other.leave()
        return round(waited, 3)

    assert [turn(late=True) for _ in range(6)] == [0.002, 0.004, 0.008, 0.016, 0.016, 0.016]
    assert [turn(late=False) for _ in range(6)] == [0.016, 0.008, 0.004, 0.002, 0.002, 0.002]


def test_who_leads_from_the_queue_is_no_company_of_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _crowd(root, 0)
    second = _joined(root, "second")
    first.leave()
    assert second.wait(LONG) is None
    second.queue.company = 1
    places: list[LocalPlace] = []
    hands = Hands(monkeypatch, {0.001: lambda: places.append(_joined(root, "third"))})
    second.gather(_newest(root))
    assert hands.now >= 0.001
    assert [offer.transaction_id for offer in second.offers(9)] == ["third"]
    for place in (second, *places):
        place.leave()


def test_all_of_a_version_know_how_many_they_were(root: Path) -> None:
    leader = _crowd(root, 0)
    members = [_joined(root, name) for name in ("a", "b", "c")]
    for offer in leader.offers(9):
        leader.answer(offer.transaction_id, 7)
    assert [member.wait(LONG) for member in members] == [7, 7, 7]
    assert [place.queue.company for place in (leader, *members)] == [3, 3, 3, 3]
    for place in (leader, *members):
        place.leave()


# ---- writers who know nothing of the queue ----------------------------------------------------------------------------------------


def _rooms(leader: LocalPlace, hands: Hands, versions: int) -> dict[int, float]:
    """The seconds that a leader let go by before each of so many versions, where it did."""
    waits: dict[int, float] = {}
    for version in range(1, versions + 1):
        begun = hands.now
        leader.gather(lambda: 0)
        if hands.now > begun:
            waits[version] = hands.now - begun
    return waits


def test_a_leader_leaves_room_from_time_to_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, hands = _crowd(root, 0), Hands(monkeypatch, {})
    leader.queue.lasted = 0.01
    waits = _rooms(leader, hands, 600)
    assert list(waits) == [64, 320, 576]
    assert all(0.03 <= wait < 0.031 for wait in waits.values()), "three times what its last version took"
    leader.queue.company, leader.queue.until_room = 3, 256
    crowded = {version: wait for version, wait in _rooms(leader, hands, 64).items() if wait > 0.01}
    assert list(crowded) == [64], "of a crowd each version counts as often as it has rows of somebody"
    leader.leave()


def test_once_a_stranger_came_room_is_left_for_each_of_his_versions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, hands = _crowd(root, 0), Hands(monkeypatch, {})
    leader.queue.lasted = 0.001
    leader.meet_strangers(0.3)
    waits = _rooms(leader, hands, 200)
    assert list(waits) == [1, 3, 7, 15, 31, 63, 127], "ever less, as none comes"
    assert 0.015 <= waits[1] < 0.016, "time enough for one"
    leader.meet_strangers(0.3)
    assert list(_rooms(leader, hands, 2)) == [1]
    leader.meet_strangers(0.5)
    assert list(_rooms(leader, hands, 2)) == [2], "those who have their share need no room before the next"
    leader.leave()


def test_the_room_ends_when_a_stranger_used_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = _crowd(root, 0)
    os.utime(root / "_versions", ns=(0, 0))
    hands = Hands(monkeypatch, {0.004: (root / "_versions/2.manifest").touch})
    leader.queue.lasted = 1.5
    leader.meet_strangers(0.1)
    leader.gather(_newest(root))
    assert 0.004 <= hands.now < 0.005
    hands.now = 10.0
    leader.meet_strangers(0.1)
    leader.gather(_newest(root))
    assert 12.0 <= hands.now < 12.01, "the longest room there is"
    (root / "_versions/2.manifest").unlink()
    (root / "_versions").rmdir()
    leader.queue.until_room = 1
    leader.gather(_newest(root))
    assert hands.now > 12.01, "a table that is gone has no strangers"
    leader.leave()


def test_a_leader_knows_how_long_its_version_took(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(monkeypatch, {})
    leader = _crowd(root, 0)
    hands.now += 0.25
    leader.leave()
    assert leader.queue.lasted == pytest.approx(0.25)
