"""Verbs about indices, and about the write-ahead log, whose state is kept like one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace as with_changes
from functools import partial
from typing import Any
from uuid import UUID

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy
from tiltyard.verbs.engine.row_deletion import dataset_at
from tiltyard.verbs.indices.build_index import Build, NewIndex, Progress, create_index, drop_index, segments_of
from tiltyard.verbs.indices.index_list import IndexInfo, list_indices
from tiltyard.verbs.indices.mem_wal import MemWalSetup, generations_of, initialize, mark_merged
from tiltyard.verbs.indices.optimize_indices import Extension, extend_index, mended, names_of, trim_reuse


class IndexVerbs(Handle):
    """What a handle does about indices."""

    def create_index(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        replace: bool = False,
        progress: Progress | None = None,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        **options: Any,
    ) -> CommitResult:
        """Builds an index over all rows. Others may write meanwhile; what they add is found by scanning until ``optimize_indices``.

        Args:
            column: the column, ``"s.x"`` for a member of a struct.
            index_type: ``BTREE``, ``BITMAP``, ``LABEL_LIST``, ``NGRAM``, ``ZONEMAP``, ``BLOOMFILTER`` or ``RTREE``; ``INVERTED`` for
                full text; ``IVF_FLAT``, ``IVF_PQ``, ``IVF_SQ``, ``IVF_RQ``, ``IVF_HNSW_FLAT``, ``IVF_HNSW_PQ`` or ``IVF_HNSW_SQ`` for
                vectors.
            name: what to call it; by default the column with ``_idx``, and a number where an index of another type has that name.
            replace: whether it may take the place of one with that name.
            progress: called with the stage of the work, how much of it is done, and of how much or None.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
            options: what pylance knows of this type, such as ``num_partitions``, ``metric`` or ``with_position``.

        Returns:
            What became of it; ``rows["indexed"]`` says how many rows it covers.

        Raises:
            AlreadyExists: there is an index of that name.
            InvalidInput: there is no such type or option, or the column cannot be indexed that way.
            RetryableConflict: its fragments were rewritten or its name was taken meanwhile, again and again.
        """
        kind = index_type.upper() if isinstance(index_type, str) else index_type
        new = NewIndex(Build(column, kind, options, progress), name, replace)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)

        def work() -> tuple[CommitResult, ManifestFile]:
            done = create_index(self._place, self._file, self._scheme, new, described, policy)
            return mended(self._place, done, self._scheme, described, policy)

        return self._commit(work)

    def drop_index(
        self,
        name: str,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Drops an index. Older versions keep it.

        Args:
            name: what it is called.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            NotFound: there is no such index.
        """
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: drop_index(self._place, self._file, self._scheme, name, described, policy))

    def extend_index(
        self,
        name: str,
        *,
        merge: bool = False,
        retrain: bool = False,
        progress: Progress | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Brings an index up to date: adds the rows that it does not cover, and follows fragments that were compacted.

        Rows that came since are put into a further segment. Where the index may hold former values of rows it does not cover, as after
        an update of its column, it is built anew.

        Args:
            name: what it is called.
            merge: make it one segment, instead of adding one.
            retrain: build it anew, the partitions of a vector index included.
            progress: called with the stage of the work, how much of it is done, and of how much or None.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Returns:
            What became of it; ``rows["indexed"]`` says how many rows were indexed. If it was up to date, nothing is committed.

        Raises:
            NotFound: there is no such index.
        """
        how = Extension(merge, retrain, progress)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: self._extend(name, how, described, policy))

    def optimize_indices(
        self,
        names: Iterable[str] | None = None,
        *,
        merge: bool = False,
        retrain: bool = False,
        progress: Progress | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Brings indices up to date, each in a commit of its own, and forgets what was kept for those that had yet to follow.

        Args:
            names: which ones; all by default.
            merge: make each one segment, instead of adding one.
            retrain: build them anew, the partitions of vector indices included.
            progress: called with the stage of the work, how much of it is done, and of how much or None.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often each is done again on the newest version after a conflict that allows it.
            deadline: seconds after which, for each, neither is begun again.

        Returns:
            What became of the last commit; ``rows["indexed"]`` counts the rows of all. If all was up to date, nothing is committed.

        Raises:
            NotFound: there is no index of one of these names.
        """
        if isinstance(names, str):
            raise InvalidInput("names are several; for one index use extend_index.", argument="names")
        chosen = names_of(self._file.manifest) if names is None else list(names)
        for name in chosen:
            segments_of(self._file.manifest, name)
        how = Extension(merge, retrain, progress)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        results = []
        for name in chosen:
            try:
                results.append(self._commit(partial(self._extend, name, how, described, policy)))
            except NotFound:
                if names is not None:
                    raise
                # Dropped by somebody meanwhile, and nobody asked for it by its name.
        results.append(self._commit(lambda: trim_reuse(self._place, self._file, self._scheme, described, policy)))
        return _last(results)

    def _extend(self, name: str, how: Extension, described: Mapping[str, str], policy: RerunPolicy) -> tuple[CommitResult, ManifestFile]:
        done = extend_index(self._place, self._file, self._scheme, name, how, described, policy)
        return mended(self._place, done, self._scheme, described, policy)

    def list_indices(self) -> tuple[IndexInfo, ...]:
        """The indices of this version by name, with what they cover and what they do not."""
        file = self._file
        return list_indices(self._place, file.manifest, lambda: dataset_at(self._place, file.manifest))

    @property
    def mem_wal(self) -> MemWal:
        """The state of a write-ahead log in front of this table."""
        return MemWal(self)


def _last(results: list[CommitResult]) -> CommitResult:
    committed = [one for one in results if one.transaction_id] or results[-1:]
    return with_changes(committed[-1], rows={"indexed": sum(one.rows.get("indexed", 0) for one in results)})


class MemWal:
    """How far a write-ahead log is in a table. The log itself is pylance's; this is what the table says of it."""

    def __init__(self, table: IndexVerbs) -> None:
        self._table = table

    @property
    def generations(self) -> dict[str, int] | None:
        """For each shard the generation up to which it is in this version; None where there is no log."""
        return generations_of(self._table._file.manifest)

    def initialize(
        self,
        *,
        maintained_indexes: Iterable[str] | None = None,
        bucket_column: str | None = None,
        num_buckets: int | None = None,
        identity_column: str | None = None,
        unsharded: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        **writer: int | bool,
    ) -> CommitResult:
        """Sets a log up, once. At most one way of sharding; without any, writers name their shards themselves.

        Args:
            maintained_indexes: indices to keep up to date with the log; by default all, also later ones.
            bucket_column: with ``num_buckets``, shards by the hash of this column.
            num_buckets: how many.
            identity_column: shards by the values of this column.
            unsharded: one shard for all.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
            writer: settings that writers of the log begin with, such as ``max_memtable_rows``.

        Raises:
            AlreadyExists: there is a log.
            NotFound: there is no index of one of these names.
        """
        indices = None if maintained_indexes is None else tuple(maintained_indexes)
        setup = MemWalSetup(indices, bucket_column, num_buckets, identity_column, unsharded, writer)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        table = self._table
        return table._commit(lambda: initialize(table._place, table._file, table._scheme, setup, described, policy))

    def mark_merged(
        self,
        shard: str | UUID,
        generation: int,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Records that a shard is in the table up to a generation.

        Args:
            shard: its uuid.
            generation: must be higher than the one recorded.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            IncompatibleConflict: somebody recorded that generation or a higher one already, or there is no log.
        """
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        table, generations = self._table, {str(shard): generation}
        return table._commit(lambda: mark_merged(table._place, table._file, table._scheme, generations, described, policy))
