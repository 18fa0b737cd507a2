"""Rebases our operation over each commit since the version it was built on, up to the head.

The table of rules says what is to be done; here it is done. Nothing of it is visible before the version is created: what is written on
the way are deletion files that no version names yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from tiltyard.errors import ExpectedVersionMismatch, IncompatibleConflict, InvalidInput, KeyConflict, RetryableConflict, Winner
from tiltyard.format.keys import primary_key_fields
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment, DeletionFile, IndexMetadata
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.apply.frame import found, has_stable_row_ids
from tiltyard.transaction.context import Context
from tiltyard.transaction.deletion_vectors import DeletionVectors, all_rows
from tiltyard.transaction.footprint import (
    FRAGMENT_REUSE,
    RowChange,
    arrivals,
    deletion_files,
    exchanged,
    first_file,
    fragments_of,
    moved,
    recolumned_fragments,
    redirected,
    regrouped,
    removed_fragments,
    touched_fragments,
    trimmed,
)
from tiltyard.transaction.key_filter import WrittenKeys, unsettled
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.operations import MAINTENANCE, Append, CreateIndex, KeyExistenceFilter, Rewrite
from tiltyard.transaction.resolve import Compatible, Incompatible, Rebase, Verdict, conflict, resolve
from tiltyard.transaction.row_map import Rows, by_row_id, in_order, keeps_order
from tiltyard.transaction.system_indices import merged_singleton, singleton
from tiltyard.transaction.transaction import Transaction


@dataclass(slots=True)
class Rebaser:
    """An operation on its way to the head.

    Attributes:
        transaction: as it came; its operation changes where a rebase changes it.
        read: the version it was built on.
        vectors: for the rows of deletion files.
        keys: the keys we write that were not there: exactly, or only a filter of those of an Append.
        reuse: for a Rewrite, the entry that lets other indices follow later.
        unchanged: whether it goes over upkeep alone, since it was made of all rows that it replaces.
    """

    transaction: Transaction
    read: Manifest
    vectors: DeletionVectors
    keys: WrittenKeys | KeyExistenceFilter | None = None
    reuse: IndexMetadata | None = None
    unchanged: bool = False
    base: dict[int, DataFragment] = field(init=False)
    """Fragments that we touch, in the state that our change was made from."""
    _rows: dict[int, BitMap] = field(default_factory=dict)
    """Rows that we delete or move, by fragment; where nobody needed to know, not yet read. Of new fragments of ours, rows to delete."""
    _stale: set[int] = field(default_factory=set)
    """Fragments in which others deleted rows, so that our own vector will not do."""
    _carried: set[int] = field(default_factory=set)
    """Old fragments of our Rewrite in which others deleted rows."""
    _merged: dict[int, tuple[DeletionFile | None, BitMap, DeletionFile]] = field(default_factory=dict)
    """By fragment what was merged last: which deletions, which rows beside, and the file it was written to."""
    _replaced: list[str] = field(default_factory=list)
    """Deletion files the operation came with that others took the place of."""
    _written: list[str] = field(default_factory=list)
    _unread: dict[int, Winner] = field(default_factory=dict)
    """Fragments whose keys are yet to be compared with ours, and who brought each."""

    def __post_init__(self) -> None:
        operation = self.transaction.operation
        self.base = found(self.read, touched_fragments(operation), operation.name) if not isinstance(operation, Append) else {}

    # ---- meeting a commit ------------------------------------------------------------------------------------------------------

    def meet(self, theirs: CreatedVersion, before: Manifest) -> Verdict:
        """Carries the operation over a commit that made its version from ``before``.

        Raises:
            ConflictError: the table of rules does not let it pass.
            ExpectedVersionMismatch: rows or columns had to stay as they were.
        """
        if self.unchanged and not isinstance(theirs.transaction.operation, MAINTENANCE):
            raise self._mismatch(theirs)
        context = self._with_keys_compared(self._context(theirs, before), theirs, before)
        verdict = resolve(self.transaction, theirs.transaction, context=context)
        if isinstance(verdict, Rebase) and verdict.undecided_fragments:
            ours = {number: self.rows(number) for number in verdict.merge_fragments}
            context = replace(context, my_rows=ours, their_rows=self._their_rows(verdict.merge_fragments, theirs, before))
            verdict = resolve(self.transaction, theirs.transaction, context=context)
        if isinstance(verdict, Rebase) and verdict.carry_fragments and not self._carry(verdict.carry_fragments, theirs, before):
            uncertain = replace(context, stable_row_ids=False, row_map_certain=False)
            verdict = resolve(self.transaction, theirs.transaction, context=uncertain)
        if isinstance(verdict, Rebase):
            self._absorb(verdict, theirs, before)
        elif not isinstance(verdict, Compatible):
            raise self._conflict(verdict, theirs)
        return verdict

    def _with_keys_compared(self, context: Context, theirs: CreatedVersion, before: Manifest) -> Context:
        """Settles what filters leave open, where our keys are known. Rows that came are read later, by ``compare_keys``."""
        if self.keys is None or isinstance(self.keys, KeyExistenceFilter):
            return context
        if self._unread and not self._unread.keys() <= set(theirs.manifest.fragments.ids()):
            self.compare_keys(before)  # the last version in which these rows are where we know them
        self._unread.update((fragment.id, theirs.as_winner()) for fragment in unsettled(self.keys, theirs, before, context.key_types))
        return replace(context, keys_apart=True)

    def compare_keys(self, at: Manifest) -> bool:
        """Looks for our keys in the rows that came since the last time, all at once: each look costs far more than a few rows.

        Args:
            at: the version that the last commit we met made.

        Returns:
            Whether there were any, so that it took a while.

        Raises:
            KeyConflict: a row that came has a key of ours.
        """
        if not self._unread:
            return False
        assert self.keys is not None
        assert not isinstance(self.keys, KeyExistenceFilter)
        there = fragments_of(at, self._unread)
        if shared := self.keys.shared_with([*there.values()], at):
            winner = next(winner for number, winner in self._unread.items() if self.keys.shared_with([there[number]], at))
            raise KeyConflict(
                f"{winner} wrote the same keys: {', '.join(shared)}.",
                operation=self.transaction.operation.name,
                read_version=self.transaction.read_version,
                winners=[winner],
                sample=shared,
            )
        self._unread.clear()
        return True

    def _mismatch(self, theirs: CreatedVersion) -> ExpectedVersionMismatch:
        mine, winner = self.transaction, theirs.as_winner()
        return ExpectedVersionMismatch(
            f"{mine.operation.name} replaces rows read at version {mine.read_version}, then came {winner}, which it would undo.",
            table="",
            expected=mine.read_version,
            actual=winner.version,
            operation=mine.operation.name,
            read_version=mine.read_version,
            winners=[winner],
            advice="Nothing was changed. Read the table again, and write again.",
        )

    def _conflict(self, verdict: Verdict, theirs: CreatedVersion) -> RetryableConflict | IncompatibleConflict:
        kind: type[RetryableConflict] | type[IncompatibleConflict] = KeyConflict if verdict.about_keys else RetryableConflict
        if isinstance(verdict, Incompatible):
            kind = IncompatibleConflict
        return conflict(kind, verdict, self.transaction, theirs)

    def _context(self, theirs: CreatedVersion, before: Manifest) -> Context:
        ours, others = self.transaction, theirs.transaction
        rewrite = next((our for our in (ours, others) if isinstance(our.operation, Rewrite)), None)
        return Context(
            winner=theirs.as_winner(),
            my_base=self.base,
            their_base=fragments_of(before, touched_fragments(others.operation)),
            my_keys=self.keys if self.keys is None or isinstance(self.keys, KeyExistenceFilter) else self.keys.filter,
            key_types=[field.logical_type for field in primary_key_fields(before.fields)],
            stable_row_ids=has_stable_row_ids(before),
            row_map_certain=rewrite is not None and keeps_order(rewrite),
            my_reuse=self.reuse is not None,
            their_reuse=isinstance(others.operation, Rewrite)
            and singleton(theirs.manifest, FRAGMENT_REUSE) not in (None, singleton(before, FRAGMENT_REUSE)),
        )

    # ---- whose rows ------------------------------------------------------------------------------------------------------------

    def rows(self, fragment: int) -> BitMap:
        """Rows of a fragment that we delete or move, found by comparing its deletions before and after.

        Raises:
            InvalidInput: the operation would bring deleted rows back.
        """
        if fragment not in self._rows:
            before = self.base[fragment]
            deleted = self.vectors.of(before, self.read.base_paths)
            ours = self._deletions(fragment)
            if not deleted <= ours:
                what = f"The deletions of fragment {fragment} leave out row {(deleted - ours).min()}, which is deleted in version"
                raise InvalidInput(f"{what} {self.read.version}.", argument="operation", advice="Delete on top of the version you read.")
            self._rows[fragment] = ours - deleted
        return self._rows[fragment]

    def all_rows(self) -> dict[int, BitMap]:
        """Rows that we delete or move, of each fragment that we change. Raises what ``rows`` raises."""
        return {number: self.rows(number) for number in self.base}

    def _deletions(self, fragment: int) -> BitMap:
        operation = self.transaction.operation
        if fragment in removed_fragments(operation):
            return all_rows(self.base[fragment])
        assert isinstance(operation, RowChange)
        after = next(data_fragment for data_fragment in operation.updated_fragments if data_fragment.id == fragment)
        return self.vectors.of(after, self.read.base_paths)

    def check_rows(self) -> None:
        """Reads all deletion files the operation brings, so that none is missing, damaged or brings rows back.

        Raises:
            NotFound: one is missing.
            CorruptTable: one does not hold what the operation says.
            InvalidInput: one leaves out rows that were deleted.
        """
        if isinstance(self.transaction.operation, RowChange):
            for fragment in self.transaction.operation.updated_fragments:
                if fragment.deletion_file != self.base[fragment.id].deletion_file:
                    self.rows(fragment.id)

    def _their_rows(self, fragments: Iterable[int], theirs: CreatedVersion, before: Manifest) -> dict[int, BitMap]:
        """Rows that a commit took from fragments: deleted, moved, or gone with the fragment."""
        old, new = fragments_of(before, fragments), fragments_of(theirs.manifest, fragments)
        rows = {}
        for number, was in old.items():
            now = self.vectors.of(new[number], theirs.manifest.base_paths) if number in new else all_rows(was)
            rows[number] = now - self.vectors.of(was, before.base_paths)
        return rows

    # ---- rebasing --------------------------------------------------------------------------------------------------------------

    def _absorb(self, verdict: Rebase, theirs: CreatedVersion, before: Manifest) -> None:
        for number in verdict.merge_fragments:
            self.rows(number)
            self._replace_file_of(number)
            self._stale.add(number)
        if verdict.trim_indices:
            self._change(trimmed(self._creation(), dict(verdict.trim_indices)))
        if isinstance(self.transaction.operation, CreateIndex) and isinstance(theirs.transaction.operation, Rewrite):
            self._change(redirected(self._creation(), theirs.transaction.operation, indices_of(theirs.manifest)))
        for name in verdict.merge_singletons:
            self._merge_singleton(name, verdict, theirs, before)

    def _change(self, operation: CreateIndex | RowChange) -> None:
        self.transaction = replace(self.transaction, operation=operation)

    def _creation(self) -> CreateIndex:
        assert isinstance(self.transaction.operation, CreateIndex)
        return self.transaction.operation

    def _replace_file_of(self, fragment: int) -> None:
        """Notes that the deletion file we came with is of no use any more."""
        operation = self.transaction.operation
        assert isinstance(operation, RowChange)
        for data_fragment in operation.updated_fragments:
            file = data_fragment.deletion_file
            if data_fragment.id == fragment and file is not None and file.base_id is None and file != self.base[fragment].deletion_file:
                self._replaced.append(file.path(fragment))

    def _merge_singleton(self, name: str, verdict: Verdict, theirs: CreatedVersion, before: Manifest) -> None:
        was, now = singleton(before, name), singleton(theirs.manifest, name)
        if self.reuse is not None:
            self.reuse = merged_singleton(self.reuse, now, was)
            merged = self.reuse is not None
        else:
            creation = self._creation()
            entries = [merged_singleton(index, now, was) if index.name == name else index for index in creation.new_indices]
            merged = None not in entries
            self._change(replace(creation, new_indices=tuple(entry for entry in entries if entry is not None)))
        if not merged:
            raise self._conflict(verdict, theirs)

    # ---- through a rewrite -----------------------------------------------------------------------------------------------------

    def _carry(self, fragments: Sequence[int], theirs: CreatedVersion, before: Manifest) -> bool:
        """Takes deletions to where the rows are now. False, with nothing changed, where that is not certain."""
        if isinstance(self.transaction.operation, Rewrite):
            return self._carry_theirs(self.transaction.operation, fragments, theirs, before)
        return self._carry_mine(fragments, theirs, before)

    def _carry_mine(self, fragments: Sequence[int], theirs: CreatedVersion, before: Manifest) -> bool:
        """Our deletions follow rows that a committed rewrite moved."""
        operation, rewrite = self.transaction.operation, theirs.transaction.operation
        assert isinstance(operation, RowChange)
        assert isinstance(rewrite, Rewrite)
        rows = {number: self.rows(number) for number in fragments}
        arrived = arrivals(theirs.manifest, before)
        places: dict[int, BitMap] = {}
        new: list[DataFragment] = []
        for group in rewrite.groups:
            old = list(fragments_of(before, [fragment.id for fragment in group.old_fragments]).values())
            if not any(fragment.id in rows for fragment in old):
                continue
            made = [arrived[first_file(fragment)] for fragment in group.new_fragments if first_file(fragment) in arrived]
            followed = self._followed(rows, old, made, before, theirs.transaction)
            if followed is None:
                return False
            places.update(followed)
            new.extend(fragment for fragment in made if fragment.id in followed)
        for number in rows:
            self._replace_file_of(number)
            del self.base[number], self._rows[number]
        self._change(moved(operation, rows, new))
        self._stale = {number for number in self._stale if number not in rows} | places.keys()
        self.base.update((fragment.id, fragment) for fragment in new)
        self._rows.update(places)
        return True

    def _carry_theirs(self, operation: Rewrite, fragments: Sequence[int], theirs: CreatedVersion, before: Manifest) -> bool:
        """Deletions of a commit follow the rows that our rewrite moved."""
        rows = self._their_rows(fragments, theirs, before)
        places: dict[int, BitMap] = {}
        for group in operation.groups:
            if not any(fragment.id in rows for fragment in group.old_fragments):
                continue
            # A deletion file is named after its fragment, so one without an id can have none.
            if not all(fragment.id and fragment.deletion_file is None for fragment in group.new_fragments):
                return False
            old = [self.base[fragment.id] for fragment in group.old_fragments]
            followed = self._followed(rows, old, group.new_fragments, self.read, self.transaction)
            if followed is None:
                return False
            places.update(followed)
        for number, several in places.items():
            self._rows[number] = self._rows.get(number, BitMap()) | several
        self._carried.update(rows)
        return True

    def _followed(
        self, rows: Rows, old: Sequence[DataFragment], new: Sequence[DataFragment], at: Manifest, rewrite: Transaction
    ) -> dict[int, BitMap] | None:
        if has_stable_row_ids(at):
            return by_row_id(rows, old, new)
        if not keeps_order(rewrite):
            return None
        return in_order(rows, [(fragment, self.vectors.of(fragment, at.base_paths)) for fragment in old], new)

    # ---- on the head -----------------------------------------------------------------------------------------------------------

    def settled(self, head: Manifest) -> Transaction:
        """The transaction as it is to be stored on top of ``head``. Writes the deletion files that merging asks for."""
        operation = self.transaction.operation
        if isinstance(operation, Rewrite) and self._carried:
            there = fragments_of(head, self._carried)
            return replace(
                self.transaction, operation=regrouped(operation, self._carried, there, lambda fragment: self._with_our_rows(fragment, head))
            )
        if not isinstance(operation, RowChange):
            return self.transaction
        if self._stale:
            recolumned = recolumned_fragments(operation, self.base)
            mine = {fragment.id: fragment for fragment in operation.updated_fragments}
            changes: dict[int, DataFragment | None] = {}
            for number, now in fragments_of(head, self._stale & mine.keys()).items():
                after = self._with_our_rows(now, head)
                if after is not None and number in recolumned:
                    after = replace(mine[number], deletion_file=after.deletion_file)
                changes[number] = after
            operation = exchanged(operation, changes)
        # As stock writers do it: a change of rows names the version it ended up on.
        return replace(self.transaction, operation=operation, read_version=max(head.version, self.transaction.read_version))

    def _with_our_rows(self, fragment: DataFragment, head: Manifest) -> DataFragment | None:
        """The fragment with its deletions and ours; None where no row is left."""
        return self.without(fragment, self._rows.get(fragment.id) or BitMap(), head)

    def without(self, fragment: DataFragment, rows: BitMap, head: Manifest, written: Iterable[DeletionFile] = ()) -> DataFragment | None:
        """A fragment of ``head`` without some rows that are live there; None where no row is left.

        Args:
            fragment: as it is in ``head``.
            rows: what goes.
            head: the version to build on.
            written: deletion files that take some of these rows from an earlier state of the fragment, and none else. One that takes all
                from this state is used; otherwise a file is written, once for what it is merged from.
        """
        if not rows:
            return fragment
        deleted = self.vectors.of(fragment, head.base_paths) | rows
        if len(deleted) == fragment.physical_rows:
            return None
        # A file that has as many rows has the same: whatever was deleted when it was written still is.
        fitting = next((file for file in written if file.deleted_rows == len(deleted)), None)
        known = self._merged.get(fragment.id)
        if fitting is None and known is not None and known[:2] == (fragment.deletion_file, rows):
            fitting = known[2]
        if fitting is None:
            fitting = self.vectors.write(fragment, deleted, head.version)
            self._written.append(fitting.path(fragment.id))
            self._merged[fragment.id] = fragment.deletion_file, rows, fitting
        return replace(fragment, deletion_file=fitting)

    def leave_files_to_others(self) -> None:
        """Notes that somebody else decides which deletion files a version names, so that ours may be of no use."""
        for number in self.base:
            self._replace_file_of(number)

    def garbage(self, stored: Transaction | None) -> list[str]:
        """Deletion files that nobody needs now that it is certain what became of the commit.

        Before that, none may be deleted. What the operation came with is the caller's as long as it is not committed.

        Args:
            stored: the transaction that was committed; None if none was.
        """
        if stored is None:
            return self._written
        operation = stored.operation
        used = deletion_files(operation) if isinstance(operation, RowChange | Rewrite) else set()
        return [path for path in (*self._replaced, *self._written) if path not in used]
