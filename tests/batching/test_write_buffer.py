"""What waits in a writer: when it is due, what goes into one batch, and who may add more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiltyard.batching.batch_writer import Receipt
from tiltyard.batching.write_buffer import BatchLimits, Entry, WriteBuffer
from tiltyard.errors import InvalidInput

NOW = float("-inf")
"""Due at once."""


def entry(count: int = 1, size: int = 10, due: float = 5.0, column: str = "id") -> Entry:
    return Entry(pa.table({column: list(range(count))}), size, due, Receipt())


def buffer(**limits: float) -> WriteBuffer:
    return WriteBuffer(BatchLimits(**limits))  # type: ignore[arg-type]


def test_an_empty_one_is_never_due() -> None:
    held = buffer()
    assert held.due_at() is None
    held.want_all()
    assert held.due_at() is None
    held.add(entry(due=3.0))
    assert held.due_at() == 3.0, "a flush of nothing leaves nothing due"


def test_the_oldest_rows_say_when() -> None:
    held = buffer()
    held.add(entry(due=3.0))
    held.add(entry(due=4.0))
    assert held.due_at() == 3.0


@pytest.mark.parametrize(("counts", "due"), [([3], 5.0), ([2, 1], 5.0), ([4], NOW), ([2, 2], NOW), ([9], NOW)])
def test_enough_rows_are_due_at_once(counts: list[int], due: float) -> None:
    held = buffer(max_rows=4)
    for count in counts:
        held.add(entry(count))
    assert held.due_at() == due


@pytest.mark.parametrize(("sizes", "due"), [([39], 5.0), ([20, 19], 5.0), ([40], NOW), ([20, 20], NOW)])
def test_so_are_enough_bytes(sizes: list[int], due: float) -> None:
    held = buffer(max_bytes=40)
    for size in sizes:
        held.add(entry(size=size))
    assert held.due_at() == due


def test_a_flush_makes_due_what_was_there_and_nothing_that_comes_later() -> None:
    held = buffer(max_rows=2)
    first = entry(due=3.0)
    held.add(first)
    held.want_all()
    assert held.due_at() == NOW
    assert held.take() == [first]
    held.add(entry(due=4.0))
    assert held.due_at() == 4.0


@pytest.mark.parametrize(
    ("counts", "batches"),
    [([1, 1, 1], [3]), ([2, 2, 1], [2, 1]), ([3, 1], [2]), ([4, 1], [1, 1]), ([9, 9, 1], [1, 1, 1]), ([1, 9, 1, 1], [1, 1, 2])],
)
def test_a_batch_ends_at_the_limit_and_holds_one_append_at_least(counts: list[int], batches: list[int]) -> None:
    held = buffer(max_rows=4)
    entries = [entry(count) for count in counts]
    for added in entries:
        held.add(added)
    taken = []
    while held.waiting:
        taken.append(held.take())
    assert [len(batch) for batch in taken] == batches
    assert [one for batch in taken for one in batch] == entries, "in the order they came"


def test_other_columns_are_another_batch() -> None:
    held = buffer()
    for column in ("id", "id", "note", "id"):
        held.add(entry(column=column))
    assert [len(held.take()) for _ in range(3)] == [2, 1, 1]


def test_room_is_counted_until_the_answer_is_there() -> None:
    held = buffer(max_bytes=10, buffer_bytes=30)
    for size in (10, 15):
        held.add(entry(size=size))
    ticket = held.stand_in_line()
    assert held.admits(ticket, 5)
    assert not held.admits(ticket, 6)
    batch = held.take()
    assert not held.admits(ticket, 6), "being committed is not committed"
    held.settle(batch)
    assert held.admits(ticket, 15)
    assert not held.admits(ticket, 16)
    assert (held.held, len(held.unsettled)) == (15, 1)


def test_more_than_the_buffer_comes_in_alone() -> None:
    held = buffer(max_bytes=10, buffer_bytes=30)
    ticket = held.stand_in_line()
    assert held.admits(ticket, 1000)
    held.add(entry(size=1))
    assert not held.admits(ticket, 1000)


def test_nobody_is_overtaken_in_line() -> None:
    held = buffer(max_bytes=10, buffer_bytes=30)
    held.add(entry(size=20))
    large, small = held.stand_in_line(), held.stand_in_line()
    assert not held.admits(large, 20)
    assert not held.admits(small, 1), "or the large one would wait for ever"
    held.leave_line(large)
    assert held.admits(small, 1)


def test_who_waits_for_room_makes_a_batch_due() -> None:
    held = buffer(max_bytes=40, buffer_bytes=40)
    held.add(entry(size=30))
    assert held.due_at() == 5.0
    held.stand_in_line()
    assert held.due_at() == NOW


def test_four_batches_are_held_by_default() -> None:
    assert BatchLimits(max_bytes=7).capacity == 28
    assert BatchLimits(max_bytes=7, buffer_bytes=9).capacity == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_delay", -1), ("max_delay", float("nan")), ("max_delay", float("inf")), ("max_delay", True), ("max_delay", "1")]
    + [(name, value) for name in ("max_rows", "max_bytes", "buffer_bytes") for value in (0, -1, 1.5, True, "1")],
)
def test_limits_that_are_none(name: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        BatchLimits(**{name: value})  # type: ignore[arg-type]
    assert caught.value.argument == name
