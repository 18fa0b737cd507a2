"""New rows that no file has yet: whoever commits them writes them, together with those of the writers that it takes along.

A small append costs its writer more for the data file than for all else, and a version with eight of them has eight files of one row. So
rows stay in memory until it is known who commits them. Who waits in a queue offers the rows themselves; the leader puts them into one file
with its own. Before that, an ``Append`` names the file that would be written for it alone: rules look at its columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format.values import DataFragment
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Append
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT

if TYPE_CHECKING:
    from tiltyard.transaction.commit import Committer
    from tiltyard.transaction.race import Race

_ROWS: Final = b"\0rows"
"""Begins an offer with rows. No transaction can: a version of ours that knows nothing of such offers leaves them to their writers."""
_LENGTH: Final = 4


class PendingRows(Protocol):
    """Rows of one append, in memory."""

    def offered(self) -> bytes:
        """The rows for another writer, who may be of another process."""

    def read(self, offered: bytes) -> Any:
        """What another writer offers, if it can be written to one file with ours; None if not."""

    def write(self, others: Sequence[Any]) -> tuple[DataFragment, ...]:
        """Writes a new file with our rows and those of others."""


def encode_offer(mine: Transaction, parent: str, rows: bytes) -> bytes:
    """A transaction that waits to be committed, the one that made the version it was built on, and the rows it is to bring."""
    properties = {**mine.properties, PARENT: parent} if parent else dict(mine.properties)
    heading = json.dumps((mine.read_version, mine.uuid, mine.tag, properties)).encode()
    return _ROWS + len(heading).to_bytes(_LENGTH, "little") + heading + rows


def decode_offer(data: bytes) -> tuple[Transaction, bytes]:
    """A transaction that waits; its rows, or nothing where it has files.

    Raises:
        CorruptTable: that is no offer.
    """
    if not data.startswith(_ROWS):
        return Transaction.from_bytes(data), b""
    start = len(_ROWS) + _LENGTH
    end = start + int.from_bytes(data[len(_ROWS) : start], "little")
    try:
        read_version, uuid, tag, properties = json.loads(data[start:end])
        given = {str(name): str(value) for name, value in properties.items()}
        transaction, rows = Transaction(int(read_version), str(uuid), Append(()), given, str(tag)), data[end:]
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidInput) as error:
        raise CorruptTable("the offer of a waiting writer", "it cannot be decoded") from error
    if not rows:
        raise CorruptTable("the offer of a waiting writer", "its rows are missing")
    return transaction, rows


def announced_form(offered: bytes) -> bytes:
    """The transaction of an offer, as its file has it."""
    return decode_offer(offered)[0].to_bytes() if offered.startswith(_ROWS) else offered


def write_rows(committer: Committer, race: Race, members: Sequence[Transaction]) -> None:
    """Writes the rows of a commit with those of its members, unless that was done for the same members in an earlier attempt.

    A file has the rows of exactly those that the version will tell of: for others it is written anew, under another name.

    Raises:
        TiltyardError: they could not be written.
    """
    assert race.pending is not None
    assert race.rebaser is not None
    wanted = tuple(member.uuid for member in members if member.uuid in race.their_rows)
    if race.written_for == wanted:
        return
    remove_written(committer, race)
    fragments = race.pending.write([race.their_rows[member] for member in wanted])
    race.written_for, race.files = wanted, None
    race.transaction = replace(race.transaction, operation=Append(fragments))
    race.rebaser.transaction = replace(race.rebaser.transaction, operation=Append(fragments))


def remove_written(committer: Committer, race: Race, stored: Transaction | None = None) -> None:
    """Removes what was written for our rows and is not named by the transaction that was ``stored``, if any was: no other version can."""
    if race.written_for is not None:
        named = set(new_files(stored.operation, None)) if stored is not None else ()
        committer.remove(path for path in new_files(race.transaction.operation, None) if path not in named)
        race.written_for = None
