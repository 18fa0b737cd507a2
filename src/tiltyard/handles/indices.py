"""Indices of a table, and its write-ahead log, whose state is kept like one, as ``t.indices`` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace as with_changes
from uuid import UUID

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.manifest import decode_indices
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import IndexMetadata
from tiltyard.handles.base import Handle, shorthand
from tiltyard.options import CommitOptions, IndexSpec, WalSharding
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Committed, ReexecutionPolicy, commit_terms
from tiltyard.verbs.engine.row_deletion import dataset_at
from tiltyard.verbs.indices.build_index import Build, IndexRunner, NewIndex, Progress, create_index, drop_index, segments_of
from tiltyard.verbs.indices.index_list import IndexInfo, list_indices
from tiltyard.verbs.indices.mem_wal import MemWalSetup, generations_of, initialize, mark_merged
from tiltyard.verbs.indices.optimize_indices import Extension, extend_index, mended, names_of, trim_reuse


class IndexReader:
    """The indices of a version."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    def list(self) -> tuple[IndexInfo, ...]:
        """The indices by name, with what they cover and what they do not."""
        access, file = self._table._access, self._table._file
        return list_indices(access, file.manifest, lambda: dataset_at(access, file.manifest))

    @property
    def segments(self) -> tuple[IndexMetadata, ...]:
        """The index segments, as the manifest has them."""
        manifest = self._table._file.manifest
        return decode_indices(manifest, f"version {manifest.version}")


