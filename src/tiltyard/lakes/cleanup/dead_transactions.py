"""What transactions left behind that nobody will commit any more.

Who is at work and who is dead cannot be told apart. So a transaction that has been silent for long is given up in the catalog first, under
the lock that its own publication needs; only then is anything removed. One that was alive all the same is refused and may run again. How
long is a matter of taste: no clock decides whether it is safe.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.expiry import expired_among
from tiltyard.catalog.ledger import maker_of
from tiltyard.catalog.publishing import COMMITTED, IN_DOUBT
from tiltyard.catalog.value_codec import transaction_key
from tiltyard.errors import CorruptTable, NotFound, TiltyardError
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import detached_name, parse_manifest_name
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.staged import COLLECTED, STAGED
from tiltyard.transaction.log import VERSIONS
from tiltyard.verbs.engine.access import WRITER, TableAccess
from tiltyard.verbs.engine.staged_access import detached_number

if TYPE_CHECKING:
    from tiltyard.lakes.finishing import LakeBase

_OF_TRANSACTION: Final = re.compile(r"[0-9]+-[^/]+")
"""The file of a transaction over any number of tables, below the directory of its id; that of a single verb has no number."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A transaction that is not committed.

    Attributes:
        transaction: its id.
        tables: where it has written.
        since: when it last staged something.
        reason: why it is left alone; empty for one that is given up.
    """

    transaction: str
    tables: tuple[str, ...]
    since: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    """A staged version: which transaction decides about it, and which one of the table's own made it."""

    where: str
    path: str
    modified: datetime
    transaction: str
    maker: str


@dataclass(slots=True)
class Sweep:
    """What there is to sweep, by the directory of a table.

    Attributes:
        given_up: transactions that will never be committed, for certain; in a dry run those that would be.
        held: those that may still be.
        dead: ids of the tables' own transactions among those given up.
        paths: staged versions that can go.
        unreadable: staged versions of which nobody can say whose they are.
    """

    given_up: list[Silent] = field(default_factory=list)
    held: list[Silent] = field(default_factory=list)
    dead: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    paths: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unreadable: list[tuple[str, str]] = field(default_factory=list)


def sweep(
    lake: LakeBase, places: Mapping[str, TableAccess], grace: timedelta, *, dry_run: bool, committed: Callable[[], Collection[str]] = tuple
) -> Sweep:
    """Gives up transactions that have been silent for longer than ``grace``, and says what of theirs can be removed.

    Args:
        lake: the lake.
        places: where its tables live, by what they are called in the report.
        grace: how long a transaction may be silent; zero for all that are not committed.
        dry_run: gives nobody up.
        committed: asked at most once for transactions that are committed for certain, though the catalog has no record of them.
    """
    found = Sweep()
    by_transaction: dict[str, list[_File]] = defaultdict(list)
    for where, access in places.items():
        for file in _staged(where, access.store, found):
            by_transaction[file.transaction].append(file)
    known = lake.catalog.records.get([transaction_key(name) for name in by_transaction]) if by_transaction else {}
    unknown = [transaction for transaction in by_transaction if transaction_key(transaction) not in known]
    expired = expired_among(lake.catalog, unknown)
    now = lake.catalog.runtime.clock.now()
    # Read after the transactions: what was committed by then is pending, or has its final name.
    waiting = {pending.staged for pending in lake.catalog.pending()}
    lost: Collection[str] | None = None
    for transaction, files in by_transaction.items():
        state = known.get(transaction_key(transaction), {}).get("state")
        if state == COMMITTED or transaction in expired:
            _add(found, [file for file in files if file.path not in waiting], dead=False)
            continue
        silent = Silent(transaction, tuple(dict.fromkeys(file.where for file in files)), max(file.modified for file in files))
        if state == IN_DOUBT:
            found.held.append(_held(silent, "whether it was committed was lost with the catalog; see `tiltyard lake outcome`"))
            continue
        if state is None and now - silent.since < grace:
            found.held.append(_held(silent, "it may still be at work"))
            continue
        if state is None and lost is None:
            lost = committed()
        if state is None and lost is not None and transaction in lost:
            found.held.append(_held(silent, "its versions exist, but the catalog has no record of it"))
        elif state is None and not dry_run and not lake.catalog.abort(transaction):
            found.held.append(_held(silent, "it was committed just now"))
        else:
            found.given_up.append(silent)
            _add(found, files, dead=True)
    for where, access in places.items():
        # A batch whose versions are gone is refused, and one that was committed does not need them.
        found.paths[where].update(info.path for info in access.store.list(COLLECTED) if now - info.modified >= grace)
    return found


def _held(silent: Silent, reason: str) -> Silent:
    return Silent(silent.transaction, silent.tables, silent.since, reason)


def _add(found: Sweep, files: Iterable[_File], *, dead: bool) -> None:
    for file in files:
        found.paths[file.where].add(file.path)
        if dead:
            found.dead[file.where].add(file.maker)


def _staged(where: str, store: ObjectStore, found: Sweep) -> Iterator[_File]:
    for info in store.list(STAGED):
        directory, _, name = info.path.removeprefix(STAGED).partition("/")
        try:
            maker = maker_of(store.get(info.path), info.path).uuid
        except NotFound:
            continue  # published or thrown away meanwhile
        except CorruptTable as error:
            found.unreadable.append((where, f"{info.path}: {error}"))
            continue
        # A single verb is published under the id of its own transaction, whatever directory it was staged in.
        yield _File(where, info.path, info.modified, directory if _OF_TRANSACTION.fullmatch(name) else maker, maker)


def drop_detached(store: ObjectStore, going: Iterable[str]) -> list[str]:
    """Removes the detached versions of staged ones that go, and those whose staged version is gone already; their paths.

    They are there for pylance to read a transaction's own writes, and nobody else's business.
    """
    paths = detached_of(store, going)
    for path in paths:
        store.delete(path)
    return paths


def detached_of(store: ObjectStore, going: Iterable[str]) -> list[str]:
    there = [VERSIONS + name for name in store.names(VERSIONS) if (parsed := parse_manifest_name(name)) is not None and parsed.detached]
    if not there:
        return []
    gone = {VERSIONS + detached_name(detached_number(path)) for path in going}
    # Listed after the detached ones, each of which is made of a staged one that was there before.
    alive = {VERSIONS + detached_name(detached_number(info.path)) for info in store.list(STAGED)}
    return [path for path in there if path in gone or (path not in alive and _is_ours(store, path))]


def _is_ours(store: ObjectStore, path: str) -> bool:
    """Whether we made a detached version. Those of others mean something that we do not know."""
    try:
        writer = decode_manifest_file(store.get(path), source=path, check=False).manifest.writer
    except TiltyardError:
        return False
    return writer is not None and writer.library == WRITER.library


def drop_staged(store: ObjectStore, paths: Iterable[str]) -> None:
    for path in sorted(paths):
        store.delete(path)
