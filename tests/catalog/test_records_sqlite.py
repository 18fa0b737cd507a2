"""Records in an SQLite file: where it may lie, what it promises about the disk, and who waits for whom."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.records import fresh_database
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Found, Writes
from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.catalog.sqlite import Sqlite
from tiltyard.errors import ContentionError, CorruptTable, InvalidInput, StorageError
from tiltyard.interfaces import Runtime
from tiltyard.testing import ManualClock, SeededRandomness
from tiltyard.testing.record_conformance import increment, write

pytest_plugins = ("tests.support.postgres",)

ODD_PLACES = (
    "with space",
    "per%20cent",
    "q?mode=memory#frag",
    "ünïcode ß",
    "'quote'",
    '"double"',
    "a:b@c",
    "file:x",
    ":memory:",
    "-dash",
    "*",
)


class TestPlaces:
    @pytest.mark.parametrize("name", ODD_PLACES)
    def test_any_path_will_do(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "deeper" / name / name
        records = open_records(f"sqlite:///{path}")
        write(records, {"a": {"n": 1}})
        assert path.is_file()
        assert records.url == f"sqlite:///{path}"
        records.close()
        again = open_records(f"sqlite:///{path}")
        assert again.get(["a"]) == {"a": {"n": 1}}
        again.close()

    def test_a_relative_path_is_fixed_when_it_is_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        records = open_records("sqlite:///lake/catalog.db")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        write(records, {"a": {}})
        records.close()
        assert increment(records, "a") == 1
        records.close()
        assert (tmp_path / "lake/catalog.db").is_file()
        assert list((tmp_path / "elsewhere").iterdir()) == []

    @pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
    def test_what_is_no_file_is_refused(self, path: str) -> None:
        with pytest.raises(InvalidInput):
            open_records(f"sqlite:///{path}")

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("dear diary " * 1000)
        with pytest.raises(StorageError, match="not a SQLite database") as caught:
            open_records(f"sqlite:///{path}")
        assert (caught.value.transient, caught.value.maybe_applied) == (False, False)
        assert path.read_text() == "dear diary " * 1000

    def test_a_place_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError):
            open_records(f"sqlite:///{tmp_path}/file/catalog.db")
        with pytest.raises(StorageError):
            open_records(f"sqlite:///{tmp_path}")

    def test_a_body_that_is_no_json(self, tmp_path: Path) -> None:
        records = open_records(f"sqlite:///{tmp_path}/x.db")
        write(records, {"a": {}, "b": {}})
        with sqlite3.connect(tmp_path / "x.db") as other:
            other.execute("UPDATE tiltyard_records SET body = '[1' WHERE key = 'a'")
        other.close()
        for call in (lambda: records.get(["a"]), lambda: records.scan(["a"]), lambda: increment(records, "a")):
            with pytest.raises(CorruptTable, match="'a'"):
                call()
        assert increment(records, "b") == 1
        records.close()


class TestDisk:
    @pytest.mark.parametrize(("durability", "level"), [("fsync", 2), ("os", 1)])
    def test_flushes_as_promised(self, tmp_path: Path, durability: str, level: int) -> None:
        records = open_records(f"sqlite:///{tmp_path}/x.db", durability=durability)  # type: ignore[arg-type]
        assert isinstance(records, SqlRecords)
        asked = records._read(lambda c: [c.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("journal_mode", "synchronous")])
        assert asked == ["wal", level]
        records.close()

    def test_no_space_before_the_commit_is_a_plain_failure(self, tmp_path: Path) -> None:
        records = open_records(f"sqlite:///{tmp_path}/x.db")
        assert isinstance(records, SqlRecords)
        records._read(lambda c: c.exec_driver_sql("PRAGMA max_page_count=8").scalar_one())
        with pytest.raises(StorageError, match="Free space") as caught:
            write(records, {"a": {"text": "x" * 1_000_000}})
        assert (caught.value.transient, caught.value.maybe_applied) == (True, False)
        assert records.scan([""]) == []
        records.close()

    def test_no_space_at_the_commit_leaves_it_open(self, tmp_path: Path) -> None:
        """In a process of its own, since the limit on the size of files holds for all of it."""
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path / "x.db")], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr


LIMITED = """
import pathlib, resource, sys
from tiltyard.catalog.open_records import open_records
from tiltyard.errors import StorageError
from tiltyard.testing.record_conformance import write

records = open_records("sqlite:///" + sys.argv[1])
write(records, {"a": {"n": 1}})
log = pathlib.Path(sys.argv[1] + "-wal")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 20_000, hard))
try:
    write(records, {"a": {"n": 2}, "b": {"text": "x" * 200_000}})
except StorageError as error:
    assert error.maybe_applied, error
else:
    raise AssertionError("it did not fail")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert dict(records.scan([""])) == {"a": {"n": 1}}
