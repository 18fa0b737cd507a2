"""Records in PostgreSQL: what is particular to a server that others use too, and that can go away in the middle."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import event

from tests.support.cutting_proxy import Cut, CuttingProxy
from tests.support.races import PATIENCE
from tests.support.records import fresh_database, with_parameters
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.postgres import Postgres
from tiltyard.catalog.records import Found, Writes
from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.errors import ContentionError, InvalidInput, StorageError, TiltyardError
from tiltyard.interfaces import Runtime
from tiltyard.testing import ManualClock, SeededRandomness
from tiltyard.testing.record_conformance import increment, together, write

pytest_plugins = ("tests.support.postgres",)


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture
def records(url: str) -> Iterator[SqlRecords]:
    records = SqlRecords(Postgres(url))
    yield records
    records.close()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def end_all_others(connection: psycopg.Connection[Any]) -> int:
    """Ends every other connection to this database, and waits until they are gone."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ended = connection.execute(f"SELECT count(pg_terminate_backend(pid, 30000)) {others}").fetchone()
    assert ended is not None
    return int(ended[0])


class TestLostConnections:
    def test_within_a_decision(self, records: SqlRecords, other: psycopg.Connection[Any]) -> None:
        write(records, {"a": {"x": 1}})

        def decide(found: Found) -> Writes[None]:
            assert end_all_others(other) >= 1
            return Writes(None, put={"a": {"x": 2}, "b": {}})

        with pytest.raises(StorageError) as caught:
            records.transact(["a"], [], decide)
        assert (caught.value.transient, caught.value.maybe_applied) == (True, False)
        assert "Nothing was written" in str(caught.value)
        assert dict(records.scan([""])) == {"a": {"x": 1}}
        assert increment(records, "a") == 1

    def test_with_nothing_to_write_nothing_is_in_doubt(self, records: SqlRecords, other: psycopg.Connection[Any]) -> None:
        """A read is looked at once more on another connection; it never ends in doubt about a commit."""
        write(records, {"a": {"x": 1}})
        looks = []

        def decide(found: Found) -> Writes[int]:
            looks.append(dict(found))
            if len(looks) == 1:
                end_all_others(other)
            return Writes(found["a"]["x"])

        assert records.transact(["a"], ["none"], decide) == 1
        assert looks == [{"a": {"x": 1}}] * 2

        def decide_always_lost(found: Found) -> Writes[None]:
            end_all_others(other)
            return Writes(None)

        with pytest.raises(StorageError) as caught:
            records.transact(["a"], [], decide_always_lost)
        assert (caught.value.transient, caught.value.maybe_applied) == (True, False)
        assert "did not say" not in str(caught.value)

    def test_between_two_calls_nobody_notices(self, records: SqlRecords, other: psycopg.Connection[Any]) -> None:
        write(records, {"a": {"n": 1}})
        assert end_all_others(other) == 1
        assert records.get(["a"]) == {"a": {"n": 1}}
        assert end_all_others(other) == 1
        assert increment(records, "a") == 2
        assert end_all_others(other) == 1
        assert records.scan(["a"]) == [("a", {"n": 2})]

    @pytest.mark.parametrize(("cut", "applied"), [("before", False), ("after", True)])
    def test_at_the_commit_the_outcome_is_unknown(self, url: str, tmp_path: Path, cut: Cut, applied: bool) -> None:
        given = conninfo_to_dict(url)
        port = given.get("port") or 5432
        proxy = CuttingProxy(Path(str(given["host"])) / f".s.PGSQL.{port}", tmp_path / f".s.PGSQL.{port}")
        try:
            records = SqlRecords(Postgres(with_parameters(url, host=str(tmp_path))))
            write(records, {"a": {"x": 1}})
            proxy.cut = cut
            with pytest.raises(StorageError) as caught:
                write(records, {"a": {"x": 2}, "b": {}})
            assert (caught.value.maybe_applied, caught.value.transient, proxy.cuts) == (True, True, 1)
            proxy.cut = "never"
            expected = {"a": {"x": 2}, "b": {}} if applied else {"a": {"x": 1}}
            assert dict(records.scan([""])) == expected
            write(records, {"c": {}})
            records.close()
        finally:
            proxy.close()

    def test_no_server(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError) as caught:
            SqlRecords(Postgres(f"postgresql://me:hunter2@/lake?host={tmp_path}"))
        assert (caught.value.transient, caught.value.maybe_applied) == (True, False)
        assert "Check that the server runs" in str(caught.value)


