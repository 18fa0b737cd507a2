"""Values of comparing, merging and protecting branches of a lake."""

from __future__ import annotations

from tiltyard.catalog.protection import BranchCheck, BranchProtection
from tiltyard.lakes.branches.ref_sizes import RefSize
from tiltyard.lakes.merging.lake_diff import LakeDiff, LakeRef, RowDifference, RowPage, TableDifference
from tiltyard.lakes.merging.merge_values import (
    ConflictingRow,
    ConflictingStep,
    MergeOptions,
    MergeResult,
    OnConflict,
    Resolution,
    TableConflict,
    TableMerge,
)

__all__ = [
    "BranchCheck",
    "BranchProtection",
    "ConflictingRow",
    "ConflictingStep",
    "LakeDiff",
    "LakeRef",
    "MergeOptions",
    "MergeResult",
    "OnConflict",
    "RefSize",
    "Resolution",
    "RowDifference",
    "RowPage",
    "TableConflict",
    "TableDifference",
    "TableMerge",
]
