"""OPTIMIZE as a verb of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tiltyard as ty
from tiltyard.errors import InvalidInput
from tiltyard.spark.sharded_spark import is_sharded, shard_readers
from tiltyard.spark.spark_table import SparkTable
from tiltyard.spark.statements.statement_words import OptimizeClauses
from tiltyard.spark.write.row_layout import layout_of


def optimized(table: SparkTable, clauses: OptimizeClauses, target_rows: int | None = None) -> tuple[int, int, int]:
    """Compacts a table as OPTIMIZE says; gives how many fragments there were and are, and the version.

    Raises:
        InvalidInput: a column is not there, or FULL sorts by columns that nobody named.
    """
    before = _fragments(table.table.refresh())
    columns = _columns(table.table, clauses)
    more: dict[str, Any] = {} if target_rows is None else {"target_rows": target_rows}
    done = table.optimize(clauses.where, cluster_by=columns, **more)
    return before, _fragments(table.table.refresh()), done.version


def _columns(table: ty.TableReader, clauses: OptimizeClauses) -> Sequence[str]:
    if clauses.full:
        layout = layout_of(table)
        if not layout:
            raise InvalidInput(
                "OPTIMIZE ... FULL sorts by the columns of CLUSTER BY, and the table has none.",
                argument="text",
                advice="ALTER TABLE ... CLUSTER BY (columns), or write ZORDER BY (columns).",
            )
        return layout
    alike = {name.lower(): name for name in table.schema.names}
    return [name if name in table.schema.names else alike.get(name.lower(), name) for name in clauses.columns]


def _fragments(table: ty.TableReader) -> int:
    return sum(len(part.layout.fragments) for part in (shard_readers(table) if is_sharded(table) else [table]))
