"""The values inside a table's metadata, as frozen dataclasses.

Each carries ``unknown``: wire bytes of fields this release does not know, written back as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

EMPTY_BYTES: Final[Mapping[str, bytes]] = MappingProxyType({})

TOMBSTONE: Final = -2
"""Field id of a file column that no longer counts."""

NO_COLUMN: Final = -1
"""Column index of a field that its file has no column for."""

ROW_ID_FIELD: Final = -3
CREATED_AT_FIELD: Final = -4
UPDATED_AT_FIELD: Final = -5


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the schema; the list of them is depth first, parents before children."""

    name: str
    id: int
    parent_id: int
    logical_type: str
    nullable: bool = True
    metadata: Mapping[str, bytes] = field(default_factory=lambda: EMPTY_BYTES)
    type: int = 0
    encoding: int = 0
    dictionary: tuple[int, int] | None = None
    extension_name: str = ""
    primary_key: bool = False
    primary_key_position: int = 0
    clustering_key: bool = False
    clustering_key_position: int = 0
    unknown: bytes = field(default=b"", repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view cannot travel to another process as it is.
        return _field_of, ({name: dict(self.metadata) if name == "metadata" else getattr(self, name) for name in self.__slots__},)


def _field_of(facts: dict[str, Any]) -> Field:
    """A field as it was in another process."""
    return Field(**{**facts, "metadata": MappingProxyType(facts["metadata"])})


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a fragment: the ids of the fields it holds, and in which of its columns."""

    path: str
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]
    major: int = 2
    minor: int = 2
    size: int = 0
    base_id: int | None = None
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """Names a file that holds the complete set of deleted offsets of one fragment."""

    bitmap: bool
    """True for a Roaring file, False for an Arrow file."""
    read_version: int
    id: int
    deleted_rows: int
    base_id: int | None = None
    unknown: bytes = field(default=b"", repr=False)

    def path(self, fragment_id: int) -> str:
        """Where it lives below the table's root or its base."""
        return f"_deletions/{fragment_id}-{self.read_version}-{self.id}.{'bin' if self.bitmap else 'arrow'}"


@dataclass(frozen=True, slots=True)
class DataFragment:
    """Some rows of the table. Sequences are wire bytes here; ``format.row_ids`` reads them."""

    id: int
    files: tuple[DataFile, ...]
    physical_rows: int
    deletion_file: DeletionFile | None = None
    row_ids: bytes | None = None
    updated_at: bytes | None = None
    created_at: bytes | None = None
    row_ids_spilled: bool = False
    updated_at_spilled: bool = False
    created_at_spilled: bool = False
    overlays: tuple[bytes, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    @property
    def is_legacy(self) -> bool:
        """Whether all its files are of the first data format, whose row counts may be missing or wrong."""
        return bool(self.files) and all(file.major == 0 for file in self.files)

    @property
    def live_rows(self) -> int:
        """Rows that are not deleted."""
        return self.physical_rows - (self.deletion_file.deleted_rows if self.deletion_file else 0)


@dataclass(frozen=True, slots=True)
class BasePath:
    """A place outside the table's directory where its files may be."""

    id: int
    path: str
    is_dataset_root: bool = False
    name: str | None = None
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class WriterVersion:
    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None
    unknown: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return f"{self.library} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class DataFormat:
    file_format: str = "lance"
    version: str = "2.2"
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of an index segment: its path inside the index directory, and its size in bytes."""

    path: str
    size: int
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """One index segment. ``details`` is opaque: (type url, bytes)."""

    uuid: str
    fields: tuple[int, ...]
    name: str
    dataset_version: int
    fragment_bitmap: bytes | None = None
    details: tuple[str, bytes] | None = None
    index_version: int | None = None
    created_at: int | None = None
    base_id: int | None = None
    files: tuple[IndexFile, ...] = ()
    covering_fields: tuple[int, ...] = ()
    unknown: bytes = field(default=b"", repr=False)
