"""Uploads that are waited for later: none is lost, none comes back, and one that failed is sent again."""

from __future__ import annotations

import threading

import pytest

from tiltyard.errors import StorageError
from tiltyard.storage.uploads import Uploads, ask_together


class Puts:
    """Where uploads go: keeps what it got, fails as often as told, and may be held up."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failures = 0
        self.sent: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def put(self, path: str, data: bytes) -> None:
        assert self.free.wait(30)
        self.sent.append(path)
        if self.failures:
            self.failures -= 1
            raise StorageError("no answer", name=path, transient=True)
        self.objects[path] = data


def test_what_was_begun_is_there_when_it_was_waited_for() -> None:
    puts = Puts()
    puts.free.clear()
    uploads = Uploads(puts.put)
    uploads.begin("a", b"1")
    uploads.begin("b", b"2")
    assert puts.objects == {}
    puts.free.set()
    uploads.finish(["a", "b", "never begun"])
    assert puts.objects == {"a": b"1", "b": b"2"}
    uploads.finish(["a"])
    assert sorted(puts.sent) == ["a", "b"]


def test_one_that_failed_is_told_of_and_sent_again_by_who_waits_again() -> None:
    puts = Puts()
    puts.failures = 2
    uploads = Uploads(puts.put)
    uploads.begin("a", b"1")
    for _ in range(2):
        with pytest.raises(StorageError):
            uploads.finish(["a"])
    uploads.finish(["a"])
    assert puts.objects == {"a": b"1"}
    assert puts.sent == ["a"] * 3


def test_all_are_waited_for_before_a_failure_is_told() -> None:
    puts = Puts()
    puts.failures = 1
    uploads = Uploads(puts.put)
    uploads.begin("a", b"1")
    uploads.settle("a")
    uploads.begin("b", b"2")
    with pytest.raises(StorageError):
        uploads.finish(["a", "b"])
    assert puts.objects == {"b": b"2"}


def test_what_is_removed_does_not_come_back() -> None:
    puts = Puts()
    puts.free.clear()
    uploads = Uploads(puts.put)
    uploads.begin("a", b"1")
    threading.Timer(0.01, puts.free.set).start()
    uploads.forget("a")
    assert puts.objects == {"a": b"1"}, "so that whoever deletes it now does so for good"
    uploads.finish(["a"])
    assert puts.sent == ["a"]


def test_the_second_of_two_writes_of_one_object_wins() -> None:
    puts = Puts()
    uploads = Uploads(puts.put)
    for number in range(50):
        uploads.begin("a", b"%d" % number)
    uploads.finish(["a"])
    assert puts.objects == {"a": b"49"}


def test_questions_are_asked_at_the_same_time_and_all_are_answered_before_a_failure_is_told() -> None:
    meeting = threading.Barrier(3, timeout=30)
    assert ask_together([meeting.wait] * 3) != [0, 0, 0]
    done: list[int] = []

    def fail() -> None:
        raise StorageError("no")

    with pytest.raises(StorageError):
        ask_together([fail, lambda: done.append(1), lambda: done.append(2)])
    assert sorted(done) == [1, 2]
