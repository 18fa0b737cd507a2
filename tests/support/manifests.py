"""Small manifests made by hand, with and without stable row ids, and what one says about their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyroaring import BitMap

from tiltyard.format import fragments
from tiltyard.format.flags import Feature
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest, decode_indices, encode_indices
from tiltyard.format.roaring import decode_roaring, encode_roaring
from tiltyard.format.row_ids import (
    RowIds,
    RowVersions,
    decode_row_ids,
    decode_row_versions,
    encode_row_ids,
    encode_row_versions,
    fresh_row_ids,
    row_ids_of,
    uniform_versions,
)
from tiltyard.format.values import (
    DataFile,
    DataFormat,
    DataFragment,
    DeletionFile,
    Field,
    IndexMetadata,
    WriterVersion,
)
from tiltyard.transaction.apply.next_manifest import Stamp

STAMP = Stamp(1_700_000_000_000_000_000, WriterVersion("tiltyard", "0"), "7-x.txn")
STABLE = int(Feature.STABLE_ROW_IDS)
FIELDS = (
    Field("id", 0, -1, "int64", nullable=False),
    Field("s", 1, -1, "string"),
    Field("st", 2, -1, "struct"),
    Field("x", 3, 2, "int64"),
    Field("w", 4, -1, "int64"),
)
LEAVES = (0, 1, 3, 4)
BTREE, BITMAP = "/lance.table.BTreeIndexDetails", "/lance.table.BitmapIndexDetails"


def data_file(name: str, fields: Sequence[int] = LEAVES, **more: Any) -> DataFile:
    return DataFile(f"{name}.lance", tuple(fields), tuple(range(len(fields))), **more)


def part(number: int, rows: int = 10, name: str | None = None, fields: Sequence[int] = LEAVES, **more: Any) -> DataFragment:
    """A fragment with one file."""
    return DataFragment(number, (data_file(name or f"f{number}", fields),), rows, **more)


def with_lineage(fragment: DataFragment, ids: RowIds | Iterable[int], created: int | RowVersions = 1, updated: int = 1) -> DataFragment:
    numbers = ids if isinstance(ids, RowIds) else row_ids_of(list(ids))
    versions = created if isinstance(created, RowVersions) else uniform_versions(fragment.physical_rows, created)
    return replace(
        fragment,
        row_ids=encode_row_ids(numbers),
        created_at=encode_row_versions(versions),
        updated_at=encode_row_versions(uniform_versions(fragment.physical_rows, updated)),
    )


def deletions(rows: int, number: int = 1, read_version: int = 6) -> DeletionFile:
    return DeletionFile(False, read_version, number, rows)


def index(
    name: str,
    fields: Sequence[int],
    covers: Iterable[int] | None,
    *,
    uuid: int = 1,
    kind: str = BTREE,
    **more: Any,
) -> IndexMetadata:
    bitmap = None if covers is None else encode_roaring(BitMap(covers))
    return IndexMetadata(f"00000000-0000-0000-0000-{uuid:012d}", tuple(fields), name, 3, bitmap, (kind, b""), 0, **more)


def table(
    fragments: Iterable[DataFragment] | None = None, *, stable: bool = False, indices: Sequence[IndexMetadata] = (), **more: Any
) -> Manifest:
    """Version 7: fragments 0, 1 and 2 of ten rows each unless told otherwise; ids up to 5 were given out."""
    parts = [part(number) for number in range(3)] if fragments is None else list(fragments)
    if stable:
        first = 0
        for place, one in enumerate(parts):
            if one.row_ids is None and not one.row_ids_spilled:
                parts[place] = with_lineage(one, fresh_row_ids(first, one.physical_rows), created=one.id + 1)
            first += one.physical_rows
    flags = STABLE if stable else 0
    base = Manifest(
        version=7,
        fields=FIELDS,
        fragments=FragmentList(parts),
        index_section=encode_indices(tuple(indices)),
        max_fragment_id=5,
        next_row_id=100 if stable else 0,
        data_format=DataFormat(),
        writer=WriterVersion("lance", "14.0.2"),
        reader_flags=flags,
        writer_flags=flags,
    )
    return replace(base, **more)


def ids(manifest: Manifest) -> list[int]:
    return [one.id for one in manifest.fragments]


def by_id(manifest: Manifest) -> dict[int, DataFragment]:
    return {one.id: one for one in manifest.fragments}


def row_ids(fragment: DataFragment) -> list[int]:
    assert fragment.row_ids is not None
    return [int(one) for one in decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source="").to_numpy()]


def created(fragment: DataFragment) -> list[int]:
    return _versions(fragment.created_at, fragment)


def updated(fragment: DataFragment) -> list[int]:
    return _versions(fragment.updated_at, fragment)


def _versions(data: bytes | None, fragment: DataFragment) -> list[int]:
    assert data is not None
    return [int(one) for one in decode_row_versions(data, physical_rows=fragment.physical_rows, source="").to_numpy()]


def coverage(manifest: Manifest) -> Mapping[str, list[int] | None]:
    """What each index covers, by name; segments of one name must be told apart otherwise."""
    return {one.name: covers(one) for one in decode_indices(manifest, "")}


def covers(one: IndexMetadata) -> list[int] | None:
    return None if one.fragment_bitmap is None else list(decode_roaring(one.fragment_bitmap, ""))


def decoded_fragments(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The fragments that are turned into values from now on."""
    seen: list[bytes] = []
    real = fragments.decode_fragment

    def spy(data: bytes, source: str) -> DataFragment:
        seen.append(data)
        return real(data, source)

    monkeypatch.setattr(fragments, "decode_fragment", spy)
    return seen
