"""One consistent cut over all tables, now and in the past; and who changed which tables together."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.lakes import Site, add_to_both, both, ids, numbers, prompt_runtime, two_tables
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound
from tiltyard.interfaces import Runtime
from tiltyard.lake import Lake
from tiltyard.testing import ManualClock

MOVES = 12


def test_every_cut_is_consistent_while_a_writer_moves_two_tables_together(site: Site, lake: Lake) -> None:
    """Whoever looks, at a snapshot, through a transaction or at the versions alone, sees both tables at one commit."""
    writer, done = site.open(), threading.Event()
    wrong: list[object] = []

    def write() -> None:
        try:
            for number in range(2, 2 + MOVES):
                with writer.transaction() as tx:
                    add_to_both(tx, number)
        finally:
            done.set()

    def read() -> int:
        looks, here = 0, site.open()
        while not done.is_set() or looks == 0:
            snapshot = here.snapshot()
            versions = snapshot.versions()
            seen = [both(snapshot), both(here.transaction())]
            wrong.extend(one for one in seen if one[0] != one[1])
            wrong.extend([versions] if versions["a"] != versions["b"] else [])
            if len(seen[0][0]) != versions["a"] or snapshot.id != versions["a"]:
                wrong.append((snapshot.id, versions, seen))
            looks += 1
        return looks

    looks: list[int] = []
    threads = [threading.Thread(target=write), *(threading.Thread(target=lambda: looks.append(read())) for _ in range(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong, wrong[:3]
    assert len(looks) == 2
    assert both(lake) == ([*range(1, 2 + MOVES)],) * 2


def test_a_snapshot_stays_what_it_is(lake: Lake) -> None:
    snapshot = lake.snapshot()
    a = snapshot.table("a")
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    lake.drop_table("b")
    lake.table("a").compact()
    assert both(snapshot) == ([1], [1])
    assert ids(a.refresh()) == [1]
    assert snapshot.tables() == ["a", "b"]
    assert snapshot.versions() == {"a": 1, "b": 1}


@pytest.fixture
def timed(site: Site) -> tuple[Lake, ManualClock]:
    return timed_lake(site)


def timed_lake(site: Site) -> tuple[Lake, ManualClock]:
    """A lake to which something happens every hour, from one o'clock on."""
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    lake = site.open(runtime=Runtime(clock, prompt_runtime().random))

    def hour() -> None:
        clock.advance((clock.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1) - clock.now()).total_seconds())

    hour()
    two_tables(lake)
    hour()
    with lake.transaction(message="two") as tx:
        add_to_both(tx, 2)
    hour()
    lake.create_table("c", numbers(1))
    hour()
    lake.drop_table("b")
    hour()
    lake.rename_table("c", "d")
    hour()
    lake.table("a").append(numbers(3))
    return lake, clock


