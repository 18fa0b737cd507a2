"""Seats before a table are used again: by the same process, for one transaction after the other, never for two at a time."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tiltyard.storage import queue_seats
from tiltyard.storage.queue_seats import Seat, Seats, read_entry, send, transaction_of, vacate

MOST = 2**20


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "queue")


def _names(directory: str) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


def entries(directory: str) -> list[str]:
    return [name for name in _names(directory) if name.startswith(queue_seats.WAITING)]


def _read(directory: str) -> list[bytes]:
    return [read_entry(directory, entry, MOST) for entry in entries(directory)]


def test_one_file_does_for_many_commits(directory: str) -> None:
    seats, files = Seats(directory), set[int]()
    for number, data in enumerate((b"rows", b"a longer transaction than before", b"", b"short")):
        seat = seats.take(float(number), f"id-{number}", data)
        files.add(Path(seat.entry).stat().st_ino)
        assert [transaction_of(entry) for entry in entries(directory)] == [f"id-{number}"]
        assert _read(directory) == [data]
        seats.give_back(seat)
        assert entries(directory) == []
        assert len(_names(directory)) == 1
    assert len(files) == 1, "none was created or deleted for a commit"


def test_two_who_wait_have_two(directory: str) -> None:
    seats = Seats(directory)
    late, early = seats.take(2.0, "late", b"two"), seats.take(1.0, "early", b"one")
    assert _read(directory) == [b"one", b"two"]
    seats.give_back(late)
    assert _read(directory) == [b"one"]
    seats.give_back(early)


def test_what_was_taken_out_by_a_leader_is_offered_no_more_and_the_seat_is_good_again(directory: str) -> None:
    seats = Seats(directory)
    seat = seats.take(1.0, "first", b"rows")
    entry = entries(directory)[0]
    vacate(directory, entry)
    assert entries(directory) == []
    seats.give_back(seat)
    again = seats.take(2.0, "second", b"more")
    assert again is seat
    vacate(directory, entry)  # a leader that hung: what it took out is not there under that name
    assert _read(directory) == [b"more"]
    seats.give_back(again)


def test_a_leader_never_takes_one_transaction_for_another(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was slow: between the moment it opened the entry and the moment it reads, the seat came to offer something else."""
    seats = Seats(directory)
    seat = seats.take(1.0, "first", b"rows of the first")
    entry, opened = entries(directory)[0], os.open

    def slow(*given: object, **named: object) -> int:
        descriptor = opened(*given, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(os, "open", opened)
        seats.give_back(seat)
        assert seats.take(2.0, "other", b"rows of another") is seat
        return descriptor

    monkeypatch.setattr(os, "open", slow)
    assert read_entry(directory, entry, MOST) == b""
    assert _read(directory) == [b"rows of another"]
    seats.give_back(seat)


@pytest.mark.parametrize("left", [b"", b"x", b"0123456789abcdef", b"0123456789abcdefrows"])
def test_what_is_half_written_is_not_read(directory: str, left: bytes) -> None:
    seats = Seats(directory)
    seat = seats.take(1.0, "first", b"rows")
    Path(seat.entry).write_bytes(left)
    assert _read(directory) == [b""]
    assert len(entries(directory)) == 1, "its writer lives"
    seats.give_back(seat)


def test_a_table_that_was_made_again_gets_a_new_seat(directory: str) -> None:
    seats = Seats(directory)
    seats.give_back(seats.take(1.0, "first", b"rows"))
    shutil.rmtree(directory)
    seat = seats.take(2.0, "second", b"more")
    assert _read(directory) == [b"more"]
    seats.give_back(seat)


def test_a_handle_that_goes_takes_its_seats_with_it(directory: str) -> None:
    seats = Seats(directory)
    for seat in [seats.take(1.0, "a", b"1"), seats.take(2.0, "b", b"2")]:
        seats.give_back(seat)
    del seats, seat
    gc.collect()
    assert _names(directory) == []


def test_few_are_kept(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_seats, "MOST_KEPT", len(queue_seats._all_kept) + 1)
    seats = Seats(directory)
    for seat in [seats.take(1.0, "a", b"1"), seats.take(2.0, "b", b"2")]:
        seats.give_back(seat)
    assert len(_names(directory)) == 1


def test_where_there_is_no_place_nobody_sits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="directory"):
        Seats(str(tmp_path / "file" / "queue")).take(1.0, "a", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_seat_without_a_letter_box_leaves_nothing(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_seats, "_address", lambda token: "\0" + "x" * 200)
    with pytest.raises(OSError, match="too long"):
        Seat(directory)
    assert _names(directory) == []


FORKS = """
import os, sys
from tiltyard.storage.queue_seats import Seats
seats = Seats(sys.argv[1])
seats.give_back(seats.take(1.0, "parent", b"rows"))
child = os.fork()
if not child:
    seat = seats.take(2.0, "child", b"more")
    seats.give_back(seat)
    sys.exit(0 if len(os.listdir(sys.argv[1])) == 2 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
seat = seats.take(3.0, "parent again", b"rows")
assert len(os.listdir(sys.argv[1])) == 1, "the child took its own away, and not the parent's"
seats.give_back(seat)
"""


def test_a_child_leaves_the_seats_of_its_parent_alone(directory: str) -> None:
    subprocess.run([sys.executable, "-c", FORKS, directory], check=True, timeout=60)
    assert _names(directory) == [], "and each takes its own away in the end"


def test_messages_that_nobody_reads_are_in_nobody_s_way() -> None:
    """The system counts them against the socket they were sent from, and each process has one for all."""
    tokens = [os.urandom(8).hex() for _ in range(400)]
    boxes = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in tokens]
    try:
        for token, box in zip(tokens, boxes, strict=True):
            box.bind(queue_seats._address(token))
            assert send(f"entry.{token}", b"said")
        assert boxes[-1].recv(99) == b"said"
        for _ in range(99):
            full = not send(f"entry.{tokens[0]}", b"said")
        assert full, "one box takes so many and no more"
    finally:
        for box in boxes:
            box.close()
