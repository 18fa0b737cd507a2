"""Values of comparing and merging branches of a lake: what differs, what conflicts, how conflicts are settled, what a merge did."""

from __future__ import annotations

from tiltyard.lakes.merging.lake_diff import LakeDiff, LakeRef, RowDifference, RowPage, TableDifference

__all__ = ["LakeDiff", "LakeRef", "RowDifference", "RowPage", "TableDifference"]
