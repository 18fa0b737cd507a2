"""The rows of a ``__manifest`` table in memory, kept up by reading only what a version added.

A catalog is small and asked often. So each process keeps all rows of the version it saw last, and where each of them lies. From one version
to the next only new fragments are read; of others, which rows were deleted. A publish then knows the rows it replaces without a search.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from tiltyard.catalog.manifest_rows import COLUMNS, Row
from tiltyard.catalog.record_codec import prefix_ranges
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.values import DataFragment
from tiltyard.transaction.deletion_vectors import DeletionVectors
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import ADDRESS, dataset_at

_SORT_ANEW: Final = 500
"""With more new keys than this, all are sorted again."""

Place = tuple[int, int]
"""Fragment and offset of a row."""


@dataclass(slots=True)
class _Known:
    """A fragment as it was read: its state, and the id of each live row by offset."""

    state: DataFragment
    names: dict[int, str] = field(default_factory=dict)


class RowMirror:
    """All rows of one version. Not safe for threads: whoever shares it locks it."""

    def __init__(self, access: TableAccess) -> None:
        self._access = access
        self._clear()

    def _clear(self) -> None:
        self.file: ManifestFile | None = None
        self._fragments: dict[int, _Known] = {}
        self._rows: dict[str, Row] = {}
        self._places: dict[str, set[Place]] = {}
        self._keys: list[tuple[str, str]] = []

    # ---- asking ----------------------------------------------------------------------------------------------------------------

    def rows(self, names: Iterable[str]) -> dict[str, Row]:
        """The rows of these ids, those that there are."""
        return {name: self._rows[name] for name in names if name in self._rows}

    def places(self, names: Iterable[str]) -> dict[int, BitMap]:
        """Where rows lie: offsets by fragment."""
        found: dict[int, BitMap] = {}
        for name in names:
            for fragment, offset in self._places.get(name, ()):
                found.setdefault(fragment, BitMap()).add(offset)
        return found

    def scan(self, prefixes: Sequence[str]) -> list[tuple[str, Row]]:
        """The rows whose record has a key that begins with one of the prefixes, by key."""
        found: list[tuple[str, Row]] = []
        for first, end in prefix_ranges(prefixes):
            stop = len(self._keys) if end is None else bisect_left(self._keys, (end, ""))
            found += ((key, self._rows[name]) for key, name in self._keys[bisect_left(self._keys, (first, "")) : stop])
        return found

    # ---- following -------------------------------------------------------------------------------------------------------------

    def follow(self, file: ManifestFile, made: Mapping[str, Sequence[Row]] | None = None) -> None:
        """Becomes what another version of the table is.

        Args:
            file: that version.
            made: rows of new data files, by name, where the caller wrote them.
        """
        if self.file is not None and self.file.message.joined() == file.message.joined():
            return
        try:
            self._follow(file.manifest, made or {})
        except BaseException:
            self._clear()
            raise
        self.file = file

    def _follow(self, manifest: Manifest, made: Mapping[str, Sequence[Row]]) -> None:
        access = self._access
        vectors = DeletionVectors(access.store, access.runtime.random, access.open_base)
        now = {fragment.id: fragment for fragment in manifest.fragments}
        gone = [number for number, known in self._fragments.items() if number not in now or now[number].files != known.state.files]
        lost = {name for number in gone for name in self._take_out(number, None)}
        for number in gone:
            del self._fragments[number]
        for number, known in self._fragments.items():
            if known.state.deletion_file != now[number].deletion_file:
                lost.update(self._take_out(number, vectors.of(now[number], manifest.base_paths)))
                known.state = now[number]
        new = [fragment for number, fragment in now.items() if number not in self._fragments]
        came = {name for fragment, rows in self._read(manifest, new, made) for name in self._put_in(fragment, rows)}
        lost -= came
        if any(self._places[name] for name in lost):
            self._clear()  # an id that came twice lost one of its rows: which one stands now, only all of them tell
            self._follow(manifest, made)
        else:
            self._sort(lost, came)

    def _take_out(self, number: int, deleted: BitMap | None) -> Iterator[str]:
        """Forgets rows of a fragment, all of them without a vector; their ids."""
        known = self._fragments[number]
        for offset in [*known.names] if deleted is None else [offset for offset in deleted if offset in known.names]:
            name = known.names.pop(offset)
            self._places[name].discard((number, offset))
            yield name

    def _put_in(self, fragment: DataFragment, rows: Iterable[tuple[int, Row]]) -> Iterator[str]:
        known = self._fragments[fragment.id] = _Known(fragment)
        for offset, row in rows:
            known.names[offset] = row.object_id
            self._places.setdefault(row.object_id, set()).add((fragment.id, offset))
            before = self._rows.get(row.object_id)
            if before is not None and before.object_type != row.object_type:
                self._unsort(before)  # a name that stood for something else has another key
            self._rows[row.object_id] = row
            yield row.object_id

    def _sort(self, lost: set[str], came: set[str]) -> None:
        """Brings the ordered keys up to date."""
        for name in lost:
            self._unsort(self._rows.pop(name))
            del self._places[name]
        pairs = [(key, name) for name in came if (key := self._rows[name].key()) is not None]
        if len(pairs) > _SORT_ANEW:
            self._keys = sorted({*self._keys, *pairs})
            return
        for pair in pairs:
            at = bisect_left(self._keys, pair)
            if self._keys[at : at + 1] != [pair]:
                insort(self._keys, pair)

    def _unsort(self, row: Row) -> None:
        pair = (row.key() or "", row.object_id)
        at = bisect_left(self._keys, pair)
        if self._keys[at : at + 1] == [pair]:
            del self._keys[at]

    # ---- reading ---------------------------------------------------------------------------------------------------------------

    def _read(
        self, manifest: Manifest, fragments: Sequence[DataFragment], made: Mapping[str, Sequence[Row]]
    ) -> Iterator[tuple[DataFragment, list[tuple[int, Row]]]]:
        """Live rows of fragments, with their offsets."""
        rest = []
        for fragment in fragments:
            path = fragment.files[0].path if len(fragment.files) == 1 else ""
            if path in made and fragment.deletion_file is None:
                yield fragment, list(enumerate(made[path]))
            else:
                rest.append(fragment)
        if rest:
            yield from self._scanned(manifest, rest)

    def _scanned(self, manifest: Manifest, fragments: Sequence[DataFragment]) -> Iterator[tuple[DataFragment, list[tuple[int, Row]]]]:
        dataset, version = dataset_at(self._access, manifest), manifest.version
        wanted = {fragment.id: fragment for fragment in fragments}
        with lance_errors(self._access, "read records", version):
            there = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in wanted]
            found = dataset.scanner(columns=list(COLUMNS), fragments=there, with_row_address=True).to_table()
        by_fragment: dict[int, list[tuple[int, Row]]] = {number: [] for number in wanted}
        for address, row in zip(found.column(ADDRESS).to_pylist(), _rows_of(found), strict=True):
            by_fragment[address >> 32].append((address & 0xFFFFFFFF, row))
        return ((wanted[number], rows) for number, rows in by_fragment.items())


def _rows_of(table: pa.Table) -> Iterator[Row]:
    return (Row(*values) for values in zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
