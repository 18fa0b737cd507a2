"""The queue of one process, and that of one machine before a table elsewhere: who leads, who waits, what is handed over."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from tiltyard.interfaces import NOT_TAKEN, CarriesVersions, SharesMemory
from tiltyard.storage import LocalStore, MemoryStore, open_store, queue_of
from tiltyard.storage.local_queue import LocalQueue
from tiltyard.storage.machine_queue import MachineQueue, machine_queue
from tiltyard.storage.thread_queue import ThreadQueue
from tiltyard.testing import CountingStore

PATIENCE = 30.0


@pytest.fixture
def queue() -> ThreadQueue:
    return ThreadQueue()


def test_one_leads_and_hands_the_lead_to_who_waits_longest(queue: ThreadQueue) -> None:
    first, late, early = queue.place("first", 0.0), queue.place("late", 2.0), queue.place("early", 1.0)
    assert first.lead()
    assert not late.lead()
    joined = threading.Event()

    def elsewhere() -> None:
        for place in (late, early):
            assert place.join(b"data")
        joined.set()

    threading.Thread(target=elsewhere).start()
    assert joined.wait(PATIENCE)
    assert [offer.transaction_id for offer in first.offers(10)] == ["early", "late"]
    assert [offer.transaction_id for offer in first.offers(1)] == ["early"]
    first.leave()
    assert (early.leads, late.leads) == (True, False)
    assert not first.lead(), "who comes later does not get ahead"
    assert early.wait(PATIENCE) is None
    assert early.offers(10)[0].transaction_id == "late"
    early.leave()
    assert late.leads
    late.leave()
    assert first.lead()


def test_who_waits_is_called_with_an_answer(queue: ThreadQueue) -> None:
    leader = queue.place("leader", 0.0)
    assert leader.lead()
    answers: list[int | None] = []
    waiting = threading.Semaphore(0)

    def member(number: int) -> None:
        place = queue.place(f"m{number}", float(number))
        assert place.join(b"data" if number < 3 else b"")
        waiting.release()
        answers.append(place.wait(PATIENCE))
        place.leave()

    threads = [threading.Thread(target=member, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=PATIENCE)
    assert {offer.transaction_id for offer in leader.offers(10)} == {"m0", "m1", "m2"}, "who brings nothing waits for a turn of its own"
    leader.answer("m0", 7)
    leader.answer("m1", 7)
    leader.answer("m2")
    leader.answer("nobody", 7)
    leader.leave()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(answers, key=str) == sorted([7, 7, NOT_TAKEN, None], key=str)


def test_who_waits_in_vain_goes_on(queue: ThreadQueue) -> None:
    assert queue.place("leader", 0.0).lead()
    told: list[object] = []

    def member() -> None:
        place = queue.place("m", 1.0)
        told.append(place.join(b"data"))
        told.append(place.wait(0.0))
        told.append((place.leads, place.hangs))
        place.leave()

    thread = threading.Thread(target=member)
    thread.start()
    thread.join(PATIENCE)
    assert told == [True, None, (False, True)]
    assert queue.waiting == []


def test_the_lead_that_became_free_before_anybody_joined(queue: ThreadQueue) -> None:
    leader, place = queue.place("leader", 0.0), queue.place("m", 1.0)
    assert leader.lead()
    assert not place.lead()
    leader.leave()
    assert place.join(b"data")
    assert place.wait(PATIENCE) is None
    assert place.leads
    assert place.offers(10) == []


def test_nobody_waits_for_oneself_nor_brings_too_much(queue: ThreadQueue) -> None:
    leader = queue.place("leader", 0.0)
    assert leader.lead()
    assert not queue.place("within", 1.0).join(b"data")
    leader.leave()
    assert not queue.place("large", 1.0).join(bytes(2**20 + 1))


def test_a_child_that_was_forked_has_a_queue_of_its_own(queue: ThreadQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert queue.place("in the parent", 0.0).lead()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert queue.place("in the child", 0.0).lead()


def test_which_store_has_which_queue(tmp_path: Path) -> None:
    assert isinstance(queue_of(LocalStore(tmp_path)), LocalQueue)
    memory = MemoryStore()
    assert queue_of(memory) is queue_of(memory)
    assert queue_of(memory) is not queue_of(MemoryStore())
    assert queue_of(CountingStore(memory)) is None
    options = {"aws_endpoint": "http://127.0.0.1:1", "allow_http": "true"}
    first, again = (open_store(f"s3://bucket/{tmp_path.name}", storage_options=options) for _ in range(2))
    mine = queue_of(first)
    assert isinstance(mine, MachineQueue)
    assert mine is queue_of(again)
    assert mine is not queue_of(open_store("s3://bucket/other", storage_options=options))


# ---- one machine -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"tiltyard-{os.getuid()}"


def test_the_directory_is_ours_alone(here: Path) -> None:
    assert isinstance(machine_queue("s3://bucket at http://here s3://bucket/table"), SharesMemory)
    assert stat.S_IMODE(here.stat().st_mode) == 0o700
    assert machine_queue("another table") is not None
    assert len(list(here.iterdir())) == 2


@pytest.mark.parametrize("what", ["open to others", "a link", "a file"])
def test_a_directory_that_others_could_have_made_is_not_used(here: Path, tmp_path: Path, what: str) -> None:
    if what == "open to others":
        here.mkdir()
        here.chmod(0o777)
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        here.symlink_to(tmp_path / "elsewhere")
    else:
        here.write_text("")
    assert machine_queue("table") is None


def test_places_of_two_processes_meet(here: Path) -> None:
    one, two = machine_queue("table"), machine_queue("table")
    assert one is not None
    assert two is not None
    leader, other = one.place("leader", 0.0), two.place("other", 1.0)
    assert leader.lead()
    assert not other.lead()
    answered: list[int | None] = []

    def wait() -> None:
        assert other.join(b"data")
        joined.set()
        answered.append(other.wait(PATIENCE))
        other.leave()

    joined = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert joined.wait(PATIENCE)
    assert [offer.data for offer in leader.offers(10)] == [b"data"]
    leader.answer("other", 9)
    thread.join(PATIENCE)
    leader.leave()
    assert answered == [9]
    assert [path for path in here.rglob("*") if path.name.endswith(".txn")] == [], "the leader announces it, in the store"


def test_a_version_is_handed_over(here: Path) -> None:
    one, two = machine_queue("table"), machine_queue("table")
    assert one is not None
    assert two is not None
    leader, other = one.place("leader", 0.0), two.place("other", 1.0)
    assert isinstance(leader, CarriesVersions)
    assert other.carried("_versions/1") == b""
    leader.carry("_versions/1", b"first\nline")
    assert other.carried("_versions/1") == b"first\nline"
    assert other.carried("_versions/2") == b""
    leader.carry("_versions/2", bytes(5 * 2**20))
    assert other.carried("_versions/2") == b""
    assert other.carried("_versions/1") == b"", "nor what it took the place of"
    leader.carry("_versions/3", bytes(5 * 2**20))


def test_without_its_directory_everybody_goes_on_alone(here: Path) -> None:
    queue = machine_queue("table")
    assert queue is not None
    shutil.rmtree(here)
    place = queue.place("alone", 0.0)
    assert not place.lead()
    assert not place.join(b"data")
    place.carry("_versions/1", b"version")
    place.leave()
    assert not here.exists(), "nobody makes it anew with other rights"
