"""Records of refused transactions, for later questions: which table it was, who came first, what the error said.

``_tiltyard/lake/refusals/<transaction>.json`` below the root, one JSON object each, of the lake that ``lake`` names. Written by whoever was
refused, once that is certain, and only if the store takes it: nothing depends on a record, and nothing is decided by one. ``Lake.run``
leaves one of the last refusal only. A record is small whatever happened and holds no credential.

There are never many: one writer in ``LOOKED_BY`` looks, and removes the oldest beyond ``MOST_KEPT``; a cleanup of the lake does so as well,
and removes those as old as outcomes that expire. What a record says is as little trusted as any other file of the root.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import ConflictError, ExpectedVersionMismatch, NotFound, TiltyardError, Winner
from tiltyard.interfaces import ObjectInfo, ObjectStore
from tiltyard.lakes.claim import LAKE_DIRECTORY
from tiltyard.redact import redact, secret_values
from tiltyard.verbs.explain import MOST_BYTES, Lost

if TYPE_CHECKING:
    from tiltyard.lake import Lake

REFUSALS: Final = LAKE_DIRECTORY + "refusals/"
MOST_KEPT: Final = 200
LOOKED_BY: Final = 16

_NAME: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MOST: Final = 20
"""Of each list: winners, tables, operations of a table, and what both sides changed."""
_LONGEST_TEXT: Final = 300

_log = logging.getLogger("tiltyard.lake")


@dataclass(frozen=True, slots=True)
class RefusedTable:
    """A table that a refused transaction was to change.

    Attributes:
        id: the table.
        name: what the transaction knew it as; a shard goes by the name of its table.
        operations: what it was to do, in order.
    """

    id: str
    name: str
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeRefusal:
    """A transaction over several tables that was refused because of others, as its writer saw it.

    Attributes:
        transaction_id: what it tried to commit.
        time: when it failed.
        author, message: who, and what they said of it.
        branch, line: the branch of the lake, and which line of that name.
        base: the snapshot it was built on.
        kind: the code of the error, for example ``expected-version-mismatch``.
        cause: of a table that moved, how; see ``ExpectedVersionMismatch``. Empty for other errors.
        sentence: what the error said.
        retryable: whether running it again is safe.
        attempts: how often the last run was published.
        executions: how often it was run by ``Lake.run``.
        table: the id of the table with the conflict; empty where it was none of its own.
        expected, actual: the version of that table it was built on, and the one it was found at.
        tables: what it was to change; ``more`` is how many are left out.
        winners: who came first, oldest first; of many, the last ones. Version 0 where the error names transactions of the lake only.
        sample: rows, keys or names both sides changed (a sample).
    """

    transaction_id: str
    time: datetime
    author: str
    message: str
    branch: str
    line: str
    base: int
    kind: str = ""
    cause: str = ""
    sentence: str = ""
    retryable: bool = True
    attempts: int = 0
    executions: int = 1
    table: str = ""
    expected: int | None = None
    actual: int | None = None
    tables: tuple[RefusedTable, ...] = ()
    more: int = 0
    winners: tuple[Winner, ...] = ()
    sample: tuple[str, ...] = ()

    @property
    def contested(self) -> RefusedTable | None:
        """The table with the conflict, if it was one that the transaction was to change or had read."""
        return next((table for table in self.tables if table.id == self.table), None) if self.table else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {**asdict(self), "time": self.time.isoformat()}


# ---- written ---------------------------------------------------------------------------------------------------------------------


def refusal_of(known: LakeRefusal, error: Lost) -> LakeRefusal:
    """Adds to what is known of a transaction what the error says that refused it."""
    found = error if isinstance(error, ConflictError) else None
    winners = error.winners or tuple(
        Winner(0, str(by["transaction"]), str(by["operation"]), "", str(by["message"]), str(by["author"]))
        for by in (found.by if found is not None else ())
    )
    return replace(
        known,
        kind=error.kind,
        cause=error.cause if isinstance(error, ExpectedVersionMismatch) else "",
        sentence=str(error),
        retryable=error.retryable,
        expected=found.expected if found is not None and found.expected is not None else error.read_version,
        actual=found.actual if found is not None and found.table else max((winner.version for winner in winners), default=0) or None,
        winners=tuple(winners),
        sample=tuple(map(str, error.sample)),
    )


def keep_refusal(lake: Lake, refusal: LakeRefusal) -> None:
    """Writes a record. What fails here is no concern of the caller, who has an error to pass on already."""
    if _NAME.fullmatch(refusal.transaction_id) is None:
        return  # no id that this lake gives
    try:
        access = lake.root_access()
        body = {"lake": lake.id, **_bounded(refusal, secret_values(access.storage_options)).to_dict()}
        access.store.put(_path(refusal.transaction_id), json.dumps(body, separators=(",", ":")).encode())
        if int(refusal.transaction_id[:8], 16) % LOOKED_BY == 0:
            for info in _kept(access.store)[MOST_KEPT:]:
                access.store.delete(info.path)
    except TiltyardError:
        _log.debug("no record of a refused transaction could be kept", exc_info=True)


def _path(transaction: str) -> str:
    return f"{REFUSALS}{transaction}.json"


def _bounded(refusal: LakeRefusal, secrets: tuple[str, ...]) -> LakeRefusal:
    def text(value: object) -> str:
        return redact(str(value), secrets)[:_LONGEST_TEXT]

    # The table with the conflict is never among those that are left out.
    tables = sorted(refusal.tables, key=lambda table: table.id != refusal.table)
    return replace(
        refusal,
        author=text(refusal.author),
        message=text(refusal.message),
        sentence=text(refusal.sentence),
        tables=tuple(RefusedTable(table.id, text(table.name), table.operations[:_MOST]) for table in tables[:_MOST]),
        more=max(len(tables) - _MOST, 0),
        winners=tuple(
            Winner(winner.version, *map(text, (winner.transaction_id, winner.operation, winner.writer, winner.message, winner.author)))
            for winner in refusal.winners[-_MOST:]
        ),
        sample=tuple(map(text, refusal.sample[:_MOST])),
    )


# ---- read ------------------------------------------------------------------------------------------------------------------------


def refusals_of(lake: Lake, limit: int = MOST_KEPT) -> Iterator[LakeRefusal]:
    """The last refused transactions of a lake, on all of its branches, latest first; of so many records, those that can be read.

    Raises:
        StorageError: the root cannot be listed or read.
    """
    store = lake.root_access().store
    for info in _kept(store)[:limit]:
        found = read_refusal(store, lake.id, info.path.removeprefix(REFUSALS).removesuffix(".json"))
        if found is not None:
            yield found


def read_refusal(store: ObjectStore, lake: str, transaction_id: str) -> LakeRefusal | None:
    """The record of a transaction; None where there is none of this lake that can be read."""
    if _NAME.fullmatch(transaction_id) is None:
        return None
    try:
        data = store.get_range(_path(transaction_id), 0, MOST_BYTES)
    except NotFound:
        return None
    found = _decoded(data, lake)
    return found if found is not None and found.transaction_id == transaction_id else None


def _kept(store: ObjectStore) -> list[ObjectInfo]:
    """All records, latest first."""
    there = [info for info in store.list(REFUSALS) if _NAME.fullmatch(info.path.removeprefix(REFUSALS).removesuffix(".json"))]
    return sorted(there, key=attrgetter("modified"), reverse=True)


def _decoded(data: bytes, lake: str) -> LakeRefusal | None:
    """What a record of this lake says; None for anything else."""
    try:
        told = json.loads(data)
        if told.pop("lake") != lake:
            return None
        time = datetime.fromisoformat(told["time"])
        texts = ("transaction_id", "author", "message", "branch", "line", "kind", "cause", "sentence", "table")
        members: dict[str, Any] = {
            "time": time if time.tzinfo is not None else time.replace(tzinfo=UTC),
            "retryable": bool(told["retryable"]),
            **{name: str(told[name]) for name in texts},
            **{name: int(told[name]) for name in ("base", "attempts", "executions", "more")},
            **{name: None if told[name] is None else int(told[name]) for name in ("expected", "actual")},
            "tables": tuple(_table(table) for table in told["tables"]),
            "winners": tuple(_winner(winner) for winner in told["winners"]),
            "sample": tuple(map(str, told["sample"])),
        }
        return LakeRefusal(**members)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _table(told: Mapping[str, Any]) -> RefusedTable:
    return RefusedTable(str(told["id"]), str(told["name"]), tuple(map(str, told["operations"])))


def _winner(told: Mapping[str, Any]) -> Winner:
    texts = (str(told[name]) for name in ("transaction_id", "operation", "writer", "message", "author"))
    return Winner(int(told["version"]), *texts)


# ---- removed ---------------------------------------------------------------------------------------------------------------------


def remove_refusals(lake: Lake, now: datetime, age: timedelta, *, dry_run: bool) -> int:
    """Removes records that are old, or more than are kept; how many.

    Args:
        lake: whose they are.
        now: the time.
        age: from which on they are old.
        dry_run: only counts.
    """
    store = lake.root_access().store
    going = [info.path for number, info in enumerate(_kept(store)) if number >= MOST_KEPT or now - info.modified >= age]
    for path in going if not dry_run else ():
        store.delete(path)
    return len(going)