CUTS = [{}, {"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 2, "b": 2, "c": 1}, {"a": 2, "c": 1}, {"a": 2, "d": 1}, {"a": 3, "d": 1}]


def test_every_snapshot_can_be_looked_at(timed: tuple[Lake, ManualClock], site: Site) -> None:
    for lake in (timed[0], site.open()):
        assert [lake.snapshot(number).versions() for number in range(7)] == CUTS
        assert [lake.snapshot(number).id for number in range(7)] == [*range(7)]
        assert lake.snapshot().versions() == CUTS[6]
        assert both(lake.snapshot(2)) == ([1, 2], [1, 2])
        assert ids(lake.snapshot(4).table("c")) == ids(lake.snapshot(5).table("d")) == [1]
        for number in (7, -1, 10**9):
            with pytest.raises(NotFound):
                lake.snapshot(number)
        for number, name in [(0, "a"), (2, "c"), (4, "b"), (5, "c")]:
            with pytest.raises(NotFound, match=name):
                lake.snapshot(number).table(name)


def test_every_moment_can_be_looked_at(timed: tuple[Lake, ManualClock]) -> None:
    lake, _ = timed
    day = datetime(2026, 1, 1, tzinfo=UTC)
    for hour in range(8):
        expected = CUTS[min(hour, 6)]
        assert lake.snapshot(day + timedelta(hours=hour, minutes=30)).versions() == expected
        assert lake.snapshot(f"2026-01-01T0{hour}:30:00Z").versions() == expected
    assert lake.snapshot(lake.history()[3].at).versions() == CUTS[3], "the moment of a commit is after it"
    assert lake.snapshot(lake.history()[3].at - timedelta(microseconds=1)).versions() == CUTS[2]
    assert lake.snapshot(day - timedelta(days=1)).tables() == []


def test_the_order_of_snapshots_does_not_depend_on_clocks(site: Site) -> None:
    clock = ManualClock()
    lake = two_tables(site.open(runtime=Runtime(clock, prompt_runtime().random)))
    clock.jump(-3600)
    lake.table("a").append(numbers(2))
    clock.jump(7200)
    lake.table("a").append(numbers(3))
    times = [one.at for one in reversed(lake.history())]
    assert times == sorted(times)
    assert [lake.snapshot(one).id for one in times[1:]] == [2, 3]


def test_tags_name_cuts(timed: tuple[Lake, ManualClock], site: Site) -> None:
    lake, _ = timed
    tag = lake.tags.create("v1.0", 2)
    assert (tag.name, tag.snapshot) == ("v1.0", 2)
    lake.tags.create("now")
    lake.tags.create("again", "v1.0")
    other = site.open()
    assert both(other.snapshot("v1.0")) == both(other.snapshot("again")) == ([1, 2], [1, 2])
    assert other.snapshot("now").versions() == CUTS[6]
    assert sorted(other.tags) == ["again", "now", "v1.0"]
    assert ("now" in other.tags, "never" in other.tags) == (True, False)
    with pytest.raises(AlreadyExists):
        other.tags.create("now", 1)
    assert other.tags["now"].snapshot == 6
    other.tags.delete("now")
    for use in (lambda: lake.snapshot("now"), lambda: lake.tags["now"], lambda: lake.tags.delete("now"), lambda: lake.tags.create("x", 99)):
        with pytest.raises(NotFound):
            use()


@pytest.mark.parametrize("at", ["", "no such tag", "2026-13-01", "\0", "x" * 3000])
def test_what_is_neither_a_tag_nor_a_moment(sqlite_lake: Lake, at: str) -> None:
    with pytest.raises((NotFound, InvalidInput)):
        sqlite_lake.snapshot(at)


@pytest.mark.parametrize("at", [True, 1.5, b"1", ["a"]])
def test_what_is_no_place_in_time_at_all(sqlite_lake: Lake, at: object) -> None:
    with pytest.raises(InvalidInput):
        sqlite_lake.snapshot(at)  # type: ignore[arg-type]


def test_history_says_who_changed_which_tables_together(site: Site) -> None:
    ann, ben = site.open(author="ann"), site.open(author="ben")
    two_tables(ann)
    with ben.transaction(message="moved", properties={"ticket": "7"}, isolation="serializable") as tx:
        tx.table("a").delete("id = 1")
        tx.table("b").append(numbers(2))
        tx.table("b").append(numbers(3))
    ann.table("a").append(numbers(9), message="alone")
    ann.rename_table("b", "sales.b")
    assert tx.result is not None
    renamed, alone, moved, begin = ann.history()
    assert (moved.id, moved.author, moved.message, moved.transaction) == (2, "ben", "moved", tx.id)
    assert (moved.properties, moved.isolation, moved.base) == ({"ticket": "7"}, "serializable", 1)
    assert [(one.name, one.kind, one.base, one.version, one.operations) for one in moved.changes] == [
        ("a", "write", 1, 2, ("Delete",)),
        ("b", "write", 1, 3, ("Append", "Append")),
    ]
    assert (begin.author, begin.message, begin.tables) == ("ann", "begin", ("a", "b"))
    assert (alone.message, alone.tables, alone.author) == ("alone", ("a",), "ann")
    assert [(one.kind, one.name, one.former) for one in renamed.changes] == [("rename", "sales.b", "b")]
    assert [one.id for one in ben.history(limit=2)] == [4, 3]
    assert ben.history() == ann.history()


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_long_histories_are_put_together_from_kept_cuts(site: Site) -> None:
    """Snapshots around the places where whole cuts are kept, with a table that appears, is renamed and goes."""
    lake = two_tables(site.open())
    table = lake.table("a")
    for number in range(2, 131):
        if number == 63:
            lake.create_table("c", numbers(1))
        elif number == 64:
            lake.rename_table("c", "d")
        elif number == 128:
            lake.drop_table("d")
        else:
            table.append(numbers(number))
    assert lake.snapshot().id == 130
    for number in (1, 2, 62, 63, 64, 65, 127, 128, 129, 130):
        cut = lake.snapshot(number)
        names = ["a", "b", *(["c"] if number == 63 else ["d"] if 63 < number < 128 else [])]
        assert cut.tables() == names, number
        assert cut.versions()["a"] == cut.table("a").version == number - (number >= 63) - (number >= 64) - (number >= 128)
        assert ids(cut.table("a")) == [one for one in range(1, number + 1) if one not in (63, 64, 128)]


def test_a_lake_is_found_again_and_only_where_it_is(site: Site) -> None:
    with pytest.raises(NotFound):
        site.open(create=False)
    lake = two_tables(site.open())
    assert site.open(create=False).snapshot().versions() == lake.snapshot().versions()
    assert repr(lake.snapshot()) == "LakeSnapshot(1, tables=2)"


def test_many_may_make_one_lake_at_once(site: Site) -> None:
    from tests.support.lakes import together

    lakes = together(*[site.open] * 4)
    assert all(isinstance(one, Lake) for one in lakes), lakes
    assert len({one.catalog.describe()["id"] for one in lakes}) == 1
    two_tables(lakes[0])
    assert all(both(one) == ([1], [1]) for one in lakes)
