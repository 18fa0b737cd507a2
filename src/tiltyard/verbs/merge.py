"""Merges rows into a table by key: what is in both is updated or deleted, what only the source has is inserted.

The rows of the table are found by scanning its key columns. Rows that change move, whole, to new fragments, together with those inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import InvalidInput, KeyConflict, TiltyardError
from tiltyard.format.logical_types import storage_type
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import SchemaMatch, check_encodable, match_schema
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Update
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import SMALL_BYTES, discard, write_into
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import Addresses, dataset_at, discard_files, matching_rows, strike_out
from tiltyard.verbs.engine.row_input import Rows, as_rows, cast, conformed
from tiltyard.verbs.engine.write_bases import WriteBase, find_base
from tiltyard.verbs.indices.mem_wal import check_progress, commit_progress
from tiltyard.verbs.keys.key_join import Matched, Pairs, Sides, match_rows
from tiltyard.verbs.keys.primary_keys import (
    Key,
    KnownKeys,
    NewKeys,
    distinct_keys,
    filter_of,
    in_words,
)
from tiltyard.verbs.merge_plan import Clause, MergePlan, merge_key, refuse_second_key, update_of, with_row_ids
from tiltyard.verbs.update import fitting
from tiltyard.verbs.write import AppendCache, Appending, file_version


def merge_rows(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    data: Any,
    plan: MergePlan,
    cache: AppendCache,
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Merges rows. Where there is nothing to do, nothing is committed. ``cache`` holds what earlier appends and merges left."""
    rows = as_rows(data)
    source = rows if isinstance(rows, pa.Table) else rows.read_all()  # looked at by key, and again after a conflict

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        if plan.generations:
            check_progress(manifest, plan.generations)
        merge = _prepared(access, manifest, plan, source, cache.at(run.read))
        found = match_rows(access, merge.sides.dataset, merge.key, merge.known, manifest, others=bool(plan.orphans))
        changes = _changes(merge, found)
        if not changes.any():
            if plan.generations:  # what was merged changed no row, and is merged all the same
                return commit_progress(access, run, plan.generations, properties, changes.counts())
            return nothing_done(run, Update.name, changes.counts())
        operation, taken = _written(merge, changes)
        keys = merge.new_keys(changes.inserted)
        operation = replace(operation, inserted_rows=keys.filter, compacted_sstables=plan.generations)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        try:
            return access.committer.commit(transaction, run.read, run.scheme, run.policy, keys=keys, rows=taken, counts=changes.counts())
        except TiltyardError as error:
            discard_files(access, new_files(operation, manifest), error)
            if merge.target is not None:
                discard(access, operation.new_fragments, error, merge.target)
            raise

    return run_verb(access, read, scheme, execute, policy)


# ---- what is merged into what ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Merge:
    """One merge on one version."""

    access: TableAccess
    manifest: Manifest
    plan: MergePlan
    key: Key
    is_primary: bool
    known: KnownKeys
    sides: Sides
    """The source, under the table's types, and the table."""
    match: SchemaMatch
    """How the source's columns fit the table's."""
    target: WriteBase | None
    """The base that new rows go to."""

    @property
    def source(self) -> pa.Table:
        return self.sides.source

    @property
    def schema(self) -> pa.Schema:
        """Of the table."""
        return self.sides.schema

    def new_keys(self, inserted: Any) -> NewKeys:
        keys = self.known.keys.take(pa.array(inserted, pa.int64()))
        told = filter_of(self.key, self.schema, keys) if self.is_primary else None
        return NewKeys(self.access, self.key, keys, told)


