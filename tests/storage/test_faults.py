"""The stores of ``tiltyard.testing`` do what they say: whoever tests with them relies on it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiltyard.errors import AlreadyExists, NotFound, StorageError
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import LocalStore, MemoryStore
from tiltyard.testing import (
    CountingStore,
    Fault,
    FaultStore,
    Killed,
    KillPoint,
    LatencyStore,
    ManualClock,
    PausingStore,
    PowerLossStore,
    SeededRandomness,
    all_faults,
)


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore()
    store.put("there", b"old")
    return store


def has(store: ObjectStore, path: str) -> bool:
    try:
        store.head(path)
    except NotFound:
        return False
    return True


class TestFaultsOfACreate:
    @pytest.mark.parametrize(
        ("fault", "error", "applied", "maybe_applied"),
        [
            (Fault.ERROR_BEFORE, StorageError, False, False),
            (Fault.ERROR_AFTER, StorageError, True, True),
            (Fault.TIMEOUT_BEFORE, StorageError, False, True),
            (Fault.TIMEOUT_AFTER, StorageError, True, True),
            (Fault.CONFLICT, AlreadyExists, False, None),
            (Fault.OWN_PRECONDITION, AlreadyExists, True, None),
            (Fault.UNAVAILABLE, StorageError, False, True),
            (Fault.KILLED_BEFORE, Killed, False, None),
            (Fault.KILLED_AFTER, Killed, True, None),
        ],
    )
    def test_what_happened_and_what_is_told(
        self, inner: MemoryStore, fault: Fault, error: type[BaseException], applied: bool, maybe_applied: bool | None
    ) -> None:
        creates: dict[str, Callable[[FaultStore], None]] = {
            "put": lambda store: store.put_if_absent("new", b"12345678"),
            "copy": lambda store: store.copy_if_absent("there", "new"),
            "rename": lambda store: store.rename_if_absent("there", "new"),
        }
        for name, create in creates.items():
            store = FaultStore(inner, fault, match=lambda method, path: path == "new")
            with pytest.raises(error) as caught:
                create(store)
            assert has(inner, "new") is applied, name
            assert getattr(caught.value, "maybe_applied", None) is maybe_applied
            assert store.fired
            inner.delete("new")
            inner.put("there", b"old")

    def test_a_torn_write_leaves_half_under_the_final_name(self, inner: MemoryStore) -> None:
        for write in ("put", "put_if_absent"):
            with pytest.raises(StorageError) as caught:
                getattr(FaultStore(inner, Fault.TORN_WRITE), write)("new", b"12345678")
            assert caught.value.maybe_applied
            assert inner.get("new") == b"1234"
            inner.delete("new")


class TestWhereAFaultStrikes:
    def test_at_the_nth_call_and_only_there(self, inner: MemoryStore) -> None:
        store = FaultStore(inner, Fault.ERROR_BEFORE, 3)
        store.get("there")
        store.put("a", b"")
        with pytest.raises(StorageError):
            store.head("there")
        assert store.where == ("head", "there")
        store.head("there")

    def test_only_calls_that_match_are_counted(self, inner: MemoryStore) -> None:
        store = FaultStore(inner, Fault.ERROR_BEFORE, 2, match=lambda method, path: path.startswith("a/"))
        store.put("a/1", b"")
        store.put("b/1", b"")
        with pytest.raises(StorageError):
            store.put("a/2", b"")

    def test_only_calls_it_can_happen_to_are_counted(self, inner: MemoryStore) -> None:
        store = FaultStore(inner, Fault.CONFLICT, 1)
        store.put("x", b"")
        store.get("x")
        assert not store.fired
        with pytest.raises(AlreadyExists):
            store.put_if_absent("y", b"")

    def test_unavailable_several_times_in_a_row(self, inner: MemoryStore) -> None:
        store = FaultStore(inner, Fault.UNAVAILABLE, 2, times=3)
        store.get("there")
        for _ in range(3):
            with pytest.raises(StorageError) as caught:
                store.get("there")
            assert caught.value.transient
        assert store.get("there") == b"old"

    def test_nothing_a_dead_process_does_has_an_effect(self, inner: MemoryStore) -> None:
        for store in (FaultStore(inner, Fault.KILLED_AFTER, 1), KillPoint(inner, 1, when="after")):
            with pytest.raises(Killed):
                store.put("x", b"1")
            with pytest.raises(Killed):
                store.delete("x")
            assert inner.get("x") == b"1"

    @pytest.mark.parametrize("fault", all_faults())
    def test_every_fault_strikes_every_call_it_can_and_then_no_more(self, fault: Fault) -> None:
        """The loop that tests of the commit use: raise N until the operation passes untouched."""
        struck = []
        for at in range(1, 20):
            base = MemoryStore()
            base.put("head", b"1")
            store = FaultStore(base, fault, at)
            try:
                store.put_if_absent("a/1", b"one")
                store.put("head", b"2")
                assert list(store.names("a/")) in (["1"], [])
                store.get("head")
                store.delete("a/1")
            except (StorageError, AlreadyExists, Killed):
                assert store.fired
            if not store.fired:
                break
            struck.append(store.where)
        assert not store.fired
        assert struck
        assert len(set(struck)) == len(struck)


class TestStaleAnswers:
    def test_a_listing_shows_the_state_of_the_one_before(self, inner: MemoryStore) -> None:
        store = FaultStore(inner, Fault.STALE_LISTING, 2)
        store.put("v/1", b"")
        assert list(store.names("v/")) == ["1"]
        store.put("v/2", b"")
        assert list(store.names("v/")) == ["1"]
        assert list(store.names("v/")) == ["1", "2"]

    def test_a_first_listing_lacks_what_was_written_last(self, inner: MemoryStore) -> None:
        store = FaultStore(inner, Fault.STALE_LISTING, 1)
        store.put("v/2", b"")
        store.put("v/1", b"")
        assert [info.path for info in store.list("v/")] == ["v/2"]
        assert [info.path for info in store.list("v/")] == ["v/1", "v/2"]

    def test_what_another_wrote_last_is_missing_too(self) -> None:
        clock = ManualClock()
        base = MemoryStore(clock=clock)
        for name in ("2", "1"):
            clock.advance(1)
            base.put(f"v/{name}", b"")
        assert list(FaultStore(base, Fault.STALE_LISTING).names("v/")) == ["2"]

    def test_a_cached_head_gives_what_was_there_before(self, inner: MemoryStore) -> None:
        def fresh() -> FaultStore:
            inner.put("hint", b"version 1")
            store = FaultStore(inner, Fault.STALE_READ, 1)
            store.put("hint", b"version 22")
            return store

        store = fresh()
        assert store.get("hint") == b"version 1"
        assert store.get("hint") == b"version 22"
        assert fresh().get_range("hint", -1, 5) == b"1"
        assert fresh().head("hint").size == 9


class TestCounting:
    def test_calls_bytes_and_order(self, inner: MemoryStore) -> None:
        store = CountingStore(inner)
        store.put("a", b"12345")
        store.get("there")
        store.get_range("a", 0, 2)
        store.rename_if_absent("a", "b")
        list(store.names(""))
        with pytest.raises(AlreadyExists):
            store.put_if_absent("b", b"123")
        assert store.log == [
            ("put", "a"),
            ("get", "there"),
            ("get_range", "a"),
            ("rename_if_absent", "b"),
            ("names", ""),
            ("put_if_absent", "b"),
        ]
        assert store.calls == {"put": 1, "get": 1, "get_range": 1, "rename_if_absent": 1, "names": 1, "put_if_absent": 1}
        assert (store.bytes_written, store.bytes_read, store.total) == (5, 5, 6)
        store.reset()
        assert (store.bytes_written, store.total, store.log) == (0, 0, [])

    def test_latency_goes_through_the_clock(self, inner: MemoryStore) -> None:
        clock = ManualClock()
        store = LatencyStore(inner, clock, lambda method: 0.5 if method == "get" else 0.125)
        store.get("there")
        store.head("there")
        assert clock.slept == [0.5, 0.125]
        assert clock.monotonic() == 0.625

    def test_wrappers_can_be_stacked(self, inner: MemoryStore) -> None:
        counted = CountingStore(FaultStore(inner, Fault.ERROR_BEFORE, 1))
        with pytest.raises(StorageError):
            counted.get("there")
        assert counted.calls["get"] == 1
        assert counted.conditional_put_known
        assert inner.uri in repr(counted)


class TestPausing:
    def test_another_writer_gets_in_between(self, inner: MemoryStore) -> None:
        store = PausingStore(inner, lambda method, path: method == "put_if_absent")
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(store.put_if_absent, "v/1", b"ours")
            store.wait_until_reached()
            inner.put_if_absent("v/1", b"theirs")
            store.resume.set()
            with pytest.raises(AlreadyExists):
                ours.result(30)
        assert inner.get("v/1") == b"theirs"

    def test_held_after_the_effect(self, inner: MemoryStore) -> None:
        store = PausingStore(inner, lambda method, path: method == "put_if_absent", after=True)
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(store.put_if_absent, "v/1", b"ours")
            store.wait_until_reached()
            assert inner.get("v/1") == b"ours"
            store.resume.set()
            ours.result(30)
        store.put_if_absent("v/2", b"only the first call is held")

    def test_a_forgotten_resume_fails_instead_of_hanging(self, inner: MemoryStore) -> None:
        store = PausingStore(inner, lambda method, path: True, patience=0.01)
        with pytest.raises(TimeoutError):
            store.get("there")
        with pytest.raises(TimeoutError):
            PausingStore(inner, lambda method, path: True, patience=0.01).wait_until_reached()


CHILD = """
import sys
from tiltyard.storage import LocalStore
from tiltyard.testing import KillPoint
store = KillPoint.from_environment(LocalStore(sys.argv[1], durability="os"), match=lambda method, path: method == "put_if_absent")
for number in range(1, 6):
    store.put_if_absent(f"v/{number}", b"x")
