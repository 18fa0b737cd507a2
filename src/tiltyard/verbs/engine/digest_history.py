"""Where digests of files are kept: in transactions, and in records that a cleanup leaves of those it removes."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from tiltyard.errors import CorruptTable, NotFound
from tiltyard.format.digests import DIGESTS, Digest, decode_digests, encode_digests
from tiltyard.format.names import parse_transaction_name
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction.log import TRANSACTIONS, VersionLog
from tiltyard.transaction.new_files import at_once
from tiltyard.transaction.transaction import Heading, Transaction

T = TypeVar("T")

RECORDS: Final = "_tiltyard/digests/"
"""Where digests lie whose transactions were cleaned up."""

_NAME: Final = re.compile(r"[0-9a-f-]{36}-([0-9]{1,12})\.txt", re.ASCII)
"""A record's name tells its size, so that one that was never written to its end is told from one that was damaged."""
_MOST_RECORDS: Final = 4
"""Several cleanups at a time leave several records; so many are merged."""
_AT_ONCE: Final = 64
"""Transactions that are read before it is asked whether that was enough."""


class DigestHistory:
    """The digests that one table's directory knows of. Transactions are read from the newest on, as far as it takes, and once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, Digest] = {}
        self._read: set[str] = set()
        self._damaged = False
        self._manifests_read = False
        self._lock = threading.Lock()

    def find(self, keys: Iterable[str], *, inline_only: bool = False) -> dict[str, Digest]:
        """Digests by key, as far as they are known.

        Args:
            keys: which.
            inline_only: whether the table keeps transactions in its manifests alone.

        Raises:
            CorruptTable: a record of digests is damaged; nothing else holds what it held.
        """
        wanted = set(keys)
        with self._lock:
            if wanted - self._known.keys():
                self._read_records()
                self._read_transactions(wanted)
            if wanted - self._known.keys() and not self._manifests_read:
                self._read_manifests(wanted, inline_only)
            return {key: self._known[key] for key in wanted if key in self._known}

    def _read_records(self) -> None:
        for path, found in read_records(self._store, self._read).items():
            self._known.update(found)
            self._read.add(path)

    def _read_transactions(self, wanted: set[str]) -> None:
        names = [name for name in self._store.names(TRANSACTIONS) if TRANSACTIONS + name not in self._read]
        names.sort(key=_read_version, reverse=True)
        for some in _batched(names, _AT_ONCE):
            if not wanted - self._known.keys():
                return
            for name, transaction in zip(some, at_once(self._transaction, some), strict=True):
                self._read.add(TRANSACTIONS + name)
                if transaction is not None:
                    self._known.update(digests_in(transaction, TRANSACTIONS + name))

    def _transaction(self, name: str) -> Transaction | None:
        try:
            return Transaction.from_bytes(self._store.get(TRANSACTIONS + name), TRANSACTIONS + name)
        except NotFound:
            return None  # withdrawn while we looked
        except CorruptTable:
            self._damaged = True  # the manifest of its version has another copy
            return None

    def _read_manifests(self, wanted: set[str], inline_only: bool) -> None:
        """Versions have copies of their transactions. They are large, so they are read where some transaction files are missing."""
        log = VersionLog(self._store)
        versions = log.versions()
        if not inline_only and not self._damaged and len(versions) <= sum(path.startswith(TRANSACTIONS) for path in self._read):
            return
        for name in reversed(versions):
            if not wanted - self._known.keys():
                return
            try:
                transaction = log.transaction_of(log.peek(name.version, name.scheme))
            except (NotFound, CorruptTable):
                continue
            self._known.update(digests_in(transaction, f"version {name.version}"))
        self._manifests_read = True


def _read_version(name: str) -> int:
    parsed = parse_transaction_name(name)
    return parsed[0] if parsed else 0


def digests_in(transaction: Transaction | Heading, source: str) -> dict[str, Digest]:
    """The digests that a transaction keeps.

    Raises:
        CorruptTable: they are damaged.
    """
    stated = transaction.properties.get(DIGESTS)
    return {} if stated is None else decode_digests(stated, source)


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


# ---- records ---------------------------------------------------------------------------------------------------------------


def read_records(store: ObjectStore, known: Iterable[str] = ()) -> dict[str, dict[str, Digest]]:
    """The digests of all records, by path, but for those that are known.

    Raises:
        CorruptTable: one is damaged.
    """
    seen = set(known)
    found: dict[str, dict[str, Digest]] = {}
    for name in store.names(RECORDS):
        path, stated = RECORDS + name, _NAME.fullmatch(name)
        if path in seen or stated is None:
            continue
        try:
            data = store.get(path)
        except NotFound:
            continue  # merged into another one meanwhile
        if len(data) < int(stated[1]):
            found[path] = {}  # torn: its cleanup failed here and deleted nothing, so the transactions still have all of it
            continue
        try:
            found[path] = decode_digests(data.decode(), path)
        except UnicodeDecodeError as error:
            raise CorruptTable(path, "its list of digests is damaged") from error
    return found


def write_record(store: ObjectStore, unique: str, digests: Mapping[str, Digest]) -> str:
    """Keeps digests under a name that nobody else has; returns it."""
    data = encode_digests(digests).encode()
    path = f"{RECORDS}{unique}-{len(data)}.txt"
    store.put(path, data)
    return path


def keep_digests(store: ObjectStore, unique: str, gone: Collection[str], versions: Iterable[Heading]) -> None:
    """Keeps the digests of files that stay while the transactions that held them go. Before these are deleted.

    Args:
        store: the table's.
        unique: names the new record.
        gone: paths of all files that are deleted, transactions included.
        versions: headings of the transactions of versions that go, where these have no file of their own.
    """
    records = read_records(store)
    held: dict[str, Digest] = {}
    dropped = sorted(path for path in gone if path.startswith(TRANSACTIONS))
    for found in at_once(lambda path: _held_by(store, path), dropped):
        held.update(found)
    for transaction in versions:
        held.update(digests_in(transaction, f"transaction {transaction.uuid}"))
    new = {key: digest for key, digest in held.items() if key not in gone}
    before = {key: digest for found in records.values() for key, digest in found.items()}
    kept = {key: digest for key, digest in before.items() if key not in gone}
    if new.items() <= kept.items() and len(records) < _MOST_RECORDS and all(records.values()) and 2 * len(kept) >= len(before):
        return
    if new or kept:
        write_record(store, unique, {**kept, **new})
    for path in records:
        store.delete(path)


def _held_by(store: ObjectStore, path: str) -> dict[str, Digest]:
    try:
        return digests_in(Heading.from_bytes(store.get(path), path), path)
    except (NotFound, CorruptTable):
        return {}  # gone already; or damaged, and then nothing can be read of it anyway
