"""Operation and manifest in, manifest out: what the next version says. Pure.

How each operation changes a manifest stands in the modules beside it; here is the choice between them, and what they all have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.flags import Feature, compute_flags
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, DataFormat, IndexMetadata, WriterVersion
from tiltyard.transaction import operations as ops
from tiltyard.transaction.apply.column_changes import merge, project, replace_data
from tiltyard.transaction.apply.coverage import create_index, indices_of
from tiltyard.transaction.apply.frame import Beside, Spilled, has_stable_row_ids, is_spilled
from tiltyard.transaction.apply.maps import update_bases, update_config
from tiltyard.transaction.apply.mem_wal_state import update_mem_wal
from tiltyard.transaction.apply.rewrite import reserve, rewrite
from tiltyard.transaction.apply.row_changes import append, delete, overwrite, update
from tiltyard.transaction.apply.row_lineage import with_fresh_lineage
from tiltyard.transaction.apply.version_fields import clone as _clone
from tiltyard.transaction.apply.version_fields import restore

__all__ = ["Beside", "Creation", "Spilled", "Stamp", "apply", "clone", "create", "has_stable_row_ids", "with_fresh_lineage"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit adds of its own: when, by whom, the name of its transaction, and what of it the table is to remember."""

    timestamp_ns: int
    writer: WriterVersion
    transaction_file: str
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Creation:
    """What is decided once, when a table comes into being."""

    data_format: DataFormat
    stable_row_ids: bool = False
    branch: str | None = None


_EMPTY: Final = Manifest(version=0, fields=(), fragments=FragmentList())

_APPLY: Final[dict[type, Callable[[Any, Manifest, Beside], Manifest]]] = {
    ops.Append: lambda operation, base, _: append(operation, base),
    ops.Delete: lambda operation, base, _: delete(operation, base),
    ops.Overwrite: lambda operation, base, _: _replaced(operation, base),
    ops.CreateIndex: lambda operation, base, _: create_index(operation, base),
    ops.Rewrite: lambda operation, base, beside: rewrite(operation, base, beside.reuse),
    ops.Merge: lambda operation, base, _: merge(operation, base),
    ops.Project: lambda operation, base, _: project(operation, base),
    ops.Restore: lambda operation, base, beside: restore(operation, base, beside.restored),
    ops.ReserveFragments: lambda operation, base, _: reserve(operation, base),
    ops.Update: update,
    ops.UpdateConfig: lambda operation, base, _: update_config(operation, base),
    ops.DataReplacement: lambda operation, base, _: replace_data(operation, base),
    ops.UpdateMemWalState: lambda operation, base, _: update_mem_wal(operation, base),
    ops.UpdateBases: lambda operation, base, _: update_bases(operation, base),
    ops.Clone: lambda operation, base, _: _refused(operation),
}


def apply(
    operation: ops.Operation,
    base: Manifest,
    stamp: Stamp,
    *,
    restored: Manifest | None = None,
    reuse: IndexMetadata | None = None,
    spilled: Mapping[int, Spilled] | None = None,
) -> Manifest:
    """The version after ``base``.

    Args:
        operation: what was intended.
        base: the newest version.
        stamp: what the commit adds of its own.
        restored: for Restore, the version to go back to.
        reuse: for Rewrite, the entry that lets other indices follow later. It has no place in a transaction.
        spilled: for Update, by fragment id, row ids and row versions that lie in data files.

    Raises:
        UnsupportedFeature: for an operation this release cannot commit.
        InvalidInput: for one that would make a table nobody can read.
        IncompatibleConflict: for one that speaks of fragments, fields or indices which ``base`` does not have.
    """
    change = _APPLY.get(type(operation))
    if change is None:
        raise UnsupportedFeature(f"This release cannot commit {operation.name}.", feature=operation.name, writing=True)
    return _stamped(change(operation, base, Beside(restored, reuse, spilled or {})), base, stamp)


def create(operation: ops.Overwrite, creation: Creation, stamp: Stamp) -> Manifest:
    """The first version of a new table."""
    flags = int(Feature.STABLE_ROW_IDS) if creation.stable_row_ids else 0
    empty = replace(
        _EMPTY,
        reader_flags=flags,
        writer_flags=flags,
        data_format=creation.data_format,
        base_paths=_distinct(operation.initial_bases),
        branch=creation.branch,
    )
    return _stamped(overwrite(operation, empty), empty, stamp)


def clone(operation: ops.Clone, source: Manifest, stamp: Stamp) -> Manifest:
    """The first version of a table or branch made from ``source``, a version of another one."""
    return _stamped(_clone(operation, source), _EMPTY, stamp)


def _refused(operation: ops.Clone) -> Manifest:
    raise InvalidInput(f"There is a table already; a clone of {operation.ref_path!r} makes a new one.", argument="operation")


def _replaced(operation: ops.Overwrite, base: Manifest) -> Manifest:
    if operation.initial_bases:
        raise InvalidInput("Only a new table takes initial bases.", argument="initial_bases")
    return overwrite(operation, base)


def _distinct(bases: tuple[BasePath, ...]) -> tuple[BasePath, ...]:
    if len({base.id for base in bases}) != len(bases):
        raise InvalidInput("Two initial bases share one id.", argument="initial_bases")
    return bases


def _stamped(manifest: Manifest, base: Manifest, stamp: Stamp) -> Manifest:
    if stamp.config:
        manifest = replace(manifest, config={**manifest.config, **stamp.config})
    reader, writer = _flags(manifest, base)
    return replace(
        manifest,
        timestamp_ns=stamp.timestamp_ns,
        writer=stamp.writer,
        transaction_file=stamp.transaction_file,
        reader_flags=reader,
        writer_flags=writer,
    )


def _flags(manifest: Manifest, base: Manifest) -> tuple[int, int]:
    old = manifest.reader_flags | manifest.writer_flags
    deletions, spilled = bool(old & Feature.DELETION_FILES), bool(old & Feature.SPILLED_ROW_LINEAGE)
    if manifest.fragments is not base.fragments and manifest.fragments.extension_of(base.fragments) is None:
        # Only here: looking at every fragment again would make each append slower, and what it adds has neither.
        deletions = manifest.fragments.has_deletions()
        spilled = spilled and any(is_spilled(fragment) for fragment in manifest.fragments)
    covering = bool(manifest.index_section) and bool(old & Feature.COVERED_INDEX_METADATA)
    if manifest.index_section != base.index_section:
        covering = any(index.covering_fields for index in indices_of(manifest))
    return compute_flags(
        has_deletions=deletions,
        has_config=bool(manifest.config),
        has_bases=bool(manifest.base_paths),
        spilled_lineage=spilled,
        covering_indices=covering,
        max_allocated_field_id=manifest.max_allocated_field_id,
        old_reader=manifest.reader_flags,
        old_writer=manifest.writer_flags,
    )