write(records, {"a": {"n": 3}})
assert records.get(["a"]) == {"a": {"n": 3}}
records.close()
"""


class TestWaiting:
    def test_the_end_of_patience(self, tmp_path: Path) -> None:
        clock = ManualClock()
        records = SqlRecords(Sqlite(tmp_path / "x.db"), runtime=Runtime(clock, SeededRandomness(1)))
        write(records, {"a": {"n": 0}})
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ContentionError) as caught:
            increment(records, "a")
        assert records.get(["a"]) == {"a": {"n": 0}}, "readers wait for nobody"
        other.execute("ROLLBACK")
        other.close()
        assert Sqlite.patience.seconds < caught.value.seconds < 60
        assert caught.value.attempts == len(clock.slept) + 1
        assert max(clock.slept) <= 0.02
        assert "SQLITE_BUSY" in str(caught.value)
        assert increment(records, "a") == 1
        records.close()

    def test_a_decision_is_made_with_the_right_to_write(self, tmp_path: Path) -> None:
        """So that nobody decides in vain."""
        records = open_records(f"sqlite:///{tmp_path}/x.db")
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0)

        def decide(found: Found) -> Writes[str]:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            return Writes("done", put={"a": {}})

        assert records.transact([], ["a"], decide) == "done"
        other.close()
        records.close()

    def test_a_writer_that_comes_back(self, tmp_path: Path) -> None:
        """Waiting goes through the clock: here the other one lets go in the third wait."""
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)

        class Clock(ManualClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(seconds)
                if len(self.slept) == 3:
                    other.execute("ROLLBACK")

        clock = Clock()
        records = SqlRecords(Sqlite(tmp_path / "x.db"), runtime=Runtime(clock, SeededRandomness(1)))
        other.execute("BEGIN IMMEDIATE")
        assert records.transact(["a"], [], lambda found: Writes("done", put={"a": {}})) == "done"
        assert len(clock.slept) == 3
        other.close()
        records.close()


class _Turns:
    """The lock of a process's writers, taken; and how long somebody would have waited for it."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def acquire(self, timeout: float) -> bool:
        self.waits.append(timeout)
        return False


class TestHaste:
    """Whoever must not wait is told at once that it would have to."""

    def test_for_another_process(self, tmp_path: Path) -> None:
        clock = ManualClock()
        records = SqlRecords(Sqlite(tmp_path / "x.db"), runtime=Runtime(clock=clock, random=SeededRandomness(1)))
        write(records, {"a": {"n": 1}})
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        before = clock.monotonic()
        with records.hurried(), pytest.raises(ContentionError):
            increment(records, "a")
        assert clock.monotonic() == before  # it slept for no moment
        with pytest.raises(ContentionError):
            increment(records, "a")
        assert clock.monotonic() > before
        other.execute("ROLLBACK")
        other.close()
        with records.hurried():
            assert increment(records, "a") == 2
        records.close()

    def test_for_another_thread(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        records = SqlRecords(Sqlite(tmp_path / "x.db"))
        write(records, {"a": {"n": 1}})
        turns, here = _Turns(), records._here()
        records._processes[os.getpid()] = replace(here, writer=turns)  # type: ignore[arg-type]
        with records.hurried(), pytest.raises(ContentionError):
            increment(records, "a")
        assert turns.waits == [0.0]
        records._processes[os.getpid()] = here
        assert increment(records, "a") == 2
        records.close()

    def test_the_connection_that_was_used_last_is_used_next(self, tmp_path: Path) -> None:
        records = SqlRecords(Sqlite(tmp_path / "x.db"))
        engine = records._here().engine
        with engine.connect() as first, engine.connect() as second:
            latest = second.connection.driver_connection
            assert first.connection.driver_connection is not latest
            first.close()
        with engine.connect() as one:
            assert one.connection.driver_connection is latest
        with engine.connect() as one:
            assert one.connection.driver_connection is latest
        records.close()


FORKING = """
import os, sys
from tiltyard.catalog.open_records import open_records
from tiltyard.testing.record_conformance import increment

records = open_records(sys.argv[1])
assert increment(records, "n") == 1
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        for _ in range(20):
            increment(records, "n")
        records.get(["n"])
        records.close()
        os._exit(0)
    children.append(child)
for _ in range(20):
    increment(records, "n")
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
assert records.get(["n"]) == {"n": {"n": 81}}, records.get(["n"])
records.close()
"""


class TestForks:
    @pytest.fixture(params=["sqlite", "postgres"])
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        if request.param == "sqlite":
            yield f"sqlite:///{tmp_path}/x.db"
        else:
            with fresh_database(request.getfixturevalue("postgres_url")) as url:
                yield url

    def test_a_child_has_connections_of_its_own(self, url: str) -> None:
        done = subprocess.run([sys.executable, "-c", FORKING, url], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
