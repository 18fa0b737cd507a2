"""Tiltyard: a transactional lakehouse engine for tables in the Lance format.

The public names are those in ``__all__``. The packages below (``format``, ``storage``, ``transaction``, ``verbs``) are internal;
``tiltyard.testing`` is for authors of stores, handlers and catalogs.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import Any as _Any

from tiltyard import conflicts, distributed, errors, locks, merges, metrics, ops, outcomes, telemetry
from tiltyard.batching.batch_writer import BatchWriter, Receipt
from tiltyard.catalog.lake_values import LakeCommit
from tiltyard.errors import (
    AlreadyCommitted,
    AlreadyExists,
    ConflictError,
    ContentionError,
    CorruptTable,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    IncompatibleConflict,
    InvalidInput,
    KeyConflict,
    MergeConflict,
    NotFound,
    OutcomeUnknown,
    OwnershipError,
    ProtectedBranch,
    RetryableConflict,
    StorageError,
    TiltyardError,
    UnsafeStore,
    UnsupportedFeature,
    Winner,
    WriterTimeout,
)
from tiltyard.handles.rows import MergeBuilder
from tiltyard.lake import Lake
from tiltyard.lakes.branches.lake_refs import LakeBranch, LakeTag
from tiltyard.lakes.check_catalog import LakeCheckReport, LakeProblem
from tiltyard.lakes.cleanup.lake_cleanup import LakeCleanupReport
from tiltyard.lakes.lake_clone import LakeClone
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.lake_tables import LakeReader, LakeTable, TransactionTable
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.lakes.recovery.backup import LakeBackup
from tiltyard.lakes.recovery.repairing import LakeRepairReport
from tiltyard.lakes.recovery.restoring import LakeRecoveryReport
from tiltyard.lakes.recovery.upgrade import LakeUpgradeReport
from tiltyard.lakes.remote_lake import RemoteLake, RemoteTransaction, connect
from tiltyard.lakes.sharded.sharded_reader import ShardedReader
from tiltyard.lakes.sharded.sharded_tables import ShardedTable, ShardedTransactionTable
from tiltyard.lakes.short_name import register as _register_namespace
from tiltyard.options import (
    Backfill,
    CloneOptions,
    CommitOptions,
    FileLimits,
    IndexSpec,
    LakeRetention,
    RecoveryOptions,
    Storage,
    TableOptions,
    WalSharding,
)
from tiltyard.table import Table, TableReader, TableWriter
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.check.findings import CheckReport, Problem
from tiltyard.verbs.cleanup.run_cleanup import CleanedFile, CleanupReport
from tiltyard.verbs.engine.isolated import ReadLimits
from tiltyard.verbs.explain import Explanation, FailedAttempt
from tiltyard.verbs.indices.index_list import IndexInfo
from tiltyard.verbs.statistics.analyze import ColumnSummary, TableStatistics
from tiltyard.verbs.table_history import HistoryEntry
from tiltyard.verbs.table_settings import resume_migration

__version__ = _version("tiltyard")

__all__ = [
    "AlreadyCommitted",
    "AlreadyExists",
    "Backfill",
    "BatchWriter",
    "CheckReport",
    "CleanedFile",
    "CleanupReport",
    "CloneOptions",
    "ColumnSummary",
    "CommitOptions",
    "CommitResult",
    "ConflictError",
    "ContentionError",
    "CorruptTable",
    "ExpectedVersionMismatch",
    "Explanation",
    "FailedAttempt",
    "FileLimits",
    "HistoryEntry",
    "HistoryUnavailable",
    "IncompatibleConflict",
    "IndexInfo",
    "IndexSpec",
    "InvalidInput",
    "KeyConflict",
    "Lake",
    "LakeBackup",
    "LakeBranch",
    "LakeCheckReport",
    "LakeCleanupReport",
    "LakeClone",
    "LakeCommit",
    "LakeProblem",
    "LakeReader",
    "LakeRecoveryReport",
    "LakeRepairReport",
    "LakeRetention",
    "LakeSnapshot",
    "LakeTable",
    "LakeTag",
    "LakeTransaction",
    "LakeUpgradeReport",
    "MergeBuilder",
    "MergeConflict",
    "NotFound",
    "OutcomeUnknown",
    "OwnershipError",
    "Problem",
    "ProtectedBranch",
    "ReadLimits",
    "Receipt",
    "RecoveryOptions",
    "RemoteLake",
    "RemoteTransaction",
    "RetryableConflict",
    "ShardedReader",
    "ShardedTable",
    "ShardedTransactionTable",
    "Storage",
    "StorageError",
    "Table",
    "TableOptions",
    "TableReader",
    "TableStatistics",
    "TableWriter",
    "TiltyardError",
    "Transaction",
    "TransactionTable",
    "UnsafeStore",
    "UnsupportedFeature",
    "WalSharding",
    "Winner",
    "WriterTimeout",
    "__version__",
    "conflicts",
    "connect",
    "distributed",
    "errors",
    "locks",
    "merges",
    "metrics",
    "ops",
    "outcomes",
    "resume_migration",
    "telemetry",
]

_register_namespace()


def __getattr__(name: str) -> _Any:
    """``tiltyard.spark`` and ``tiltyard.pipeline``, loaded when first asked for: they need PySpark, which is an extra."""
    if name in ("spark", "pipeline"):
        return _import_module(f"tiltyard.{name}")
    raise AttributeError(f"module 'tiltyard' has no attribute {name!r}")
