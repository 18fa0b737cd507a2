"""The conditions of the conflict table that are about indices. One side of each pair, or both, is a CreateIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.context import Context, Found
from tiltyard.transaction.footprint import (
    FRAGMENT_REUSE,
    MEM_WAL,
    SINGLETONS,
    coverage,
    index_fields,
    installs,
    is_ngram,
    mem_wal_settings,
    replaced_cells,
    rewrites_columns,
    trims_reuse,
)
from tiltyard.transaction.operations import CreateIndex, DataReplacement, Merge, Operation, Project, Rewrite, Update


def _of_indices(found: dict[str, tuple[int, ...]]) -> Found | None:
    """What was found by index name, as fragments."""
    fragments = tuple(sorted({number for several in found.values() for number in several}))
    return Found(fragments=fragments, names=tuple(f"index {name}" for name in found)) if found else None


def _creation(mine: Operation, theirs: Operation) -> CreateIndex:
    creation = mine if isinstance(mine, CreateIndex) else theirs
    assert isinstance(creation, CreateIndex)
    return creation


# ---- two of a kind ---------------------------------------------------------------------------------------------------------


def mem_wal_set_up(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    return Found(names=(f"index {MEM_WAL}",)) if installs(_creation(mine, theirs), MEM_WAL) else None


def mem_wal_differs(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    ours, others = installs(mine, MEM_WAL), installs(theirs, MEM_WAL)
    if ours is None or others is None or mem_wal_settings(ours) == mem_wal_settings(others):
        return None
    return Found(names=(f"index {MEM_WAL}",))


def same_singleton(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    shared = tuple(name for name in SINGLETONS if installs(mine, name) and installs(theirs, name))
    return Found(names=tuple(f"index {name}" for name in shared), merge_singletons=shared) if shared else None


def same_name(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, CreateIndex)
    shared = sorted({index.name for index in mine.new_indices if installs(theirs, index.name)})
    return Found(names=tuple(f"index {name}" for name in shared)) if shared else None


def built_on_what_went(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, CreateIndex)
    assert isinstance(theirs, CreateIndex)
    we_added, they_added = _names(mine.new_indices), _names(theirs.new_indices)
    we_removed, they_removed = _names(mine.removed_indices), _names(theirs.removed_indices)
    extended = ((we_added - we_removed) & they_removed) | ((they_added - they_removed) & we_removed)
    ids = {index.uuid for index in theirs.removed_indices}
    removed_twice = _names(index for index in mine.removed_indices if index.uuid in ids)
    found = sorted(extended | (removed_twice & (we_added | they_added)))
    return Found(names=tuple(f"index {name}" for name in found)) if found else None


def _names(several: Iterable[IndexMetadata]) -> set[str]:
    return {index.name for index in several}


# ---- with a rewrite --------------------------------------------------------------------------------------------------------


def _carries_reuse(mine: Operation, context: Context) -> bool | None:
    """Whether the Rewrite of the pair brings a fragment reuse entry; None if nobody knows, which excuses nothing."""
    return context.my_reuse if isinstance(mine, Rewrite) else context.their_reuse


def trims_what_is_carried(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    if not trims_reuse(_creation(mine, theirs)) or _carries_reuse(mine, context) is False:
        return None
    return Found(names=(f"index {FRAGMENT_REUSE}",), merge_singletons=(FRAGMENT_REUSE,))


def changes_reuse_otherwise(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    creation = _creation(mine, theirs)
    names = {index.name for index in (*creation.new_indices, *creation.removed_indices)}
    return Found(names=(f"index {FRAGMENT_REUSE}",)) if FRAGMENT_REUSE in names and not trims_reuse(creation) else None


def _groups(mine: Operation, theirs: Operation) -> list[frozenset[int]]:
    rewrite = mine if isinstance(mine, Rewrite) else theirs
    assert isinstance(rewrite, Rewrite)
    return [frozenset(fragment.id for fragment in group.old_fragments) for group in rewrite.groups]


def _meeting_groups(
    mine: Operation, theirs: Operation, wanted: Callable[[IndexMetadata], bool], whole_groups_pass: bool
) -> dict[str, tuple[int, ...]]:
    """For each new index the fragments of groups that it meets; one that does not say what it covers meets all of them."""
    found = {}
    for index in _creation(mine, theirs).new_indices:
        covered = coverage(index)
        met: set[int] = set()
        for group in _groups(mine, theirs):
            inside = group if covered is None else {number for number in group if number in covered}
            if inside and not (whole_groups_pass and covered is not None and inside == group):
                met |= inside
        if met and wanted(index):
            found[index.name] = tuple(sorted(met))
    return found


def covers_rewritten(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    if _carries_reuse(mine, context):
        return None
    return _of_indices(_meeting_groups(mine, theirs, lambda index: index.name != FRAGMENT_REUSE, False))


def ngram_covers_rewritten(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    if not _carries_reuse(mine, context):
        return None
    return _of_indices(_meeting_groups(mine, theirs, is_ngram, False))


def straddles_a_group(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    """The write-ahead log has no coverage since it covers no fragment at all, so it cannot straddle anything."""
    if not _carries_reuse(mine, context):
        return None
    return _of_indices(_meeting_groups(mine, theirs, lambda index: index.name not in SINGLETONS, True))


def drops_what_was_mapped(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, CreateIndex)
    assert isinstance(theirs, Rewrite)
    mapped = {index.old_id for index in theirs.rewritten_indices}
    names = sorted({index.name for index in mine.removed_indices if index.uuid in mapped})
    return Found(names=tuple(f"index {name}" for name in names)) if names else None


# ---- with changed columns --------------------------------------------------------------------------------------------------


def _over_rewritten_columns(mine: Operation, theirs: Operation) -> list[IndexMetadata]:
    """Our new indices over columns that an update rewrote in place; over any column if it does not say which."""
    assert isinstance(mine, CreateIndex)
    assert isinstance(theirs, Update)
    if not rewrites_columns(theirs):
        return []
    modified = frozenset(theirs.fields_modified)
    return [index for index in mine.new_indices if (index_fields(index) & modified if modified else index.name not in SINGLETONS)]


def rewritten_unknown_coverage(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(theirs, Update)
    updated = tuple(sorted(fragment.id for fragment in theirs.updated_fragments))
    return _of_indices({index.name: updated for index in _over_rewritten_columns(mine, theirs) if coverage(index) is None})


def rewritten_in_place(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(theirs, Update)
    trims: dict[str, tuple[int, ...]] = {}
    names = []
    for index in _over_rewritten_columns(mine, theirs):
        covered = coverage(index)
        out = tuple(sorted(fragment.id for fragment in theirs.updated_fragments if covered is not None and fragment.id in covered))
        if out:
            trims[index.uuid] = out
            names.append(f"index {index.name}")
    fragments = tuple(sorted({number for several in trims.values() for number in several}))
    return Found(fragments=fragments, names=tuple(names), trim_indices=tuple(trims.items())) if trims else None


def indexed_field_gone(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, CreateIndex)
    assert isinstance(theirs, Merge | Project)
    there = {field.id for field in theirs.schema}
    gone = {number for index in mine.new_indices for number in index_fields(index) - there}
    return Found(names=tuple(f"field {number}" for number in sorted(gone))) if gone else None


def _replaced(creation: CreateIndex, replacement: DataReplacement, everywhere: bool) -> Found | None:
    found = {}
    for index in creation.new_indices:
        covered = coverage(index)
        met = {
            fragment
            for fragment, number in replaced_cells(replacement)
            if number in index_fields(index) and (everywhere or covered is None or fragment in covered)
        }
        if met:
            found[index.name] = tuple(sorted(met))
    return _of_indices(found)


def covered_replaced(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, CreateIndex)
    assert isinstance(theirs, DataReplacement)
    return _replaced(mine, theirs, everywhere=False)


def replaced_indexed(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, DataReplacement)
    assert isinstance(theirs, CreateIndex)
    return _replaced(theirs, mine, everywhere=True)
