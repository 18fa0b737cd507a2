"""Whether a commit was begun whose end nobody saw.

Spark runs commit and abort in two processes on one machine, and tells the second nothing of how the first one ended. A note beside them
does: it is there from before the commit until its outcome is certain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiltyard.errors import OutcomeUnknown, TiltyardError


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
