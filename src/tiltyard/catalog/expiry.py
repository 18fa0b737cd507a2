"""Expiry: records of transactions that were committed long ago go, without anybody being told something wrong about them.

What goes is remembered in 6 bytes each (``expired/``): that the transaction was committed. So whoever asks for its outcome is told that its
record has expired, and nobody can have it aborted. An in-doubt transaction that comes back after so long must not be committed twice: the
tip of its branch says up to which snapshot records have expired, and a transaction that was begun before that one is refused.

Only committed transactions expire. The record of an aborted one is the proof on which its files are deleted, and keeps its writer from
publishing what is gone; there is one for each that died. A single verb needs no record of its own: the version log of its table says
whether its transaction is there. ``gone/``, ``ended/`` and ``place/`` stay as well: somebody may come back with the pieces of a table whose
directory was given up, however late.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.codec import EXPIRED, TRANSACTIONS, idempotency_key, tip_key, transaction_key
from tiltyard.catalog.publishing import COMMITTED
from tiltyard.catalog.records import Body, Found, Writes

OUTCOMES: Final = timedelta(days=30)
"""How long an outcome may be asked for."""
AT_ONCE: Final = 400
_BYTES: Final = 6


def digest(transaction: str) -> str:
    """A few letters that tell a transaction from others, well enough to err on the safe side."""
    return base64.b64encode(hashlib.sha256(transaction.encode()).digest()[:_BYTES]).decode()


def expired_among(catalog: Catalog, transactions: Collection[str]) -> set[str]:
    """Those among transactions without a record that were committed, and whose records have expired."""
    wanted = {digest(transaction): transaction for transaction in transactions}
    if not wanted:
        return set()
    length = len(digest(""))
    found: set[str] = set()
    for _, body in catalog.records.scan([EXPIRED]):
        text = str(body["committed"])
        found.update(wanted[part] for at in range(0, len(text), length) if (part := text[at : at + length]) in wanted)
    return found


def expire(catalog: Catalog, outcomes: timedelta, keys: timedelta, now: datetime, *, dry_run: bool) -> int:
    """Deletes the records of transactions that were committed longer ago than their outcome may be asked for; how many.

    Args:
        catalog: of the lake.
        outcomes: how long that is.
        keys: how long an idempotency key holds; the record of its transaction stays as long.
        now: the time.
        dry_run: only counts.
    """
    pending = {one.transaction for one in catalog.pending()}
    going: dict[str, list[tuple[str, Body]]] = defaultdict(list)
    for key, body in catalog.records.scan([TRANSACTIONS]):
        transaction = key.removeprefix(TRANSACTIONS)
        keep = max(outcomes, keys) if "key" in body else outcomes
        if body["state"] == COMMITTED and transaction not in pending and now - datetime.fromisoformat(str(body["at"])) >= keep:
            going[str(body["branch"])].append((transaction, body))
    if dry_run:
        return sum(map(len, going.values()))
    done = 0
    for branch, records in going.items():
        _raise_floor(catalog, branch, max(int(body["snapshot"]) for _, body in records))
        for first in range(0, len(records), AT_ONCE):
            done += _forget(catalog, records[first : first + AT_ONCE])
    return done


def _raise_floor(catalog: Catalog, branch: str, snapshot: int) -> None:
    """Refuses transactions begun before a snapshot. A branch that is gone refuses them all."""
    tip = tip_key(branch)

    def decide(found: Found) -> Writes[None]:
        body = found.get(tip)
        if body is None or int(body.get("expired", 0)) >= snapshot:
            return Writes(None)
        # One that began anew counts from where it began, and nothing on it is as old as what expires.
        return Writes(None, {tip: {**body, "expired": min(snapshot, int(body["snapshot"]))}})

    catalog.records.transact([tip], [], decide)


def _forget(catalog: Catalog, records: Sequence[tuple[str, Body]]) -> int:
    keys = {transaction_key(transaction): transaction for transaction, _ in records}
    named = {idempotency_key(str(body["key"])): transaction for transaction, body in records if "key" in body}
    chunk = EXPIRED + catalog.runtime.random.uuid()

    def decide(found: Found) -> Writes[int]:
        gone = sorted(key for key in keys if key in found and found[key]["state"] == COMMITTED)
        freed = [key for key, transaction in named.items() if key in found and found[key]["transaction"] == transaction]
        if not gone:
            return Writes(0)
        return Writes(len(gone), {chunk: {"committed": "".join(digest(keys[key]) for key in gone)}}, [*gone, *freed])

    return catalog.records.transact([*keys, *named], [], decide)
