"""The layout of a table: the columns that its rows are sorted and split by where they are written.

The format has no partitions. Rows of like values lie together instead, so that a filter on these columns reads few fragments. The layout is
kept in the table's config; rows that other writers add lie as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import tiltyard as ty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONED_BY: Final = "partitioned_by"
CLUSTER_BY: Final = "cluster_by"
"""Settings of a table: names of columns with commas between them. Those of the first can be overwritten by their values."""


def columns_of(table: ty.TableReader, setting: str) -> tuple[str, ...]:
    """The columns that a setting names, as far as the table still has them."""
    told = [name.strip() for name in (table.config.get(setting) or "").split(",")]
    return tuple(name for name in told if name in table.schema.names)


def layout_of(table: ty.TableReader) -> tuple[str, ...]:
    """All columns of the layout that can be sorted by, in order."""
    names = dict.fromkeys((*columns_of(table, PARTITIONED_BY), *columns_of(table, CLUSTER_BY)))
    return tuple(name for name in names if _is_sortable(table.schema.field(name).type))


def _is_sortable(kind: pa.DataType) -> bool:
    is_a = pa.types
    return not is_a.is_nested(kind) and not is_a.is_dictionary(kind) and not isinstance(kind, pa.BaseExtensionType)


def sorted_rows(rows: pa.Table, layout: Sequence[str]) -> pa.Table:
    """Rows that the driver has, in the order of the layout."""
    keys = [(name, "ascending") for name in layout if name in rows.column_names]
    return rows.sort_by(keys) if keys and rows.num_rows > 1 else rows


def sorted_frame(df: DataFrame, layout: Sequence[str]) -> DataFrame:
    """Rows that executors write: each task has a range of values, in order."""
    names = [f"`{name.replace('`', '``')}`" for name in layout if name in df.columns]
    return df.repartitionByRange(*names).sortWithinPartitions(*names) if names else df
