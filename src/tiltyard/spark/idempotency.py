"""Batches that Spark may send again: each is committed once.

The number of a batch is kept in the table's config by the very commit that brings its rows (see ``tiltyard.distributed.once``). So whoever
sends it again, after whatever crash and however much later, is refused by the commit itself; looking before is only there to save the work.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import tiltyard as ty
from tiltyard.errors import InvalidInput, OutcomeUnknown, TiltyardError

_SPELLING: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")


def is_done(table: ty.TableReader, query_id: str | None, epoch: int | None) -> bool:
    """Whether the version a handle is at has a batch already."""
    if query_id is None or epoch is None:
        return False
    last = ty.distributed.last_done(table, query_id)
    return last is not None and last >= epoch


def source_of(given: str | None, spark: str | None) -> str:
    """Who a stream is, the same after each restart.

    Spark's own id of a query lies in its checkpoint: it stays as long as the numbers of the batches go on, and is another one where they
    begin anew. A name that the caller gives is put before it, for people to know it by.

    Raises:
        InvalidInput: there is neither.
    """
    if given is not None and not _SPELLING.fullmatch(given):
        raise InvalidInput("Option query_id is a short name of letters, digits and _.:/-", argument="query_id")
    if given is None and spark is None:
        raise InvalidInput(
            "Spark did not say which query this is, so it needs the option query_id: a name of its own for each checkpoint.",
            argument="query_id",
            advice="Without it a batch that Spark sends again could not be told from a new one.",
        )
    return ":".join(filter(None, (given, spark)))


def _note(token: str) -> Path:
    return Path(tempfile.gettempdir()) / f"tiltyard-committing-{token}"


@contextmanager
def committing(token: str) -> Iterator[None]:
    """Around a commit; ``token`` is that of the write task."""
    note = _note(token)
    note.touch()
    try:
        yield
    except TiltyardError as error:
        if not isinstance(error, OutcomeUnknown):
            note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)


def is_in_doubt(token: str) -> bool:
    """Whether a commit of that task may have come to an end that nobody knows; asked once."""
    note = _note(token)
    doubted = note.exists()
    note.unlink(missing_ok=True)
    return doubted
