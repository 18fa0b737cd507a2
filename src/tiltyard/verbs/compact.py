"""Rewrites small fragments, and those with many deletions, into fewer ones, while others go on writing.

pylance plans and writes; the commit is ours. It says that rows kept their order, so that deletions of others follow it, or it follows
them: neither side has to start again. With ``cluster_by`` rows get another order (``cluster_rows``): where rows do not keep their ids, the
second of such a rewrite and a deletion in the same fragments is re-executed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from tiltyard.errors import ConflictError, ContentionError, InvalidInput, NotFound, TiltyardError
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.transaction.apply.coverage import current, indices_of, knows_row_ids
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.footprint import FRAGMENT_REUSE, SINGLETONS, coverage, fragments_of
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import ReserveFragments, Rewrite, RewriteGroup
from tiltyard.transaction.row_map import CHANGED, KEPT, ROW_ORDER
from tiltyard.transaction.system_indices import singleton
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.cluster_rows import MOST_COLUMNS, clustered
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.distributed.compact_tasks import CompactRunner, narrowed, run_tasks
from tiltyard.verbs.distributed.scan_tasks import scan_task
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import fragment_from_lance, keep_statistics
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import dataset_at, discard_files
from tiltyard.verbs.engine.sql_expressions import checked
from tiltyard.verbs.indices.optimize_indices import Extension, extend_index, mended
from tiltyard.verbs.statistics.analyze import gathered
from tiltyard.verbs.statistics.fragment_pruning import fragments_that_may_hold
from tiltyard.verbs.statistics.gather_statistics import is_long

if TYPE_CHECKING:
    from lance import LanceDataset

_log = logging.getLogger("tiltyard.compact")

_REUSE_URL: Final = "/lance.table.FragmentReuseIndexDetails"

Progress = Callable[[int, int], object]
"""Is told how many of how many groups are written."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What is to be put together.

    Attributes:
        target_rows: rows that a fragment should have; smaller neighbours are joined.
        max_bytes: bytes after which a new data file is begun.
        deletions: the share of deleted rows from which a fragment is rewritten for that alone; None to leave them.
        progress: is told how far it is.
        where: only fragments that may hold rows for which this condition is true.
        cluster_by: columns that all rows of these fragments are sorted by.
    """

    target_rows: int = 1024 * 1024
    max_bytes: int | None = None
    deletions: float | None = 0.1
    progress: Progress | None = None
    where: str | None = None
    cluster_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.target_rows, int) or self.target_rows < 1:
            raise InvalidInput("target_rows is a number of rows, at least 1.", argument="target_rows")
        if self.max_bytes is not None and (not isinstance(self.max_bytes, int) or self.max_bytes < 1):
            raise InvalidInput("max_bytes is a number of bytes, at least 1.", argument="max_bytes")
        if self.deletions is not None and not 0 <= self.deletions <= 1:
            raise InvalidInput("deletions is a share between 0 and 1, or None.", argument="deletions")
        if self.where is not None and not isinstance(self.where, str):
            raise InvalidInput(f"where is a SQL expression as text, not {self.where!r}.", argument="where")
        names = self.cluster_by
        if (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name, str) for name in names)
            or len(set(names)) != len(names)
        ):
            raise InvalidInput("cluster_by is a list of different names of columns.", argument="cluster_by")
        if len(names) > MOST_COLUMNS:
            raise InvalidInput(f"Rows are sorted by at most {MOST_COLUMNS} columns.", argument="cluster_by")

    def options(self) -> dict[str, Any]:
        """The same as pylance calls it."""
        known: dict[str, Any] = {"target_rows_per_fragment": self.target_rows, "materialize_deletions": self.deletions is not None}
        if self.deletions is not None:
            known["materialize_deletions_threshold"] = self.deletions
        if self.max_bytes is not None:
            known["max_bytes_per_file"] = self.max_bytes
        return known


def compact_table(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    compaction: Compaction,
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
    runner: CompactRunner | None = None,
) -> Committed:  # fmt: skip
    """Compacts. Where there is nothing to gain, nothing is committed. ``runner`` has the files written elsewhere."""
    uncovered: set[str] = set()
    made: set[str] = set()

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        if compaction.cluster_by:
            done, written = _clustered(access, run, compaction, properties, runner)
            uncovered.update(_left_behind(manifest, written, ordered=False))
            made.update(_short_files(written))
            return done
        written = _written(access, manifest, compaction) if runner is None else _written_elsewhere(access, manifest, compaction, runner)
        if not written:
            return nothing_done(run, Rewrite.name, {})
        try:
            done = _committed(access, run, written, properties)
        except TiltyardError as error:
            groups = tuple(RewriteGroup((), group.new) for group in written)
            discard_files(access, new_files(Rewrite(groups), None), error)
            raise
        _remove_emptied(access, written, done)
        uncovered.update(_left_behind(manifest, written))
        made.update(file.path for group in written for fragment in group.new for file in fragment.files)
        return done

    done = mended(access, run_verb(access, read, scheme, execute, policy), scheme, properties, policy)
    _keep_statistics(access, done[1].manifest, made, short=bool(compaction.cluster_by))
    return _with_coverage(access, done, scheme, uncovered, properties, policy)


def _keep_statistics(access: TableAccess, manifest: Manifest, made: set[str], *, short: bool) -> None:
    """Looks at what pylance wrote. The compaction is committed by then: what cannot be read now is left to ``analyze``."""
    new = [fragment for fragment in manifest.fragments if any(file.path in made for file in fragment.files)] if made else []
    try:
        keep_statistics(access, gathered(access, manifest, new, short=short))
    except TiltyardError as error:
        _log.warning("compacted fragments have no statistics: %s", error)


def _clustered(
    access: TableAccess, run: Execution, compaction: Compaction, properties: Mapping[str, str], runner: CompactRunner | None
) -> tuple[Committed, list[_Group]]:
    """Rows in another order. Nobody can tell where a row went by counting, so no reuse entry translates addresses: indices are extended."""
    manifest = run.read.manifest
    made = clustered(access, manifest, compaction, _chosen(access, manifest, compaction), runner)
    if made is None:
        return nothing_done(run, Rewrite.name, {}), []
    written = [_Group(made.old, made.new, None)]
    try:
        done = _committed(access, run, written, properties)
    except TiltyardError as error:
        made.discard(access, error)
        raise
    made.remove_leftovers(access)
    _remove_emptied(access, written, done)
    return done, written


def _short_files(written: list[_Group]) -> set[str]:
    """Files too short for writers to keep statistics of, if there are others: without any, nobody could pass over one of them."""
    new = [fragment for group in written for fragment in group.new]
    short = [fragment for fragment in new if not is_long(fragment.physical_rows)] if len(new) > 1 else []
    return {file.path for fragment in short for file in fragment.files}


def _chosen(access: TableAccess, manifest: Manifest, compaction: Compaction) -> set[int] | None:
    """The fragments that the condition may hold for a row of; None for all."""
    if compaction.where is None:
        return None
    checked(compaction.where, arrow_from_fields(manifest.fields))
    return fragments_that_may_hold(access, manifest, compaction.where)


def _left_behind(manifest: Manifest, written: list[_Group], *, ordered: bool = True) -> set[str]:
    """Indices that lose fragments: they know rows by address, and no reuse entry translates these."""
    if not has_stable_row_ids(manifest) and ordered:
        return set()
    gone = BitMap(fragment.id for group in written for fragment in group.old)
    stable = has_stable_row_ids(manifest)
    names = set()
    for index in current(manifest):
        covered = (coverage(index) or BitMap()) & gone
        # Ids follow their rows, unless rows that the index does not know come to lie among them.
        follows = stable and knows_row_ids(index) and (ordered or covered == gone)
        if index.name not in SINGLETONS and covered and not follows:
            names.add(index.name)
    return names


def _with_coverage(
    access: TableAccess, done: Committed, scheme: Scheme, names: set[str], properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Extends indices over the new fragments. The compaction is committed by then: if others are in the way, scans read those fragments."""
    result, file = done
    for name in sorted(names):
        try:
            _, file = extend_index(access, file, scheme, name, Extension(), properties, policy)
        except (ConflictError, ContentionError, NotFound) as error:
            _log.warning("index %s does not cover the compacted fragments: %s", name, error, extra={"index": name})
    return result, file


