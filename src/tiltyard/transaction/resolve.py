"""The verdict on a pair: our operation, and one that was committed after the version ours was built on. No I/O decides, only values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from tiltyard.errors import (
    ConflictError,
    CorruptTable,
    HistoryUnavailable,
    IncompatibleConflict,
    NotFound,
    StorageError,
    UnsupportedFeature,
    fit,
)
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.transaction.conditions import CONDITIONS
from tiltyard.transaction.context import Context, Found
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.rules import ABOUT_KEYS, RULES, UNKNOWN, Outcome, Rule
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import fits

C = TypeVar("C", bound=ConflictError)

NOTHING_KNOWN: Final = Context()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of our operation: ``Compatible``, ``Rebase``, ``Retry`` or ``Incompatible``.

    Attributes:
        reason: one sentence: the two operations, and why this is the verdict.
        rule: the rule that decided; None where none applied.
        fragments: ids of fragments both sides change.
        rows: fragment and offset of rows both sides change (a sample).
        names: keys, fields, indices, shards or bases both sides change.
    """

    outcome: ClassVar[Outcome]
    reason: str
    rule: Rule | None = None
    fragments: tuple[int, ...] = ()
    rows: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()

    @property
    def sample(self) -> tuple[str, ...]:
        """A few of the things that both sides change, in words."""
        return Found(self.fragments, self.rows, self.names).sample

    @property
    def about_keys(self) -> bool:
        """Whether both may write the same key: what a ``KeyConflict`` reports."""
        return self.rule is not None and self.rule.when in ABOUT_KEYS


@dataclass(frozen=True, slots=True)
class Compatible(Verdict):
    """Commit as it is on top of theirs."""

    outcome = Outcome.COMPATIBLE


@dataclass(frozen=True, slots=True)
class Rebase(Verdict):
    """Commit on top of theirs after a change that absorbs it.

    Attributes:
        merge_fragments: in these, take the fragment as it is now with our changes to it, and delete what either side deleted.
        undecided_fragments: those among them of which the changed rows of a side are not known. Read them and call ``resolve`` again
            before committing.
        carry_fragments: old fragments of the Rewrite of the pair; apply deletions in them where their rows are now.
        trim_indices: uuid of each of our new indices that covers too much, and the fragments to take out of its coverage.
        merge_singletons: names of singleton indices to merge with the existing one.
    """

    outcome = Outcome.REBASE
    merge_fragments: tuple[int, ...] = ()
    undecided_fragments: tuple[int, ...] = ()
    carry_fragments: tuple[int, ...] = ()
    trim_indices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    merge_singletons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry(Verdict):
    """Do not commit; re-executing the operation on the latest version is safe."""

    outcome = Outcome.RETRY


@dataclass(frozen=True, slots=True)
class Incompatible(Verdict):
    """Do not commit; re-executing the operation may mean something else than was meant."""

    outcome = Outcome.INCOMPATIBLE


def resolve(mine: Operation | Transaction, theirs: Operation | Transaction, *, context: Context = NOTHING_KNOWN) -> Verdict:
    """Decides whether an operation can be committed over one committed since the version it read.

    Pure: the same operations and the same context give the same verdict. What the context leaves out is decided on the safe side;
    where rows are not known the verdict is a ``Rebase`` that lists the fragments to look into.

    Raises:
        UnsupportedFeature: ours is an operation this release does not know.
        CorruptTable: a bitmap or an index entry inside an operation cannot be read, so what it changes is unknown.

    Examples:
        >>> import tiltyard as ty
        >>> ty.conflicts.resolve(ty.ops.Append(), ty.ops.Restore(3))
        Incompatible(reason='Append after Restore: the table was restored to an older version.', ...)
    """
    ours = mine.operation if isinstance(mine, Transaction) else mine
    others = theirs.operation if isinstance(theirs, Transaction) else theirs
    for rule in rules_for(ours.name, others.name):
        found = CONDITIONS[rule.when].holds(ours, others, context)
        if found is not None:
            return _verdict(rule, found, _sentence(mine, theirs, context, rule.why, found))
    return Compatible(_sentence(mine, theirs, context, "nothing overlaps", Found()))


def forbidden(mine: Operation | Transaction, theirs: Operation | Transaction, *, context: Context = NOTHING_KNOWN) -> Incompatible | None:
    """The verdict that rules out a re-execution over one commit, whatever other rules of the pair say; None if there is none.

    ``resolve`` tells what becomes of an operation that meets their commit first, so the first rule decides. Once an operation is to be
    re-executed, only the rules that do not allow that are left to ask, and any of them is enough.
    """
    ours = mine.operation if isinstance(mine, Transaction) else mine
    others = theirs.operation if isinstance(theirs, Transaction) else theirs
    for rule in (rule for rule in rules_for(ours.name, others.name) if rule.then is Outcome.INCOMPATIBLE):
        found = CONDITIONS[rule.when].holds(ours, others, context)
        if found is not None:
            reason = _sentence(mine, theirs, context, rule.why, found)
            return Incompatible(reason, rule, found.fragments, found.rows, found.names)
    return None


