"""Values of comparing and merging branches of a lake: what differs, what conflicts, how conflicts are settled, what a merge did."""

from __future__ import annotations

from tiltyard.lakes.merging.lake_diff import LakeDiff, LakeRef, RowDifference, RowPage, TableDifference
from tiltyard.lakes.merging.merge_values import (
    ConflictingRow,
    ConflictingStep,
    MergeResult,
    OnConflict,
    Resolution,
    TableConflict,
    TableMerge,
)

__all__ = [
    "ConflictingRow",
    "ConflictingStep",
    "LakeDiff",
    "LakeRef",
    "MergeResult",
    "OnConflict",
    "Resolution",
    "RowDifference",
    "RowPage",
    "TableConflict",
    "TableDifference",
    "TableMerge",
]
