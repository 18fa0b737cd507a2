"""Statistics of the fragments of a version: which file holds a column now, and what is known of that file.

A fragment may have several files: the one that has the field counts, and where a column was rewritten the old file has another number in
its place. Nothing is known of a fragment with overlays or with members that we do not know, of a column that two files claim, and
of one whose type is not the one that was looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.errors import TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.format.statistics import ColumnStatistics, FileStatistics, is_counted
from tiltyard.format.values import NO_COLUMN, DataFile, DataFragment, Field
from tiltyard.verbs.statistics.statistics_records import StatisticsRecords

if TYPE_CHECKING:
    from tiltyard.verbs.engine.access import TableAccess


@dataclass(frozen=True, slots=True)
class FragmentStatistics:
    """What is known of a fragment's columns, by name.

    Attributes:
        id: the fragment.
        rows: of its files, with those that are deleted.
        live: without them; where both are equal, exact bounds are answers.
        columns: what is known.
    """

    id: int
    rows: int
    live: int
    columns: Mapping[str, ColumnStatistics]


def countable(fields: Iterable[Field], names: Collection[str] | None = None) -> dict[int, Field]:
    """Top-level columns that statistics can be kept of, by field id."""
    return {
        field.id: field
        for field in fields
        if field.parent_id < 0 and is_counted(field.logical_type) and not field.extension_name and (names is None or field.name in names)
    }


def column_file(fragment: DataFragment, field_id: int) -> tuple[DataFile, int] | None:
    """The file that holds a field of a fragment, and in which of its columns; None where that is not certain."""
    if fragment.overlays or fragment.unknown:
        return None
    holders = [file for file in fragment.files if field_id in file.fields]
    if len(holders) != 1 or holders[0].fields.count(field_id) != 1:
        return None
    file = holders[0]
    if file.major != 2 or len(file.column_indices) != len(file.fields) or file.unknown:
        return None
    column = file.column_indices[file.fields.index(field_id)]
    return None if column == NO_COLUMN else (file, column)


def fragment_statistics(
    access: TableAccess, manifest: Manifest, names: Collection[str] | None = None, fragments: Iterable[DataFragment] | None = None
) -> list[FragmentStatistics]:
    """What is known of the fragments of a version, in their order.

    Args:
        access: the table.
        manifest: the version.
        names: the columns that matter; all without.
        fragments: the fragments; all of the version without.
    """
    fields = countable(manifest.fields, names)
    if fragments is None and not (fields and _anything_known(access, manifest)):
        return [FragmentStatistics(*counts, columns={}) for counts in manifest.fragments.row_counts()]
    every = [
        ((fragment.id, fragment.physical_rows, fragment.live_rows), {number: column_file(fragment, number) for number in fields})
        for fragment in (manifest.fragments.in_passing() if fragments is None else fragments)
    ]
    files = {place[0].path: place[0] for _, places in every for place in places.values() if place is not None}
    known = _known_files(access, manifest, files)
    told = []
    for counts, places in every:
        columns: dict[str, ColumnStatistics] = {}
        for number, place in places.items():
            found = None if place is None else known.get(place[0].path)
            if place is None or found is None or found.rows != counts[1]:
                continue
            column = found.columns.get(place[1])
            if column is not None and column.type == fields[number].logical_type and column.nulls <= found.rows:
                columns[fields[number].name] = column
        told.append(FragmentStatistics(*counts, columns))
    return told


def _anything_known(access: TableAccess, manifest: Manifest) -> bool:
    """Whether there may be statistics of any file: where there are none, nobody need look at a hundred thousand fragments."""
    return bool(manifest.base_paths) or records_of(access, "").any(_version(manifest))


def _version(manifest: Manifest) -> str:
    """For which version the records are listed once."""
    return f"{manifest.version} {manifest.timestamp_ns}"


def _known_files(access: TableAccess, manifest: Manifest, files: Mapping[str, DataFile]) -> dict[str, FileStatistics]:
    """What is told of files, here and in the bases they lie in; nothing of one whose size is another."""
    version = _version(manifest)
    found = records_of(access, "").find(list(files), version)
    for base in manifest.base_paths:
        missing = [name for name, file in files.items() if file.base_id == base.id and name not in found]
        if missing and base.is_dataset_root:
            try:
                if base.path not in access.statistics:
                    access.statistics[base.path] = StatisticsRecords(access.open_base(base))
                found.update(records_of(access, base.path).find(missing, version))
            except TiltyardError:
                continue  # whoever reads rows from there says what is wrong with it
    return {name: file for name, file in found.items() if files[name].size == file.size}


def records_of(access: TableAccess, place: str) -> StatisticsRecords:
    """What was read of the records in a place: the table's own, or the path of a base."""
    if place not in access.statistics:
        access.statistics[place] = StatisticsRecords(access.store)
    return access.statistics[place]
