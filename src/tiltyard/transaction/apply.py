"""Operation and manifest in, manifest out: what the next version says. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.flags import Feature, compute_flags
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_versions import encode_row_versions, uniform_versions
from tiltyard.format.rowids import encode_row_ids, fresh_row_ids
from tiltyard.format.values import DataFormat, DataFragment, WriterVersion
from tiltyard.transaction.operations import Append, Operation, Overwrite

OF_OLD_FRAGMENTS = int(Feature.DELETION_FILES | Feature.SPILLED_ROW_LINEAGE)
"""Features that only the fragments themselves need, gone when they are."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit adds of its own: when, by whom, and the name of its transaction."""

    timestamp_ns: int
    writer: WriterVersion
    transaction_file: str


@dataclass(frozen=True, slots=True)
class Creation:
    """What is decided once, when a table comes into being."""

    data_format: DataFormat
    stable_row_ids: bool = False
    branch: str | None = None


def apply(operation: Operation, base: Manifest, stamp: Stamp) -> Manifest:
    """The version after ``base``.

    Raises:
        UnsupportedFeature: for an operation this release cannot commit.
    """
    if isinstance(operation, Append):
        return _stamped(_append(operation, base), stamp)
    if isinstance(operation, Overwrite):
        return _stamped(_overwrite(operation, base), stamp)
    raise UnsupportedFeature(f"This release cannot commit {operation.name}.", feature=operation.name, writing=True)


def create(operation: Overwrite, creation: Creation, stamp: Stamp) -> Manifest:
    """The first version of a new table."""
    flags = int(Feature.STABLE_ROW_IDS) if creation.stable_row_ids else 0
    empty = Manifest(
        version=0,
        fields=(),
        fragments=FragmentList(),
        reader_flags=flags,
        writer_flags=flags,
        data_format=creation.data_format,
        branch=creation.branch,
    )
    ids = [base.id for base in operation.initial_bases]
    if len(set(ids)) != len(ids):
        raise InvalidInput("Two initial bases share one id.", argument="initial_bases")
    return _stamped(replace(_overwrite(operation, empty), base_paths=operation.initial_bases), stamp)


def _append(operation: Append, base: Manifest) -> Manifest:
    added, highest, next_row_id = _numbered(operation.fragments, base)
    return replace(
        base,
        version=base.version + 1,
        fragments=base.fragments.appended(added),
        max_fragment_id=highest,
        next_row_id=next_row_id,
    )


def _overwrite(operation: Overwrite, base: Manifest) -> Manifest:
    added, highest, next_row_id = _numbered(operation.fragments, base)
    allocated = base.max_allocated_field_id
    if allocated is not None:
        allocated = max([allocated, *(field.id for field in operation.schema)])
    return replace(
        base,
        version=base.version + 1,
        fields=operation.schema,
        schema_metadata=operation.schema_metadata,
        fragments=FragmentList(added),
        index_section=b"",
        config={**base.config, **operation.config_upsert_values} if operation.config_upsert_values else base.config,
        max_fragment_id=highest,
        next_row_id=next_row_id,
        max_allocated_field_id=allocated,
        reader_flags=base.reader_flags & ~OF_OLD_FRAGMENTS,
        writer_flags=base.writer_flags & ~OF_OLD_FRAGMENTS,
    )


def _numbered(fragments: Iterable[DataFragment], base: Manifest) -> tuple[list[DataFragment], int | None, int]:
    """The new fragments with their ids and, on tables that have them, row ids; and the high-water marks after them."""
    stable = has_stable_row_ids(base)
    highest = base.max_fragment_id
    if highest is None and len(base.fragments):
        highest = max(base.fragments.ids())
    next_row_id = base.next_row_id
    numbered = []
    for fragment in fragments:
        highest = 0 if highest is None else highest + 1
        fragment = replace(fragment, id=highest)
        if stable:
            fragment = with_fresh_lineage(fragment, next_row_id, base.version + 1)
            next_row_id += fragment.physical_rows
        numbered.append(fragment)
    return numbered, highest, next_row_id


def has_stable_row_ids(manifest: Manifest) -> bool:
    return bool(manifest.writer_flags & Feature.STABLE_ROW_IDS)


def with_fresh_lineage(fragment: DataFragment, first_row_id: int, version: int) -> DataFragment:
    """A fragment of new rows: consecutive ids, created and last updated in ``version``."""
    versions = encode_row_versions(uniform_versions(fragment.physical_rows, version))
    return replace(
        fragment,
        row_ids=encode_row_ids(fresh_row_ids(first_row_id, fragment.physical_rows)),
        created_at=versions,
        updated_at=versions,
    )


def _stamped(manifest: Manifest, stamp: Stamp) -> Manifest:
    reader, writer = _flags(manifest)
    return replace(
        manifest,
        timestamp_ns=stamp.timestamp_ns,
        writer=stamp.writer,
        transaction_file=stamp.transaction_file,
        reader_flags=reader,
        writer_flags=writer,
    )


def _flags(manifest: Manifest) -> tuple[int, int]:
    # What the old fragments brought along stands in the old words; looking at every fragment again would make each commit slower.
    old = manifest.reader_flags | manifest.writer_flags
    return compute_flags(
        has_deletions=bool(old & Feature.DELETION_FILES),
        stable_row_ids=has_stable_row_ids(manifest),
        has_config=bool(manifest.config),
        has_bases=bool(manifest.base_paths),
        spilled_lineage=bool(old & Feature.SPILLED_ROW_LINEAGE),
        covering_indices=bool(manifest.index_section) and bool(old & Feature.COVERED_INDEX_METADATA),
        max_allocated_field_id=manifest.max_allocated_field_id,
        old_reader=manifest.reader_flags,
        old_writer=manifest.writer_flags,
    )
