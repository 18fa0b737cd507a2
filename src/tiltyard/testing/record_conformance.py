"""What every catalog database must do. A backend's test class inherits these and gives two fixtures, fresh for each test.

class TestMyRecords(RecordsTests, RecordsAcrossProcessesTests):
    @pytest.fixture
    def reopen(self, tmp_path):
        return functools.partial(MyRecords, tmp_path)  # opens the same place again and again; can be sent to another process

    @pytest.fixture
    def records(self, reopen):
        return reopen()  # empty at first
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from tiltyard.catalog.records import Body, Found, Records, Writes
from tiltyard.errors import InvalidInput

T = TypeVar("T")
Reopen = Callable[[], Records]

THREADS = 6
PATIENCE = 120.0
"""Seconds after which something that should have happened is called a failure, however busy the machine is."""

MEETING = 0.05
"""Seconds for which one waits for another inside a decision, where a database may let them in one after the other. Whether they meet
decides how hard the test is, never whether it passes."""

ODD_KEYS = (
    "a",
    "a/",
    "a/b",
    "a/b/c",
    "a/%",
    "a/%/x",
    "a/_",
    "a/x",
    "a/\\",
    "a/\\%",
    "a/'quote'",
    'a/"double"',
    "a/ space",
    "a/$dollar",
    "a/?*[x]",
    "A/b",
    "a0",
    "b/é",
    "b/e\u0301",
    "b/ß",
    "b/日本",
    "b/\U0001f600",
    "b/\U0010ffff",
    "b/\U0010ffff/after",
    "b/\ud7ff",
    "b/\ue000",
    "b/z",
    "c",
)

BODIES: tuple[Mapping[str, Any], ...] = (
    {},
    {"text": "ünïcode \0 \ud800 \U0001f600 ' \" \\ %s :name"},
    {"numbers": [0, -1, 2**63, 2**80, 0.1, 1e300]},
    {"nested": {"a": [{"b": None}, True, False, []], "": {}}},
    {"z": 1, "a": 2},
)

BAD_KEYS = ("", "a\0b", "\ud800", "x" * 5000)


def write(records: Records, put: Mapping[str, Body], delete: Sequence[str] = ()) -> None:
    """Stores and removes records, whatever was there."""
    records.transact([*put, *delete], [], lambda found: Writes(None, put=put, delete=delete))


def increment(records: Records, key: str) -> int:
    """Reads a number and writes it back one higher."""

    def decide(found: Found) -> Writes[int]:
        number = int(found.get(key, {}).get("n", 0)) + 1
        return Writes(number, put={key: {"n": number}})

    return records.transact([key], [], decide)


def create(records: Records, key: str, who: int, *, locked: bool) -> bool:
    """Creates a record unless there is one; returns whether it did."""

    def decide(found: Found) -> Writes[bool]:
        return Writes(False) if key in found else Writes(True, put={key: {"by": who}})

    return records.transact([key] if locked else [], [], decide)


def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs jobs in threads that start at one moment."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        barrier.wait(PATIENCE)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, job) for job in jobs]]


class Rendezvous:
    """Two decisions wait here for each other, once, and not for long."""

    def __init__(self, parties: int = 2) -> None:
        self._barrier = threading.Barrier(parties)

    def wait(self) -> None:
        try:
            self._barrier.wait(MEETING)
        except threading.BrokenBarrierError:
            pass  # the database lets only one in at a time


@contextmanager
def opened(reopen: Reopen, count: int) -> Iterator[list[Records]]:
    """Several handles of their own on one place."""
    handles = [reopen() for _ in range(count)]
    try:
        yield handles
    finally:
        for handle in handles:
            handle.close()


@contextmanager
def refused(kind: type[BaseException]) -> Iterator[list[BaseException]]:
    """Fails unless such an error is raised; the list holds it then."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"{kind.__name__} was not raised"


