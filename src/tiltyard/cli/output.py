"""How results reach the reader: as text for people, or as one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias

import tiltyard as ty
from tiltyard.cli.cells import rows_of
from tiltyard.cli.facts import Diff, LogPage, Page, RowAddress, Shown, rebased_over
from tiltyard.cli.messages import CommandMessage
from tiltyard.redact import redact

Progress: TypeAlias = Callable[[int, int | None], None]
"""Is told how much is done, and of how much where that is known."""


class CommandOutput(Protocol):
    """One method a command, and one for errors."""

    def log(self, found: LogPage) -> None: ...

    def show(self, found: Shown) -> None: ...

    def check(self, report: ty.CheckReport) -> None: ...

    def cat(self, found: Page) -> None: ...

    def diff(self, found: Diff) -> None: ...

    def told(self, told: CommandMessage) -> None:
        """What any other command has to say."""

    def error(self, error: ty.TiltyardError) -> None: ...

    def usage(self, message: str) -> None:
        """The command line itself was wrong."""

    def working(self, what: str) -> AbstractContextManager[object]:
        """Shows that something takes its time."""

    def progress(self, what: str, *, in_bytes: bool = False) -> AbstractContextManager[Progress]:
        """Shows how far something is."""


class JsonOutput:
    """Exactly one JSON document on standard output, errors included. Keys are added, never renamed."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)

    def log(self, found: LogPage) -> None:
        self._print({**_where(found.where), "older": found.older, "versions": [_entry(entry) for entry in found.entries]})

    def show(self, found: Shown) -> None:
        self._print(
            {
                **_where(found.where),
                **_entry(found.entry),
                "deleted_rows": found.deleted_rows,
                "schema": [{"name": item.name, "type": str(item.type), "nullable": item.nullable} for item in found.schema],
                "primary_key": list(found.primary_key),
                "data_format": found.data_format,
                "features": found.features,
                "config": dict(found.config),
                "metadata": dict(found.metadata),
                "tags": list(found.tags),
                "indices": _indices(found),
                "fragment_list": [_fragment(fragment) for fragment in found.fragments],
            }
        )

    def check(self, report: ty.CheckReport) -> None:
        self._print(report.to_dict())

    def cat(self, found: Page) -> None:
        schema = [{"name": item.name, "type": str(item.type)} for item in found.rows.schema]
        rows = rows_of(found.rows)
        self._print({**_where(found.where), "version": found.version, "total": found.total, "columns": schema, "rows": rows})

    def diff(self, found: Diff) -> None:
        told = {"from": found.first, "to": found.last, "counts": dict(found.counts), "rows": rows_of(found.rows)}
        self._print({**_where(found.where), **told})

    def told(self, told: CommandMessage) -> None:
        # The values of storage options, which an error may repeat, are not looked for: one may well be the name of a bucket.
        self._print(redacted(dict(told.document), ()))

    def error(self, error: ty.TiltyardError) -> None:
        self._print(redacted(error.to_dict(), self._secrets))

    def usage(self, message: str) -> None:
        self._print({"kind": "usage", "message": message})

    def working(self, what: str) -> AbstractContextManager[object]:
        return nullcontext()

    def progress(self, what: str, *, in_bytes: bool = False) -> AbstractContextManager[Progress]:
        return nullcontext(lambda done, total: None)

    def _print(self, document: dict[str, Any]) -> None:
        # Escaped beyond ASCII: the document is then the same whatever encoding the other end of the pipe expects.
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False, default=str) + "\n")


def redacted(value: Any, secrets: tuple[str, ...]) -> Any:
    """The same value without anything secret in its texts."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {key: redacted(member, secrets) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(member, secrets) for member in value]
    return value


def _where(where: RowAddress) -> dict[str, Any]:
    return {"uri": where.uri, "branch": where.branch, "latest_version": where.latest}


def _entry(entry: ty.HistoryEntry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "timestamp": entry.timestamp.isoformat(),
        "operation": entry.operation,
        "transaction_id": entry.transaction_id,
        "read_version": entry.read_version,
        "rebased_over": list(rebased_over(entry)),
        "writer": entry.writer,
        "message": entry.message,
        "members": [asdict(member) for member in entry.members],
        "properties": dict(entry.properties),
        "rows": entry.rows,
        "fragments": entry.fragments,
    }


def _indices(found: Shown) -> list[dict[str, Any]] | None:
    if found.indices is None:
        return None
    return [{"name": index.name, "type": index.kind, "columns": list(index.columns)} for index in found.indices]


def _fragment(fragment: ty.ops.DataFragment) -> dict[str, Any]:
    return {
        "id": fragment.id,
        "rows": fragment.live_rows,
        "deleted_rows": fragment.physical_rows - fragment.live_rows,
        "files": [{"path": file.path, "bytes": file.size, "format": f"{file.major}.{file.minor}"} for file in fragment.files],
    }
