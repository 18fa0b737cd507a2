"""The state of a write-ahead log in front of a table: set up once, then told how far each shard is in the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.fields import field_tree
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.apply.mem_wal_state import with_progress
from tiltyard.transaction.footprint import MEM_WAL, progress_of
from tiltyard.transaction.operations import CompactedSsTable, CreateIndex, Update, UpdateMemWalState
from tiltyard.transaction.system_indices import singleton
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.indices.build_index import named

Tables: TypeAlias = tuple[CompactedSsTable, ...]
"""Generations of shards that are in the table."""

_URL: Final = "/lance.table.MemWalIndexDetails"
_SPEC_ID: Final = 1
_SHARD_FIELD: Final = "bucket"
_MOST_BUCKETS: Final = 1024
_HIGHEST_GENERATION: Final = 2**64 - 1
_ARROW_NAMES: Final = {"string": "utf8", "large_string": "largeutf8"}
WRITER_SETTINGS: Final = frozenset(
    [
        "durable_write",
        "max_wal_buffer_size",
        "max_wal_flush_interval_ms",
        "max_memtable_size",
        "max_memtable_rows",
        "max_memtable_batches",
        "max_unflushed_memtable_bytes",
        "manifest_scan_batch_size",
        "backpressure_log_interval_ms",
        "stats_log_interval_ms",
    ]
)


@dataclass(frozen=True, slots=True)
class MemWalSetup:
    """How a write-ahead log is set up. At most one way of sharding; without any, writers name their shards themselves.

    Attributes:
        maintained_indexes: indices to keep up to date with the log; None for all, also later ones.
        bucket_column: with ``num_buckets``, shards by the hash of this column.
        num_buckets: how many.
        identity_column: shards by the values of this column.
        unsharded: one shard for all.
        writer: settings that writers of the log begin with.
    """

    maintained_indexes: tuple[str, ...] | None = None
    bucket_column: str | None = None
    num_buckets: int | None = None
    identity_column: str | None = None
    unsharded: bool = False
    writer: Mapping[str, int | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.bucket_column is None) != (self.num_buckets is None):
            raise InvalidInput("bucket_column and num_buckets belong together.", argument="num_buckets")
        if self.num_buckets is not None and not 1 <= self.num_buckets <= _MOST_BUCKETS:
            raise InvalidInput(f"num_buckets is a number from 1 to {_MOST_BUCKETS}.", argument="num_buckets")
        if (self.bucket_column is not None) + (self.identity_column is not None) + self.unsharded > 1:
            raise InvalidInput("A log is sharded in one way at most.", argument="unsharded")
        if strange := sorted(set(self.writer) - WRITER_SETTINGS):
            raise InvalidInput(f"Writers have no setting {strange[0]!r}.", argument=strange[0])

    def details(self, manifest: Manifest) -> bytes:
        """The same as the table keeps it."""
        made = pb.MemWalIndexDetails(maintain_all_indexes=self.maintained_indexes is None)
        for name in self.maintained_indexes or ():
            if not named(manifest, name):
                raise NotFound(f"Version {manifest.version} has no index {name!r} to maintain.", name=name)
            made.maintained_indexes.append(name)
        if self.unsharded:
            made.num_shards = 1
            _sharded(made, "unsharded", "int32")
        elif self.bucket_column is not None and self.num_buckets is not None:
            made.num_shards = self.num_buckets
            number, _ = _column(manifest, self.bucket_column)
            _sharded(made, "bucket", "int32", number).parameters["num_buckets"] = str(self.num_buckets)
        elif self.identity_column is not None:
            number, kind = _column(manifest, self.identity_column)
            _sharded(made, "identity", kind, number)
        for key, value in self.writer.items():
            made.writer_config_defaults[key] = str(value).lower()
        return made.SerializeToString(deterministic=True)


def _sharded(made: pb.MemWalIndexDetails, transform: str, result: str, source: int | None = None) -> pb.MemWalIndexDetails.ShardingField:
    spec = made.sharding_specs.add(spec_id=_SPEC_ID)
    return spec.fields.add(field_id=_SHARD_FIELD, source_ids=[] if source is None else [source], transform=transform, result_type=result)


def _column(manifest: Manifest, name: str) -> tuple[int, str]:
    """A top-level column's id and type."""
    found = next((field for field in field_tree(manifest.fields).below(-1) if field.name == name), None)
    if found is None:
        raise InvalidInput(f"There is no column {name!r}.", argument="column")
    kind = str(arrow_from_fields(manifest.fields, manifest.schema_metadata).field(name).type)
    return found.id, _ARROW_NAMES.get(kind, kind)


# ---- the verbs -------------------------------------------------------------------------------------------------------------


def initialize(
    access: TableAccess, read: ManifestFile, scheme: Scheme, setup: MemWalSetup, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Sets the log up, once."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        if singleton(manifest, MEM_WAL) is not None:
            raise AlreadyExists(f"{access.store.uri} has a write-ahead log already.", name=MEM_WAL)
        entry = IndexMetadata(
            uuid=access.runtime.random.uuid(),
            fields=(),
            name=MEM_WAL,
            dataset_version=manifest.version,
            details=(_URL, setup.details(manifest)),
            index_version=0,
            created_at=int(access.runtime.clock.now().timestamp() * 1000),
        )
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), CreateIndex((entry,)), properties)
        return access.committer.commit(transaction, run.read, run.scheme, run.policy)

    return run_verb(access, read, scheme, execute, policy)


def mark_merged(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    generations: Mapping[str, int],
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Records up to which generation shards are in the table. Only forward: a generation that is not higher is refused."""
    tables = compacted(generations)

    def execute(run: Execution) -> Committed:
        return commit_progress(access, run, tables, properties)

    return run_verb(access, read, scheme, execute, policy)


def commit_progress(
    access: TableAccess, run: Execution, tables: Tables, properties: Mapping[str, str], counts: Mapping[str, int] | None = None
) -> Committed:
    """Commits nothing but how far shards are."""
    transaction = Transaction(run.read.manifest.version, access.runtime.random.uuid(), UpdateMemWalState(tables), properties)
    return access.committer.commit(transaction, run.read, run.scheme, run.policy, counts=counts)


def check_progress(manifest: Manifest, tables: Tables) -> None:
    """Refuses generations that are merged already, before any row is looked at. What others merge meanwhile, the commit finds out.

    Raises:
        IncompatibleConflict: one is not higher than the one recorded, or the table has no log.
    """
    with_progress(indices_of(manifest), tables, manifest.version, Update.name)


def compacted(generations: Mapping[Any, int]) -> Tables:
    """Generations by shard, checked, as an operation carries them."""
    if not isinstance(generations, Mapping):
        raise InvalidInput("Generations are numbers by shard.", argument="generations")
    return tuple(_compacted(generations.items()))


def _compacted(pairs: Iterable[tuple[object, object]]) -> Iterable[CompactedSsTable]:
    for shard, generation in pairs:
        try:
            known = str(UUID(str(shard)))
        except ValueError as error:
            raise InvalidInput(f"A shard is named by a uuid, not {shard!r}.", argument="shard") from error
        if isinstance(generation, bool) or not isinstance(generation, int) or not 0 <= generation <= _HIGHEST_GENERATION:
            raise InvalidInput(f"A generation is a number of at least 0, not {generation!r}.", argument="generation")
        yield CompactedSsTable(known, generation)


def generations_of(manifest: Manifest) -> dict[str, int] | None:
    """How far each shard is in the table; None where there is no log."""
    entry = singleton(manifest, MEM_WAL)
    return None if entry is None else progress_of(entry)