def _prepared(access: TableAccess, manifest: Manifest, plan: MergePlan, source: pa.Table, known_of: Appending) -> _Merge:
    primary = known_of.key
    key = merge_key(manifest, plan.on, primary)
    _check_columns(plan, key, source.schema)
    _check_values(plan, key, primary, [field.name for field in manifest.fields if field.parent_id < 0])
    if primary is not None and key != primary and not plan.allow_duplicates:
        updated = {name for clause in plan.matched if clause.action == "update" for name in clause.columns or source.schema.names}
        refuse_second_key(key.names, primary, inserting=bool(plan.inserts), updated=updated)
    match, rows = _fitting(manifest, plan, source, known_of)
    keys = key.of(rows)
    for name in keys.column_names:
        if keys.column(name).null_count:
            raise InvalidInput(f"The source has nulls in {name}, which rows are matched by.", argument=name, advice="Fill or drop them.")
    known = distinct_keys(keys, "The source has", "Merge")
    sides = Sides(access, dataset_at(access, manifest), known_of.schema, rows)
    for clause in (*plan.matched, *plan.inserts):
        which = ("source",) if clause.action == "insert" else ("source", "target")
        if clause.condition is not None:
            sides.check(clause.condition, *which)
        if clause.values:
            sides.check_values(clause.values, *which)
    for clause in plan.orphans:
        if clause.condition is not None:
            sides.check_own(clause.condition)
        if clause.values:
            sides.check_values(clause.values)
    target = find_base(access, manifest, plan.files.base) if plan.files.base is not None else None
    return _Merge(access, manifest, plan, key, key == primary, known, sides, match, target)


def _check_columns(plan: MergePlan, key: Key, given: pa.Schema) -> None:
    if missing := [name for name in key.columns if name not in given.names]:
        raise InvalidInput(f"The source has no column {missing[0]}, which rows are matched by.", argument=missing[0])
    for clause in (*plan.matched, *plan.inserts):
        for name in clause.columns or () if not clause.values else ():
            if name not in given.names:
                raise InvalidInput(f"The source has no column {name!r} to {clause.action}.", argument="values")


def _check_values(plan: MergePlan, key: Key, primary: Key | None, table: Sequence[str]) -> None:
    """Refuses expressions for columns that are not there, or that could make two rows of one key."""
    for clause in (*plan.matched, *plan.inserts, *plan.orphans):
        for name, value in clause.values.items():
            if name not in table:
                raise InvalidInput(f"There is no column {name!r}.", argument="values", advice=f"Columns are {', '.join(table)[:120]}.")
            keys = [*(primary.columns if primary else ()), *(key.columns if clause.action == "insert" else ())]
            if name in keys and value.strip().replace("`", "") != f"source.{name}":
                raise InvalidInput(
                    f"{name!r} is part of a key; an expression for it could make two rows of one key.",
                    argument="values",
                    advice="Leave it out, or change it in the source.",
                )


def _fitting(manifest: Manifest, plan: MergePlan, source: pa.Table, known_of: Appending) -> tuple[SchemaMatch, pa.Table]:
    """The source under the types of the table. Where none of its rows is inserted whole it need not have all columns."""
    fields: Sequence[Field] = manifest.fields
    if all(clause.columns is not None for clause in plan.inserts):
        top = {field.id for field in fields if field.parent_id < 0 and field.name in source.column_names}
        fields = _with_members(fields, top)
        match = match_schema(fields, source.schema)
        check_encodable(match.fields, file_version(known_of.data_version))
    else:
        match = known_of.match(source.schema)
    inside = [path for path in match.missing if path not in {field.name for field in fields if field.parent_id < 0}]
    if inside and any(clause.action == "update" for clause in plan.matched):
        raise InvalidInput(f"The source lacks {inside[0]}, and a struct is updated as a whole.", argument=inside[0])
    rows = conformed(source, match.schema, match.check_not_null)
    assert isinstance(rows, pa.Table)
    return match, rows


def _with_members(fields: Sequence[Field], top: set[int]) -> tuple[Field, ...]:
    kept = set(top)
    for field in fields:  # members come after what they are in
        if field.parent_id in kept:
            kept.add(field.id)
    return tuple(field for field in fields if field.id in kept)


# ---- what is to be done ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moving:
    """Rows of the table that a clause gives other values: which, to which columns, and whether there is a row of the source beside each."""

    pairs: Pairs
    clause: Clause
    columns: tuple[str, ...]
    matched: bool = True


