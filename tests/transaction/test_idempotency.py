"""Numbered work is committed once: the number is in the version that has the rows, and the commit loop looks there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.commits import InterruptedStore, append, is_version, memory_table, overwrite, reopened
from tiltyard.errors import AlreadyCommitted, InvalidInput
from tiltyard.options import CommitOptions
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.verify import check_not_done, last_number, mark, marks_in


def test_a_number_travels_as_a_property() -> None:
    assert mark("q", 7) == {"tiltyard.once.q": "7"}
    assert marks_in({**mark("q", 7), "other": "x"}) == {"tiltyard.once.q": "7"}
    assert (last_number(mark("q", 7), "q"), last_number(mark("q", 7), "r")) == (7, None)


@pytest.mark.parametrize(("source", "number"), [("", 1), (3, 1), ("q", -1), ("q", True), ("q", "1")])
def test_what_is_no_number(source: str, number: int) -> None:
    with pytest.raises(InvalidInput):
        mark(source, number)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 20])
def test_a_config_that_holds_something_else_is_not_guessed_at(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a number"):
        check_not_done(mark("q", 7), {"tiltyard.once.q": text})


@pytest.mark.parametrize(
    ("config", "done"),
    [({}, False), ({"tiltyard.once.q": "6"}, False), ({"tiltyard.once.q": "7"}, True), ({"tiltyard.once.q": "10"}, True),
     ({"tiltyard.once.other": "9"}, False), ({"q": "9"}, False)],
)  # fmt: skip
def test_numbers_up_to_the_last_are_done(config: Mapping[str, str], done: bool) -> None:
    if not done:
        check_not_done(mark("q", 7), config)
        return
    with pytest.raises(AlreadyCommitted, match="Number 7 of 'q'") as caught:
        check_not_done(mark("q", 7), config)
    assert (caught.value.source, caught.value.number, caught.value.last) == ("q", 7, last_number(config, "q"))


def test_the_version_that_has_the_work_says_so() -> None:
    table = memory_table(MemoryStore())
    table.commit(append("a"), commit=CommitOptions(properties=mark("q", 0)))
    assert table.settings.config["tiltyard.once.q"] == "0"
    with pytest.raises(AlreadyCommitted):
        table.commit(append("b"), commit=CommitOptions(properties=mark("q", 0)))
    assert table.layout.latest_version() == table.version
    table.commit(overwrite("c"), commit=CommitOptions(properties={**mark("q", 1), **mark("r", 5)}))
    assert (last_number(table.settings.config, "q"), last_number(table.settings.config, "r")) == (1, 5)


def test_of_two_at_once_one_wins_whoever_read_what() -> None:
    plain = MemoryStore()
    memory_table(plain)
    # The other one comes in between: after ours has looked, before it creates its version.
    store = InterruptedStore(
        plain, is_version, lambda: reopened(plain).commit(append("theirs"), commit=CommitOptions(properties=mark("q", 3)))
    )
    with pytest.raises(AlreadyCommitted):
        reopened(store).commit(append("ours"), commit=CommitOptions(properties=mark("q", 3)))
    after = reopened(plain)
    assert [file.path for one in after.layout.fragments for file in one.files].count("ours.lance") == 0
    assert last_number(after.settings.config, "q") == 3


def test_other_work_goes_beside_it() -> None:
    plain = MemoryStore()
    memory_table(plain)
    store = InterruptedStore(
        plain, is_version, lambda: reopened(plain).commit(append("theirs"), commit=CommitOptions(properties=mark("q", 3)))
    )
    reopened(store).commit(append("ours"), commit=CommitOptions(properties=mark("r", 3)))
    config = reopened(plain).settings.config
    assert (last_number(config, "q"), last_number(config, "r")) == (3, 3)
