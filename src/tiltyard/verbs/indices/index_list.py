"""The indices of a version, and how much of it they cover."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from tiltyard.format.fields import field_tree
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.apply.coverage import SYSTEM, covered, current
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.indices.build_index import DETAILS, VECTOR

if TYPE_CHECKING:
    from lance import LanceDataset

_KINDS: Final[Mapping[str, str]] = {details: kind for kind, details in DETAILS.items() if kind not in VECTOR and kind != "FTS"}


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One index of a version.

    Attributes:
        name: what it is called.
        type: its kind, such as ``BTREE`` or ``IVF_PQ``.
        columns: the columns it is on.
        segments: ids of the parts it is made of, oldest first.
        fragments: ids of the fragments it covers.
        missing: ids of those it does not cover; queries scan them.
        rows: how many live rows it covers.
        missing_rows: how many it does not cover.
        version: the version its latest segment was built on.
        created: when that was; None if it does not say.
        bytes: the size of its files; None where they are not listed.
    """

    name: str
    type: str
    columns: tuple[str, ...]
    segments: tuple[str, ...]
    fragments: tuple[int, ...]
    missing: tuple[int, ...]
    rows: int
    missing_rows: int
    version: int
    created: datetime | None = None
    bytes: int | None = None


def list_indices(access: TableAccess, manifest: Manifest, dataset: Callable[[], LanceDataset]) -> tuple[IndexInfo, ...]:
    """The indices by name, without those that a table keeps for itself. pylance is asked only for what the manifest does not say."""
    by_name: dict[str, list[IndexMetadata]] = {}
    for index in current(manifest):
        if index.name not in SYSTEM:
            by_name.setdefault(index.name, []).append(index)
    if not by_name:
        return ()
    kinds = kinds_of(access, dataset()) if any(_kind(several[0]) is None for several in by_name.values()) else {}
    tree = field_tree(manifest.fields)
    live = {fragment.id: fragment.live_rows for fragment in manifest.fragments}
    found = []
    for name in sorted(by_name):
        segments = sorted(by_name[name], key=lambda index: index.dataset_version)
        fragments = sorted(BitMap.union(BitMap(), *(covered(segment) or BitMap() for segment in segments)) & BitMap(live))
        missing = sorted(set(live).difference(fragments))
        stamps = [segment.created_at for segment in segments if segment.created_at is not None]
        files = [file.size for segment in segments for file in segment.files]
        found.append(
            IndexInfo(
                name=name,
                type=_kind(segments[0]) or kinds.get(name, "UNKNOWN"),
                columns=tuple(tree.path(tree.by_id[number]) for number in segments[0].fields if number in tree.by_id),
                segments=tuple(segment.uuid for segment in segments),
                fragments=tuple(fragments),
                missing=tuple(missing),
                rows=sum(live[number] for number in fragments),
                missing_rows=sum(live[number] for number in missing),
                version=max(segment.dataset_version for segment in segments),
                created=datetime.fromtimestamp(max(stamps) / 1000, UTC) if stamps else None,
                bytes=sum(files) if all(segment.files for segment in segments) else None,
            )
        )
    return tuple(found)


def _kind(index: IndexMetadata) -> str | None:
    """The kind by the type of its details; of a vector index these do not tell all."""
    return _KINDS.get(index.details[0].rpartition(".")[2]) if index.details else None


def kinds_of(access: TableAccess, dataset: LanceDataset) -> dict[str, str]:
    """The kinds of all indices, as pylance says."""
    with lance_errors(access, "read indices", dataset.version):
        return {index.name: index.index_type.upper() for index in dataset.describe_indices()}
