"""Sorts the rows of fragments by some columns, so that each new fragment has a small range of all of them.

With one column rows are in its order. With several they are in Z-order: by the bits of their ranks in each column, interleaved, so
that a filter on any of the columns can pass over fragments by their statistics. Which rows come after which is decided here, from these
columns alone; the rows themselves are written in parts, here or in other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput, OutcomeUnknown, TiltyardError, UnsupportedFeature
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_ids import encode_row_ids, encode_row_versions, row_ids_of, row_versions_of
from tiltyard.format.schema import arrow_from_fields, has_legacy_blobs
from tiltyard.format.values import DataFragment
from tiltyard.options import FileLimits
from tiltyard.verbs.distributed.cluster_tasks import ClusterTask
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.distributed.write_tasks import Piece, append_task, remove_leftovers, take_over_findings
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.row_deletion import ADDRESS, ROW_ID, discard_files

if TYPE_CHECKING:
    from tiltyard.verbs.compact import Compaction
    from tiltyard.verbs.distributed.compact_tasks import CompactRunner

MOST_COLUMNS: Final = 16
"""With more of them, each would have too few bits to tell anything apart."""
_BITS: Final = 62
_MOST_BITS: Final = 20
"""Of the rank in a column: a million ranges are finer than any table's fragments."""
_AT_ONCE: Final = 2
"""Files that this process writes at a time."""
_CREATED: Final = "_row_created_at_version"
_UPDATED: Final = "_row_last_updated_at_version"

Numbers = npt.NDArray[np.uint64]
Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clustered:
    """Fragments as they were, and those that their rows were written to, in order. ``token`` begins the names of all files."""

    old: tuple[DataFragment, ...]
    new: tuple[DataFragment, ...]
    token: str

    def discard(self, access: TableAccess, failure: TiltyardError) -> None:
        """Removes all files, unless a version may have them."""
        discard_files(access, (f"data/{file.path}" for fragment in self.new for file in fragment.files), failure)
        if not isinstance(failure, OutcomeUnknown):
            remove_leftovers(access.store, self.token, ())

    def remove_leftovers(self, access: TableAccess) -> None:
        """Removes what tasks that were run twice left behind, once the rest is committed."""
        remove_leftovers(access.store, self.token, [file.path for fragment in self.new for file in fragment.files])


def check_columns(manifest: Manifest, names: Sequence[str]) -> None:
    """Refuses columns that rows cannot be sorted by.

    Raises:
        InvalidInput: one is not there, is given twice, or has no order.
        UnsupportedFeature: the table has blobs, which are not moved row by row.
    """
    schema = arrow_from_fields(manifest.fields)
    for name in names:
        if name not in schema.names:
            raise InvalidInput(
                f"There is no column {name!r}.", argument="cluster_by", advice=f"Columns are {', '.join(schema.names)[:120]}."
            )
        if not _is_sortable(schema.field(name).type):
            raise InvalidInput(f"Rows cannot be sorted by {name!r}, which is {schema.field(name).type}.", argument="cluster_by")
    if any(has_blobs(column) or has_legacy_blobs(column) for column in schema):
        raise UnsupportedFeature("Rows with blobs cannot be clustered.", feature="clustering of blobs", writing=True)


def _is_sortable(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or isinstance(kind, pa.BaseExtensionType))


def clustered(
    access: TableAccess, manifest: Manifest, compaction: Compaction, chosen: set[int] | None, runner: CompactRunner | None
) -> Clustered | None:
    """Writes the rows of the chosen fragments, or of all, in their new order; None where they are in it already, or there are none."""
    check_columns(manifest, compaction.cluster_by)
    old = tuple(fragment for fragment in manifest.fragments if chosen is None or fragment.id in chosen)
    scan = scan_task(access, manifest)
    found = _keys(scan, [fragment.id for fragment in old], compaction.cluster_by)
    order = z_order([found.column(name) for name in compaction.cluster_by])
    if not len(order) or _is_done(old, order, compaction.target_rows):
        return None
    limits = FileLimits(rows=compaction.target_rows)
    if compaction.max_bytes is not None:
        limits = replace(limits, bytes=compaction.max_bytes)
    write = append_task(access, manifest, limits, None, with_keys=False)
    places = _numbers(found, ROW_ID if scan.stable else ADDRESS)[order]
    parts = np.array_split(places, _parts(len(order), compaction.target_rows))
    tasks = [ClusterTask(scan, write, part, str(number)) for number, part in enumerate(parts)]
    try:
        pieces = _pieces(tasks, runner, compaction)
    except BaseException:
        remove_leftovers(access.store, write.token, ())
        raise
    take_over_findings(access, pieces)
    new = tuple(fragment for piece in pieces for fragment in piece.fragments)
    return Clustered(old, _with_lineage(new, found, order) if scan.stable else new, write.token)


