"""History made by stock pylance, computed again: each version from the one before it and its transaction, compared member by member."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.roaring import decode_roaring
from tiltyard.format.row_ids import decode_row_ids, decode_row_versions
from tiltyard.format.values import DataFragment, IndexMetadata, WriterVersion
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.apply.next_manifest import Creation, Stamp, apply, clone, create
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.operations import Clone, Overwrite, Restore, Rewrite

STAMP = Stamp(0, WriterVersion("tiltyard", "0"), "x.txn")
OWN = ("timestamp_ns", "writer", "transaction_file", "fragments", "index_section", "base_paths")
"""Members that are a commit's own, or compared in a way of their own."""
REUSE = "__lance_frag_reuse"


@dataclass(frozen=True, slots=True)
class Step:
    """One version: what it came from, what pylance made of it and what we do."""

    committed: CreatedVersion
    ours: Manifest

    @property
    def label(self) -> str:
        return f"version {self.committed.manifest.version} ({self.committed.transaction.operation.name})"

    def differences(self) -> list[str]:
        return compare(self.ours, self.committed.manifest)


def replay(uri: str | Path) -> Iterator[Step]:
    """Every version of the table at ``uri``, by our rules, each from what pylance made before it."""
    log = VersionLog(LocalStore(Path(uri)))
    names = log.versions()
    all_of = {name.version: log.committed(name.version, name.scheme) for name in names}
    before: Manifest | None = None
    for version in sorted(all_of):
        committed = all_of[version]
        ours = _next(committed, before, {number: one.manifest for number, one in all_of.items()})
        if ours is not None:
            yield Step(committed, ours)
        before = committed.manifest


def _next(committed: CreatedVersion, before: Manifest | None, known: dict[int, Manifest]) -> Manifest | None:
    operation, made = committed.transaction.operation, committed.manifest
    if isinstance(operation, Clone):
        return clone(operation, _source(operation), STAMP)
    if before is None or before.version != made.version - 1:
        if not isinstance(operation, Overwrite) or committed.transaction.read_version:
            return None  # what it was made from has been cleaned up
        assert made.data_format is not None
        return create(operation, Creation(made.data_format, stable_row_ids=bool(made.writer_flags & 2)), STAMP)
    restored = known[operation.version] if isinstance(operation, Restore) else None
    reuse = None
    if isinstance(operation, Rewrite):  # an entry that came with this very commit is not in its transaction
        new = [one for one in _indices(made) if one.name == REUSE and one.uuid not in {old.uuid for old in _indices(before)}]
        reuse = new[0] if new else None
    return apply(operation, before, STAMP, restored=restored, reuse=reuse)


def _source(operation: Clone) -> Manifest:
    log = VersionLog(LocalStore(Path(operation.ref_path)))
    (name,) = (name for name in log.versions() if name.version == operation.ref_version)
    return log.load(name.version, name.scheme).manifest


# ---- comparing -------------------------------------------------------------------------------------------------------------


def compare(ours: Manifest, theirs: Manifest) -> list[str]:
    """What two manifests say differently, but for who wrote them and when."""
    found = [_difference(member.name, ours, theirs) for member in fields(Manifest) if member.name not in OWN]
    found.append(_pair("base_paths", _bases(ours), _bases(theirs)))
    mine, stock = ({one.id: one for one in side.fragments} for side in (ours, theirs))
    found.append(_pair("fragment ids", [one.id for one in ours.fragments], [one.id for one in theirs.fragments]))
    for number in sorted(mine.keys() & stock.keys()):
        one, two = readable_fragment(mine[number]), readable_fragment(stock[number])
        found += [_pair(f"fragment {number} {key}", one[key], two[key]) for key in one]
    left, right = ([readable_index(one) for one in _indices(side)] for side in (ours, theirs))
    found.append(_pair("index names", [one["name"] for one in left], [one["name"] for one in right]))
    if len(left) == len(right):
        found += [_pair(f"index {one['name']} {key}", one[key], two[key]) for one, two in zip(left, right, strict=True) for key in one]
    return [one for one in found if one]


def _bases(manifest: Manifest) -> list[Any]:
    return sorted(manifest.base_paths, key=lambda one: one.id)  # pylance writes them in any order


def _difference(member: str, ours: Manifest, theirs: Manifest) -> str:
    one, two = (getattr(side, member) for side in (ours, theirs))
    if hasattr(one, "keys"):
        one, two = dict(one), dict(two)
    if member == "fields":
        one, two = ([replace(each, metadata=dict(each.metadata)) for each in side] for side in (one, two))
    return _pair(member, one, two)


def _pair(what: str, ours: Any, theirs: Any) -> str:
    return "" if ours == theirs else f"{what}: ours {ours!r}, pylance {theirs!r}"


def readable_fragment(fragment: DataFragment) -> dict[str, Any]:
    """Every member of a fragment, sequences decoded."""
    values = {member.name: getattr(fragment, member.name) for member in fields(DataFragment)}
    rows = fragment.physical_rows
    if fragment.row_ids is not None:
        values["row_ids"] = decode_row_ids(fragment.row_ids, physical_rows=rows, source="").to_numpy().tolist()
    for member in ("created_at", "updated_at"):
        if values[member] is not None:
            values[member] = decode_row_versions(values[member], physical_rows=rows, source="").runs
    return values


def readable_index(index: IndexMetadata) -> dict[str, Any]:
    values = {member.name: getattr(index, member.name) for member in fields(IndexMetadata)}
    if index.fragment_bitmap is not None:
        values["fragment_bitmap"] = list(decode_roaring(index.fragment_bitmap, "")) or None
    return values


def _indices(manifest: Manifest) -> tuple[IndexMetadata, ...]:
    return decode_indices(manifest, "") if manifest.index_section else ()
