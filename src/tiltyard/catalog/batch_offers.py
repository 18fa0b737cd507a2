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
from tiltyard.errors import TiltyardError
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
        files: all that it wrote into the directory of each table beside versions; a leader looks whether they are there.
        begun: when the work began that its files come from, on the monotonic clock of this machine.
        durability: what its author promises of what it commits; whoever promises something else does not commit it.
    """

    publication: Publication
    rows: Mapping[str, OfferedRows] = field(default_factory=dict)
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
    facts = {"files": dict(offer.files), "begun": offer.begun, "durability": offer.durability}
    body = {"publication": asdict(offer.publication), "rows": rows, **facts}
    data = json.dumps(body, separators=(",", ":")).encode()
    return b"" if len(data) > MOST_BYTES else _MAGIC + _digest(data) + data


def decode_offer(data: bytes) -> BatchOffer | None:
    """Reads that back; None for what is no whole offer, whoever wrote it: its author waits for a turn."""
    sound = len(data) <= MOST_BYTES + _HEADER_BYTES and data.startswith(_MAGIC)
    if not sound or data[len(_MAGIC) : _HEADER_BYTES] != _digest(data[_HEADER_BYTES:]):
        return None
    try:
        offer = _offer(json.loads(data[_HEADER_BYTES:]))
        sound = _is_typed(offer.publication) and is_transaction_id(offer.transaction)
        return offer if sound and can_be_offered(offer.publication) else None
    except (TiltyardError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _offer(body: Mapping[str, Any]) -> BatchOffer:
    rows = {str(table): _rows(told) for table, told in body["rows"].items()}
    files = {str(table): tuple(map(str, paths)) for table, paths in body["files"].items()}
    return BatchOffer(publication_from_body(body["publication"]), rows, files, float(body["begun"]), str(body["durability"]))


def _is_typed(told: Publication) -> bool:
    """Whether all that a leader compares is of the kind it is to be: nobody's offer may stop another one's commit."""
    texts: list[object] = [told.transaction, told.branch, told.line, told.author, told.message, told.isolation, *told.absent]
    maybe: list[object] = [told.key]
    numbers: list[object] = [told.base, 0 if told.names is None else told.names]
    for change in told.changes:
        texts += [change.table, change.name, change.base_transaction]
        maybe += [change.branch, change.base_branch, *(step.staged for step in change.steps)]
        numbers += [change.base, change.read, *(step.version for step in change.steps)]
        texts += [text for step in change.steps for text in (step.path, step.transaction, step.operation)]
    for read in told.reads:
        texts += [read.table, read.name, read.level]
        numbers += [read.base, read.data_version]
    typed = all(isinstance(text, str) for text in texts) and all(text is None or isinstance(text, str) for text in maybe)
    return typed and all(type(number) is int for number in numbers)


def _rows(told: Mapping[str, Any]) -> OfferedRows:
    given: Sequence[str] = told["transactions"]
    transactions = tuple(Transaction.from_bytes(base64.b64decode(text, validate=True), "an offer") for text in given)
    if not transactions or not all(map(can_be_folded, transactions)):
        raise ValueError("it does not only add rows")
    return OfferedRows(str(told["columns"]), transactions)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
