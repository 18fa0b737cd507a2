"""What a commit changes, as values: one frozen class for each kind of operation a Lance transaction can carry.

An operation says what was intended, not what the next version looks like: fragments that are new still have the id 0, and whoever
commits decides on the rest. Sequences given become tuples and mappings read-only copies, so that an operation never changes once made.
``unknown`` holds wire bytes of members this release does not know; they are written back as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from tiltyard.errors import InvalidInput
from tiltyard.format.values import BasePath, DataFile, DataFragment, Field, IndexFile, IndexMetadata


class _Frozen:
    """Turns the members named in ``_held`` into tuples or read-only mappings."""

    __slots__ = ()
    _held: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for member in self._held:
            given = getattr(self, member)
            if type(given) is not tuple:
                object.__setattr__(self, member, MappingProxyType(dict(given)) if isinstance(given, Mapping) else tuple(given))


# ---- parts of operations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RewriteGroup(_Frozen):
    """Old fragments whose rows, and no others, are in the new ones."""

    old_fragments: tuple[DataFragment, ...]
    new_fragments: tuple[DataFragment, ...]
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("old_fragments", "new_fragments")


@dataclass(frozen=True, slots=True)
class RewrittenIndex(_Frozen):
    """An index segment that was mapped onto the new fragments, and what took its place."""

    old_id: str
    new_id: str
    details: tuple[str, bytes] | None = None
    index_version: int = 0
    files: tuple[IndexFile, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("files",)


@dataclass(frozen=True, slots=True)
class CompactedSsTable:
    """The generation up to which a MemWAL shard is in the table."""

    shard_id: str
    generation: int
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Hashes of keys, split-block layout."""

    bitmap: bytes = field(repr=False)
    num_bits: int
    number_of_items: int
    probability: float
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class KeyExistenceFilter(_Frozen):
    """Which keys an upsert inserted: a set of hashes or a bloom filter (at most one of them)."""

    field_ids: tuple[int, ...] = ()
    exact: tuple[int, ...] | None = None
    bloom: BloomFilter | None = None
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("field_ids",)

    def __post_init__(self) -> None:
        # Named, since zero-argument super() does not survive the copy of the class that slots=True makes.
        _Frozen.__post_init__(self)
        if self.exact is not None:
            object.__setattr__(self, "exact", tuple(self.exact))
            if self.bloom is not None:
                raise InvalidInput("A key filter holds a set of hashes or a bloom filter, not both.", argument="bloom")


@dataclass(frozen=True, slots=True)
class UpdateMap(_Frozen):
    """Changes to a map of strings; None removes a key, ``replace`` empties the map first."""

    entries: tuple[tuple[str, str | None], ...] = ()
    replace: bool = False
    unknown: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple((key, value) for key, value in self.entries))


@dataclass(frozen=True, slots=True)
class Replacement:
    """A file that takes over its fields in one fragment."""

    fragment_id: int
    new_file: DataFile
    unknown: bytes = field(default=b"", repr=False)


class UpdateMode(IntEnum):
    """How an ``Update`` changed rows."""

    REWRITE_ROWS = 0
    """Changed rows leave their fragments and are written whole to new ones."""
    REWRITE_COLUMNS = 1
    """Changed columns get new files inside the fragments they are in."""


