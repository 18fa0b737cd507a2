"""The last versions of a table in short: what a leader must know of them to go over them without reading each.

A leader leaves it beside the queue for the next one. It is advice: whoever finds it damaged, or about another history, reads the versions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import xxhash

from tiltyard.errors import Winner
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.values import WriterVersion
from tiltyard.transaction.group import LONGEST_WINDOW, made_by
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.operations import Append, Delete
from tiltyard.transaction.resolve import rules_for
from tiltyard.transaction.rules import ABOUT_KEYS, BY_ROWS
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, check_not_done, marks_in, transaction_id

_CHECK_LENGTH: Final = 16
MOST_KEPT: Final = 3
"""Versions that are kept whole: each names all fragments."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One version in short.

    Attributes:
        version: its number.
        made_by: the transactions that made it, the leader's first.
        parent: the transaction of the version below, as it says itself; empty where a foreign writer does not.
        calm: whether new rows can be put on top of it that were written for the version below.
        in_place: whether rows that were there before, and have not been deleted, still are where they were and as they were.
        operation, writer, message: what is told of it to those who were rebased over it.
    """

    version: int
    made_by: tuple[str, ...]
    parent: str
    calm: bool
    in_place: bool
    operation: str
    writer: str
    message: str
    encoded: bytes = field(repr=False, compare=False)
    """All of this as a line of text."""

    @property
    def winner(self) -> Winner:
        return Winner(self.version, self.made_by[0], self.operation, self.writer, self.message)

    @staticmethod
    def of(noted: NotedVersion) -> Seen:
        """What there is to say of a version."""
        transaction = noted.transaction
        # Who has keys commits alone, so rules about keys are nobody's concern here.
        theirs = transaction.operation.name
        calm = noted.same_fields and all(rule.when in ABOUT_KEYS for rule in rules_for(Append.name, theirs))
        in_place = noted.same_fields and all(rule in BY_ROWS for rule in rules_for(Delete.name, theirs))
        parent = transaction.properties.get(PARENT, "")
        told = theirs, str(noted.writer or ""), transaction.message
        return _seen(noted.version, made_by(transaction), parent, calm, in_place, *told)

    def follows(self, below: Seen) -> bool:
        return self.version == below.version + 1 and self.parent in ("", below.made_by[0])


@dataclass(frozen=True, slots=True)
class NotedVersion:
    """A version that was read or made, before anybody asks about it; ``same_fields``: as the version below, where somebody looked."""

    version: int
    transaction: Transaction
    writer: WriterVersion | None
    same_fields: bool
    below: ManifestFile | None = None

    @classmethod
    def of(cls, created: CreatedVersion, below: ManifestFile | None) -> NotedVersion:
        manifest = created.file.manifest
        same = below is not None and below.manifest.fields == manifest.fields
        return cls(manifest.version, created.transaction, manifest.writer, same, below)


class RecentVersions:
    """A run of versions without a gap, the newest last. Threads may share one: a new run takes the place of the old.

    Most commits are made by a writer who is alone, and nobody asks. So what is noted is looked at when somebody does. With ``keeps`` the
    last of them are kept whole, for others in this process.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self._seen: tuple[Seen, ...] = ()
        self._noted: tuple[NotedVersion, ...] = ()
        self._lock = threading.RLock()
        self.keeps = keeps
        self._kept: tuple[CreatedVersion, ...] = ()

    def kept(self, version: int) -> CreatedVersion | None:
        """A version that somebody in this process made or read a moment ago."""
        return next((created for created in self._kept if created.manifest.version == version), None)

    def note(self, created: CreatedVersion, below: ManifestFile | None) -> None:
        """Adds a version that was read or made. Where it does not go on from the last, those may be of a table that is no more."""
        noted = NotedVersion.of(created, below)
        with self._lock:
            if self.keeps:
                self._kept = (created, *self._kept[: MOST_KEPT - 1])
            before = self._noted[-LONGEST_WINDOW:]
            # A version may be large: of those it was put on, only the first of a run is needed.
            self._noted = (*before, replace(noted, below=None) if before and before[-1].version == noted.version - 1 else noted)

    @property
    def _run(self) -> tuple[Seen, ...]:
        with self._lock:
            pending, self._noted = self._noted, ()
            for noted in pending:
                self._add(noted)
            return self._seen

    @_run.setter
    def _run(self, run: tuple[Seen, ...]) -> None:
        self._seen = run

    def _add(self, noted: NotedVersion) -> None:
        known = next((seen for seen in self._seen if seen.version == noted.version), None)
        if known is not None and known.made_by[0] == noted.transaction.uuid:
            return
        if known is None and self._seen and noted.version < self._seen[0].version and self.keeps:
            return  # from somebody in this process who is slow
        seen, below = Seen.of(noted), noted.below
        run = self._seen if self._seen and seen.follows(self._seen[-1]) else ()
        if not run and below is not None and (maker := transaction_id(below)):
            run = (_seen(below.manifest.version, (maker,), "", False, False, "", "", ""),)
        self._seen = (*run[-LONGEST_WINDOW:], seen)

    def learn(self, data: bytes) -> None:
        """Takes over what a leader left, if it goes further than what is known here."""
        check, body = data[:_CHECK_LENGTH], data[_CHECK_LENGTH:]
        if body and xxhash.xxh3_64_hexdigest(body).encode() == check:
            with self._lock:
                self._learn(body)

    def _learn(self, body: bytes) -> None:
        run, told = self._run, list[Seen]()
        for line in reversed(body.split(b"\n")):
            seen = _decode(line)
            if seen is None or (told and not told[-1].follows(seen)):
                break
            if run and seen.version <= run[-1].version:
                if told and seen.version == run[-1].version and seen.made_by == run[-1].made_by:
                    self._run = (*run, *reversed(told))[-LONGEST_WINDOW:]
                return
            told.append(seen)
        if told:
            self._run = tuple(reversed(told))

    def newest(self) -> Seen | None:
        return self._run[-1] if self._run else None

    def encoded(self) -> bytes:
        body = b"\n".join(seen.encoded for seen in self._run)
        return xxhash.xxh3_64_hexdigest(body).encode() + body

    def since(self, version: int, transaction_id: str, head: int, head_id: str) -> tuple[Seen, ...] | None:
        """The versions after one up to another; None where they are not known, or the two are not of one history.

        Args:
            version: the one before the first of them, made by ``transaction_id``.
            transaction_id: its transaction.
            head: the last of them, made by ``head_id``.
            head_id: its transaction.
        """
        run = tuple(seen for seen in self._run if version <= seen.version <= head)
        if version == head:
            return () if transaction_id == head_id else None
        if not run or run[-1].version != head or run[-1].made_by[0] != head_id:
            return None
        if run[0].version == version:
            return run[1:] if run[0].made_by[0] == transaction_id else None
        return run if run[0].version == version + 1 and run[0].parent == transaction_id else None


