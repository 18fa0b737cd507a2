"""Offers: transactions over several tables that wait for their turn, as whoever has the turn may commit them.

An offer is the publication, as its author would send it by itself, and for tables to which it only adds rows the table's own transactions.
It lies where its author can be seen to be alive: with file tickets in the ticket's file, which the author keeps locked. Whoever
reads one knows nothing but what is in it, so it has a checksum, and all in it is checked as what any file says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.server_records import publication_from_body
from tiltyard.errors import CorruptTable, TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.transaction.group import adds_rows
from tiltyard.transaction.transaction import Transaction, is_transaction_id
from tiltyard.transaction.verify import marks_in

MOST_BYTES: Final = 2**18
"""A larger offer is not made, nor read: its author waits for a turn, as many rows take longer than that anyway."""
_MAGIC: Final = b"TYOFFER1"
_DIGEST_BYTES: Final = 16
_HEADER_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class OfferedRows:
    """New rows of one table.

    Attributes:
        columns: digest of the columns, their ids and the data format that the rows were written for.
        transactions: the table's own, each of which brings rows and does nothing else.
    """

    columns: str
    transactions: tuple[Transaction, ...]


@dataclass(frozen=True, slots=True)
class BatchOffer:
    """A transaction that somebody else may commit.

    Attributes:
        publication: all of it, as its author would send it.
        rows: what it adds to tables to which it only adds rows, by their ids.
        begun: when the work began that its files come from, on the monotonic clock of this machine.
        durability: what its author promises of what it commits; whoever promises something else does not commit it.
    """

    publication: Publication
    rows: Mapping[str, OfferedRows] = field(default_factory=dict)
    begun: float = 0.0
    durability: str = ""

    @property
    def transaction(self) -> str:
        """Its id."""
        return self.publication.transaction


def columns_of(manifest: Manifest) -> str:
    """A digest of what rows have to agree in to go into one version with others: columns, their ids, the data format."""
    told = repr((manifest.fields, manifest.data_format)).encode()
    return hashlib.blake2b(told, digest_size=_DIGEST_BYTES).hexdigest()


def can_be_folded(transaction: Transaction) -> bool:
    """Whether it adds rows and neither does nor says anything else that a version of several would have to keep apart."""
    return adds_rows(transaction) and not marks_in(transaction.properties)


def can_be_offered(publication: Publication) -> bool:
    """Whether somebody else may commit it: it writes to tables that are there, and neither takes nor frees a name."""
    if publication.noted or publication.members or publication.data or not publication.changes:
        return False
    if len({change.table for change in publication.changes}) != len(publication.changes):
        return False
    return all(change.kind == "write" and not change.former and change.steps for change in publication.changes)


def encode_offer(offer: BatchOffer) -> bytes:
    """An offer as it lies in a file; nothing for one that is too large to be made."""
    rows = {
        table: {"columns": told.columns, "transactions": [base64.b64encode(each.to_bytes()).decode() for each in told.transactions]}
        for table, told in offer.rows.items()
    }
    body = {"publication": asdict(offer.publication), "rows": rows, "begun": offer.begun, "durability": offer.durability}
    data = json.dumps(body, separators=(",", ":")).encode()
    return b"" if len(data) > MOST_BYTES else _MAGIC + _digest(data) + data


def decode_offer(data: bytes) -> BatchOffer:
    """Reads that back.

    Raises:
        CorruptTable: it is none, or was not written to its end.
    """
    sound = len(data) <= MOST_BYTES + _HEADER_BYTES and data.startswith(_MAGIC)
    if not sound or data[len(_MAGIC) : _HEADER_BYTES] != _digest(data[_HEADER_BYTES:]):
        raise CorruptTable("an offer", "it is not whole")
    try:
        body = json.loads(data[_HEADER_BYTES:])
        publication = publication_from_body(body["publication"])
        rows = {str(table): _rows(told) for table, told in body["rows"].items()}
        offer = BatchOffer(publication, rows, float(body["begun"]), str(body["durability"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptTable("an offer", "it does not say what an offer says") from error
    if not is_transaction_id(publication.transaction):
        raise CorruptTable("an offer", "that cannot be a transaction id")
    return offer


def _rows(told: Mapping[str, Any]) -> OfferedRows:
    given: Sequence[str] = told["transactions"]
    transactions = tuple(Transaction.from_bytes(base64.b64decode(text, validate=True), "an offer") for text in given)
    if not transactions or not all(map(can_be_folded, transactions)):
        raise ValueError("it does not only add rows")
    return OfferedRows(str(told["columns"]), transactions)


def decoded(several: Sequence[bytes]) -> list[BatchOffer]:
    """The offers among what lies in files, in their order, each transaction once. Whoever wrote something else waits for a turn."""
    found: dict[str, BatchOffer] = {}
    for data in several:
        try:
            offer = decode_offer(data)
        except TiltyardError:
            continue
        if can_be_offered(offer.publication):
            found.setdefault(offer.transaction, offer)
    return list(found.values())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