class WaitingClock(ManualClock):
    """Whoever sleeps by it wakes when somebody else has what was left to him: PostgreSQL lets the one who asks again first have it, too."""

    before_it_goes_on: Future[Any] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.before_it_goes_on is not None:
            self.before_it_goes_on.result(PATIENCE)


class TestLocks:
    def test_a_deadlock_with_somebody_else_is_tried_again(self, url: str, other: psycopg.Connection[Any]) -> None:
        clock = WaitingClock()
        # With time enough for the circle to be closed, however slow the machine is.
        records = SqlRecords(Postgres(url, lock_timeout=PATIENCE), runtime=Runtime(clock, SeededRandomness(1)))
        write(records, {"a": {"n": 0}, "between": {}, "c": {"n": 0}})
        # The server looks once, when somebody has waited for a while: so it has to be us who close the circle, and nobody else it finds.
        other.execute("SET deadlock_timeout = '1min'")
        lock = "SELECT FROM tiltyard_records WHERE key = %s FOR UPDATE"
        keys = ["a", "between", "c"]
        with (
            ThreadPoolExecutor(2) as pool,
            psycopg.connect(url, autocommit=True) as watcher,
            psycopg.connect(url, autocommit=True) as gate,
        ):
            with other.transaction():
                other.execute(lock, ["c"])
                with gate.transaction():
                    gate.execute(lock, ["between"])
                    ours = pool.submit(records.transact, keys, [], lambda found: Writes(dict(found), put={"a": {"n": 1}}))
                    wait_until_blocked(watcher)
                    theirs = clock.before_it_goes_on = pool.submit(other.execute, lock, ["a"])
                    wait_until_blocked(watcher, 2)
                theirs.result(PATIENCE)
            assert ours.result(PATIENCE) == {"a": {"n": 0}, "between": {}, "c": {"n": 0}}
        assert len(clock.slept) == 1, "it waited before it tried again"
        assert records.get(["a"]) == {"a": {"n": 1}}
        records.close()

    def test_the_end_of_patience(self, url: str, other: psycopg.Connection[Any]) -> None:
        clock = ManualClock()
        records = SqlRecords(Postgres(url, lock_timeout=0.01), runtime=Runtime(clock, SeededRandomness(2)))
        write(records, {"a": {"n": 0}})
        with other.transaction():
            other.execute("SELECT FROM tiltyard_records FOR SHARE")
            with pytest.raises(ContentionError) as caught:
                increment(records, "a")
            assert records.transact([], ["a"], lambda found: Writes(dict(found))) == {"a": {"n": 0}}, "two may look"
        assert (caught.value.attempts, len(clock.slept)) == (16, 15)
        assert "55P03" in str(caught.value)
        assert increment(records, "a") == 1
        records.close()

    def test_our_own_locks_never_need_another_try(self, url: str) -> None:
        """Whoever locks in one order does not meet a deadlock, whatever order the keys are named in and however strongly they lock."""
        keys = [f"k{number}" for number in range(8)]
        clocks = [ManualClock() for _ in range(6)]
        handles = [SqlRecords(Postgres(url), runtime=Runtime(clock, SeededRandomness(3))) for clock in clocks]
        write(handles[0], {key: {"n": 0} for key in keys})

        def run(me: int) -> None:
            chance = SeededRandomness(me)
            for _ in range(60):
                ordered = chance.sample(keys, 8)
                mine = ordered[: chance.randrange(1, 5)]
                handles[me].transact(mine, ordered, lambda found, m=mine: Writes(None, put={k: {"n": found[k]["n"] + 1} for k in m}))  # type: ignore[misc]

        together([lambda me=me: run(me) for me in range(6)])  # type: ignore[misc]
        assert [clock.slept for clock in clocks] == [[]] * 6
        for handle in handles:
            handle.close()

    def test_a_writer_waits_for_a_reader(self, records: SqlRecords, other: psycopg.Connection[Any]) -> None:
        write(records, {"a": {"n": 0}})
        inside, go_on = threading.Event(), threading.Event()

        def decide(found: Found) -> Writes[None]:
            inside.set()
            assert go_on.wait(PATIENCE)
            return Writes(None, put={"copy": found["a"]})

        with ThreadPoolExecutor(2) as pool:
            reader = pool.submit(records.transact, [], ["a"], decide)
            assert inside.wait(PATIENCE)
            writer = pool.submit(increment, records, "a")
            wait_until_blocked(other)
            go_on.set()
            reader.result(PATIENCE)
            assert writer.result(PATIENCE) == 1
        assert records.get(["a", "copy"]) == {"a": {"n": 1}, "copy": {"n": 0}}


