"""Records in an SQL database. A commit there is the one step that decides; all that leads to it can be thrown away."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, and_, or_, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tiltyard.catalog.database import Database, Failure, Trouble
from tiltyard.catalog.migrations import RECORDS, is_current, migrate
from tiltyard.catalog.process_queue import ProcessQueue
from tiltyard.catalog.record_codec import check_keys, decode_all, encode_all, prefix_ranges
from tiltyard.catalog.records import Body, Decide, Found, Offering, Ticket, Writes
from tiltyard.errors import ContentionError, StorageError
from tiltyard.interfaces import Runtime, system_runtime

T = TypeVar("T")

_UNKNOWN: Final = "Check whether the change is there before you try again."
_NOTHING: Final = "Nothing was written."


class _Again(Exception):
    """This try came to nothing, and another one may fare better.

    Attributes:
        reason: why, for the message in the end.
        lock: keys that have to be locked next time.
        pause: whether to wait first, since others are busy.
        lost: what to raise if the connection is lost a second time.
    """

    def __init__(self, reason: str, *, lock: Collection[str] = (), pause: bool = False, lost: StorageError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lock = frozenset(lock)
        self.pause = pause
        self.lost = lost


@dataclass(frozen=True, slots=True)
class _Process:
    """What belongs to one process and must not cross a fork."""

    engine: Engine
    line: ProcessQueue | None
    writer: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        self.engine.dispose()
        if self.line is not None:
            self.line.close()


class SqlRecords:
    """Records in the table ``tiltyard_records`` of an SQL database, which is made, or brought up to date, when it is opened.

    May be used by many threads, and by children after a fork.
    """

    def __init__(self, database: Database, *, runtime: Runtime | None = None) -> None:
        self._database = database
        self._runtime = runtime or system_runtime()
        # By process id. What a forked child finds here of its parent it neither uses nor closes: the sockets and locks are the parent's.
        self._processes: dict[int, _Process] = {}
        self._haste = threading.local()
        self.url = database.shown
        try:
            if not self._read(lambda connection: is_current(connection, self.url)):
                self._transaction(self._migrate)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"SqlRecords({self.url!r})"

    def get(self, keys: Collection[str]) -> Found:
        check_keys(keys)
        if not keys:
            return {}
        return decode_all(self._read(lambda connection: self._database.read(connection, keys)), self.url)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        key = RECORDS.c.key
        ranges = [key >= first if end is None else and_(key >= first, key < end) for first, end in prefix_ranges(prefixes)]
        if not ranges:
            return []
        query = select(key, RECORDS.c.body).where(or_(*ranges)).order_by(key.desc() if descending else key).limit(limit)
        rows = self._read(lambda connection: connection.execute(query).all())
        return list(decode_all(rows, self.url).items())

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        check_keys((*exclusive, *shared))
        written = set(exclusive)

        def attempt(connection: Connection) -> tuple[T, bool]:
            try:
                return self._attempt(connection, written, shared, decide)
            except _Again as again:
                written.update(again.lock)
                raise

        return self._transaction(attempt)

    @property
    def is_file(self) -> bool:
        """Whether it is a file of this machine, so that a step is short where nobody else is in the way."""
        return self._database.queue is not None

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Within, this thread waits for nobody: where others hold a lock it gets ``ContentionError`` at once, and nothing was written."""
        self._haste.now = True
        try:
            yield
        finally:
            self._haste.now = False

    def ticket(self, names: Collection[str], longest: float) -> Ticket:
        return self._database.ticket(self._here().engine, names, longest)

    def ticket_for(self, names: Collection[str], longest: float, who: Offering) -> Ticket:
        """A ticket for somebody who makes an offer, where tickets of the database show offers; elsewhere it waits for its turn."""
        take: Callable[[Collection[str], float, Offering], Ticket] | None = getattr(self._database, "ticket_for", None)
        return self.ticket(names, longest) if take is None else take(names, longest, who)

    def give_space_back(self) -> int:
        """For a database that keeps the room of deleted records to itself."""
        shrink = getattr(self._database, "shrink", None)
        return int(shrink()) if shrink is not None else 0

    def close(self) -> None:
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            process.close()

    # what is done within a transaction

    def _attempt(self, connection: Connection, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> tuple[T, bool]:
        ordered = _in_order(exclusive, shared)
        rows = self._database.look(connection, ordered) if ordered else ()
        found = decode_all(rows, self.url)
        writes = decide(found)
        check_keys((*writes.put, *writes.delete))
        changed = {key for key in writes.put if key in found} | set(writes.delete)
        if weak := changed.difference(exclusive):
            raise _Again("records had to be locked first", lock=weak)
        self._write(connection, writes, found, [key for key, _ in ordered if key not in found])
        return writes.result, bool(writes.put or writes.delete)

    def _write(self, connection: Connection, writes: Writes[T], found: Found, absent: Sequence[str]) -> None:
        """Writes it all. What was looked for and not there is created, if only to be deleted again: so nobody else can have created it."""
        bodies = encode_all({key: body for key, body in writes.put.items() if key not in writes.delete})
        guards = {key for key in absent if key not in bodies}
        new = dict.fromkeys(guards, "{}") | {key: body for key, body in bodies.items() if key not in found}
        if new and (taken := new.keys() - self._database.insert(connection, sorted(new.items()))):
            raise _Again("another process created a record", lock=taken - guards)
        if known := [(key, body) for key, body in sorted(bodies.items()) if key in found]:
            self._database.update(connection, known)
        if gone := guards.union(writes.delete):
            self._database.delete(connection, gone)

    def _migrate(self, connection: Connection) -> tuple[None, bool]:
        if self._database.lock_all:
            connection.exec_driver_sql(self._database.lock_all)
        migrate(connection, self.url)
        return None, True

    # connections, transactions and what may go wrong with them

    def _read(self, work: Callable[[Connection], T]) -> T:
        """Does work that writes nothing."""

        def attempt() -> T:
            with self._connected() as connection:
                return self._guarded(connection, work, first=True)

        return self._persist(attempt)

    def _transaction(self, work: Callable[[Connection], tuple[T, bool]]) -> T:
        """Does work between BEGIN and COMMIT that tells its result, and whether there was anything to write."""

        def attempt() -> T:
            with self._turn(), self._connected() as connection, self._in_line():
                self._guarded(connection, self._database.begin, first=True)
                try:
                    result, wrote = self._guarded(connection, work)
                except BaseException:
                    _roll_back(connection)
                    raise
                self._commit(connection, wrote=wrote)
                return result

        return self._persist(attempt)

    def _persist(self, attempt: Callable[[], T]) -> T:
        """Tries as often as others are in the way, within bounds."""
        patience, clock = self._database.patience, self._runtime.clock
        start, tries, lost = clock.monotonic(), 0, 0
        while True:
            try:
                return attempt()
            except _Again as again:
                last = again
            tries += 1
            lost += last.lost is not None
            seconds = clock.monotonic() - start
            if last.lost is not None and lost > 1:
                raise last.lost
            hurried = last.pause and self._is_hurried
            if tries >= patience.attempts or seconds > patience.seconds or hurried:
                what = f"The catalog {self.url} was not written in {tries} tries and {seconds:.1f} s: {last.reason}."
                who = self._database.holder(self._here().engine) if last.pause and not hurried else ""
                advice = f"{_NOTHING} {who}" if who else None
                raise ContentionError(what, operation="catalog", attempts=tries, seconds=seconds, advice=advice)
            if last.pause:
                clock.sleep(patience.wait(tries - 1, self._runtime))

    def _guarded(self, connection: Connection, work: Callable[[Connection], T], *, first: bool = False) -> T:
        """Does work and puts what the driver raises into our words. If the connection is lost, nothing was applied."""
        try:
            return work(connection)
        except DBAPIError as error:
            failure = self._database.failure(error.orig)
        except connection.dialect.loaded_dbapi.Error as error:
            failure = self._database.failure(error)
        # Raised out here, so that the driver's words, which may quote a record, are not chained to it.
        # A file is not lost like a server: where it fails in the middle it says why, and trying at once does not help.
        raise self._problem(failure, again=first or not self._database.one_writer)

    def _commit(self, connection: Connection, *, wrote: bool) -> None:
        # Straight through the driver, whose answer tells a commit from a server that ended the transaction the other way.
        cursor = connection.connection.cursor()
        try:
            cursor.execute("COMMIT")
            if self._database.committed(cursor):
                return
            failure = Failure(Trouble.FAILED, "rolled back")
        except connection.dialect.loaded_dbapi.Error as error:
            failure = self._database.failure(error)
        finally:
            cursor.close()
        _roll_back(connection)
        # Where nothing was written there is nothing to be in doubt about: it is looked at once more, as by any other read.
        raise self._problem(failure, again=not wrote, committing=wrote)

    def _problem(self, failure: Failure, *, again: bool = False, committing: bool = False) -> Exception:
        if failure.trouble is Trouble.BUSY:
            return _Again(f"others hold its locks ({failure.code})", pause=True)
        lost = failure.trouble is Trouble.LOST
        unknown = committing and lost
        done = "did not say whether it committed" if unknown else "failed"
        error = StorageError(
            f"The catalog {self.url} {done} ({failure.code}).",
            name=self.url,
            maybe_applied=unknown,
            transient=failure.transient,
            advice=_UNKNOWN if unknown else f"{_NOTHING} {failure.advice}".strip(),
        )
        return _Again("the connection was lost", lost=error) if again and lost else error

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        connection = None
        try:
            connection = self._here().engine.connect()
        except DBAPIError as error:
            failure = self._database.failure(error.orig)
        if connection is None:
            raise self._problem(failure)
        with connection:
            yield connection

    @property
    def _is_hurried(self) -> bool:
        return getattr(self._haste, "now", False)

    @property
    def _longest(self) -> float:
        """Seconds for which somebody waits in line."""
        return 0.0 if self._is_hurried else self._database.patience.seconds

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Where only one can write at a time, threads wait here for each other, in line, instead of asking the file again and again."""
        if not self._database.one_writer:
            yield
            return
        writer = self._here().writer
        if not writer.acquire(timeout=self._longest):
            raise _Again("another thread of this process holds its lock", pause=True)
        try:
            yield
        finally:
            writer.release()

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        """The same for processes. One that hangs holds up the others no longer than they are patient; then they ask the file after all."""
        line = self._here().line
        if line is None:
            yield
            return
        ours = line.enter(self._runtime.clock, self._longest)
        try:
            yield
        finally:
            if ours:
                line.leave()

    def _here(self) -> _Process:
        """The connections of this process. Without a lock, which a fork could leave locked for ever in the child."""
        pid = os.getpid()
        found = self._processes.get(pid)
        if found is None:
            engine, queue = self._database.engine(), self._database.queue
            made = _Process(engine, None if queue is None else ProcessQueue(queue))
            found = self._processes.setdefault(pid, made)
            if found is made:
                weakref.finalize(self, _let_go, made, pid)  # for those who forget to close
        return found


def _let_go(process: _Process, pid: int) -> None:
    if os.getpid() == pid:
        process.close()


def _roll_back(connection: Connection) -> None:
    """Ends a transaction that came to nothing. If even that fails the connection is thrown away, and the server ends it."""
    try:
        connection.exec_driver_sql("ROLLBACK")
    except SQLAlchemyError:
        connection.invalidate()


def _in_order(exclusive: Iterable[str], shared: Iterable[str]) -> list[tuple[str, bool]]:
    """Every key once with whether it is locked exclusively, in the one order in which everybody locks, so that nobody waits in a circle."""
    strongest = dict.fromkeys(shared, False) | dict.fromkeys(exclusive, True)
    return sorted(strongest.items())
