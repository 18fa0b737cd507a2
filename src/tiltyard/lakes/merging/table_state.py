"""One table as a snapshot has it, and how two states of it differ: by the data files that they share, without reading a row.

A data file never changes and has a random name that no other has. So a row that two lines of history both show can be told by its file
and its place there, whatever number the fragment has in either of them. Only rows that were written again, by an update or a compaction,
cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyroaring import BitMap

from tiltyard.catalog.lake_values import TableHead
from tiltyard.errors import UnsupportedFeature
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.values import DataFragment
from tiltyard.lakes.finishing import load_head
from tiltyard.lakes.table_names import shown
from tiltyard.verbs.changed_rows import Places, Side
from tiltyard.verbs.engine.access import TableAccess

if TYPE_CHECKING:
    from tiltyard.lake import Lake


@dataclass(frozen=True)
class TableState:
    """One version of one table.

    Attributes:
        name: what it is called there.
        access: where it lives.
        file: the version.
    """

    name: str
    access: TableAccess
    file: ManifestFile

    @property
    def manifest(self) -> Manifest:
        return self.file.manifest

    @cached_property
    def side(self) -> Side:
        """Its rows, to be read by their places."""
        return Side(self.access, self.manifest)

    @cached_property
    def roots(self) -> Mapping[int | None, str]:
        """The address of the table's own directory (None) and of each of its bases."""
        return roots_of(self.access, self.manifest)

    @cached_property
    def fragments(self) -> dict[int, DataFragment]:
        """All fragments by id.

        Raises:
            UnsupportedFeature: one has overlays, of which nobody can say which rows they change.
        """
        found = {number: self.side.fragment(number) for number in self.side.records}
        if any(fragment.overlays for fragment in found.values()):
            raise UnsupportedFeature(f"{self.name} has data overlays, which cannot be compared.", feature="data overlays")
        return found

    @cached_property
    def homes(self) -> dict[str, int]:
        """The fragment that each data file belongs to. A copy in another directory, as a fast-forward makes it, is the same file."""
        return {file.path: number for number, fragment in self.fragments.items() for file in fragment.files}

    def backing(self, number: int) -> dict[int, str]:
        """The file that the values of each field of a fragment lie in."""
        return {field: file.path for file in self.fragments[number].files for field in file.fields if field >= 0}

    def live(self, number: int) -> BitMap:
        return self.side.live(self.fragments[number])

    def every_row(self) -> Places:
        return {number: rows for number in self.fragments if (rows := self.live(number))}

    def found_in(self, other: TableState) -> dict[int, int]:
        """For each fragment that another state has as well, what it is called there."""
        found = {}
        for number, fragment in self.fragments.items():
            there = next((other.homes[file.path] for file in fragment.files if file.path in other.homes), None)
            if there is not None and other.fragments[there].physical_rows == fragment.physical_rows:
                found[number] = there
        return found


def roots_of(access: TableAccess, manifest: Manifest) -> dict[int | None, str]:
    """The address of a table's own directory (None) and of each of its bases."""
    return {None: access.lance_uri.rstrip("/"), **{base.id: base.path.rstrip("/") for base in manifest.base_paths}}


def state_of(lake: Lake, head: TableHead, branch: str) -> TableState:
    """A table as a cut of a branch of the lake has it."""
    access = lake.access_of(head, branch)
    return TableState(shown(head.name), access, load_head(access, head)[0])


@dataclass(frozen=True, slots=True)
class PhysicalChange:
    """What a line did to a table since a base, as far as files tell.

    Attributes:
        went: places in the base of rows that are no longer there.
        came: places in the later state of rows that the base does not have.
        refiled: fragments of the base some of whose columns were written again in place.
        kept: what fragments of the base are called in the later state.
    """

    went: Places
    came: Places
    refiled: frozenset[int]
    kept: Mapping[int, int]

    @property
    def moved_rows(self) -> bool:
        """Whether rows of the base may have been written again elsewhere: by an update or a compaction."""
        return bool(self.went and self.came) or bool(self.refiled)

    @property
    def brought_back(self) -> bool:
        """Whether rows are in a place again that the base had deleted them from, as after a restore."""
        return not self.came.keys().isdisjoint(self.kept.values())

    def __bool__(self) -> bool:
        return bool(self.went or self.came or self.refiled)


def physical_change(base: TableState, later: TableState) -> PhysicalChange:
    """Compares two states of a table by their files and deletion vectors."""
    kept = base.found_in(later)
    went: Places = {}
    came: Places = {}
    refiled = set()
    shared = {field.id for field in base.manifest.fields} & {field.id for field in later.manifest.fields}
    for number in base.fragments:
        was = base.live(number)
        now = later.live(kept[number]) if number in kept else BitMap()
        if was - now:
            went[number] = was - now
        if now - was:
            came[kept[number]] = now - was
        if number in kept and was & now:
            before, after = base.backing(number), later.backing(kept[number])
            if any(before.get(field) != after.get(field) for field in shared):
                refiled.add(number)
    old = set(kept.values())
    for number in later.fragments:
        if number not in old and (rows := later.live(number)):
            came[number] = rows
    return PhysicalChange(went, came, frozenset(refiled), kept)