@dataclass(frozen=True, slots=True)
class _Group:
    """Fragments as they were, and what their rows were written to.

    Attributes:
        old: as they were.
        new: as they are.
        places: where the rows were, as pylance packs that; None where they are in another order now.
    """

    old: tuple[DataFragment, ...]
    new: tuple[DataFragment, ...]
    places: bytes | None


def _planned(access: TableAccess, dataset: LanceDataset, manifest: Manifest, compaction: Compaction) -> list[Any]:
    """What pylance would put together, as far as it may, of the fragments that were chosen."""
    from lance.optimize import Compaction as Planner

    chosen = _chosen(access, manifest, compaction)
    plan = Planner.plan(dataset, options=compaction.options())  # type: ignore[arg-type]
    pinned = _pinned(dataset, manifest)
    tasks = [task for task in plan.tasks if not pinned or pinned.isdisjoint(fragment.id for fragment in task.fragments)]
    return tasks if chosen is None else [part for task in tasks for part in narrowed(task, chosen)]


def _written_elsewhere(access: TableAccess, manifest: Manifest, compaction: Compaction, runner: CompactRunner) -> list[_Group]:
    with lance_errors(access, "plan the compaction", manifest.version):
        tasks = _planned(access, dataset_at(access, manifest), manifest, compaction)
    groups = [_group(task, manifest) for task in run_tasks(scan_task(access, manifest), tasks, runner)] if tasks else []
    if len(groups) < len(tasks):
        raise InvalidInput(f"The runner returned {len(groups)} results for {len(tasks)} tasks.", argument="runner")
    return groups


