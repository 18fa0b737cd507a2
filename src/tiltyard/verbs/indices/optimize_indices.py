"""Brings indices up to date: rows that came since they were built, and fragments that were rewritten under them.

A segment's files are never changed, and readers of several segments believe each of them about every fragment that any of them covers.
So a further segment may cover a fragment only if no older one can hold former values of its rows; otherwise the index is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, TiltyardError
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.fields import field_tree
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.transaction.apply.coverage import covered, current, indices_of
from tiltyard.transaction.apply.frame import highest_fragment_id
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.footprint import FRAGMENT_REUSE, SINGLETONS
from tiltyard.transaction.operations import CreateIndex, Rewrite
from tiltyard.transaction.system_indices import singleton
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import dataset_at
from tiltyard.verbs.indices.build_index import (
    VECTOR,
    Build,
    Progress,
    as_metadata,
    build_segment,
    check_name,
    commit_segments,
    discard_segments,
    segments_of,
)

if TYPE_CHECKING:
    from lance import LanceDataset

_INEXACT: Final = frozenset({"ZONEMAP", "BLOOMFILTER", "NGRAM", "RTREE"})
"""Kinds whose answers are checked against the rows, so that former values in them do no harm."""
_KINDS: Final[Mapping[str, str]] = {"LABELLIST": "LABEL_LIST"}
_HNSW: Final = {"max_connections": "m", "construction_ef": "ef_construction", "max_level": "max_level"}

Versions = Sequence[pb.FragmentReuseIndexDetails.Version]


@dataclass(frozen=True, slots=True)
class Extension:
    """How indices are brought up to date.

    Attributes:
        merge: whether an index is one segment afterwards, instead of one more.
        retrain: whether it is made anew, its model included.
        progress: is told how far it is.
    """

    merge: bool = False
    retrain: bool = False
    progress: Progress | None = None


def extend_index(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    name: str,
    how: Extension,
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Brings one index up to date. Where it is, nothing is committed."""
    check_name(name)

    def execute(run: Execution) -> Committed:
        change = _Work(access, run, name, how).change()
        if change is None:
            return nothing_done(run, CreateIndex.name, {"indexed": 0})
        return commit_segments(access, run, change.new, change.old, properties, change.rows)

    return run_verb(access, read, scheme, execute, policy)


def names_of(manifest: Manifest) -> list[str]:
    """The indices that can be brought up to date."""
    return sorted({index.name for index in indices_of(manifest) if index.name not in SINGLETONS})


