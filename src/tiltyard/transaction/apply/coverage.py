"""What indices cover, and which of them still stand for something. Ids of fragments that are gone stay in a bitmap: readers ignore them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from tiltyard.errors import CorruptTable, UnsupportedFeature
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import MAX_FRAGMENT_ID
from tiltyard.format.fields import ROOT, field_tree
from tiltyard.format.manifest import Manifest, decode_indices, encode_indices
from tiltyard.format.roaring import decode_roaring, encode_roaring
from tiltyard.format.values import DataFragment, Field, IndexMetadata
from tiltyard.transaction.apply.frame import gone, invalid
from tiltyard.transaction.operations import CreateIndex, RewriteGroup

FRAGMENT_REUSE: Final = "__lance_frag_reuse"
MEM_WAL: Final = "__lance_mem_wal"
SYSTEM: Final = frozenset({FRAGMENT_REUSE, MEM_WAL})
"""Indices that are none: one entry each, about the table rather than about columns."""
BY_ROW_ID: Final = tuple(f"{kind}IndexDetails" for kind in ("Bitmap", "LabelList", "NGram", "Inverted", "Vector"))
"""Kinds whose entries are row ids where the table has stable ones."""

Indices = tuple[IndexMetadata, ...]


def indices_of(manifest: Manifest) -> Indices:
    return decode_indices(manifest, f"version {manifest.version}") if manifest.index_section else ()


def with_indices(manifest: Manifest, after: Indices) -> Manifest:
    """Another index section, or the same bytes where nothing changed."""
    return manifest if after == indices_of(manifest) else replace(manifest, index_section=encode_indices(after))


def covered(index: IndexMetadata) -> BitMap | None:
    """The fragments an index was built from; None where it does not say."""
    if index.fragment_bitmap is None:
        return None
    return decode_roaring(index.fragment_bitmap, f"index {index.name}")


def _with_bitmap(index: IndexMetadata, bitmap: BitMap) -> IndexMetadata:
    return replace(index, fragment_bitmap=encode_roaring(bitmap))


# ---- fragments that are known under other ids ------------------------------------------------------------------------------


def current(manifest: Manifest) -> Indices:
    """The entries with bitmaps in today's fragments.

    After a rewrite that put off the mapping of indices their bitmaps name fragments that are gone; the entry for fragments used again
    says what became of these, and readers look there. Whoever changes a bitmap must look there first, or takes out what is not in it.
    """
    indices = indices_of(manifest)
    renamed = _renamed(indices)
    return tuple(_translated(index, renamed) for index in indices) if renamed else indices


def _reuse_details(indices: Indices) -> pb.FragmentReuseIndexDetails | None:
    entry = next((index for index in indices if index.name == FRAGMENT_REUSE), None)
    if entry is None or entry.details is None:
        return None
    try:
        return pb.FragmentReuseIndexDetails.FromString(entry.details[1])
    except DecodeError as error:
        raise CorruptTable(f"index {FRAGMENT_REUSE}", f"its details cannot be read ({error})") from error


def _renamed(indices: Indices) -> list[tuple[BitMap, BitMap]]:
    """Old and new ids of each group of rewritten fragments, oldest first."""
    details = _reuse_details(indices)
    if details is None:
        return []
    groups = [group for version in details.inline.versions for group in version.groups]
    sides = [([fragment.id for fragment in group.old_fragments], [fragment.id for fragment in group.new_fragments]) for group in groups]
    if any(number > MAX_FRAGMENT_ID for side in sides for ids in side for number in ids):
        raise CorruptTable(f"index {FRAGMENT_REUSE}", "a fragment id does not fit 32 bits")
    return [(BitMap(old), BitMap(new)) for old, new in sides]


def _translated(index: IndexMetadata, renamed: list[tuple[BitMap, BitMap]]) -> IndexMetadata:
    before = covered(index)
    if before is None:
        return index
    bitmap = BitMap(before)
    for old, new in renamed:
        if old & bitmap:
            bitmap = bitmap - old | new if old <= bitmap else bitmap - old  # of a part nobody knows where it went
    return index if bitmap == before else _with_bitmap(index, bitmap)


def _elsewhere(indices: Indices) -> bool:
    """Whether what became of old fragments stands in a file of its own, which is not read here."""
    details = _reuse_details(indices)
    return details is not None and details.HasField("external")


# ---- columns whose values changed ------------------------------------------------------------------------------------------


def family(fields: Iterable[Field], ids: Collection[int]) -> frozenset[int]:
    """The fields with these ids, all above and all below them: whose values change when those of the ids do."""
    tree = field_tree(fields)
    related = set(ids)
    for field in tree.fields:
        if field.id in ids:
            related.update(above.id for above in tree.ancestors(field))
        if field.parent_id != ROOT and any(above.id in ids for above in tree.ancestors(field)):
            related.add(field.id)
    return frozenset(related)


def without_coverage(indices: Indices, fragments: Collection[int], fields: frozenset[int]) -> Indices:
    """Takes fragments out of the bitmaps of indices that hold values of these fields."""
    if not fragments or not fields:
        return indices
    stale = BitMap(fragments)
    result = []
    blind = _elsewhere(indices)
    for index in indices:
        if fields.intersection(_columns(index)):
            if blind:
                raise UnsupportedFeature(
                    f"Index {index.name} must be remapped after a rewrite before its column can change.",
                    feature="fragment reuse in a file",
                    writing=True,
                    advice="Optimize the indices first.",
                )
            bitmap = covered(index)
            if bitmap is not None and bitmap & stale:
                index = _with_bitmap(index, bitmap - stale)
        result.append(index)
    return tuple(result)


def moved_columns(before: DataFragment, after: DataFragment) -> set[int]:
    """Fields that both fragments have, in different files."""
    old, new = _homes(before), _homes(after)
    return {number for number, home in old.items() if number in new and new[number] != home}


def _homes(fragment: DataFragment) -> dict[int, tuple[str, int | None]]:
    return {number: (file.path, file.base_id) for file in fragment.files for number in file.fields if number >= 0}


# ---- which indices stay ----------------------------------------------------------------------------------------------------


def retained(indices: Indices, fields: Iterable[Field], live: Iterable[int]) -> Indices:
    """Drops indices on columns that are gone, and of several segments with one name those that cover nothing.

    The oldest is kept even if all cover nothing: that a column is to be indexed must not be forgotten when its rows change.
    """
    known = {field.id for field in fields}
    kept = tuple(index for index in indices if index.name in SYSTEM or known.issuperset(_columns(index)))
    by_name: dict[str, list[IndexMetadata]] = {}
    for entry in kept:
        if entry.name not in SYSTEM and entry.fragment_bitmap is not None:
            by_name.setdefault(entry.name, []).append(entry)
    several = [segments for segments in by_name.values() if len(segments) > 1]
    if not several or _elsewhere(indices):
        return kept
    there = BitMap(live)
    away: set[str] = set()
    for segments in several:
        empty = [segment for segment in segments if not (covered(segment) or BitMap()) & there]
        if len(empty) == len(segments):
            empty.remove(min(empty, key=lambda entry: entry.dataset_version))
        away.update(index.uuid for index in empty)
    return tuple(index for index in kept if index.uuid not in away)


# ---- indices that come, go and follow their rows ---------------------------------------------------------------------------


def create_index(operation: CreateIndex, base: Manifest) -> Manifest:
    before = current(base)
    new = {index.uuid: index for index in operation.new_indices}
    if len(new) != len(operation.new_indices):
        raise invalid("Two new indices have one uuid.", "new_indices")
    bases = {path.id for path in base.base_paths}
    known = {field.id for field in base.fields}
    for index in operation.new_indices:
        _check_new(index, bases)
        if missing := set() if index.name in SYSTEM else set(_columns(index)) - known:
            raise gone(operation.name, f"index {index.name} is on field {min(missing)}, which version {base.version} does not have")
    away = {index.uuid for index in operation.removed_indices} | new.keys()
    single = {index.name for index in operation.new_indices} & SYSTEM
    kept = tuple(index for index in before if index.uuid not in away and index.name not in single)
    return with_indices(replace(base, version=base.version + 1), (*kept, *operation.new_indices))


def _check_new(index: IndexMetadata, bases: Collection[int]) -> None:
    if index.base_id is not None and index.base_id not in bases:
        raise invalid(f"Index {index.name} is in base {index.base_id}, which the table does not have.", "new_indices")
    try:
        covered(index)
    except CorruptTable as error:
        raise invalid(f"Index {index.name} has an invalid bitmap: {error.reason}.", "new_indices") from error


def exchanged(index: IndexMetadata, groups: Iterable[RewriteGroup]) -> IndexMetadata:
    """An index that was mapped onto the new fragments of a rewrite: these in place of the old ones, group by group."""
    old = covered(index)
    if old is None:
        raise invalid(
            f"Index {index.name} does not record which fragments it covers and cannot be remapped after a rewrite.", "rewritten_indices"
        )
    bitmap = BitMap(old)
    for before, after in _sides(groups):
        if not before & old:
            continue
        if not before <= old:
            raise invalid(f"Index {index.name} covers only a part of the fragments {min(before)} to {max(before)}.", "groups")
        bitmap = bitmap - before | after
    return index if bitmap == old else _with_bitmap(index, bitmap)


def carried_along(index: IndexMetadata, groups: Iterable[RewriteGroup]) -> IndexMetadata:
    """An index that was not mapped, on a table where rows keep their ids: if it knows rows by these, it follows by itself.

    Otherwise, and where it covers a group in part, it does not cover the new fragments.
    """
    old = covered(index)
    if old is None:
        return index
    follows = knows_row_ids(index)
    bitmap = BitMap(old)
    for before, after in _sides(groups):
        bitmap = bitmap - before | after if follows and before <= old else bitmap - before
    return index if bitmap == old else _with_bitmap(index, bitmap)


def _sides(groups: Iterable[RewriteGroup]) -> Iterable[tuple[BitMap, BitMap]]:
    for group in groups:
        if group.old_fragments:
            yield BitMap(fragment.id for fragment in group.old_fragments), BitMap(fragment.id for fragment in group.new_fragments)


def knows_row_ids(index: IndexMetadata) -> bool:
    """Whether an index of a table with stable row ids knows rows by them. Some kinds keep places instead; of a new kind nobody knows."""
    return index.details is not None and index.details[0].endswith(BY_ROW_ID)


def with_moved_rows(indices: Indices, sources: Collection[int], moved: Collection[int], changed: frozenset[int]) -> Indices:
    """Adds fragments that hold nothing but rows of ``sources``, ids kept, to indices that cover all of these and none of their changes."""
    if not moved or not sources or not changed:
        return indices
    taken, new = BitMap(sources), BitMap(moved)
    result = []
    for index in indices:
        bitmap = covered(index)
        if bitmap is not None and knows_row_ids(index) and taken <= bitmap and not changed.intersection(_columns(index)):
            index = _with_bitmap(index, bitmap | new)
        result.append(index)
    return tuple(result)


def _columns(index: IndexMetadata) -> tuple[int, ...]:
    return (*index.fields, *index.covering_fields)