def rules_for(committing: str, committed: str) -> tuple[Rule, ...]:
    """The rules of a pair of operations by name, in order. Any name that is not known stands for an unknown operation."""
    if committing not in RULES:
        raise UnsupportedFeature(f"This release cannot commit {committing}.", feature=committing, writing=True)
    row = RULES[committing]
    return row.get(committed, row[UNKNOWN])


def _verdict(rule: Rule, found: Found, reason: str) -> Verdict:
    if rule.then is Outcome.REBASE:
        return Rebase(
            reason,
            rule,
            found.fragments,
            found.rows,
            found.names,
            merge_fragments=found.merge_fragments,
            undecided_fragments=found.undecided_fragments,
            carry_fragments=found.carry_fragments,
            trim_indices=found.trim_indices,
            merge_singletons=found.merge_singletons,
        )
    kind = Retry if rule.then is Outcome.RETRY else Incompatible
    return kind(reason, rule, found.fragments, found.rows, found.names)


def _sentence(mine: Operation | Transaction, theirs: Operation | Transaction, context: Context, why: str, found: Found) -> str:
    ours = f"{mine.operation.name} read version {mine.read_version}, then came" if isinstance(mine, Transaction) else f"{mine.name} after"
    if context.winner is not None:
        other = str(context.winner)
    else:
        other = f"{theirs.operation.name} (transaction {theirs.uuid})" if isinstance(theirs, Transaction) else theirs.name
    sample = f" ({', '.join(found.sample)})" if found.sample else ""
    doubt = " once their rows are known to differ" if found.undecided_fragments else ""
    return fit(f"{ours} {other}: {why}{doubt}{sample}.")


@dataclass(frozen=True, slots=True)
class Window:
    """A transaction that met a retryable conflict, and how far its window is judged.

    Attributes:
        transaction: what was to be committed.
        judged: the last version of which it is certain that it does not rule out a re-execution.
    """

    transaction: Transaction
    judged: ManifestFile

    def judge(self, log: VersionLog, head: int, scheme: Scheme, met: Collection[int] = ()) -> Window:
        """Judges the versions up to ``head``, one after the other; those it has ``met`` allowed a re-execution already.

        Returns:
            The window that ends there.

        Raises:
            IncompatibleConflict: one of them does not go together with the transaction, so that it must not be re-executed.
            HistoryUnavailable: one of them cannot be read, so that nobody knows.
        """
        below = self.judged
        for version in range(below.manifest.version + 1, head + 1):
            theirs = self._committed(log, version, head, scheme)
            if not fits(theirs, below):
                raise self._unreadable(below.manifest.version, head, f"version {version} was made from another one")
            context = Context(winner=theirs.as_winner())
            verdict = forbidden(self.transaction, theirs.transaction, context=context) if version not in met else None
            if verdict is not None:
                raise conflict(IncompatibleConflict, verdict, self.transaction, theirs)
            below = theirs.file
        return Window(self.transaction, below)

    def _committed(self, log: VersionLog, version: int, head: int, scheme: Scheme) -> CreatedVersion:
        try:
            file = log.peek(version, scheme)
            return CreatedVersion(file, log.transaction_of(file))
        except (NotFound, CorruptTable) as error:
            raise self._unreadable(version, head, str(error)) from error
        except StorageError as error:
            if error.transient:
                raise
            raise self._unreadable(version, head, str(error)) from error

    def _unreadable(self, version: int, head: int, why: str) -> HistoryUnavailable:
        return unreadable(version, head, self.transaction.read_version, why)


def conflict(kind: type[C], verdict: Verdict, ours: Transaction, theirs: CreatedVersion) -> C:
    """The error for a transaction that meets a version it conflicts with."""
    return kind(
        verdict.reason,
        operation=ours.operation.name,
        read_version=ours.read_version,
        winners=[theirs.as_winner()],
        fragments=verdict.fragments,
        sample=verdict.sample,
    )


def unreadable(version: int, head: int, read_version: int, why: str) -> HistoryUnavailable:
    """The error for a version between the one that was read and the head that nobody can judge."""
    return HistoryUnavailable(
        f"Version {version}, between read version {read_version} and head {head}, cannot be read: {why}",
        read_version=read_version,
        missing=[version],
        head=head,
    )