class RecordsTests:
    """The conformance suite for one process: ``rounds`` of each race, with ``many`` records."""

    rounds = 10
    many = 5000

    # reading and writing

    def test_what_was_put_is_got(self, records: Records) -> None:
        assert records.get(["a/1", "a/2"]) == {}
        write(records, {"a/1": {"x": 1}, "a/2": {"x": 2}})
        assert records.get(["a/1", "a/2", "a/3"]) == {"a/1": {"x": 1}, "a/2": {"x": 2}}
        assert records.get([]) == {}

    def test_put_replaces_and_delete_removes(self, records: Records) -> None:
        write(records, {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}})
        write(records, {"a": {"y": 2}, "d": {"x": 3}}, delete=["b", "never/was"])
        assert dict(records.scan([""])) == {"a": {"y": 2}, "c": {"x": 1}, "d": {"x": 3}}
        write(records, {"b": {"again": True}})
        assert records.get(["b"]) == {"b": {"again": True}}

    def test_bodies_come_back_as_they_were(self, records: Records) -> None:
        put = {f"body/{number}": body for number, body in enumerate(BODIES)}
        write(records, put)
        assert records.get(list(put)) == put
        assert dict(records.scan(["body/"])) == put
        assert records.transact(list(put), [], lambda found: Writes(dict(found))) == put

    def test_what_was_got_belongs_to_the_caller(self, records: Records) -> None:
        body: dict[str, Any] = {"list": [1]}
        write(records, {"a": body})
        body["list"].append(2)
        got: Any = records.get(["a"])["a"]
        got["list"].append(3)
        assert records.get(["a"]) == {"a": {"list": [1]}}

    def test_a_large_body(self, records: Records) -> None:
        large = {"text": "0123456789abcdef" * 65536, "end": True}
        write(records, {"large": large, "small": {}})
        assert records.get(["large"]) == {"large": large}
        increment(records, "small")
        assert records.get(["large"])["large"] == large

    def test_odd_keys(self, records: Records) -> None:
        put = {key: {"key": key} for key in ODD_KEYS}
        write(records, put)
        for key in ODD_KEYS:
            assert records.get([key]) == {key: {"key": key}}
            assert increment(records, key) == 1
        assert records.get(ODD_KEYS) == {key: {"n": 1} for key in ODD_KEYS}
        write(records, {}, delete=ODD_KEYS[::2])
        assert [key for key, _ in records.scan([""])] == sorted(ODD_KEYS[1::2])

    def test_what_cannot_be_kept_is_refused(self, records: Records) -> None:
        for key in BAD_KEYS:
            with refused(InvalidInput):
                records.get([key])
            with refused(InvalidInput):
                records.transact([], [key], lambda found: Writes(None))
            with refused(InvalidInput):
                records.transact([], [], lambda found, key=key: Writes(None, put={"ok": {}, key: {}}))  # type: ignore[misc]
        for value in (object(), b"bytes", float("nan"), {1, 2}):
            with refused(InvalidInput):
                write(records, {"ok": {}, "bad": {"value": value}})
        assert records.scan([""]) == []

    # listing

    def test_scans_are_ordered_and_know_no_wildcards(self, records: Records) -> None:
        write(records, {key: {"key": key} for key in ODD_KEYS})
        choices: list[tuple[str, ...]] = [(key,) for key in ODD_KEYS]
        choices += [(), ("",), ("a/", "b/"), ("b/", "a/"), ("a", "a/", "a/b"), ("a/%", "a/\\"), ("nope", "c"), ("b/\U0010ffff",), ("zz",)]
        for prefixes in choices:
            expected = sorted(key for key in ODD_KEYS if key.startswith(prefixes))
            for limit in (None, 0, 1, 3, 1000):
                shown = f"prefixes {prefixes!r}, limit {limit}"
                assert [key for key, _ in records.scan(prefixes, limit=limit)] == expected[:limit], shown
                falling = [key for key, _ in records.scan(prefixes, limit=limit, descending=True)]
                assert falling == expected[::-1][:limit], f"{shown}, descending"
        assert all(body == {"key": key} for key, body in records.scan(["a/"]))

    def test_many_records(self, records: Records) -> None:
        keys = [f"many/{number:06d}" for number in range(self.many)]
        write(records, {key: {"n": number} for number, key in enumerate(keys)} | {"other": {}})
        assert [key for key, _ in records.scan(["many/"])] == keys
        assert [key for key, _ in records.scan(["many/"], limit=7, descending=True)] == keys[:-8:-1]
        pages = [records.scan([f"many/{page:04d}"]) for page in range(self.many // 100)]
        assert [key for page in pages for key, _ in page] == keys
        assert records.get(keys) == {key: {"n": number} for number, key in enumerate(keys)}
        assert len(records.transact(keys, ["other"], lambda found: Writes(found, delete=keys[1:]))) == self.many + 1
        assert [key for key, _ in records.scan([""])] == [keys[0], "other"]

    # deciding

    def test_a_decision_sees_what_it_locked(self, records: Records) -> None:
        write(records, {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}})
        seen = records.transact(["a", "new"], ["b", "none"], lambda found: Writes(dict(found)))
        assert seen == {"a": {"x": 1}, "b": {"x": 2}}
        assert records.transact(["a"], ["a"], lambda found: Writes(dict(found), put={"a": {"x": 9}})) == {"a": {"x": 1}}
        assert records.transact([], [], lambda found: Writes(dict(found))) == {}
        assert records.get(["a"]) == {"a": {"x": 9}}

    def test_an_exception_leaves_nothing(self, records: Records) -> None:
        write(records, {"a": {"x": 1}})
        mine = RuntimeError("mine")

        def fails(found: Found) -> Writes[None]:
            raise mine

        with refused(RuntimeError) as caught:
            records.transact(["a", "b"], ["c"], fails)
        assert caught == [mine]
        with refused(KeyboardInterrupt):
            records.transact(["a"], [], _interrupted)
        assert dict(records.scan([""])) == {"a": {"x": 1}}
        assert increment(records, "a") == 1, "the lock must be free again"

    def test_a_record_that_was_not_locked_is_asked_about(self, records: Records) -> None:
        write(records, {"a": {"x": 1}})
        asked: list[dict[str, Body]] = []

        def decide(found: Found) -> Writes[str]:
            asked.append(dict(found))
            return Writes("there") if "a" in found else Writes("new", put={"a": {"x": 2}, "b": {}})

        assert records.transact([], [], decide) == "there"
        assert asked == [{}, {"a": {"x": 1}}]
        assert dict(records.scan([""])) == {"a": {"x": 1}}

    def test_a_record_that_was_not_locked_can_be_replaced(self, records: Records) -> None:
        write(records, {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}})
        records.transact([], [], lambda found: Writes(None, put={"a": {"seen": found.get("a")}}))
        assert records.get(["a"]) == {"a": {"seen": {"x": 1}}}
        records.transact([], ["b"], lambda found: Writes(None, put={"b": {"seen": found.get("b")}}))
        assert records.get(["b"]) == {"b": {"seen": {"x": 1}}}
        records.transact([], [], lambda found: Writes(None, delete=["c"]))
        assert records.get(["c"]) == {}

    def test_reopened(self, records: Records, reopen: Reopen) -> None:
        write(records, {"a": {"x": 1}})
        with opened(reopen, 1) as (other,):
            assert other.get(["a"]) == {"a": {"x": 1}}
            write(other, {"a": {"x": 2}})
            assert records.get(["a"]) == {"a": {"x": 2}}
        records.close()
        records.close()
        with opened(reopen, 1) as (other,):
            assert other.get(["a"]) == {"a": {"x": 2}}

    # several threads

    def test_exclusive_locks_exclude(self, records: Records, reopen: Reopen) -> None:
        def job(handle: Records) -> Callable[[], list[int]]:
            return lambda: [increment(handle, "counter") for _ in range(self.rounds)]

        with opened(reopen, THREADS // 2) as handles:
            seen = together([job(handle) for handle in [*handles, *[records] * (THREADS - len(handles))]])
        total = THREADS * self.rounds
        assert sorted(number for numbers in seen for number in numbers) == list(range(1, total + 1))
        assert records.get(["counter"]) == {"counter": {"n": total}}

    def test_of_many_creators_one_wins(self, records: Records, reopen: Reopen) -> None:
        with opened(reopen, THREADS) as handles:
            for number in range(self.rounds):
                for locked in (True, False):
                    key = f"race/{number}/{locked}"
                    won = together(
                        [lambda h=h, me=me, key=key, locked=locked: create(h, key, me, locked=locked) for me, h in enumerate(handles)]  # type: ignore[misc]
                    )
                    assert won.count(True) == 1, f"round {number}, locked {locked}: {won}"
                    assert records.get([key]) == {key: {"by": won.index(True)}}

    def test_what_was_not_there_stays_so(self, records: Records, reopen: Reopen) -> None:
        """Each looks for the other's record, and writes its own if there is none: never both."""
        with opened(reopen, 2) as handles:
            for number in range(self.rounds):
                mine = [f"skew/{number}/{side}" for side in "lr"]
                meeting = Rendezvous()

                def attempt(handle: Records, me: str, other: str, meeting: Rendezvous) -> bool:
                    def decide(found: Found) -> Writes[bool]:
                        meeting.wait()
                        return Writes(False) if other in found else Writes(True, put={me: {}})

                    return handle.transact([me], [other], decide)

                wrote = together(
                    [lambda h=h, a=a, b=b, m=meeting: attempt(h, a, b, m) for h, a, b in zip(handles, mine, mine[::-1], strict=True)]  # type: ignore[misc]
                )
                assert sorted(wrote) == [False, True], f"round {number}: {wrote}"
                assert len(records.scan([f"skew/{number}/"])) == 1

    def test_shared_locks_hold_writers_off(self, records: Records, reopen: Reopen) -> None:
        """Each copies what the other is about to change: one of them must see the other's work."""
        with opened(reopen, 2) as handles:
            for number in range(self.rounds):
                keys = [f"copy/{number}/{side}" for side in "lr"]
                write(records, {key: {"n": 0} for key in keys})
                meeting = Rendezvous()

                def attempt(handle: Records, me: str, other: str, meeting: Rendezvous) -> int:
                    def decide(found: Found) -> Writes[int]:
                        meeting.wait()
                        return Writes(int(found[other]["n"]), put={me: {"n": 1}})

                    return handle.transact([me], [other], decide)

                saw = together(
                    [lambda h=h, a=a, b=b, m=meeting: attempt(h, a, b, m) for h, a, b in zip(handles, keys, keys[::-1], strict=True)]  # type: ignore[misc]
                )
                assert sorted(saw) == [0, 1], f"round {number}: {saw}"

    def test_opposite_orders_do_not_block_each_other(self, records: Records, reopen: Reopen) -> None:
        keys = [f"order/{letter}" for letter in "abcdef"]
        write(records, {key: {"n": 0} for key in keys})

        def add(found: Found) -> Writes[None]:
            return Writes(None, put={key: {"n": found[key]["n"] + 1} for key in keys})

        def some(handle: Records, ordered: Sequence[str], split: int) -> None:
            for number in range(self.rounds):
                if number % 2:
                    handle.transact(ordered, [], add)
                else:
                    moved = ordered[:split]
                    handle.transact(moved, ordered[split:], lambda found, m=moved: Writes(None, put={k: found[k] for k in m}))  # type: ignore[misc]

        orders = [keys, keys[::-1], [*keys[3:], *keys[:3]], [*keys[1::2], *keys[::2]]]
        with opened(reopen, len(orders)) as handles:
            together([lambda h=h, o=o, s=s: some(h, o, s) for s, (h, o) in enumerate(zip(handles, orders, strict=True), 1)])  # type: ignore[misc]
        total = len(orders) * (self.rounds // 2)
        assert records.get(keys) == {key: {"n": total} for key in keys}

    def test_reads_are_of_one_moment(self, records: Records, reopen: Reopen) -> None:
        pair = ["pair/left", "pair/right"]
        write(records, {key: {"n": 0} for key in pair})
        done = threading.Event()

        def move() -> None:
            try:
                for number in range(1, 5 * self.rounds):
                    write(records, {key: {"n": number} for key in pair})
            finally:
                done.set()

        def watch(handle: Records) -> list[tuple[int, int]]:
            seen = []
            while not done.is_set():
                for found in (handle.get(pair), dict(handle.scan(["pair/"])), dict(handle.scan(pair))):
                    seen.append((int(found[pair[0]]["n"]), int(found[pair[1]]["n"])))
            return seen

        with opened(reopen, 2) as handles, ThreadPoolExecutor(2) as pool:
            watching = [pool.submit(watch, handle) for handle in handles]
            move()
            for future in watching:
                seen = future.result(PATIENCE)
                assert all(left == right for left, right in seen), "half of a transaction was seen"
                assert [left for left, _ in seen] == sorted(left for left, _ in seen), "time went backwards"


class SharedLocksTests:
    """For databases in which readers do not wait for each other."""

    def test_those_who_only_look_meet(self, records: Records, reopen: Reopen) -> None:
        write(records, {"a": {"x": 1}, "b/0": {}, "b/1": {}})
        barrier = threading.Barrier(2)

        def look(handle: Records, me: int) -> Any:
            def decide(found: Found) -> Writes[Any]:
                barrier.wait(PATIENCE)
                return Writes(found["a"], put={})

            return handle.transact([f"b/{me}"], ["a"], decide)

        with opened(reopen, 2) as handles:
            assert together([lambda h=h, me=me: look(h, me) for me, h in enumerate(handles)]) == [{"x": 1}] * 2  # type: ignore[misc]


def _interrupted(found: Found) -> Writes[None]:
    raise KeyboardInterrupt
