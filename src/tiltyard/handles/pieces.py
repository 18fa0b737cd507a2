"""Rows that other processes write: tasks for them, and commits of the pieces that they give back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.options import CommitOptions, FileLimits, OnDuplicate
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.distributed.commit_files import append_pieces, overwrite_pieces
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.distributed.write_tasks import (
    Piece,
    WriteTask,
    append_task,
    overwrite_task,
    refuse_committed,
    remove_leftovers,
    remove_pieces,
)
from tiltyard.verbs.engine.reexecution import commit_terms
from tiltyard.verbs.engine.write_bases import without_base
from tiltyard.verbs.write import Writing


class PieceReader:
    """Tasks that only read."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    def scan_task(self) -> ScanTask:
        """Reads rows of this version from any process; it is pickled there."""
        access, file = self._table._data()
        return scan_task(access, file.manifest)


class PieceVerbs(PieceReader):
    """What a handle does with rows that others wrote."""

    def write_task(
        self,
        *,
        overwrite: bool = False,
        schema: pa.Schema | None = None,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        files: FileLimits | None = None,
    ) -> WriteTask:
        """A task that writes rows in other processes. It is pickled; so are the pieces it returns.

        Args:
            overwrite: whether the pieces are for ``overwrite``; by default they are for ``append``.
            schema: what the rows will look like. For an append it is only checked, here and now; an overwrite needs it.
            primary_key: for an overwrite, another key than before; ``[]`` for none.
            on_duplicate: with ``"error"`` writers note the keys of their rows, for the commit to compare.
            files: how the rows are split into files.

        Raises:
            InvalidInput: rows of that schema do not fit the table.
        """
        how = Writing(without_base(files), on_duplicate)
        access, file = self._table._data()
        manifest = file.manifest
        if not overwrite:
            if primary_key is not None:
                raise InvalidInput("An append leaves the primary key as it is.", argument="primary_key", advice="Leave it out.")
            return append_task(access, manifest, how.limits, schema, with_keys=on_duplicate == "error")
        if schema is None:
            raise InvalidInput("An overwrite needs schema=, the schema of the new rows.", argument="schema")
        return overwrite_task(access, manifest, how.limits, schema, primary_key, with_keys=on_duplicate == "error")

    def append(
        self,
        pieces: Iterable[Piece | None],
        *,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Appends files that tasks wrote, in one commit. If it fails they stay, to retry or to discard.

        Args:
            pieces: what ``WriteTask.write`` returned. Of several pieces of one part the first is taken, and the files of the others are
                removed.
            on_duplicate: what to do, on a table with a primary key, about duplicate keys, in the pieces or in the table.
            leftovers: whether all other files of the pieces' groups are removed as well: those of attempts whose pieces were lost. Only
                where no further piece of the group is to be committed.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            KeyConflict: a duplicate key, in one piece or in several, or in the table, also one that another writer inserted just now.
            RetryableConflict: the columns are not those the pieces were written for any more.
            IncompatibleConflict: the table was replaced or restored meanwhile.
        """
        Writing(on_duplicate=on_duplicate)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._blind, append_pieces, pieces, on_duplicate, described, policy, leftovers=leftovers)

    def overwrite(
        self,
        task: WriteTask,
        pieces: Iterable[Piece | None],
        *,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Replaces all rows and the schema by files that tasks wrote, in one commit. If it fails they stay.

        Args:
            task: the one that the pieces were written by; without pieces the table is emptied.
            pieces: as for ``append``.
            on_duplicate: what to do, with a primary key, about duplicate keys in the pieces.
            leftovers: as for ``append``.
            message: a sentence for the history.
            commit: properties, retries and deadline; ``expected_version`` as for ``Table.overwrite``.

        Raises:
            KeyConflict: a duplicate key; nothing was changed.
            ExpectedVersionMismatch: others committed after the expected version.
            RetryableConflict: a foreign writer replaced the table meanwhile, again and again, or its key is another one now.
        """
        Writing(on_duplicate=on_duplicate)
        described, policy = commit_terms(commit, message, replaces=True)
        table, expected = self._table, None if commit is None else commit.expected_version
        hand_out, how = table._blind if expected is None else table._data, (on_duplicate, described, policy)
        return table._commit(hand_out, overwrite_pieces, task, pieces, *how, leftovers=leftovers, expected=expected)

    def discard(self, pieces: Iterable[Piece | None], *, leftovers: bool = False) -> int:
        """Removes the files of pieces that are not to be committed; returns how many.

        Args:
            pieces: which; None among them is passed over.
            leftovers: whether all other files of their groups are removed as well.

        Raises:
            InvalidInput: a version of the table has one of them: it was committed, and nothing is removed.
        """
        given = [piece for piece in pieces if piece is not None]
        since = min((piece.version for piece in given), default=0)
        tokens = dict.fromkeys(piece.token for piece in given)
        access = self._table._access
        refuse_committed(access, since, [path for piece in given for path in piece.paths], tokens if leftovers else ())
        removed = remove_pieces(access.store, given)
        if leftovers:
            removed += sum(remove_leftovers(access.store, token, ()) for token in tokens)
        return removed