# ---- operations ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append(_Frozen):
    """New rows."""

    name: ClassVar[str] = "Append"
    fragments: tuple[DataFragment, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("fragments",)


@dataclass(frozen=True, slots=True)
class Delete(_Frozen):
    """Rows hidden by new deletion vectors, and fragments that were removed as a whole."""

    name: ClassVar[str] = "Delete"
    updated_fragments: tuple[DataFragment, ...] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("updated_fragments", "deleted_fragment_ids")


@dataclass(frozen=True, slots=True)
class Overwrite(_Frozen):
    """All rows and the schema replaced; at read version 0 the table's creation."""

    name: ClassVar[str] = "Overwrite"
    fragments: tuple[DataFragment, ...] = ()
    schema: tuple[Field, ...] = ()
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    config_upsert_values: Mapping[str, str] = field(default_factory=dict)
    initial_bases: tuple[BasePath, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("fragments", "schema", "schema_metadata", "config_upsert_values", "initial_bases")


@dataclass(frozen=True, slots=True)
class CreateIndex(_Frozen):
    """Index segments added and removed; with only removed ones, an index dropped."""

    name: ClassVar[str] = "CreateIndex"
    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("new_indices", "removed_indices")


@dataclass(frozen=True, slots=True)
class Rewrite(_Frozen):
    """The same rows in other fragments."""

    name: ClassVar[str] = "Rewrite"
    groups: tuple[RewriteGroup, ...] = ()
    rewritten_indices: tuple[RewrittenIndex, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("groups", "rewritten_indices")


@dataclass(frozen=True, slots=True)
class Merge(_Frozen):
    """Columns added or cast: the complete new list of fragments and the complete new schema."""

    name: ClassVar[str] = "Merge"
    fragments: tuple[DataFragment, ...] = ()
    schema: tuple[Field, ...] = ()
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    preserves_nullability: bool = False
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("fragments", "schema", "schema_metadata")


@dataclass(frozen=True, slots=True)
class Project(_Frozen):
    """A new schema over the same files: columns dropped, renamed, reordered or made nullable."""

    name: ClassVar[str] = "Project"
    schema: tuple[Field, ...] = ()
    preserves_nullability: bool = False
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("schema",)


@dataclass(frozen=True, slots=True)
class Restore:
    """The content of an older version, again."""

    name: ClassVar[str] = "Restore"
    version: int
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class ReserveFragments:
    """Fragment ids set aside for a rewrite to come."""

    name: ClassVar[str] = "ReserveFragments"
    num_fragments: int
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Clone:
    """A new table or branch from a version of another: by reference (shallow) or by copying its files."""

    name: ClassVar[str] = "Clone"
    is_shallow: bool
    ref_name: str | None
    ref_version: int
    ref_path: str
    branch_name: str | None = None
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Update(_Frozen):
    """Rows changed, and with an upsert also inserted.

    ``updated_fragment_offsets`` says which rows of a fragment had columns rewritten."""

    name: ClassVar[str] = "Update"
    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: tuple[DataFragment, ...] = ()
    new_fragments: tuple[DataFragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    compacted_sstables: tuple[CompactedSsTable, ...] = ()
    fields_for_preserving_frag_bitmap: tuple[int, ...] = ()
    update_mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_rows: KeyExistenceFilter | None = None
    updated_fragment_offsets: Mapping[int, bytes] = field(default_factory=dict)
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = (
        "removed_fragment_ids",
        "updated_fragments",
        "new_fragments",
        "fields_modified",
        "compacted_sstables",
        "fields_for_preserving_frag_bitmap",
        "updated_fragment_offsets",
    )


@dataclass(frozen=True, slots=True)
class UpdateConfig(_Frozen):
    """Changes to the table's maps of strings; None leaves a map alone. Field metadata goes by field id."""

    name: ClassVar[str] = "UpdateConfig"
    config_updates: UpdateMap | None = None
    table_metadata_updates: UpdateMap | None = None
    schema_metadata_updates: UpdateMap | None = None
    field_metadata_updates: Mapping[int, UpdateMap] = field(default_factory=dict)
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("field_metadata_updates",)


@dataclass(frozen=True, slots=True)
class DataReplacement(_Frozen):
    """Files that take over columns, fragment by fragment."""

    name: ClassVar[str] = "DataReplacement"
    replacements: tuple[Replacement, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("replacements",)


@dataclass(frozen=True, slots=True)
class UpdateMemWalState(_Frozen):
    """How far the MemWAL shards have come."""

    name: ClassVar[str] = "UpdateMemWalState"
    compacted_sstables: tuple[CompactedSsTable, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("compacted_sstables",)


@dataclass(frozen=True, slots=True)
class UpdateBases(_Frozen):
    """More places where the table's files may be."""

    name: ClassVar[str] = "UpdateBases"
    new_bases: tuple[BasePath, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    _held: ClassVar = ("new_bases",)


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """An operation that these classes cannot express: kept as it came, a conflict for all, never applied.

    ``arm`` is its member number in the transaction (None without an operation); ``wire`` holds the whole records, keys included.
    """

    arm: int | None = None
    wire: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """What messages call it."""
        return "no operation" if self.arm is None else f"unknown operation {self.arm}"


KnownOperation: TypeAlias = (
    Append
    | Delete
    | Overwrite
    | CreateIndex
    | Rewrite
    | Merge
    | Project
    | Restore
    | ReserveFragments
    | Clone
    | Update
    | UpdateConfig
    | DataReplacement
    | UpdateMemWalState
    | UpdateBases
)
Operation: TypeAlias = KnownOperation | UnknownOperation

MAINTENANCE: Final = (Rewrite, CreateIndex, ReserveFragments, UpdateMemWalState, UpdateBases)
"""Operations that leave rows and schema as they are."""