print("survived")
"""


class TestARealKill:
    @pytest.mark.parametrize(("when", "left"), [("before", {"1", "2"}), ("after", {"1", "2", "3"})])
    def test_the_process_dies_at_the_nth_call(self, tmp_path: Path, when: str, left: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILTYARD_KILL_AT", "3")
        monkeypatch.setenv("TILTYARD_KILL_WHEN", when)
        child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, check=False)
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert set(LocalStore(tmp_path).names("v/")) == left

    def test_without_the_variable_nothing_is_wrapped(self, inner: MemoryStore) -> None:
        assert KillPoint.from_environment(inner, {}) is inner


class TestPowerLoss:
    def states_after_a_crash(self, durability: str, write: Callable[[PowerLossStore], None], path: str) -> set[bytes | None]:
        found: set[bytes | None] = set()
        for seed in range(60):
            store = PowerLossStore(durability, random=SeededRandomness(seed))  # type: ignore[arg-type]
            write(store)
            store.crash()
            found.add(store.get(path) if has(store, path) else None)
        return found

    def test_an_acknowledged_write_survives_in_fsync_mode(self) -> None:
        assert self.states_after_a_crash("fsync", lambda store: store.put_if_absent("v/1", b"1234"), "v/1") == {b"1234"}
        assert self.states_after_a_crash("fsync", lambda store: store.put("v/1", b"1234"), "v/1") == {b"1234"}

    def test_in_os_mode_it_may_be_lost_whole_or_in_part(self) -> None:
        found = self.states_after_a_crash("os", lambda store: store.put_if_absent("v/1", b"1234"), "v/1")
        assert found == {b"1234", b"12", b"", None}

    def test_writes_are_lost_in_any_order(self) -> None:
        kept = set()
        for seed in range(60):
            store = PowerLossStore("os", random=SeededRandomness(seed))
            store.put("a", b"")
            store.put("b", b"")
            store.crash()
            kept.add((has(store, "a"), has(store, "b")))
        assert kept == {(False, False), (False, True), (True, False), (True, True)}

    def test_a_foreign_file_survives_once_it_is_synced(self) -> None:
        def written(store: PowerLossStore) -> None:
            store.put_unsynced("data/x", b"1234")

        def written_and_synced(store: PowerLossStore) -> None:
            written(store)
            store.sync(["data/x"])

        assert None in self.states_after_a_crash("fsync", written, "data/x")
        assert self.states_after_a_crash("fsync", written_and_synced, "data/x") == {b"1234"}
        assert None in self.states_after_a_crash("os", written_and_synced, "data/x")

    def test_a_failure_at_any_step_of_a_create_leaves_all_or_nothing(self) -> None:
        """In fsync mode no step lets half a file appear."""
        found: dict[int, set[bytes | None]] = {}
        for stop_at in range(1, 6):
            for seed in range(20):
                store = PowerLossStore("fsync", random=SeededRandomness(seed), stop_at=stop_at)
                try:
                    store.put_if_absent("v/1", b"1234")
                except Killed:
                    with pytest.raises(Killed):
                        store.get("v/1")
                store.crash()
                found.setdefault(stop_at, set()).add(store.get("v/1") if has(store, "v/1") else None)
        assert found == {1: {None}, 2: {None}, 3: {None}, 4: {None, b"1234"}, 5: {b"1234"}}


class TestTimeAndChance:
    def test_a_jump_moves_the_wall_clock_alone(self) -> None:
        clock = ManualClock()
        start = clock.now()
        clock.sleep(2)
        clock.jump(-3600)
        assert (clock.now() - start).total_seconds() == 2 - 3600
        assert clock.monotonic() == 2

    def test_one_seed_gives_one_course(self) -> None:
        def course(seed: int) -> list[object]:
            chance = SeededRandomness(seed)
            return [chance.uuid(), chance.uniform(0, 1), chance.randrange(100), chance.uuid()]

        assert course(7) == course(7)
        assert course(7) != course(8)