def _keys(scan: ScanTask, fragments: Sequence[int], names: Sequence[str]) -> pa.Table:
    """The columns that rows are sorted by, and where the rows are; for rows that keep their ids also when they came and changed."""
    more = (_CREATED, _UPDATED) if scan.stable else ()
    return scan.scan([*dict.fromkeys(names), *more], fragments, row_address=True, row_id=scan.stable).read_all()


def _numbers(table: pa.Table, name: str) -> Numbers:
    found: Numbers = table.column(name).to_numpy().astype(np.uint64, copy=False)
    return found


def _parts(rows: int, target: int) -> int:
    return max(1, -(-rows // target))


def _is_done(old: Sequence[DataFragment], order: Order, target: int) -> bool:
    """Whether nothing would change: rows are in order, none is deleted, and the fragments are as long as new ones would be."""
    lengths = [len(part) for part in np.array_split(order, _parts(len(order), target))]
    return [fragment.physical_rows for fragment in old] == lengths and bool((order[1:] > order[:-1]).all())


def _pieces(tasks: list[ClusterTask], runner: CompactRunner | None, compaction: Compaction) -> list[Piece]:
    if runner is not None:
        found: list[Any] = list(runner(tasks))
    else:
        found = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for piece in pool.map(ClusterTask.run, tasks):
                found.append(piece)
                if compaction.progress is not None:
                    compaction.progress(len(found), len(tasks))
    if len(found) != len(tasks) or not all(map(_is_of, found, tasks)):
        raise InvalidInput(f"The runner did not return the pieces of its {len(tasks)} tasks, in order.", argument="runner")
    return found


def _is_of(piece: Any, task: ClusterTask) -> bool:
    """Whether this piece is of this task: another one of the same length would lose rows, or give them ids of others."""
    return isinstance(piece, Piece) and (piece.token, piece.part, piece.rows) == (task.write.token, task.part, task.rows)


def _with_lineage(fragments: Iterable[DataFragment], found: pa.Table, order: Order) -> tuple[DataFragment, ...]:
    """Rows keep their ids, and when they came and changed."""
    ids, created, updated = (_numbers(found, name)[order] for name in (ROW_ID, _CREATED, _UPDATED))
    made, begin = [], 0
    for fragment in fragments:
        part = slice(begin, begin + fragment.physical_rows)
        made.append(
            replace(
                fragment,
                row_ids=encode_row_ids(row_ids_of(ids[part])),
                created_at=encode_row_versions(row_versions_of(created[part])),
                updated_at=encode_row_versions(row_versions_of(updated[part])),
            )
        )
        begin += fragment.physical_rows
    return tuple(made)


# ---- the order -------------------------------------------------------------------------------------------------------------


def z_order(columns: Sequence[pa.ChunkedArray]) -> Order:
    """The order of rows by the interleaved bits of their ranks in some columns; rows of equal ranks stay in theirs."""
    ranks = [_ranks(column) for column in columns]
    if len(ranks) == 1:
        return np.argsort(ranks[0], kind="stable")
    return np.argsort(interleaved(ranks), kind="stable")


def _ranks(column: pa.ChunkedArray) -> Numbers:
    """Of each value how many are smaller; equal ones have one rank, NaN comes after numbers, null last."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_binary_view(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_binary_view(column.type) else pa.large_string())
    ranked: Any = pc.rank(column, sort_keys="ascending", tiebreaker="min")
    found: Numbers = ranked.to_numpy(zero_copy_only=False).astype(np.uint64)
    return found - np.uint64(1)


def interleaved(ranks: Sequence[Numbers]) -> Numbers:
    """One number of several ranks: the highest bits of all come first."""
    count, rows = len(ranks), len(ranks[0])
    bits = min(_BITS // count, _MOST_BITS)
    scaled = [(rank.astype(np.float64) * ((1 << bits) / max(rows, 1))).astype(np.uint64) for rank in ranks]
    made = np.zeros(rows, np.uint64)
    for bit, (place, part) in chain.from_iterable(((bit, pair) for pair in enumerate(scaled)) for bit in range(bits)):
        made |= ((part >> np.uint64(bit)) & np.uint64(1)) << np.uint64(bit * count + count - 1 - place)
    return made