@dataclass(frozen=True, slots=True)
class _Change:
    new: tuple[IndexMetadata, ...]
    old: tuple[IndexMetadata, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class _Work:
    """One index of one version."""

    access: TableAccess
    run: Execution
    name: str
    how: Extension

    @property
    def manifest(self) -> Manifest:
        return self.run.read.manifest

    def change(self) -> _Change | None:
        raw = segments_of(self.manifest, self.name)
        segments = [index for index in current(self.manifest) if index.name == self.name]
        live = {fragment.id: fragment for fragment in self.manifest.fragments}
        known = [covered(segment) for segment in segments]
        missing = [live[number] for number in sorted(BitMap(live).difference(*(bitmap for bitmap in known if bitmap is not None)))]
        stale = {index.uuid for index in raw if self._is_behind(index)}
        dataset = dataset_at(self.access, self.manifest)
        build = known_build(self.access, self.manifest, dataset, raw[0], self.how)
        anew = (
            self.how.retrain
            or any(bitmap is None for bitmap in known)
            or (bool(stale) and (build.kind in VECTOR or self.how.merge))
            or any(index.uuid in stale and self._is_renamed(index) for index in raw)
            or (build.kind not in _INEXACT and not all(self._is_new_to(index, missing) for index in raw))
        )
        if not anew and self.how.merge and build.kind in VECTOR:
            anew = len(raw) + bool(missing) > 1
        if anew:
            return self._made_anew(build, raw, live.values())
        empty = {index.uuid for index, bitmap in zip(segments, known, strict=True) if not (bitmap or BitMap()) & BitMap(live)}
        return self._added(build, raw, missing, stale, empty, dataset)

    def _made_anew(self, build: Build, raw: tuple[IndexMetadata, ...], live: Iterable[DataFragment]) -> _Change | None:
        fragments = list(live)
        if not fragments and build.kind == "BITMAP":
            return None  # it cannot be built of nothing, and nothing is there that it could be wrong about
        try:
            made = build_segment(self.access, self.manifest, build, self.name, [fragment.id for fragment in fragments])
        except InvalidInput:
            if build.kind not in VECTOR or self.how.retrain:
                raise
            return None  # too few rows are left to train on; queries go on to scan those that are not covered
        return _Change((made,), raw, sum(fragment.live_rows for fragment in fragments))

    def _added(
        self, build: Build, raw: tuple[IndexMetadata, ...], missing: list[DataFragment], stale: set[str], empty: set[str],
        dataset: LanceDataset,
    ) -> _Change | None:  # fmt: skip
        new: list[IndexMetadata] = []
        rows = sum(fragment.live_rows for fragment in missing)
        if missing:
            try:
                new.append(build_segment(self.access, self.manifest, build, self.name, [fragment.id for fragment in missing]))
            except InvalidInput:
                if build.kind not in VECTOR:
                    raise
                return self._made_anew(build, raw, self.manifest.fragments)  # too few rows for a model of their own
        try:
            if self.how.merge and len(raw) + len(new) > 1:
                merged = self._merged(dataset, [*map(self._without_gone, raw), *new])
                discard_segments(self.access, (index for index in new if index.uuid != merged.uuid))
                return _Change((merged,), raw, rows)
            stays = [index for index in raw if index.uuid not in empty]
            away = [index for index in raw if index.uuid in empty] if new or stays else []
            for stay in stays:
                if stay.uuid in stale:
                    mapped = self._merged(dataset, [stay])
                    if mapped.uuid == stay.uuid:  # nothing was written
                        raise InvalidInput(f"Index {self.name} cannot be remapped.", argument="name")
                    new.append(mapped)
                    away.append(stay)
        except InvalidInput:  # some kinds cannot follow every rewrite
            discard_segments(self.access, new)
            return self._made_anew(build, raw, self.manifest.fragments)
        except TiltyardError as error:
            discard_segments(self.access, new, error)
            raise
        return _Change(tuple(new), tuple(away), rows) if new or away else None

    def _without_gone(self, segment: IndexMetadata) -> IndexMetadata:
        """A segment that no rewrite concerns, its coverage without fragments that are gone."""
        there = (covered(segment) or BitMap()) & BitMap(self.manifest.fragments.ids())
        return replace(segment, fragment_bitmap=encode_roaring(there))

    def _merged(self, dataset: LanceDataset, segments: Sequence[IndexMetadata]) -> IndexMetadata:
        """One segment of several; pylance follows rewritten fragments on the way."""
        with lance_errors(self.access, "build index", dataset.version):
            made = dataset.merge_existing_index_segments([_for_lance(segment) for segment in segments])
        return as_metadata(made, self.name)

    def _is_behind(self, segment: IndexMetadata) -> bool:
        """Whether fragments it knows were rewritten since, so that readers must translate what it says."""
        return _is_behind(segment, reuse_versions(self.manifest))

    def _is_renamed(self, segment: IndexMetadata) -> bool:
        """Whether its coverage was put into newer terms than its files. pylance goes by the coverage, and would take it for up to date."""
        later = (version for version in reuse_versions(self.manifest) if _is_before(segment, version))
        new = BitMap().union(*(after for version in later for _, after in _sides(version)))
        return bool((covered(segment) or BitMap()) & new)

    def _is_new_to(self, segment: IndexMetadata, fragments: Sequence[DataFragment]) -> bool:
        """Whether a segment certainly knows nothing of the rows in these fragments."""
        if not fragments:
            return True
        born = _born(self.access, self.run, segment)
        highest = highest_fragment_id(born)
        if highest is None:
            return True
        before = BitMap(_sources(reuse_versions(self.manifest), [fragment.id for fragment in fragments]))
        if before and before.min() <= highest:
            return False
        return not has_stable_row_ids(self.manifest) or all(_lowest_row_id(fragment) >= born.next_row_id for fragment in fragments)


# ---- what a segment can know -----------------------------------------------------------------------------------------------


def _born(access: TableAccess, run: Execution, segment: IndexMetadata) -> Manifest:
    """A version at least as new as the one the segment was built on; as old as the history tells."""
    versions = [version.version for version in access.log.versions() if version.version <= run.read.manifest.version]
    low, high, found = 0, len(versions) - 1, run.read
    while low <= high:
        middle = (low + high) // 2
        file = _peeked(access, versions[middle], run.scheme)
        if file is not None and any(index.uuid == segment.uuid for index in indices_of(file.manifest)):
            found, high = file, middle - 1
        else:
            low = middle + 1
    try:
        made_by = access.log.transaction_of(found)
    except (NotFound, CorruptTable):
        return found.manifest
    operation = made_by.operation
    if isinstance(operation, CreateIndex) and any(index.uuid == segment.uuid for index in operation.new_indices):
        read = _peeked(access, made_by.read_version, run.scheme)
        return found.manifest if read is None else read.manifest
    return found.manifest


def _peeked(access: TableAccess, version: int, scheme: Scheme) -> ManifestFile | None:
    try:
        return access.log.peek(version, scheme)
    except NotFound:
        return None


def _lowest_row_id(fragment: DataFragment) -> int:
    """-1 where it is not known."""
    if fragment.row_ids is None:
        return -1
    ids = decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source=f"fragment {fragment.id}").to_numpy()
    return int(ids.min()) if len(ids) else 0


