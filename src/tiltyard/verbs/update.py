"""Gives columns new values in the rows that a condition holds for.

Rows either move, whole, to new fragments, or stay and get new files for the changed columns only. The first costs as much as the rows are
wide, the second as much as the touched fragments are long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from tiltyard.errors import InvalidInput, TiltyardError, UnsupportedFeature
from tiltyard.format.keys import primary_key_fields
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.schema import arrow_from_fields, match_schema
from tiltyard.format.values import DataFragment, Field
from tiltyard.options import FileLimits
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.footprint import fragments_of
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Update, UpdateMode
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.column_rewrite import with_values
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import blob_reading, has_blobs, with_binary_blobs
from tiltyard.verbs.engine.data_files import write_into
from tiltyard.verbs.engine.isolated import IsolatedDataset
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import (
    ADDRESS,
    ROW_ID,
    Addresses,
    RowIdColumn,
    Rows,
    dataset_at,
    discard_files,
    fragments_for,
    live_places,
    matching_rows,
    offsets_in,
    strike_out,
)
from tiltyard.verbs.engine.row_input import cast, conformed
from tiltyard.verbs.engine.sql_expressions import condition, expressions
from tiltyard.verbs.merge_plan import update_of, with_row_ids

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

Mode = Literal["auto", "rows", "columns"]

IN_PLACE_FROM: Final = 0.5
"""In ``auto``, the share of rows of the touched fragments from which columns are rewritten in place, if they are few."""
WIDE: Final = 100
"""Columns from which on new values are worked out in a scan of their own."""
FEW_ROWS: Final = 1024
"""Rows of such tables up to which their other columns are looked up by place."""
_VOLATILE: Final = ("random", "uuid", "now", "current_")
"""What makes a condition give other rows each time, or may be part of it."""
FEW_COLUMNS: Final = 0.34
"""In ``auto``, the share of columns that counts as few."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is to be written where."""

    values: Mapping[str, str]
    """SQL expressions by column."""
    where: str
    mode: Mode

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or not self.values:
            raise InvalidInput("Values are SQL expressions by column, at least one.", argument="values")
        if not all(isinstance(part, str) for pair in self.values.items() for part in pair):
            raise InvalidInput('A new value is a SQL expression as text, such as "x + 1" or "\'new\'".', argument="values")
        if self.mode not in ("auto", "rows", "columns"):
            raise InvalidInput(f"mode is 'auto', 'rows' or 'columns', not {self.mode!r}.", argument="mode")