def _written(access: TableAccess, manifest: Manifest, compaction: Compaction) -> list[_Group]:
    dataset = dataset_at(access, manifest)
    running: list[Future[Any]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            with lance_errors(access, "compact fragments", manifest.version):
                tasks = _planned(access, dataset, manifest, compaction)
                running += [pool.submit(task.execute, dataset) for task in tasks]
                fragments_of(manifest, [fragment.id for task in tasks for fragment in task.fragments])  # decoded while pylance writes
                groups: list[_Group] = []
                for future in running:
                    groups.append(_group(future.result(), manifest))
                    if compaction.progress is not None:
                        compaction.progress(len(groups), len(running))
                return groups
        except BaseException as error:
            pool.shutdown(cancel_futures=True)  # and wait for those that were begun: they leave files, too
            if isinstance(error, TiltyardError):
                made = [_group(future.result(), manifest) for future in running if not future.cancelled() and future.exception() is None]
                discard_files(access, new_files(Rewrite(tuple(RewriteGroup((), group.new) for group in made)), None), error)
            raise


def _pinned(dataset: LanceDataset, manifest: Manifest) -> set[int]:
    """Fragments that stay as they are: their rows are nodes of a graph, which pylance cannot read any more when some of them are gone."""
    vectors = [index for index in indices_of(manifest) if index.details is not None and index.details[0].endswith("VectorIndexDetails")]
    if has_stable_row_ids(manifest) or not vectors:
        return set()
    worn = {deletion.id for deletion in manifest.fragments.with_deletions()}
    if not worn:
        return set()
    graphs = {index.name for index in dataset.describe_indices() if "HNSW" in index.index_type}
    covered = [coverage(vector) for vector in vectors if vector.name in graphs]
    return {number for number in worn if any(bitmap is None or number in bitmap for bitmap in covered)}


def _group(result: Any, manifest: Manifest) -> _Group:
    told = json.loads(result.json())
    known = fragments_of(manifest, [item["id"] for item in told["original_fragments"]])
    old = tuple(known[item["id"]] for item in told["original_fragments"])
    new = tuple(
        replace(
            fragment_from_lance(item),
            row_ids=_bytes(as_told.get("row_id_meta"), "Inline"),
            created_at=_bytes(as_told.get("created_at_version_meta"), "inline"),
            updated_at=_bytes(as_told.get("last_updated_at_version_meta"), "inline"),
        )
        for item, as_told in zip(result.new_fragments, told["new_fragments"], strict=True)
    )
    return _Group(old, new, bytes(told.get("row_addrs") or b""))


def _bytes(told: Mapping[str, list[int]] | None, name: str) -> bytes | None:
    return bytes(told[name]) if told else None


# ---- the commit ------------------------------------------------------------------------------------------------------------


def _committed(access: TableAccess, run: Execution, written: list[_Group], properties: Mapping[str, str]) -> Committed:
    count = sum(len(group.new) for group in written)
    reserve = Transaction(run.read.manifest.version, access.runtime.random.uuid(), ReserveFragments(count), properties)
    _, reserved = access.committer.commit(reserve, run.read, run.scheme, run.policy)
    highest = reserved.manifest.max_fragment_id
    assert highest is not None
    groups, following = [], highest - count + 1
    for group in written:
        new = tuple(replace(fragment, id=following + place_) for place_, fragment in enumerate(group.new))
        groups.append(replace(group, new=new))
        following += len(new)
    rewrite = Rewrite(tuple(RewriteGroup(group.old, group.new) for group in groups))
    # With nobody in between, the version of the reservation is as good to stand on, and is at hand.
    ground = reserved if reserved.manifest.version == run.read.manifest.version + 1 else run.read
    ordered = all(group.places is not None for group in written)
    said = {**properties, ROW_ORDER: KEPT if ordered else CHANGED}
    transaction = Transaction(ground.manifest.version, access.runtime.random.uuid(), rewrite, said)
    reuse = _reuse_entry(access, run.read.manifest, groups) if ordered else None
    return access.committer.commit(transaction, ground, run.scheme, run.policy, reuse=reuse)


def _remove_emptied(access: TableAccess, written: list[_Group], done: Committed) -> None:
    """A new fragment is left out of the commit if others took all its rows meanwhile: its file is nobody's."""
    result, file = done
    if result.rebased_over:
        named = {data_file.path for fragment in file.manifest.fragments for data_file in fragment.files}
        for path in {file.path for group in written for fragment in group.new for file in fragment.files} - named:
            with suppress(TiltyardError):
                access.store.delete(f"data/{path}")


def _reuse_entry(access: TableAccess, manifest: Manifest, groups: list[_Group]) -> IndexMetadata | None:
    """The entry that tells where rows went, for indices that know them by their places and cover any of these fragments."""
    if has_stable_row_ids(manifest):
        return None
    gone = {fragment.id for group in groups for fragment in group.old}
    indices = [index for index in indices_of(manifest) if index.name not in SINGLETONS]
    if not any((covered := coverage(index)) is None or gone.intersection(covered) for index in indices):
        return None
    before = singleton(manifest, FRAGMENT_REUSE)
    details = pb.FragmentReuseIndexDetails()
    if before is not None and before.details is not None:
        details = pb.FragmentReuseIndexDetails.FromString(before.details[1])
    version = details.inline.versions.add(dataset_version=manifest.version)
    for group in groups:
        version.groups.add(
            changed_row_addrs=group.places or b"", old_fragments=map(_digest, group.old), new_fragments=map(_digest, group.new)
        )
    after = {fragment.id for version in details.inline.versions for group in version.groups for fragment in group.new_fragments}
    return IndexMetadata(
        uuid=access.runtime.random.uuid(),
        fields=(),
        name=FRAGMENT_REUSE,
        dataset_version=manifest.version,
        fragment_bitmap=encode_roaring(BitMap(after)),
        details=(_REUSE_URL, details.SerializeToString(deterministic=True)),
        index_version=0,
    )


def _digest(fragment: DataFragment) -> pb.FragmentReuseIndexDetails.FragmentDigest:
    deleted = fragment.physical_rows - fragment.live_rows
    return pb.FragmentReuseIndexDetails.FragmentDigest(id=fragment.id, physical_rows=fragment.physical_rows, num_deleted_rows=deleted)