def reuse_versions(manifest: Manifest) -> Versions:
    """What the table says of fragments that were rewritten and that indices have not followed yet, oldest first."""
    entry = singleton(manifest, FRAGMENT_REUSE)
    if entry is None or entry.details is None:
        return []
    details = pb.FragmentReuseIndexDetails.FromString(entry.details[1])
    return sorted(details.inline.versions, key=lambda version: version.dataset_version)


def _sides(version: pb.FragmentReuseIndexDetails.Version) -> list[tuple[BitMap, BitMap]]:
    return [
        (BitMap(fragment.id for fragment in group.old_fragments), BitMap(fragment.id for fragment in group.new_fragments))
        for group in version.groups
    ]


def _sources(versions: Versions, fragments: Iterable[int]) -> BitMap:
    """The fragments, and those that their rows were in before."""
    found = BitMap(fragments)
    for version in reversed(versions):
        for old, new in _sides(version):
            if new & found:
                found |= old
    return found


def _concerning(segment: IndexMetadata, versions: Versions) -> Versions:
    """The rewrites that lie on the way of the segment's fragments, forward or back."""
    bitmap = covered(segment)
    if bitmap is None:
        return versions
    related = BitMap(bitmap)
    groups = [side for version in versions for side in _sides(version)]
    while True:
        more = related.union(*(old | new for old, new in groups if (old | new) & related))
        if more == related:
            break
        related = more
    return [version for version in versions if any((old | new) & related for old, new in _sides(version))]


def _is_behind(segment: IndexMetadata, versions: Versions) -> bool:
    return any(_is_before(segment, version) for version in _concerning(segment, versions))


def _is_before(segment: IndexMetadata, version: pb.FragmentReuseIndexDetails.Version) -> bool:
    """Whether a segment was built before fragments were rewritten.

    A rewrite has the number of the version that it was put on, so one that was built on that very version is before it. Other software may
    leave an earlier number there; but whoever covers fragments that a rewrite took away does not know of it.
    """
    bitmap = covered(segment)
    named = bitmap is not None and any(old & bitmap for old, _ in _sides(version))
    return named or segment.dataset_version <= version.dataset_version


# ---- how it was built ------------------------------------------------------------------------------------------------------


def known_build(access: TableAccess, manifest: Manifest, dataset: LanceDataset, segment: IndexMetadata, how: Extension) -> Build:
    """How to build more of an index, as far as it tells that itself."""
    tree = field_tree(manifest.fields)
    column = tree.path(tree.by_id[segment.fields[0]])
    with lance_errors(access, "read indices", dataset.version):
        told = next(index for index in dataset.describe_indices() if index.name == segment.name)
        kind = _KINDS.get(told.index_type.upper(), told.index_type.upper())
        options: dict[str, Any] = {}
        if kind in VECTOR:
            options = _vector_options(told.details)
            model = None if how.retrain else _centroids(dataset, segment.name)
            if model is not None:
                options.pop("target_partition_size", None)
                # Partitions alone are not taken for PQ, and its codebook cannot be asked for: there the number of them has to do.
                options.update({"num_partitions": len(model)} if kind.endswith("PQ") else {"ivf_centroids": model})
        elif kind == "INVERTED":
            options = {key: value for key, value in told.details.items() if value is not None}
    return Build(column, kind, options, how.progress)