def update_rows(
    access: TableAccess, read: ManifestFile, scheme: Scheme, assignment: Assignment, properties: Mapping[str, str], limits: FileLimits,
    policy: ReexecutionPolicy,
) -> Committed:  # fmt: skip
    """Updates rows. Where the condition holds for none, nothing is committed."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        assigned = _assigned(manifest, assignment)
        if _in_place(access, manifest, assignment, assigned):
            made = _rewrite_columns(access, manifest, assignment)
        else:
            made = _rewrite_rows(access, manifest, assignment, assigned, limits)
        if made is None:
            return nothing_done(run, Update.name, {"updated": 0})
        operation, rows, count = made
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        try:
            return access.committer.commit(transaction, run.read, run.scheme, run.policy, rows=rows, counts={"updated": count})
        except TiltyardError as error:
            discard_files(access, new_files(operation, manifest), error)
            raise

    return run_verb(access, read, scheme, execute, policy)


Made = tuple[Update, Rows | None, int]


def _assigned(manifest: Manifest, assignment: Assignment) -> list[Field]:
    """The columns that get new values."""
    top = {field.name: field for field in manifest.fields if field.parent_id < 0}
    if unknown := sorted(set(assignment.values) - top.keys()):
        raise InvalidInput(f"There is no column {unknown[0]!r}.", argument="values", advice=f"Columns are {', '.join(top)[:120]}.")
    assigned = [top[name] for name in assignment.values]
    if keys := [field.name for field in primary_key_fields(manifest.fields) if field in assigned]:
        raise InvalidInput(
            f"{keys[0]!r} is part of the primary key; an update could make two rows of one key.",
            argument="values",
            advice="Merge the rows under their new keys and delete the old ones.",
        )
    return assigned


def _families(manifest: Manifest, columns: list[Field]) -> list[Field]:
    """Some columns with all that is below them."""
    inside = {field.id for field in columns}
    for field in manifest.fields:  # parents come before their children
        if field.parent_id in inside:
            inside.add(field.id)
    return [field for field in manifest.fields if field.id in inside]


def _in_place(access: TableAccess, manifest: Manifest, assignment: Assignment, assigned: list[Field]) -> bool:
    schema = arrow_from_fields(_families(manifest, assigned), {})
    if blobs := [field.name for field in assigned if has_blobs(schema.field(field.name))]:
        if assignment.mode == "columns":
            what = f"Blobs of column {blobs[0]!r} cannot be rewritten in place."
            raise UnsupportedFeature(what, feature="update of blobs in place", writing=True, advice="Use mode='rows'.")
        return False
    if assignment.mode != "auto":
        return assignment.mode == "columns"
    columns = sum(1 for field in manifest.fields if field.parent_id < 0)
    if len(assigned) > columns * FEW_COLUMNS:
        return False
    if assignment.where == "true":
        return True
    rows = matching_rows(access, manifest, assignment.where)
    touched = sum(fragment.live_rows for fragment in fragments_of(manifest, rows).values())
    return sum(map(len, rows.values())) >= touched * IN_PLACE_FROM


# ---- rows that move --------------------------------------------------------------------------------------------------------


def _rewrite_rows(
    access: TableAccess, manifest: Manifest, assignment: Assignment, assigned: list[Field], limits: FileLimits
) -> Made | None:
    stable = has_stable_row_ids(manifest)
    schema = with_binary_blobs(arrow_from_fields(manifest.fields, {}))
    dataset = dataset_at(access, manifest)
    addresses, ids = Addresses(), RowIdColumn()
    some = fragments_for(access, manifest, dataset, assignment.where)
    stream = _new_rows(access, manifest, dataset, schema, assignment, (addresses, ids if stable else None), some)
    first = next(stream, None)
    if first is None:
        return None
    rows = pa.RecordBatchReader.from_batches(schema, chain([first], stream))
    match = match_schema(manifest.fields, schema)
    data_version = manifest.data_format.version if manifest.data_format else ""
    fragments = write_into(access, conformed(rows, match.schema, match.check_not_null), match.fields, data_version, lambda: dataset, limits)
    try:
        struck = strike_out(access, manifest, addresses.by_fragment())
    except TiltyardError as error:
        discard_files(access, [f"data/{file.path}" for fragment in fragments for file in fragment.files], error)
        raise
    moved = with_row_ids(fragments, ids.in_order()) if stable else fragments
    operation = update_of(manifest, struck, moved, {field.name for field in assigned})
    return operation, struck.rows, len(addresses)


def _new_rows(
    access: TableAccess,
    manifest: Manifest,
    dataset: LanceDataset,
    schema: pa.Schema,
    assignment: Assignment,
    noted: tuple[Addresses, RowIdColumn | None],
    some: list[LanceFragment] | None,
) -> Iterator[pa.RecordBatch]:
    """The matching rows of some fragments, or of all, with their new values; where they were is noted on the way."""
    addresses, ids = noted
    given = expressions(assignment.values, dataset.schema, "values")
    where = condition(assignment.where, dataset.schema)
    scan = {"filter": where, "fragments": some, "with_row_address": True, **blob_reading(schema)}
    with lance_errors(access, "compute new values", dataset.version):
        if _is_wide(schema, assignment.where):
            batches = _of_many_columns(access, manifest, dataset, given, scan, with_row_id=ids is not None)
        else:
            columns = {name: given.get(name, _quoted(name)) for name in schema.names}
            batches = dataset.scanner(columns=columns, with_row_id=ids is not None, **scan).to_batches()
        for batch in batches:
            if not batch.num_rows:
                continue
            addresses.add(batch.column(ADDRESS))
            if ids is not None:
                ids.add(batch.column(ROW_ID))
            yield pa.RecordBatch.from_arrays([fitting(batch.column(field.name), field) for field in schema], schema=schema)


def _is_wide(schema: pa.Schema, where: str) -> bool:
    """Whether all columns had better be scanned as they are: pylance takes long to plan very many expressions, and names as well."""
    return len(schema) >= WIDE and not any(word in where.lower() for word in _VOLATILE)


def _of_many_columns(
    access: TableAccess,
    manifest: Manifest,
    dataset: LanceDataset,
    given: Mapping[str, str],
    scan: Mapping[str, Any],
    *,
    with_row_id: bool,
) -> Iterator[pa.RecordBatch]:
    """What one scan would give: new values from a scan of their own, and the other columns of the same rows."""
    new = dataset.scanner(columns=dict(given), with_row_id=with_row_id, strict_batch_size=True, **scan).to_batches()
    first: list[pa.RecordBatch] = []
    for batch in new:
        first.append(batch)
        if sum(map(len, first)) > FEW_ROWS:
            break
    else:
        # Blobs are handed out by scans alone, and what others made is read by a child, which scans.
        if not any(map(has_blobs, dataset.schema)) and not isinstance(dataset, IsolatedDataset):
            yield from _looked_up(access, manifest, dataset, first)
            return
    yield from _beside_another_scan(dataset, chain(first, new), scan)


def _looked_up(
    access: TableAccess, manifest: Manifest, dataset: LanceDataset, batches: Sequence[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A few rows with new values, the other columns looked up by place: to filter very many columns takes three times as long."""
    found = pa.Table.from_batches(batches).sort_by(ADDRESS) if batches else None
    if found is None or not found.num_rows:
        return
    addresses = found.column(ADDRESS).to_numpy()
    starts = np.flatnonzero(np.diff(addresses >> np.uint64(32), prepend=np.uint64(1 << 32)))
    for begin, end in pairwise([*starts.tolist(), len(addresses)]):
        number = int(addresses[begin]) >> 32
        fragment, offsets = dataset.get_fragment(number), offsets_in(addresses[begin:end])
        if fragment is None:
            raise ValueError(f"a scan returned rows of fragment {number}, which the version does not have")
        live = live_places(access, manifest, number, offsets)
        rows, values = fragment.take(live), found.slice(begin, end - begin)
        columns = {name: rows.column(name) for name in rows.column_names}
        columns.update({name: values.column(name) for name in values.column_names})
        yield pa.RecordBatch.from_pydict({name: column.combine_chunks() for name, column in columns.items()})


