"""Transactions that statements are part of: those a user opened, and those of a statement that adds columns for itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

import tiltyard as ty
from tiltyard.errors import InvalidInput
from tiltyard.spark.placement import is_connect
from tiltyard.spark.sql_catalog.catalog_tables import TRANSACTION, open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Request = Mapping[str, Any]
Tables = ty.Lake | ty.LakeTransaction
"""Whatever has tables by name: a verb on those of a lake commits, one on those of a transaction does not yet."""
Alter = Callable[[ty.TransactionTable], None]

_open: Final[dict[str, _Opened]] = {}
_KEPT: Final = 16


@dataclass
class _Opened:
    """A transaction of a user, and the statement that failed in it."""

    transaction: ty.LakeTransaction
    failed: str | None = None


def tables_of(request: Request) -> Tables:
    """The lake of a catalog, or the transaction that its session has open.

    Raises:
        InvalidInput: a statement failed in the transaction before, or it has ended.
    """
    opened = _opened(request)
    if opened is None:
        return open_lake(request)
    if opened.failed is not None:
        raise InvalidInput(
            f"The transaction was rolled back when {opened.failed} failed in it.", argument="transaction", advice="Begin another one."
        )
    return opened.transaction


def _opened(request: Request) -> _Opened | None:
    known = request["options"].get(TRANSACTION)
    if known is None:
        return None
    if known not in _open:
        raise InvalidInput("The transaction has ended.", argument="transaction")
    return _open[known]


def require_none(request: Request, doing: str) -> None:
    """Refuses what cannot be part of a transaction.

    Raises:
        InvalidInput: one is open.
    """
    if request["options"].get(TRANSACTION) is not None:
        raise InvalidInput(f"{doing} cannot be part of a transaction.", argument="transaction", advice="Do it before or after.")


@contextmanager
def whole(request: Request) -> Iterator[Tables]:
    """What a statement changes. One that fails in a transaction takes that one with it: half of a statement must not be committed."""
    where = tables_of(request)
    try:
        yield where
    except BaseException:
        opened = _opened(request)
        if opened is not None:
            opened.failed = str(request.get("kind") or request["do"])
            opened.transaction.rollback()
        raise


def run_in(
    where: Tables,
    work: Callable[[ty.LakeTransaction], None],
    message: str | None = None,
    commit: ty.CommitOptions | None = None,
    *,
    isolation: Literal["snapshot", "serializable"] = "snapshot",
) -> None:
    """Does the work in the transaction that is open, or in one for this statement alone, again after a retryable conflict."""
    if isinstance(where, ty.LakeTransaction):
        work(where)
    else:
        where.run(work, isolation=isolation, message=message, commit=commit)


@contextmanager
def transaction(
    spark: SparkSession, *, catalog: str = "lake", isolation: Literal["snapshot", "serializable"] = "snapshot", message: str | None = None
) -> Iterator[ty.LakeTransaction]:
    """Makes all statements of a session on one catalog a single transaction.

    It is committed at the end of the block. Statements in the block see what earlier ones wrote; other readers do not before the end. An
    exception that leaves the block rolls everything back, and so does a statement that fails, even if its exception is caught.

    Args:
        spark: a classic session in which the lake is a catalog.
        catalog: what that is called.
        isolation: as for ``Lake.transaction``.
        message: a sentence for the history.

    Examples:
        >>> with ty.spark.transaction(spark):  # doctest: +SKIP
        ...     spark.sql("INSERT INTO lake.orders SELECT * FROM lake.incoming")
        ...     spark.sql("DELETE FROM lake.incoming")

    Raises:
        ConflictError: at the end: another writer changed the same rows. Nothing was written; run the block again.
        InvalidInput: the session has no such catalog of Tiltyard, has a transaction open, or a statement failed in the block.
    """
    handle, options = _catalog_of(spark, catalog)
    request = {"catalog": catalog, "options": options, "name": []}
    require_none(request, "A transaction")
    key = uuid4().hex
    opened = _Opened(open_lake(request).transaction(isolation=isolation, message=message))
    _open[key] = opened
    _point_at(spark, handle, {**options, TRANSACTION: key})
    try:
        with opened.transaction as tx:
            yield tx
            if opened.failed is not None:
                raise InvalidInput(f"Nothing was committed: {opened.failed} failed in the transaction.", argument="transaction")
    finally:
        _point_at(spark, handle, options)
        del _open[key]


def _catalog_of(spark: SparkSession, name: str) -> tuple[Any, dict[str, str]]:
    """The catalog's object in the JVM, and its options."""
    if is_connect(spark):
        raise InvalidInput(
            "A Connect session cannot have a Tiltyard catalog.", argument="spark", advice="Use lake.transaction() and tx.spark."
        )
    setting = spark.conf.get(f"spark.sql.catalog.{name}", None)
    if setting is None or not setting.startswith("tiltyard."):
        raise InvalidInput(
            f"The session has no catalog {name!r} of a lake.", argument="catalog", advice="Call ty.spark.enable(spark, lake=...)."
        )
    handle = spark._jsparkSession.sessionState().catalogManager().catalog(name)
    there = handle.options()
    return handle, {str(option): str(there.get(option)) for option in there.keySet()}