def _vector_options(details: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"metric": details.get("metric_type", "L2")}
    options.update((ours, details["hnsw"][theirs]) for theirs, ours in _HNSW.items() if theirs in details.get("hnsw", {}))
    packed = details.get("compression", {})
    options.update((key, packed[key]) for key in ("num_bits", "num_sub_vectors") if key in packed)
    if details.get("target_partition_size"):
        options["target_partition_size"] = details["target_partition_size"]
    return options


def _centroids(dataset: LanceDataset, name: str) -> Any:
    """The partitions of a vector index; None where it has none yet."""
    try:
        return dataset.get_ivf_model(name).centroids
    except (OSError, ValueError, RuntimeError, AttributeError):
        return None  # then new ones are trained: less alike, not less right


def _for_lance(index: IndexMetadata) -> Any:
    from lance.dataset import Index

    return Index(
        uuid=index.uuid,
        name=index.name,
        fields=list(index.fields),
        dataset_version=index.dataset_version,
        fragment_ids=set(covered(index) or ()),  # type: ignore[arg-type]
        index_version=index.index_version or 0,
        base_id=index.base_id,
        index_details=index.details,
        covering_fields=list(index.covering_fields),
    )


# ---- graphs ----------------------------------------------------------------------------------------------------------------


def mended(access: TableAccess, done: Committed, scheme: Scheme, properties: Mapping[str, str], policy: ReexecutionPolicy) -> Committed:
    """Builds graphs anew that a commit, in which an index and a rewrite met, may have left unreadable.

    pylance translates what an index says of rewritten fragments, but opens no graph of which a row was deleted before the rewrite.
    """
    result, file = done
    met = {result.operation, *(winner.operation for winner in result.rebased_over)}
    if not met >= {CreateIndex.name, Rewrite.name} or has_stable_row_ids(file.manifest):
        return done
    versions = reuse_versions(file.manifest)
    behind = {index.name for index in indices_of(file.manifest) if index.name not in SINGLETONS and _is_behind(index, versions)}
    with lance_errors(access, "read indices", file.manifest.version):
        kinds = {index.name: index.index_type for index in dataset_at(access, file.manifest).describe_indices()} if behind else {}
    for name in sorted(behind):
        if "HNSW" in kinds.get(name, ""):
            _, file = extend_index(access, file, scheme, name, Extension(), properties, policy)
    return result, file


# ---- the entry for fragments that were rewritten ---------------------------------------------------------------------------


def trim_reuse(
    access: TableAccess, read: ManifestFile, scheme: Scheme, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Takes what no index needs any more out of the entry that tells where rewritten rows went. Else nothing is committed."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        entry = singleton(manifest, FRAGMENT_REUSE)
        trimmed = None if entry is None else _trimmed(access, manifest, entry)
        if entry is None or trimmed is None:
            return nothing_done(run, CreateIndex.name, {})
        operation = CreateIndex((trimmed,), (entry,))
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        return access.committer.commit(transaction, run.read, run.scheme, run.policy)

    return run_verb(access, read, scheme, execute, policy)


def _trimmed(access: TableAccess, manifest: Manifest, entry: IndexMetadata) -> IndexMetadata | None:
    details = pb.FragmentReuseIndexDetails.FromString(entry.details[1] if entry.details else b"")
    if details.HasField("external") or details.inline.transitions:
        return None  # kept in a file of its own, or in a form that we do not write
    versions = reuse_versions(manifest)
    needed: set[int] = set()
    for index in indices_of(manifest):
        if index.name not in SINGLETONS:
            needed.update(version.dataset_version for version in _concerning(index, versions) if _is_before(index, version))
    kept = [version for version in versions if version.dataset_version in needed]
    if len(kept) == len(versions):
        return None
    del details.inline.versions[:]
    details.inline.versions.extend(kept)
    new = BitMap(fragment.id for version in kept for group in version.groups for fragment in group.new_fragments)
    url = entry.details[0] if entry.details else ""
    return replace(
        entry,
        uuid=access.runtime.random.uuid(),
        dataset_version=manifest.version,
        fragment_bitmap=encode_roaring(new),
        details=(url, details.SerializeToString(deterministic=True)),
    )
