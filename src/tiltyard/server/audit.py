"""The audit log: a line of JSON for each request, denials included, only ever appended to."""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

Verdict = Literal["allowed", "denied", "failed"]

_log = logging.getLogger("tiltyard.server.audit")
_LONGEST: Final = 300
"""Characters of a text in a line: an id comes from the client."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One request.

    Attributes:
        request: its id, which the client was told.
        principal: who asked, and ``way`` how that is known.
        remote: from which address.
        operation, target: what was asked for, and of what.
        verdict: whether it was allowed, and done.
        status: of HTTP.
        transaction: the transaction it made, if any.
        seconds: how long it took.
    """

    request: str
    principal: str
    way: str
    remote: str
    operation: str
    target: str
    verdict: Verdict
    status: int
    transaction: str = ""
    seconds: float = 0.0


_MEMBERS: Final = tuple(field.name for field in fields(AuditLine))


class AuditLog:
    """Where the lines go: a file, and the log of the process where there is none. Threads may share it.

    Each line is one write to a file that is opened for appending, so lines of several processes do not mix.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, line: AuditLine) -> None:
        told = {name: getattr(line, name) for name in _MEMBERS}
        members = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **told, "seconds": round(line.seconds, 6)}
        text = json.dumps({key: value[:_LONGEST] if isinstance(value, str) else value for key, value in members.items()})
        if self._file is None:
            _log.info(text, extra={"audit": members})
            return
        with self._lock:
            os.write(self._file, text.encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
