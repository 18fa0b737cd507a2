"""A stranger with pylance's back-off beside writers of ours, in virtual time: the queue is the real one, its directory too.

pylance looks for the newest version, makes the next one some milliseconds later, and if it was beaten sleeps for a number of slots before
it looks again: one of four in the beginning, of twice as many each time. A slot is as long as its first attempt took. So whoever makes
versions faster than it has to notice that it is there, or it never wins.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.own_time import own_time
from tiltyard.storage.local import ADVICE
from tiltyard.storage.local_queue import LocalPlace, LocalQueue
from tiltyard.storage.strangers import Strangers

FIRST_SLOTS = 4


class Stranger:
    """The steps of a writer in a closed loop, and a clock that goes on by what everybody does."""

    def __init__(self, root: Path, slowness: float) -> None:
        self.now, self.head, self.made, self.beaten = 0.0, 1, 0, 0
        self._root, self._slowness, self._random = root, slowness, random.Random(7)
        self._staged = root / "_versions/18446744073709551613.manifest#1"
        self.change()
        self._begin()

    def change(self) -> None:
        """Somebody changed something beside the versions, which the times of files tell in the end."""
        os.utime(self._root / "_versions", ns=(0, int(self.now * 1e9) + 1))

    def hint(self) -> None:
        """As pylance does it: under another name first."""
        (self._root / "_versions/.tmpxyz").touch()
        (self._root / "_versions/.tmpxyz").rename(self._root / ADVICE)
        self.change()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._next[0] <= end:
            self.now = max(self.now, self._next[0])
            self._next[1]()
        self.now = end

    def _in(self, seconds: float, step: Callable[[], None]) -> None:
        self._next = (self.now + self._slowness * seconds, step)

    def _begin(self) -> None:
        self._attempts = 0
        self._in(self._random.uniform(0.003, 0.005), self._look)  # its rows are written meanwhile

    def _look(self) -> None:
        if not self._attempts:
            self._begun = self.now
        self._seen = self.head
        self._in(self._random.uniform(0.003, 0.004), self._create)

    def _create(self) -> None:
        self._staged.touch()
        self.change()
        if self.head == self._seen:
            self.head += 1
            self.made += 1
            self._in(0.0005, self._finish)
        else:
            self.beaten += 1
            self._in(0.0002, self._withdraw)

    def _finish(self) -> None:
        self._staged.unlink()
        self.hint()
        self._begin()

    def _withdraw(self) -> None:
        self._staged.unlink()
        self.change()
        if not self._attempts:
            self._slot = 1.1 * (self.now - self._begun)
        slots = self._random.randrange(FIRST_SLOTS * 2**self._attempts)
        self._attempts += 1
        self._next = (self.now + slots * self._slot, self._look)


def _shares(root: Path, ours: int, slowness: float, seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Stranger]:
    """The stranger's part of an even share, beside so many of ours who are all in each version of the leader."""
    stranger, queue, made, last = Stranger(root, slowness), LocalQueue(str(root)), 0, 1
    own_time(monkeypatch, lambda: stranger.now, stranger.advance)
    monkeypatch.setattr(LocalPlace, "_entries", lambda self: [])
    while stranger.now < seconds:
        stranger.advance(0.0008)
        place = queue.place("ours", 0.0)
        assert place.lead()
        place.gather(lambda: stranger.head)
        while True:
            head = stranger.head
            stranger.advance(0.0004 * (1 + 0.3 * (ours - 1)))
            place.offers(64)
            stranger.advance(0.0002)
            if stranger.head == head:
                break
        theirs, last = stranger.head - last, stranger.head + 1
        stranger.head = last
        (root / f"_versions/{last}.manifest").touch()
        stranger.change()
        made += ours
        if theirs:
            place.meet_strangers(theirs / (theirs + 1))
        place.leave()
    return stranger.made / (stranger.made + made) * (ours + 1), stranger


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "_versions").mkdir()
    return tmp_path


@pytest.mark.parametrize("slowness", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("ours", [1, 2, 4])
def test_a_stranger_gets_half_of_an_even_share(root: Path, ours: int, slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    share, stranger = _shares(root, ours, slowness, 1.0, monkeypatch)
    print(f"share {share:.2f}, made {stranger.made}, beaten {stranger.beaten}")
    possible = 1.0 / (0.008 * slowness) * 0.5
    assert share >= 0.5 or stranger.made >= possible, "half of an even share, or half of what it makes alone"
    assert share <= 1.5


def test_a_child_does_not_take_what_its_parent_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Strangers(str(root / "_versions"))
    (root / "_versions/2.manifest#1").touch()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        assert not watch.were_beaten()
    assert watch.were_beaten()
    assert not watch.were_beaten()


def test_tables_of_one_process_are_told_apart(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a", "b")]
    for name in names:
        name.mkdir()
    one, two = (Strangers(str(name)) for name in names)
    again = Strangers(str(names[0]))
    (names[0] / "2.manifest#1").touch()
    assert not two.were_beaten()
    assert one.were_beaten()
    assert not again.were_beaten(), "he needs room once"
    del one
    gc.collect()
    (names[0] / "3.manifest#1").touch()
    assert again.were_beaten(), "as long as anybody wants to know"
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    more = [Strangers(str(names[1])) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    del more


def test_of_much_that_happened_the_last_attempt_counts(root: Path) -> None:
    watch = Strangers(str(root / "_versions"))
    for number in range(3000):
        (root / f"_versions/{number}.manifest").touch()
    (root / "_versions/2.manifest#1").touch()
    assert watch.were_beaten()
    (root / "_versions/3.manifest#1").touch()
    (root / "_versions/.tmp").touch()
    (root / "_versions/.tmp").rename(root / ADVICE)
    assert not watch.were_beaten()


def test_a_directory_that_is_not_there_has_no_strangers(root: Path) -> None:
    assert not Strangers(str(root / "nowhere")).were_beaten()


def test_nobody_waits_for_a_stranger_who_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of ours that take turns, with the times that this file system really gives."""
    rooms: list[bool] = []
    real = LocalPlace._leave_room

    def noted(self: LocalPlace, newest: Callable[[], int], *, beaten: bool = False) -> None:
        rooms.append(beaten)
        real(self, newest, beaten=beaten)

    monkeypatch.setattr(LocalPlace, "_leave_room", noted)
    rows = pa.table({"n": [1]})
    ty.Table.create(str(tmp_path / "t"), rows)
    tables = [ty.Table.open(str(tmp_path / "t")) for _ in range(2)]
    for number in range(60):
        tables[number % 2].append(rows)
    assert rooms == [], "the first room by number comes after 64"
    staged = tmp_path / "t/_versions/18446744073709551600.manifest#1"
    staged.touch()
    staged.unlink()
    tables[0].append(rows)
    assert rooms == [True], "one who was beaten leaves nothing behind"
    tables[0].append(rows)
    assert rooms.count(True) == 1, "once for each attempt"
    lance.write_dataset(rows, str(tmp_path / "t"), mode="append")
    tables[0].append(rows)
    assert rooms.count(True) == 1, "one who won was not beaten"