@dataclass(frozen=True, slots=True)
class _Changes:
    """Rows by what becomes of them.

    Attributes:
        updated: rows of the table that move, with the clause that says which columns get other values; first those in both.
        inserted: rows of the source.
        inserts: the same, by clause.
        deleted: rows of the table, by fragment.
    """

    updated: tuple[_Moving, ...]
    inserts: tuple[tuple[Any, Clause], ...]
    deleted: Mapping[int, BitMap]

    @property
    def inserted(self) -> Any:
        return np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in self.inserts)])

    def is_plain(self) -> bool:
        """Whether all that is written are rows of the source as they are, in all their columns."""
        return all(moving.clause.columns is None for moving in self.updated) and all(clause.columns is None for _, clause in self.inserts)

    def counts(self) -> dict[str, int]:
        updated = sum(len(moving.pairs) for moving in self.updated)
        return {"inserted": len(self.inserted), "updated": updated, "deleted": sum(map(len, self.deleted.values()))}

    def any(self) -> bool:
        return any(self.counts().values())


def _changes(merge: _Merge, found: Matched) -> _Changes:
    sides, left = merge.sides, found.pairs
    updated: list[_Moving] = []
    gone = Addresses()
    for clause in merge.plan.matched:
        holds = sides.holding(left, clause.condition)
        chosen, left = left.chosen(holds), left.chosen(~holds)
        if not len(chosen):
            continue
        if clause.action == "fail":
            raise _matched(merge, chosen)
        if clause.action == "delete":
            gone.add(pa.array(chosen.addresses))
        else:
            updated.append(_Moving(chosen, clause, clause.columns or tuple(merge.source.column_names)))
    left = found.others
    for clause in merge.plan.orphans:
        holds = _holding(merge, left, clause.condition)
        chosen, left = left.chosen(holds), left.chosen(~holds)
        if clause.action == "delete":
            gone.add(pa.array(chosen.addresses))
        elif len(chosen):
            updated.append(_Moving(chosen, clause, clause.columns or (), matched=False))
    return _Changes(tuple(updated), _inserts(merge, found), gone.by_fragment())


def _inserts(merge: _Merge, found: Matched) -> tuple[tuple[Any, Clause], ...]:
    """Rows that only the source has, by the clause that inserts them."""
    new = np.ones(merge.source.num_rows, np.bool_)
    new[found.pairs.rows] = False
    left, inserts = np.flatnonzero(new), []
    for clause in merge.plan.inserts:
        wanted = np.ones(len(left), np.bool_) if clause.condition is None else merge.sides.wanted(left, clause.condition)
        inserts.append((left[wanted], clause))
        left = left[~wanted]
    return tuple(inserts)


def _holding(merge: _Merge, others: Pairs, condition: str | None) -> npt.NDArray[np.bool_]:
    """For which rows that only the table has a condition over its columns holds."""
    if condition is None or not len(others):
        return np.ones(len(others), np.bool_)
    holds = np.zeros(len(others), np.bool_)
    fragments, offsets = others.addresses >> np.uint64(32), others.addresses & np.uint64(0xFFFFFFFF)
    for number, rows in matching_rows(merge.access, merge.manifest, condition).items():
        here = fragments == number
        holds[here] = np.isin(offsets[here], np.fromiter(rows, np.uint64, len(rows)))
    return holds


def _matched(merge: _Merge, pairs: Pairs) -> KeyConflict:
    sample = in_words(merge.known.keys.take(pa.array(pairs.rows[:3])))
    return KeyConflict(
        f"{len(pairs)} rows of the source are in version {merge.manifest.version} already: {'; '.join(sample)}.",
        operation="Merge",
        read_version=merge.manifest.version,
        sample=sample,
        retryable=False,
    )


# ---- the new rows ----------------------------------------------------------------------------------------------------------


def _written(merge: _Merge, changes: _Changes) -> tuple[Update, Mapping[int, BitMap]]:
    """Writes new rows and deletion files; gives the operation, and the rows it takes from each fragment."""
    access, manifest = merge.access, merge.manifest
    moved = Addresses()
    for moving in changes.updated:
        moved.add(pa.array(moving.pairs.addresses))
    taken = moved.by_fragment()
    for number, rows in changes.deleted.items():
        taken[number] = taken.get(number, BitMap()) | rows
    fragments = _new_fragments(merge, changes)
    try:
        struck = strike_out(access, manifest, taken)
    except TiltyardError as error:
        discard(access, fragments, error, merge.target)
        raise
    assigned = {name for moving in changes.updated for name in moving.columns}
    return update_of(manifest, struck, fragments, None if len(changes.inserted) else assigned), taken


