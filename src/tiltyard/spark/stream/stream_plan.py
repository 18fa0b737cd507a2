"""What each version of a table means for a stream: which rows it brought, whether it changed others, and how much there is to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import tiltyard as ty
from tiltyard.errors import HistoryUnavailable, InvalidInput, NotFound
from tiltyard.spark.read.partitioning import Fragment

Kind = Literal["rows", "changes", "nothing"]

_NO_ROWS: Final = frozenset(
    {"Rewrite", "CreateIndex", "UpdateConfig", "ReserveFragments", "UpdateMemWalState", "UpdateBases", "Project", "Merge"}
)
"""Operations after which the rows are those from before: moved, indexed, with other columns, but no others."""
_FIRST: Final = frozenset({"Overwrite", "Clone"})
"""What makes a table; later an Overwrite replaces its rows."""


@dataclass(frozen=True, slots=True)
class StreamStep:
    """One version, seen from the one before it.

    Attributes:
        version: its number.
        kind: whether it brought rows and did nothing else, changed rows, or did neither.
        operation: what made it.
        fragments: the rows it brought, if that is all it did.
        rows, bytes: about how much there is to read.
    """

    version: int
    kind: Kind
    operation: str
    fragments: tuple[Fragment, ...] = ()
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A table as any process can open it, at any of its versions."""

    uri: str
    branch: str | None
    storage: tuple[tuple[str, str], ...] = ()
    allowed_bases: tuple[str, ...] = ()

    def at(self, version: int | None = None) -> ty.Table:
        """The table at a version.

        Raises:
            HistoryUnavailable: the version was cleaned up before the stream had read it.
        """
        options = dict(self.storage) or None
        try:
            return ty.Table.open(
                self.uri, version=version, branch=self.branch, storage_options=options, allowed_bases=self.allowed_bases
            )  # fmt: skip
        except NotFound as error:
            if version is None:
                raise
            raise HistoryUnavailable(
                f"Version {version} of {self.uri} was cleaned up before the stream had read it.",
                missing=[version],
                advice="Begin a new query with a new checkpoint, or keep history for longer.",
            ) from error


def fragments_of(table: ty.TableReader) -> list[Fragment]:
    """All fragments of a version, with their live rows and their size."""
    return [Fragment(fragment.id, fragment.live_rows, sum(file.size for file in fragment.files)) for fragment in table.layout.fragments]


class Steps:
    """The steps of a table, each worked out once."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._known: dict[int, StreamStep] = {}
        self._last: ty.Table | None = None

    def of(self, version: int) -> StreamStep:
        """What a version did."""
        if version not in self._known:
            self._known[version] = self._step(version)
            if len(self._known) > 10_000:
                del self._known[next(iter(self._known))]
        return self._known[version]

    def _at(self, version: int) -> ty.Table:
        if self._last is None or self._last.version != version:
            self._last = self._source.at(version)
        return self._last

    def _step(self, version: int) -> StreamStep:
        before = None if version == 1 else self._at(version - 1)
        after = self._at(version)
        operation = after.transactions.describe().operation
        if operation in _NO_ROWS:
            return StreamStep(version, "nothing", operation)
        old = {fragment.id: fragment for fragment in before.layout.fragments} if before is not None else {}
        new = {fragment.id: fragment for fragment in after.layout.fragments}
        came = tuple(fragment for fragment in fragments_of(after) if fragment.id not in old)
        stayed = all(new.get(number) == fragment for number, fragment in old.items())
        is_first = before is None and (operation in _FIRST or not operation)
        size = sum(fragment.bytes for fragment in came)
        if operation == "Append" or is_first or (not operation and stayed):
            kind: Kind = "rows" if came else "nothing"
            return StreamStep(version, kind, operation, came, sum(fragment.rows for fragment in came), size)
        touched = abs(after.count_rows() - (before.count_rows() if before is not None else 0))
        return StreamStep(
            version, "changes", operation or "an unknown operation", (), max(touched, sum(fragment.rows for fragment in came), 1), size
        )


# ---- columns -----------------------------------------------------------------------------------------------------------------


def columns_at(version: int, now: Mapping[str, int], names: Sequence[str], told: Mapping[str, int], told_at: int) -> dict[str, str | None]:
    """What the columns of a stream are called at a version; None for one that was not there yet. Columns are known by their ids.

    Args:
        version: which.
        now: ids of the version's columns by name.
        names: the stream's columns.
        told: ids of columns by name when the stream was begun.
        told_at: the version at that time.

    Raises:
        InvalidInput: a column is gone, or was of another type.
    """
    by_id = {number: name for name, number in now.items()}
    found: dict[str, str | None] = {}
    for name in names:
        there = by_id.get(told[name])
        if there is None and version > told_at:
            what = f"Column {name} is gone or of another type since version {version}."
            raise InvalidInput(what, argument=name, advice="Restart the query.")
        if there is None and name in now:
            raise InvalidInput(f"Column {name} was another one at version {version}.", argument=name, advice="Begin at a later version.")
        found[name] = there
    return found