class TableIndices(IndexReader):
    """The indices of a table, with the verbs that change them."""

    def create(
        self,
        column: str,
        index_type: str | IndexSpec,
        name: str | None = None,
        *,
        replace: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Creates an index over all rows.

        Others may write meanwhile; rows they add are found by scanning until ``optimize``.

        Args:
            column: the column, ``"s.x"`` for a member of a struct.
            index_type: ``BTREE``, ``BITMAP``, ``LABEL_LIST``, ``NGRAM``, ``ZONEMAP``, ``BLOOMFILTER`` or ``RTREE``; ``INVERTED`` for
                full text; ``IVF_FLAT``, ``IVF_PQ``, ``IVF_SQ``, ``IVF_RQ``, ``IVF_HNSW_FLAT``, ``IVF_HNSW_PQ`` or ``IVF_HNSW_SQ`` for
                vectors. An ``IndexSpec`` adds options, progress, and how to build it in other processes.
            name: what to call it; by default the column with ``_idx``, and a number where an index of another type has that name.
            replace: whether it may replace an index of that name.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it; ``rows["indexed"]`` says how many rows it covers.

        Raises:
            AlreadyExists: there is an index of that name.
            InvalidInput: there is no such type or option, or the column cannot be indexed that way.
            RetryableConflict: its fragments were rewritten or its name was taken meanwhile, again and again.
        """
        spec = index_type if isinstance(index_type, IndexSpec) else IndexSpec(index_type)
        kind = spec.type.upper() if isinstance(spec.type, str) else spec.type
        new = NewIndex(Build(column, kind, dict(spec.options or {}), spec.progress), name, replace)
        described, policy = commit_terms(commit, message)
        return self._table._commit(self._table._whole, _create, new, described, policy, spec.runner)

    def drop(self, name: str, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Drops an index. Older versions keep it.

        Args:
            name: what it is called.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            NotFound: there is no such index.
        """
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._whole, drop_index, name, described, policy)

    def extend(
        self,
        name: str,
        *,
        merge: bool = False,
        retrain: bool = False,
        progress: Progress | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Brings one index up to date with new rows and with fragments that were compacted.

        New rows go into a further segment. Where the index may hold former values of rows it does not cover, as after an update of its
        column, it is rebuilt.

        Args:
            name: what it is called.
            merge: make it one segment, instead of adding one.
            retrain: rebuild it, the partitions of a vector index included.
            progress: called with the stage of the work, how much of it is done, and of how much or None.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it; ``rows["indexed"]`` says how many rows were indexed. If it was up to date, nothing is committed.

        Raises:
            NotFound: there is no such index.
        """
        how = Extension(merge, retrain, progress)
        described, policy = commit_terms(commit, message)
        return self._table._commit(self._table._whole, _extend, name, how, described, policy)

    def optimize(
        self,
        names: Iterable[str] | None = None,
        *,
        merge: bool = False,
        retrain: bool = False,
        progress: Progress | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Brings indices up to date, each in a commit of its own, and trims the fragment-reuse index.

        Args:
            names: which ones; all by default.
            merge: make each one segment, instead of adding one.
            retrain: rebuild them, the partitions of vector indices included.
            progress: called with the stage of the work, how much of it is done, and of how much or None.
            message: a sentence for the history.
            commit: properties, retries and deadline, for each commit.

        Returns:
            What became of the last commit; ``rows["indexed"]`` counts the rows of all. If all was up to date, nothing is committed.

        Raises:
            NotFound: there is no index of one of these names.
        """
        if isinstance(names, str):
            raise InvalidInput("names is a list of index names; for one index use t.indices.extend.", argument="names")
        table = self._table
        chosen = names_of(table._file.manifest) if names is None else [*names]
        for name in chosen:
            segments_of(table._file.manifest, name)
        how = Extension(merge, retrain, progress)
        described, policy = commit_terms(commit, message)
        results = []
        for name in chosen:
            try:
                results.append(table._commit(table._whole, _extend, name, how, described, policy))
            except NotFound:
                if names is not None:
                    raise
                # Dropped by another writer meanwhile, and the caller did not name it.
        results.append(table._commit(table._whole, trim_reuse, described, policy))
        return _last(results)

    @property
    def mem_wal(self) -> MemWal:
        """The state of a write-ahead log in front of this table."""
        return MemWal(self._table)


class IndexVerbs(Handle):
    """The indices of a handle that writes, and shorthands for the most used verbs."""

    @property
    def indices(self) -> TableIndices:
        """Lists, creates, drops and optimizes indices."""
        return TableIndices(self)

    create_index = shorthand("indices", TableIndices.create)
    drop_index = shorthand("indices", TableIndices.drop)


def _last(results: list[CommitResult]) -> CommitResult:
    committed = [result for result in results if result.transaction_id] or results[-1:]
    return with_changes(committed[-1], rows={"indexed": sum(result.rows.get("indexed", 0) for result in results)})


def _create(
    access: TableAccess, read: ManifestFile, scheme: Scheme, new: NewIndex, described: Mapping[str, str], policy: ReexecutionPolicy,
    runner: IndexRunner | None,
) -> Committed:  # fmt: skip
    return mended(access, create_index(access, read, scheme, new, described, policy, runner), scheme, described, policy)


def _extend(
    access: TableAccess, read: ManifestFile, scheme: Scheme, name: str, how: Extension, described: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:  # fmt: skip
    return mended(access, extend_index(access, read, scheme, name, how, described, policy), scheme, described, policy)


class MemWal:
    """The state of a write-ahead log in a table: which generations are merged. The log is pylance's."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    @property
    def generations(self) -> dict[str, int] | None:
        """For each shard the generation up to which it is in this version; None where there is no log."""
        return generations_of(self._table._file.manifest)

    def initialize(
        self,
        *,
        maintained_indexes: Iterable[str] | None = None,
        sharding: WalSharding | None = None,
        writer: Mapping[str, int | bool] | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Initializes the log, once.

        Args:
            maintained_indexes: indices to keep up to date with the log; by default all, also later ones.
            sharding: how it is split; without it writers name their shards themselves.
            writer: settings that writers of the log begin with, such as ``max_memtable_rows``.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            AlreadyExists: there is a log.
            NotFound: there is no index of one of these names.
        """
        indices = None if maintained_indexes is None else tuple(maintained_indexes)
        split = sharding or WalSharding()
        setup = MemWalSetup(indices, split.bucket_column, split.num_buckets, split.identity_column, split.unsharded, dict(writer or {}))
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._whole, initialize, setup, described, policy)

    def mark_merged(
        self, shard: str | UUID, generation: int, *, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Records that a shard is in the table up to a generation.

        Args:
            shard: its uuid.
            generation: must be higher than the one recorded.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            IncompatibleConflict: that generation or a higher one was recorded already, or there is no log.
        """
        described, policy = commit_terms(commit, message)
        table, generations = self._table, {str(shard): generation}
        return table._commit(table._whole, mark_merged, generations, described, policy)