def _new_fragments(merge: _Merge, changes: _Changes) -> tuple[DataFragment, ...]:
    moved = sum(len(moving.pairs) for moving in changes.updated)
    if not moved and not len(changes.inserted):
        return ()
    manifest, given = merge.manifest, merge.source.schema
    # Rows that are only inserted may leave columns out, as those of an append; rows that move bring along what they have.
    names = merge.schema.names if moved or not changes.is_plain() else given.names
    schema = pa.schema([given.field(name) if name in given.names else merge.schema.field(name) for name in names])
    batches = _source_as_it_is(merge, changes, schema) or _new_batches(merge, changes, schema)
    small = merge.source.nbytes <= SMALL_BYTES
    rows: Rows = pa.Table.from_batches(batches, schema) if small else pa.RecordBatchReader.from_batches(schema, batches)
    match = merge.match if schema.equals(merge.match.schema, check_metadata=True) else match_schema(manifest.fields, schema)
    data_version = manifest.data_format.version if manifest.data_format else ""
    fitting = conformed(rows, match.schema, match.check_not_null)
    fragments = write_into(merge.access, fitting, match.fields, data_version, lambda: merge.sides.dataset, merge.plan.files, merge.target)
    if not has_stable_row_ids(manifest):
        return fragments
    ids = [moving.pairs.ids for moving in changes.updated if moving.pairs.ids is not None]
    return with_row_ids(fragments, np.concatenate([np.empty(0, np.uint64), *ids]))


def _source_as_it_is(merge: _Merge, changes: _Changes, schema: pa.Schema) -> list[pa.RecordBatch]:
    """The source, if its rows are just what is to be written and their order does not matter; nothing otherwise."""
    taken = set(schema.names)
    if has_stable_row_ids(merge.manifest) or any(moving.clause.values for moving in changes.updated):
        return []
    if any(clause.columns is not None for _, clause in changes.inserts):
        return []
    if not all(taken.issubset(moving.columns) for moving in changes.updated):
        return []
    written = np.concatenate([changes.inserted, *(moving.pairs.rows for moving in changes.updated)])
    seen = np.zeros(merge.source.num_rows, np.bool_)
    seen[written] = True
    if len(written) != len(seen) or not seen.all():  # a row can be in several pairs
        return []
    return list(merge.source.select(schema.names).to_batches())


def _new_batches(merge: _Merge, changes: _Changes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows that move, then those inserted: row ids are given out in this order."""
    sides = merge.sides
    for moving in changes.updated:
        values, kept = moving.clause.values, [name for name in schema.names if name not in moving.columns]
        for chunk in moving.pairs.chunks():
            old = sides.of_table(chunk, kept) if kept else None
            if values:
                new = sides.new_values(chunk, values) if moving.matched else sides.kept_values(chunk, values)
            else:
                new = sides.of_source(chunk, [name for name in schema.names if name in moving.columns])
            yield from _as_schema(schema, new, old)
    for rows, clause in changes.inserts:
        given = [name for name in schema.names if name in merge.source.column_names]
        if clause.columns is not None:  # and the key, which is the source's in any case
            given = [name for name in given if name in merge.key.columns or (name in clause.columns and not clause.values)]
        source = merge.source.select(given)
        for begin in range(0, len(rows), _INSERTED_AT_ONCE):
            part = rows[begin : begin + _INSERTED_AT_ONCE]
            values = {name: text for name, text in clause.values.items() if name not in given}
            more = sides.inserted_values(part, values) if values else None
            yield from _as_schema(schema, source.take(pa.array(part)), more)


_INSERTED_AT_ONCE = 1 << 16


def _as_schema(schema: pa.Schema, rows: pa.Table, more: pa.Table | None) -> list[pa.RecordBatch]:
    columns = []
    for item in schema:
        found = rows if item.name in rows.column_names else more
        if found is not None and item.name in found.column_names:
            column = found.column(item.name)
            columns.append(column if column.type.equals(item.type) else fitting(column, item))
        else:
            columns.append(cast(pa.nulls(rows.num_rows, storage_type(item.type)), item.type))
    return list(pa.table(columns, schema=schema).to_batches())
