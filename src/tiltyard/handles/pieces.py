"""The door for work done in other processes: they write, this handle commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.distributed.commit_files import append_pieces, overwrite_pieces
from tiltyard.verbs.distributed.write_tasks import (
    Piece,
    WriteTask,
    append_task,
    overwrite_task,
    refuse_committed,
    remove_leftovers,
    remove_pieces,
)
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.data_files import FileLimits, properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy
from tiltyard.verbs.write import OnDuplicate, Writing


class PieceVerbs(Handle):
    """What a handle does with rows that others wrote."""

    def write_task(
        self,
        *,
        overwrite: bool = False,
        schema: pa.Schema | None = None,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> WriteTask:
        """A task for other processes: it is pickled to them, and ``task.write(batches)`` gives a piece, which is pickled back.

        Args:
            overwrite: whether the pieces are for ``overwrite_pieces``; by default they are for ``append_pieces``.
            schema: what the rows will look like. For an append it is only checked, here and now; an overwrite needs it.
            primary_key: for an overwrite, another key than before; ``[]`` for none.
            on_duplicate: with ``"error"`` writers note the keys of their rows, for the commit to compare.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            InvalidInput: rows of that schema do not fit the table.
        """
        how = Writing(FileLimits(max_rows_per_file, max_bytes_per_file), on_duplicate)
        place, file = self._data()
        manifest = file.manifest
        if not overwrite:
            if primary_key is not None:
                raise InvalidInput("An append leaves the primary key as it is.", argument="primary_key", advice="Leave it out.")
            return append_task(place, manifest, how.limits, schema, with_keys=on_duplicate == "error")
        if schema is None:
            raise InvalidInput("An overwrite needs the schema of the rows to come.", argument="schema")
        return overwrite_task(place, manifest, how.limits, schema, primary_key, with_keys=on_duplicate == "error")

    def append_pieces(
        self,
        pieces: Iterable[Piece | None],
        *,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Adds the rows of pieces, in one commit. If it fails their files stay, to be tried again or discarded.

        Args:
            pieces: what ``WriteTask.write`` returned. Of several pieces of one part the first is taken, and the files of the others go.
            on_duplicate: what to do, on a table with a primary key, about keys that are there already or come twice.
            leftovers: whether all other files of the pieces' groups go as well: what attempts wrote whose pieces came to nobody. Only
                where no further piece of the group is to be committed.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            KeyConflict: a key comes twice, in one piece or in several, or is there, be it since a moment ago.
            RetryableConflict: the columns are not those the pieces were written for any more.
            IncompatibleConflict: the table was replaced or set back meanwhile.
        """
        Writing(on_duplicate=on_duplicate)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(
            lambda: append_pieces(*self._blind(), self._scheme, pieces, on_duplicate, described, policy, leftovers=leftovers)
        )

    def overwrite_pieces(
        self,
        task: WriteTask,
        pieces: Iterable[Piece | None],
        *,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Replaces all rows and the schema by those of pieces, in one commit. If it fails their files stay.

        Args:
            task: the one that the pieces were written by; without pieces the table is emptied.
            pieces: as for ``append_pieces``.
            on_duplicate: what to do, with a primary key, about keys that come twice.
            leftovers: as for ``append_pieces``.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often the rows of somebody else who replaced the table meanwhile are replaced in turn.
            deadline: seconds after which neither is begun again.

        Raises:
            KeyConflict: a key comes twice; nothing was changed.
            RetryableConflict: somebody else replaced the table meanwhile, again and again, or its key is another one now.
        """
        Writing(on_duplicate=on_duplicate)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(
            lambda: overwrite_pieces(*self._blind(), self._scheme, task, pieces, on_duplicate, described, policy, leftovers=leftovers)
        )

    def discard_pieces(self, pieces: Iterable[Piece | None], *, leftovers: bool = False) -> int:
        """Removes the files of pieces that are not to be committed; how many there were.

        Args:
            pieces: which; None among them is passed over.
            leftovers: whether all other files of their groups go as well.

        Raises:
            InvalidInput: a version of the table has one of them: it was committed, and nothing is removed.
        """
        given = [one for one in pieces if one is not None]
        since = min((one.version for one in given), default=0)
        tokens = dict.fromkeys(one.token for one in given)
        refuse_committed(self._place, since, [path for one in given for path in one.paths], tokens if leftovers else ())
        removed = remove_pieces(self._place.store, given)
        if leftovers:
            removed += sum(remove_leftovers(self._place.store, token, ()) for token in tokens)
        return removed