def _point_at(spark: SparkSession, handle: Any, options: Mapping[str, str]) -> None:
    given = spark.sparkContext._jvm.java.util.HashMap()  # type: ignore[union-attr]  # there is one in a classic session
    for option, value in options.items():
        given.put(option, value)
    handle.pointAt(given)


# ---- columns that a statement adds for itself --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evolved:
    """Columns that a statement adds, applied for its analysis to a transaction that is never committed."""

    transaction: ty.LakeTransaction
    alter: Alter


class Evolutions:
    """Statements that Spark analyzes with columns that are not there yet. They are added with the rows, in one commit."""

    def __init__(self) -> None:
        self._by_query: OrderedDict[str, Evolved] = OrderedDict()
        self._by_mark: dict[str, str] = {}
        self._lock = Lock()

    def add(self, request: Request, lake: ty.Lake, name: str, alter: Alter) -> None:
        """Notes what a statement wants to add; once more, if Spark asks again for a query."""
        key = _key(request, lake, name)
        with self._lock:
            before = self._by_query.pop(key, None)
            tx = lake.transaction() if before is None else before.transaction
            try:
                alter(tx.table(name))
            except BaseException:
                tx.rollback()
                raise
            both = alter if before is None else _in_turn(before.alter, alter)
            self._by_query[key] = Evolved(tx, both)
            while len(self._by_query) > _KEPT:
                self._forget(next(iter(self._by_query)))

    def table(self, request: Request, lake: ty.Lake, name: str) -> ty.TransactionTable | None:
        """The table as the statement wants it to be; None where it adds nothing."""
        with self._lock:
            found = self._by_query.get(_key(request, lake, name))
            return None if found is None else found.transaction.table(name)

    def note(self, request: Request, lake: ty.Lake, name: str, mark: str) -> None:
        """Remembers by which mark the plan knows that table."""
        with self._lock:
            self._by_mark[mark] = _key(request, lake, name)

    @contextmanager
    def taken(self, mark: str | None) -> Iterator[Alter | None]:
        """What a plan that is executed has to add; it is forgotten afterwards."""
        with self._lock:
            key = self._by_mark.get(mark or "")
            found = None if key is None else self._by_query.get(key)
        try:
            yield None if found is None else found.alter
        finally:
            if found is not None and key is not None:
                with self._lock:
                    self._forget(key)

    def _forget(self, key: str) -> None:
        found = self._by_query.pop(key, None)
        for mark in [mark for mark, known in self._by_mark.items() if known == key]:
            del self._by_mark[mark]
        if found is not None:
            found.transaction.rollback()


def _key(request: Request, lake: ty.Lake, name: str) -> str:
    return f"{request['query']} {lake.url} {lake.branch} {name}"


def _in_turn(first: Alter, second: Alter) -> Alter:
    def both(table: ty.TransactionTable) -> None:
        first(table)
        second(table)

    return both


EVOLUTIONS: Final = Evolutions()
