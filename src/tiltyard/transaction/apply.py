"""Operation and manifest in, manifest out: what the next version says. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiltyard.errors import CorruptTable, InvalidInput, UnsupportedFeature
from tiltyard.format.codec import MAX_FRAGMENT_ID, MAX_FRAGMENT_ROWS
from tiltyard.format.flags import Feature, compute_flags
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_versions import encode_row_versions, uniform_versions
from tiltyard.format.rowids import encode_row_ids, fresh_row_ids
from tiltyard.format.safe_paths import check_relative
from tiltyard.format.values import BasePath, DataFormat, DataFragment, WriterVersion
from tiltyard.transaction.operations import Append, Operation, Overwrite

OF_OLD_FRAGMENTS = int(Feature.DELETION_FILES | Feature.SPILLED_ROW_LINEAGE)
"""Features that only the fragments themselves need, gone when they are."""

MAX_ROW_ID = 2**64 - 1


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
        InvalidInput: for one that would make a table nobody can read.
    """
    if isinstance(operation, Append):
        return _stamped(_append(operation, base), stamp)
    if isinstance(operation, Overwrite):
        if operation.initial_bases:
            raise InvalidInput("Only a new table takes initial bases.", argument="initial_bases")
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
        base_paths=_distinct(operation.initial_bases),
        branch=creation.branch,
    )
    return _stamped(_overwrite(operation, empty), stamp)


def _distinct(bases: tuple[BasePath, ...]) -> tuple[BasePath, ...]:
    if len({base.id for base in bases}) != len(bases):
        raise InvalidInput("Two initial bases share one id.", argument="initial_bases")
    return bases


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
    known = {field.id for field in operation.schema}
    columns = {number for fragment in operation.fragments for file in fragment.files for number in file.fields if number >= 0}
    if not columns <= known:
        # Readers would see nulls in place of these columns.
        what = f"The files hold field {min(columns - known)}, which the new schema lacks."
        raise InvalidInput(what, argument="schema", advice="Nothing was committed; mend the operation.")
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
        _check_new(fragment, base)
        highest = 0 if highest is None else highest + 1
        fragment = replace(fragment, id=highest)
        if stable:
            if next_row_id + fragment.physical_rows > MAX_ROW_ID:
                raise InvalidInput("The table has given out all its row ids.", argument="fragments")
            fragment = with_fresh_lineage(fragment, next_row_id, base.version + 1)
            next_row_id += fragment.physical_rows
        numbered.append(fragment)
    if numbered and highest is not None and highest > MAX_FRAGMENT_ID:
        raise InvalidInput("The table has given out all its fragment ids.", argument="fragments")
    return numbered, highest, next_row_id


def _check_new(fragment: DataFragment, base: Manifest) -> None:
    """Refuses what would make the next version unreadable, or readable with other rows than were meant."""
    problem = _problem(fragment, base)
    if problem:
        raise InvalidInput(f"A new fragment {problem}.", argument="fragments", advice="Nothing was committed; mend the operation.")


def _problem(fragment: DataFragment, base: Manifest) -> str:
    if fragment.deletion_file or fragment.overlays:
        return "brings deletions or overlays along, which are named after an id it does not have yet"
    if fragment.row_ids_spilled or fragment.created_at_spilled or fragment.updated_at_spilled:
        return "brings row ids or row versions along, which are given out at the commit"
    if not 0 <= fragment.physical_rows <= MAX_FRAGMENT_ROWS:
        return f"claims {fragment.physical_rows} rows"
    bases = {one.id for one in base.base_paths}
    mixed = bool(base.writer_flags & Feature.MIXED_FILE_VERSIONS)
    for file in fragment.files:
        try:
            check_relative(file.path, "the operation")
        except CorruptTable as error:
            return f"cannot be named: {error.reason}"
        if file.base_id is not None and file.base_id not in bases:
            return f"lies in base {file.base_id}, which the table does not have"
        if len(file.column_indices) != len(file.fields) and (file.column_indices or file.major >= 2):
            return f"has {len(file.fields)} fields but {len(file.column_indices)} columns in {file.path}"
        if base.data_format and file.major >= 2 and not mixed and f"{file.major}.{file.minor}" != base.data_format.version:
            return f"has a file of format {file.major}.{file.minor}, the table has {base.data_format.version}"
    return ""


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