def _beside_another_scan(dataset: LanceDataset, new: Iterable[pa.RecordBatch], scan: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Rows with new values, the other columns from another scan that gives the same rows."""
    whole = dataset.scanner(strict_batch_size=True, **scan).to_batches()
    for rows, values in zip(whole, new, strict=True):
        if not rows.column(ADDRESS).equals(values.column(ADDRESS)):
            raise ValueError("two scans of one version returned different rows")
        columns = {name: rows.column(name) for name in rows.schema.names}
        columns.update({name: values.column(name) for name in values.schema.names})
        yield pa.RecordBatch.from_pydict(columns)


def fitting(column: pa.Array, field: pa.Field) -> pa.Array:
    """New values of a column, as its type.

    Raises:
        InvalidInput: they do not fit.
    """
    try:
        return cast(column, field.type)
    except pa.ArrowException as error:
        what = f"A new value of {field.name!r} does not fit its type {field.type}: {str(error).rstrip('. ')}."
        raise InvalidInput(what, argument="values", advice="Nothing was committed. Cast it in the expression.") from error


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# ---- columns in place ------------------------------------------------------------------------------------------------------


def _rewrite_columns(access: TableAccess, manifest: Manifest, assignment: Assignment) -> Made | None:
    dataset = dataset_at(access, manifest)
    schema = arrow_from_fields(manifest.fields, {})
    updated: list[DataFragment] = []
    offsets: dict[int, bytes] = {}
    modified: dict[int, None] = {}
    count = 0
    try:
        for number, values in _values_by_fragment(access, dataset, schema, assignment):
            _refuse_nulls(values, schema)
            fragment, fields, rows = with_values(access, dataset, manifest, fragments_of(manifest, [number])[number], values)
            updated.append(fragment)
            offsets[number] = encode_roaring(rows)
            modified.update(dict.fromkeys(fields))
            count += values.num_rows
    except TiltyardError as error:
        discard_files(access, new_files(Update(updated_fragments=tuple(updated)), manifest), error)
        raise
    if not updated:
        return None
    operation = Update(
        updated_fragments=tuple(updated),
        fields_modified=tuple(modified),
        update_mode=UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offsets=offsets,
    )
    return operation, None, count


def _values_by_fragment(
    access: TableAccess, dataset: LanceDataset, schema: pa.Schema, assignment: Assignment
) -> Iterator[tuple[int, pa.Table]]:
    """For each fragment with matching rows their addresses and new values."""
    names = list(assignment.values)
    columns = expressions(assignment.values, dataset.schema, "values")
    where = condition(assignment.where, dataset.schema)
    for fragment in dataset.get_fragments():
        with lance_errors(access, "compute new values", dataset.version):
            found = dataset.scanner(columns=columns, filter=where, fragments=[fragment], with_row_address=True).to_table()
        if found.num_rows:
            arrays = [fitting(found.column(name).combine_chunks(), schema.field(name)) for name in names]
            yield fragment.fragment_id, pa.table([found.column(ADDRESS), *arrays], names=[ADDRESS, *names])


def _refuse_nulls(values: pa.Table, schema: pa.Schema) -> None:
    for name in values.column_names[1:]:
        if not schema.field(name).nullable and values.column(name).null_count:
            raise InvalidInput(f"A new value of {name!r} is null, and the column takes none.", argument="values")
