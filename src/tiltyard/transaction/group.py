"""Group commit: transactions of several writers in one version: new rows here, rows that go in ``joint_delete``.

Whoever leads takes along what others wait to have committed, each judged by the same rules as if it were committed alone. The version is
the leader's; what it took along stands in a property of its transaction, so that each of them can be found by its id ever after.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tiltyard.format.digests import DIGESTS, SEAL, decode_digests, encode_digests
from tiltyard.transaction.operations import Append, Delete
from tiltyard.transaction.transaction import MESSAGE_PROPERTY, Heading, Transaction, is_transaction_id
from tiltyard.transaction.verify import PARENT, marks_in

GROUP: Final = "tiltyard.group"
"""The property of a transaction that names the others its version was made by."""
ROWS: Final = "tiltyard.rows"
"""The property of a delete that waits, with the rows it takes. No version has it."""
MOST_MEMBERS: Final = 64
LONGEST_WINDOW: Final = 32
"""Whoever is further behind catches up by itself."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One transaction that another one's version was made by as well.

    Attributes:
        transaction_id: its uuid.
        read_version: the version it was built on.
        operation: its kind.
        fragments: how many fragments it brought; none where its rows are in one file with those of others.
        properties: what its author said.
    """

    transaction_id: str
    read_version: int
    operation: str
    fragments: int
    properties: Mapping[str, str]

    @property
    def message(self) -> str:
        """What its writer said about the commit."""
        return self.properties.get(MESSAGE_PROPERTY, "")


def members_of(transaction: Transaction | Heading) -> tuple[GroupMember, ...]:
    """Who else made a version, beside the writer of its transaction. A property that is no such list, whoever wrote it, names nobody."""
    text = transaction.properties.get(GROUP)
    if text is None:
        return ()
    try:
        return tuple(_member(told) for told in json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def _member(told: dict[str, Any]) -> GroupMember:
    properties, identity = {str(key): str(value) for key, value in told["properties"].items()}, str(told["id"])
    if not is_transaction_id(identity):
        raise ValueError("that cannot be a transaction id")
    return GroupMember(identity, int(told["read"]), str(told["operation"]), int(told["fragments"]), properties)


def made_by(transaction: Transaction | Heading) -> tuple[str, ...]:
    """The ids of all transactions that a version was made by, the leader's first."""
    if GROUP not in transaction.properties:
        return (transaction.uuid,)
    return (transaction.uuid, *(member.transaction_id for member in members_of(transaction)))


def last_read(transaction: Transaction) -> int:
    """The latest of the versions that the transactions were built on that a version was, or is to be, made by."""
    return max((transaction.read_version, *(member.read_version for member in members_of(transaction))))


def is_made_by(transaction: Heading, transaction_id: str) -> bool:
    """Whether a transaction is among those that a version was made by. Cheaper than to read all that is told of the others."""
    # No text inside a text has quotation marks without a backslash, so nothing else can look like this.
    return transaction_id == transaction.uuid or f'"id":"{transaction_id}"' in transaction.properties.get(GROUP, "")


def can_be_taken_along(transaction: Transaction) -> bool:
    """Whether somebody else can commit it: rows that come or go, and nothing else."""
    operation = transaction.operation
    if isinstance(operation, Delete):
        return bool(touched(operation)) and not (operation.unknown or transaction.unknown)
    return adds_rows(transaction)


def adds_rows(transaction: Transaction) -> bool:
    """Whether it brings new rows alone, whose meaning no version in between can change unseen."""
    operation = transaction.operation
    if not isinstance(operation, Append) or operation.unknown or transaction.unknown:
        return False
    return all(file.base_id is None for fragment in operation.fragments for file in fragment.files)


def touched(operation: Delete) -> set[int]:
    """The fragments that a delete takes rows from."""
    return {*(fragment.id for fragment in operation.updated_fragments), *operation.deleted_fragment_ids}


def fold(leader: Transaction, members: Sequence[Transaction]) -> Transaction:
    """The leader's transaction with the new rows that the members bring."""
    if not members:
        return leader
    assert isinstance(leader.operation, Append)
    fragments = list(leader.operation.fragments)
    for member in members:
        assert isinstance(member.operation, Append)
        fragments += member.operation.fragments
    return replace(told_of(leader, members), operation=Append(tuple(fragments)))


def told_of(leader: Transaction, members: Sequence[Transaction], named: Collection[str] | None = None) -> Transaction:
    """The leader's transaction as it tells of its members: who they are, their numbers of work, digests of all files or the ``named``."""
    digests = _digests(leader)
    marks: dict[str, str] = {}
    told = []
    for member in members:
        digests.update(_digests(member))
        marks.update(marks_in(member.properties))
        operation = member.operation
        own = {key: value for key, value in member.properties.items() if key not in (DIGESTS, SEAL, PARENT, ROWS)}
        told.append(
            {
                "id": member.uuid,
                "read": member.read_version,
                "operation": operation.name,
                "fragments": len(touched(operation) if isinstance(operation, Delete) else getattr(operation, "fragments", ())),
                "properties": own,
            }
        )
    properties = {**leader.properties, **marks, GROUP: json.dumps(told, separators=(",", ":"))}
    properties.pop(DIGESTS, None)
    if known := digests if named is None else {path: digest for path, digest in digests.items() if path in named}:
        properties[DIGESTS] = encode_digests(known)
    return replace(leader, properties=properties)


def _digests(transaction: Transaction) -> dict[str, Any]:
    stated = transaction.properties.get(DIGESTS)
    return decode_digests(stated, "the transaction") if stated is not None else {}
