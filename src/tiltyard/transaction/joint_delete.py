"""Deletes of several writers in one version: each names the rows it takes, and no row is taken twice.

Whoever leads compares the rows of each with what is deleted in the version to build on, and with the rows of those before it. That is at
least as strict as the table of rules: over versions that moved and changed no row, two deletes conflict exactly if they share one. So who
is not taken meets its conflict by itself, and who went on alone and met one cannot have been taken.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format.manifest import Manifest
from tiltyard.format.roaring import decode_roaring, encode_roaring
from tiltyard.format.values import DeletionFile
from tiltyard.transaction.footprint import deletion_files, fragments_of
from tiltyard.transaction.group import ROWS, fold, told_of, touched
from tiltyard.transaction.new_files import Taken
from tiltyard.transaction.operations import Delete
from tiltyard.transaction.rebaser import Rebaser
from tiltyard.transaction.transaction import Transaction

_LONGEST_PREDICATE: Final = 2**14
"""Characters of the condition that a version tells of; whoever brings more is told of by its members alone."""


def with_rows(transaction: Transaction, rows: Mapping[int, BitMap]) -> Transaction:
    """A delete as it is offered to others: with the rows that it takes from each fragment."""
    told = {str(number): b64encode(encode_roaring(several)).decode() for number, several in rows.items()}
    return replace(transaction, properties={**transaction.properties, ROWS: json.dumps(told, separators=(",", ":"))})


def rows_in(transaction: Transaction) -> dict[int, BitMap]:
    """The rows that an offered delete takes.

    Raises:
        CorruptTable: it does not say, or not of the fragments that it changes.
    """
    try:
        told = json.loads(transaction.properties[ROWS])
        rows = {int(number): decode_roaring(b64decode(text, validate=True), "an offered delete") for number, text in told.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptTable("an offered delete", "its rows cannot be read") from error
    assert isinstance(transaction.operation, Delete)
    if rows.keys() != touched(transaction.operation) or not all(rows.values()):
        raise CorruptTable("an offered delete", "it names rows of other fragments than it changes")
    return rows


@dataclass(slots=True)
class JointDelete:
    """The rows that one version takes from its fragments, for a leader and whoever it takes along."""

    rebaser: Rebaser
    head: Manifest
    _rows: dict[int, BitMap] = field(init=False)

    def __post_init__(self) -> None:
        self._rows = self.rebaser.all_rows()

    def take(self, member: Transaction) -> bool:
        """Adds what a member deletes, unless some of it is gone already: then nothing is added.

        Raises:
            CorruptTable: the member does not say which rows, or a deletion file of the version cannot be read.
        """
        rows = rows_in(member)
        there = fragments_of(self.head, rows)
        if there.keys() != rows.keys():
            return False  # a fragment went as a whole
        for number, fragment in there.items():
            several = rows[number]
            gone = self.rebaser.vectors.of(fragment, self.head.base_paths)
            if several.max() >= fragment.physical_rows or several & gone or several & self._rows.get(number, BitMap()):
                return False
        for number, several in rows.items():
            self._rows[number] = self._rows.get(number, BitMap()) | several
        return True

    def operation(self, deletes: Sequence[Delete]) -> Delete:
        """One delete that does what all of these do. Writes the deletion files that merging asks for."""
        written: dict[int, list[DeletionFile]] = {}
        for fragment in (fragment for delete in deletes for fragment in delete.updated_fragments):
            if fragment.deletion_file is not None and fragment.deletion_file.base_id is None:
                written.setdefault(fragment.id, []).append(fragment.deletion_file)
        updated, removed = [], []
        for number, fragment in fragments_of(self.head, self._rows).items():
            after = self.rebaser.without(fragment, self._rows[number], self.head, written.get(number, ()))
            if after is None:
                removed.append(number)
            else:
                updated.append(after)
        return Delete(tuple(updated), tuple(removed), _condition(deletes))


def _condition(deletes: Sequence[Delete]) -> str:
    several = list(dict.fromkeys(delete.predicate for delete in deletes))
    text = several[0] if len(several) == 1 else " OR ".join(f"({text})" for text in several)
    return text if all(several) and len(text) <= _LONGEST_PREDICATE else ""


def for_all(rebaser: Rebaser, members: Sequence[Transaction], head: Manifest, taken: Taken | None) -> Transaction:
    """The leader's transaction on top of ``head``, with what its members bring and the digests of all new files."""
    mine = rebaser.transaction
    if not isinstance(mine.operation, Delete):
        settled = rebaser.settled(head)
        return fold(taken.added_to(settled, head) if taken is not None else settled, members)
    joint, deletes = JointDelete(rebaser, head), [mine.operation]
    for member in members:
        fits = joint.take(member)
        assert fits, "it was found to fit on this very version"
        assert isinstance(member.operation, Delete)
        deletes.append(member.operation)
    rebaser.leave_files_to_others()
    operation = joint.operation(deletes)
    told = told_of(mine, members, named=deletion_files(operation))
    folded = replace(told, operation=operation, read_version=max(head.version, mine.read_version))
    return taken.added_to(folded, head) if taken is not None else folded
