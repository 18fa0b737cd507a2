"""Indices of which a table has one at most, merged when two sides brought one: what either side added, without what either took out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_from_pb, uuid_to_pb
from tiltyard.format.manifest import Manifest
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.footprint import FRAGMENT_REUSE, MEM_WAL, progress_of


def singleton(manifest: Manifest, name: str) -> IndexMetadata | None:
    """The table's own index of this name."""
    return next((index for index in indices_of(manifest) if index.name == name), None)


def merged_singleton(mine: IndexMetadata, theirs: IndexMetadata | None, before: IndexMetadata | None) -> IndexMetadata | None:
    """Ours over theirs, both made from what was there before. None where the two cannot be put together."""
    if theirs is None:
        return mine
    return _with_progress(mine, theirs) if mine.name == MEM_WAL else _merged_reuse(mine, theirs, before)


def _merged_reuse(mine: IndexMetadata, theirs: IndexMetadata, before: IndexMetadata | None) -> IndexMetadata | None:
    ours, others = _reuse(mine), _reuse(theirs)
    base = pb.FragmentReuseIndexDetails() if before is None else _reuse(before)
    if ours is None or others is None or base is None:
        return None  # kept in a file of its own, which a commit does not read
    known = _versions(base.inline.versions)
    our, other = _versions(ours.inline.versions), _versions(others.inline.versions)
    kept = {number: version for number, version in other.items() if number in our or number not in known}
    kept.update((number, version) for number, version in our.items() if number not in known)
    details = pb.FragmentReuseIndexDetails()
    details.CopyFrom(ours)
    del details.inline.versions[:]
    details.inline.versions.extend(kept[number] for number in sorted(kept))
    new = BitMap(fragment.id for version in kept.values() for group in version.groups for fragment in group.new_fragments)
    url = mine.details[0] if mine.details else ""
    return replace(mine, fragment_bitmap=encode_roaring(new), details=(url, details.SerializeToString(deterministic=True)))


def stamped_reuse(entry: IndexMetadata, version: int) -> IndexMetadata:
    """A rewrite's entry as it is put on a version. The part it adds, its newest, must be newer than every index built before it."""
    details = _reuse(entry)
    if details is None or not details.inline.versions:
        return replace(entry, dataset_version=version)
    own = max(details.inline.versions, key=lambda version: version.dataset_version)
    own.dataset_version = max(version, own.dataset_version)
    url = entry.details[0] if entry.details else ""
    return replace(entry, dataset_version=version, details=(url, details.SerializeToString(deterministic=True)))


def _reuse(index: IndexMetadata) -> pb.FragmentReuseIndexDetails | None:
    try:
        details = pb.FragmentReuseIndexDetails.FromString(index.details[1] if index.details else b"")
    except DecodeError as error:
        raise CorruptTable(f"index {FRAGMENT_REUSE}", f"its details cannot be read ({error})") from error
    return None if details.HasField("external") or details.inline.transitions else details


def _versions(several: Iterable[pb.FragmentReuseIndexDetails.Version]) -> dict[int, pb.FragmentReuseIndexDetails.Version]:
    return {version.dataset_version: version for version in several}


def _with_progress(mine: IndexMetadata, theirs: IndexMetadata) -> IndexMetadata:
    """Our settings with the higher generation of each shard."""
    url, data = mine.details or ("", b"")
    details = pb.MemWalIndexDetails.FromString(data)
    ours = {uuid_from_pb(sstable.shard_id, f"index {MEM_WAL}"): sstable for sstable in details.compacted_sstables}
    for shard, generation in progress_of(theirs).items():
        known = ours.get(shard)
        if known is None:
            details.compacted_sstables.add(shard_id=uuid_to_pb(shard), generation=generation)
        else:
            known.generation = max(known.generation, generation)
    return replace(mine, details=(url, details.SerializeToString(deterministic=True)))
