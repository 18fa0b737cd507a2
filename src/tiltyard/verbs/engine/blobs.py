"""Blobs too large for a data file lie beside it, in files that no manifest names: they come and go with their data file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.format.fields import BLOB_V2, is_blob_v2
from tiltyard.format.logical_types import EXTENSION_NAME
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import BLOB_KEY, has_legacy_blobs
from tiltyard.format.values import DataFragment
from tiltyard.interfaces import ObjectStore
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors, open_dataset

_BESIDE: Final = (1, 2)
"""Kinds of blobs that lie in a file beside: several in one, or one alone. The others are inside the data file, or anywhere by URI.

No Arrow array: making one imports pandas, where it is installed, and this module is imported with the package.
"""

_BLOB_BATCH: Final = 64
"""Rows that are in memory at a time while blobs are read as bytes."""


def has_blobs(field: pa.Field) -> bool:
    """Whether a column, or something in it, is stored as blobs."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == BLOB_V2:
            return True
        kind = kind.storage_type
    if (field.metadata or {}).get(EXTENSION_NAME.encode()) == BLOB_V2.encode():
        return True
    return any(has_blobs(kind.field(number)) for number in range(kind.num_fields))


def with_binary_blobs(schema: pa.Schema) -> pa.Schema:
    """The schema with its blob columns as the bytes themselves, the form in which rows are moved from file to file."""
    return pa.schema([_binary_blobs(field) for field in schema], schema.metadata)


def _binary_blobs(field: pa.Field) -> pa.Field:
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == BLOB_V2:
        return pa.field(field.name, pa.large_binary(), field.nullable, {BLOB_KEY: b"true"})
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_binary_blobs(member) for member in kind]))
    return field


def blob_reading(schema: pa.Schema) -> dict[str, Any]:
    """What a scan needs that hands out the bytes of blobs, few rows at a time; nothing where there are none."""
    if not any(map(has_legacy_blobs, schema)):
        return {}
    return {"blob_handling": "all_binary", "batch_size": _BLOB_BATCH}


def blob_directory(data_file: str) -> str:
    """Where the blobs beside a data file lie."""
    return f"data/{data_file.removesuffix('.lance')}/"


def blob_files(store: ObjectStore, fragments: Iterable[DataFragment]) -> list[str]:
    """The files beside the data files of these fragments."""
    own = [blob_directory(file.path) for fragment in fragments for file in fragment.files if file.base_id is None]
    return [directory + name for directory in own for name in store.names(directory)]


def missing_blobs(access: TableAccess, manifest: Manifest, present: set[str]) -> Iterator[str]:
    """Files that a blob column of this version points to and that are not there."""
    for column in manifest.fields:
        if column.parent_id >= 0 or not is_blob_v2(column):
            continue
        directories = {
            fragment.id: blob_directory(file.path)
            for fragment in manifest.fragments
            for file in fragment.files
            if column.id in file.fields and file.base_id is None
        }
        for fragment_id, number in sorted(_beside(access, manifest.version, column.name)):
            if fragment_id in directories:
                # Numbers are written with the lowest bit first, which spreads them over a store's partitions.
                path = f"{directories[fragment_id]}{f'{number:032b}'[::-1]}.blob"
                if path not in present:
                    yield path


def _beside(access: TableAccess, version: int, column: str) -> set[tuple[int, int]]:
    """Fragment and number of each file that the descriptions of a column point to."""
    found: set[tuple[int, int]] = set()
    with lance_errors(access, "read blob descriptions", version):
        for batch in open_dataset(access, version).scanner(columns=[column], with_row_address=True).to_batches():
            described = batch.column(column)
            kinds, numbers = (pc.struct_field(described, name) for name in ("kind", "blob_id"))
            aside = pc.is_in(kinds, value_set=pa.array(_BESIDE, pa.uint8()))
            fragments = pc.shift_right(batch.column("_rowaddr"), pa.scalar(32, pa.uint64()))
            found.update(zip(fragments.filter(aside).to_pylist(), numbers.filter(aside).to_pylist(), strict=True))
    return found
