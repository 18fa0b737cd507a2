"""A file that remembers which fragments of a long work are finished, so that it can go on after a crash."""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, NotFound
from tiltyard.format.safe_text import check_relative
from tiltyard.format.values import DataFile, DeletionFile
from tiltyard.interfaces import ObjectStore

_MARK: Final = "tiltyard columns 2"


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """A file with new columns of one fragment.

    Attributes:
        file: the file.
        deletions: the fragment's deletion vector when it was written: rows in it have no value of their own in the file.
    """

    file: DataFile
    deletions: DeletionFile | None


class Checkpoint:
    """Lines of JSON: what the work is, then one line for each finished fragment. A line that was cut off counts for nothing.

    Args:
        path: where; made if it is not there.
        work: tells this work from others.

    Raises:
        InvalidInput: the file is about other work, or is none of ours.
    """

    def __init__(self, path: str | os.PathLike[str], work: str) -> None:
        self._path = Path(path)
        self._work = work
        self._known: dict[str, WrittenColumns] = {}
        self.schema: pa.Schema | None = None
        if self._path.exists():
            self._read()

    def _read(self) -> None:
        try:
            first, *rest = self._path.read_text(encoding="utf-8").splitlines() or [""]
            head = json.loads(first) if first else None
        except (OSError, ValueError) as error:
            raise self._refused("cannot be read") from error
        if head is None:
            return
        if not isinstance(head, dict) or head.get("mark") != _MARK:
            raise self._refused("is not a checkpoint")
        if head.get("work") != self._work:
            raise self._refused("is about other columns or another table")
        try:
            self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(head["schema"])))
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise self._refused("is damaged") from error
        for line in rest:
            self._learn(line)

    def _learn(self, line: str) -> None:
        try:
            entry = json.loads(line)
            path = check_relative(str(entry["path"]), str(self._path))
            columns = tuple(int(item) for item in entry["columns"])
            file = DataFile(path, columns, columns, int(entry["major"]), int(entry["minor"]), int(entry["size"]))
            told = entry["deletions"]
            deletions = None
            if told is not None:
                base = None if told["base"] is None else int(told["base"])
                deletions = DeletionFile(bool(told["bitmap"]), int(told["version"]), int(told["id"]), int(told["rows"]), base)
            self._known[str(entry["key"])] = WrittenColumns(file, deletions)
        except (ValueError, KeyError, TypeError, CorruptTable):
            return  # written by a process that was stopped; its fragment is done again

    def _refused(self, why: str) -> InvalidInput:
        return InvalidInput(f"{self._path} {why}.", argument="checkpoint", advice="Name another file, or delete this one to start again.")

    def begin(self, schema: pa.Schema) -> None:
        """Notes what the new columns are, once.

        Raises:
            InvalidInput: finished fragments have columns of other names or types.
        """
        if self.schema is not None and not self.schema.equals(schema):
            raise self._refused("is about columns of other types")
        if self.schema is None:
            self.schema = schema
            text = base64.b64encode(schema.serialize()).decode()
            self._write({"mark": _MARK, "work": self._work, "schema": text}, "w")

    def note(self, key: str, written: WrittenColumns) -> None:
        self._known[key] = written
        file, gone = written.file, written.deletions
        entry = {"key": key, "path": file.path, "columns": list(file.column_indices), "major": file.major, "minor": file.minor}
        told = None
        if gone is not None:
            told = {"bitmap": gone.bitmap, "version": gone.read_version, "id": gone.id, "rows": gone.deleted_rows, "base": gone.base_id}
        self._write(entry | {"size": file.size, "deletions": told}, "a")

    def _write(self, entry: dict[str, Any], mode: str) -> None:
        try:
            with self._path.open(mode, encoding="utf-8") as out:
                # A line that was cut off must not swallow this one.
                out.write(("\n" if mode == "a" else "") + json.dumps(entry))
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise self._refused(f"cannot be written ({error.strerror})") from error

    def finished(self, key: str, store: ObjectStore) -> WrittenColumns | None:
        """The file that was written for a fragment, if it is still there."""
        found = self._known.get(key)
        if found is not None:
            try:
                if store.head(f"data/{found.file.path}").size != found.file.size:
                    return None
            except NotFound:
                return None
        return found

    def close(self) -> None:
        """The work is done. A file that cannot be removed is no reason to call it failed."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
