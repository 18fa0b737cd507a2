"""What one run takes of each source: new files, versions after the last one, or a whole table. Found out without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import tiltyard as ty
from tiltyard.pipeline.consumed import WHOLE, Mark
from tiltyard.pipeline.source_files import FileScan, FoundFile, check_unchanged, scan
from tiltyard.pipeline.spec import FileSource, Source, TableSource

NONE: Final[Mapping[FoundFile, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FilePortion:
    """New files.

    Attributes:
        source: whose.
        found: the files.
        schema: what earlier ones looked like, where nobody says.
    """

    source: FileSource
    found: FileScan
    schema: str | None = None

    @property
    def has_new(self) -> bool:
        return bool(self.found.new)

    @property
    def key(self) -> tuple[object, ...]:
        """Tells it from another portion of the same source."""
        return (self.source.name, *self.files)

    @property
    def files(self) -> tuple[FoundFile, ...]:
        return self.found.new

    def marks(self, bad: Mapping[FoundFile, str] = NONE) -> list[Mark]:
        return [file.mark(self.source.name, bad.get(file, "")) for file in self.files]

    def check(self) -> None:
        check_unchanged(self.source, self.files)

    def described(self) -> str:
        text = f"{len(self.files)} new file{'' if len(self.files) == 1 else 's'}"
        if self.found.waiting:
            text += f", {self.found.waiting} more for later runs"
        return text + (f", {len(self.found.partial)} not finished yet" if self.found.partial else "")


@dataclass(frozen=True, slots=True)
class TablePortion:
    """Versions of a table.

    Attributes:
        source: whose.
        first: the version that was consumed last; 0 if none.
        last: the one that is consumed now.
        has_new: whether rows may have changed in between.
        whole: whether all rows are read, be it because changes begin with them.
        none: whether no rows are read: changes begin now.
        identity: tells the table from one that had its name before.
        since: the snapshot of the lake from which on later runs need the history.
    """

    source: TableSource
    first: int
    last: int
    has_new: bool
    whole: bool
    none: bool = False
    identity: str = ""
    since: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Tells it from another portion of the same source."""
        return (self.source.name, self.first, self.last, self.whole, self.identity)

    def marks(self, _: Mapping[FoundFile, str] = NONE) -> list[Mark]:
        value = {"version": self.last, "read": self.source.read, "table": self.identity, "since": self.since}
        return [Mark(self.source.name, WHOLE, value)]

    def check(self) -> None:
        """A version stays what it is."""

    def described(self) -> str:
        if self.source.read == "snapshot":
            return f"{self.source.table} at version {self.last}" + ("" if self.has_new else ", as before")
        if self.none:
            return f"changes of {self.source.table} from version {self.last} on"
        if self.whole:
            return f"all rows of {self.source.table} at version {self.last}"
        if not self.has_new:
            return f"no changes of {self.source.table} after version {self.first}"
        return f"changes of {self.source.table} in versions {self.first + 1} to {self.last}"


Portion = FilePortion | TablePortion


def portion_of(
    source: Source, sight: ty.LakeSnapshot, known: Mapping[str, Mapping[str, Any]], directory: Path, now_ns: int, runner: str
) -> Portion:
    """What there is to take of a source.

    Raises:
        NotFound: it is a table that the lake does not have.
    """
    if isinstance(source, FileSource):
        schema = known.get(WHOLE, {}).get("schema")
        return FilePortion(source, scan(source, directory, known, now_ns, runner), schema)
    head = next((table for table in sight.cut.tables.values() if table.name.replace("$", ".") == source.table), None)
    if head is None:
        raise ty.NotFound(f"sources.{source.name}: there is no table {source.table!r} in the lake.", name=source.table)
    mark = known.get(WHOLE, {})
    before = mark.get("version") if mark.get("table") == head.id else None  # one that only has the name of the old one begins anew
    if source.read == "snapshot":
        return TablePortion(source, before or 0, head.version, before is None or head.data_version > before, True, False, head.id, sight.id)
    if before is None:
        return TablePortion(source, 0, head.version, True, source.start == "beginning", source.start == "now", head.id, sight.id)
    last = head.version if source.max_versions is None else min(head.version, before + source.max_versions)
    since = sight.id if last == head.version else mark.get("since", 0)
    return TablePortion(source, before, last, head.data_version > before, False, False, head.id, since)