def _seen(version: int, ids: tuple[str, ...], parent: str, calm: bool, in_place: bool, operation: str, writer: str, message: str) -> Seen:
    told = (version, ids, parent, calm, in_place, operation, writer, message)
    return Seen(*told, json.dumps(told, separators=(",", ":")).encode())


def _decode(line: bytes) -> Seen | None:
    """One version; None for anything else."""
    try:
        version, ids, parent, calm, in_place, *told = json.loads(line)
        operation, writer, message = map(str, told)
        return Seen(int(version), tuple(map(str, ids)), str(parent), bool(calm), bool(in_place), operation, writer, message, line)
    except (ValueError, TypeError):
        return None


class AlreadyThereError(Exception):
    """A transaction turned out to be in a version; never leaves the commit loop."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def judge(member: Transaction, window: Sequence[Seen], config: Mapping[str, str], marks: Mapping[str, str]) -> bool:
    """Whether a transaction can be committed on top of a version, as far as the versions in between have a say.

    Of a delete, that is that they moved and changed no row; which rows they deleted, ``joint_delete`` compares.

    Args:
        member: who offers it.
        window: the versions since the one it was built on.
        config: of the version to build on.
        marks: the numbers of work that others bring to the same version.

    Raises:
        AlreadyThereError: it was committed.
        AlreadyCommitted: work of its number was.
    """
    for theirs in window:
        if member.uuid in theirs.made_by:
            raise AlreadyThereError(theirs.version)
    check_not_done(member.properties, config)
    passes = (theirs.in_place if isinstance(member.operation, Delete) else theirs.calm for theirs in window)
    return marks.keys().isdisjoint(marks_in(member.properties)) and all(passes)