def wait_until_blocked(connection: psycopg.Connection[Any], count: int = 1) -> None:
    """Returns when so many connections to this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(int(PATIENCE * 100)):
        row = connection.execute(query).fetchone()
        if row is not None and row[0] >= count:
            return
        connection.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("nobody waits for a lock")


class TestForm:
    def test_keys_are_compared_byte_by_byte(self, records: SqlRecords, other: psycopg.Connection[Any]) -> None:
        query = "SELECT collation_name FROM information_schema.columns WHERE table_name = 'tiltyard_records' AND column_name = 'key'"
        assert other.execute(query).fetchone() == ("C",)

    def test_a_transaction_costs_four_statements_however_many_records(self, records: SqlRecords) -> None:
        keys = [f"k{number}" for number in range(50)]
        write(records, {key: {} for key in keys})
        sent: list[str] = []
        engine = records._here().engine
        event.listen(engine, "before_cursor_execute", lambda *facts: sent.append(facts[2].split()[0]))
        records.transact(keys[::2], keys[1::2], lambda found: Writes(None, put=dict(found) | {"new": {}}, delete=keys[:2]))
        # In a second pass, since records that were locked for reading have to be locked for writing first. COMMIT passes by the listener.
        assert sent == ["BEGIN", "SELECT", "ROLLBACK", "BEGIN", "SELECT", "INSERT", "UPDATE", "DELETE"]
        sent.clear()
        records.transact(keys[2::2], keys[3::2], lambda found: Writes(None, put={key: {} for key in keys[2::2]} | {"newer": {}}))
        assert sent == ["BEGIN", "SELECT", "INSERT", "UPDATE"]
        sent.clear()
        records.get(keys)
        records.scan(["k", "new"])
        assert sent == ["SELECT", "SELECT"]

    def test_synchronous_commit_is_lowered_only_when_asked(self, url: str) -> None:
        for durability in ("fsync", "os"):
            records = open_records(url, durability=durability)
            assert isinstance(records, SqlRecords)
            setting = records._transaction(lambda c: (c.exec_driver_sql("SHOW synchronous_commit").scalar_one(), False))
            assert setting == ("on" if durability == "fsync" else "off")
            records.close()


class TestSecrets:
    def test_errors_do_not_show_the_address(self, url: str, tmp_path: Path) -> None:
        bad = [
            f"postgresql://me:hunter2@/lake?host={tmp_path}",
            f"postgresql+psycopg://me:hunter2@/lake?host={tmp_path}&sslpassword=hunter2",
            "postgresql://me:hunter2@[bad/lake",
            "postgresql://me:hunter2@/lake?nonsense=hunter2",
        ]
        for address in bad:
            with pytest.raises((StorageError, InvalidInput)) as caught:
                open_records(address)
            shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.to_dict())
            assert "hunter2" not in shown.replace(repr(address), "").replace(address, ""), shown
            assert caught.value.__context__ is None

    def test_what_is_shown_names_the_place_alone(self, url: str) -> None:
        records = open_records(with_parameters(url, password="hunter2"))
        write(records, {"secret": {"value": "hunter2"}})
        shown = repr(records) + records.url
        with pytest.raises(TiltyardError) as caught:
            write(records, {"a": {"value": float("nan")}})
        assert "hunter2" not in shown + str(caught.value)
        assert records.url.startswith("postgresql://")
        records.close()
