"""Replaces the values of whole columns in some fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.format.fields import ROOT
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.operations import DataReplacement, Replacement
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.add_columns import discarding
from tiltyard.verbs.columns.column_files import (
    Batches,
    ColumnFiles,
    FilesAt,
    Progress,
    family_of,
    find_field,
    fitting_batch,
    refuse_blobs,
    refuse_key,
    scanned,
    tree_of,
)
from tiltyard.verbs.columns.column_values import BatchFunction
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_input import as_rows


@dataclass(frozen=True, slots=True)
class NewData:
    """New values: for each fragment a table, or a function for all of them.

    Attributes:
        columns: names of the columns.
        tables: by fragment id, a row for each live row, in order.
        function: makes new values of batches of old rows.
        read_columns: what the function is given; the columns themselves by default.
        fragments: which ones the function is for; all by default.
        progress: told after each fragment.
    """

    columns: tuple[str, ...]
    tables: Mapping[int, pa.Table] | None = None
    function: BatchFunction | None = None
    read_columns: Sequence[str] | None = None
    fragments: Sequence[int] | None = None
    progress: Progress | None = None


def new_data(
    values: Any,
    columns: Sequence[str] | None,
    read_columns: Sequence[str] | None = None,
    fragments: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> NewData:
    """New values as a caller gives them."""
    if callable(values):
        if isinstance(columns, str) or not columns:
            raise InvalidInput("Name the columns that the function makes, as a list.", argument="columns")
        return NewData(tuple(columns), None, values, read_columns, fragments, progress)
    if not isinstance(values, Mapping) or not values:
        raise InvalidInput("New values are tables by fragment id, or a function.", argument="values")
    if read_columns is not None or fragments is not None:
        raise InvalidInput("read_columns and fragments are for a function only.", argument="values")
    tables: dict[int, pa.Table] = {}
    for number, data in values.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidInput(f"A fragment is named by its id, not {number!r}.", argument="values")
        rows = as_rows(data)
        tables[number] = rows if isinstance(rows, pa.Table) else rows.read_all()
    names = {tuple(sorted(table.column_names)) for table in tables.values()}
    if len(names) > 1:
        raise InvalidInput("All fragments must get the same columns.", argument="values")
    given = tuple(columns) if columns is not None else names.pop()
    return NewData(given, tables, progress=progress)


def replace_data(
    access: TableAccess, read: ManifestFile, scheme: Scheme, new: NewData, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Replaces columns. Tables are for the rows of the version they were made for, so only a function is run again after a conflict."""
    files = ColumnFiles(access)

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        at = files.at(manifest)
        replacements = _replacements(at, new)
        if not replacements:
            files.settle(())  # an earlier run may have written some, for fragments that are gone
            return nothing_done(run, DataReplacement.name, {})
        operation = DataReplacement(replacements)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        done = access.committer.commit(transaction, run.read, run.scheme, run.policy)
        files.settle(DataFragment(0, (replacement.new_file,), 0) for replacement in replacements)
        return done

    again = new.function is not None
    return discarding(files, lambda: run_verb(access, read, scheme, execute, policy, again=lambda _: again))


def _replacements(at: FilesAt, new: NewData) -> tuple[Replacement, ...]:
    fields = _fields(at, new.columns)
    schema = arrow_from_fields(fields)
    refuse_blobs(schema)
    chosen = new.tables if new.tables is not None else new.fragments
    fragments = [fragment for fragment in at.manifest.fragments if chosen is None or fragment.id in chosen]
    if chosen is not None and (missing := set(chosen) - {fragment.id for fragment in fragments}):
        raise InvalidInput(f"There is no fragment {sorted(missing)[0]}.", argument="values")
    done: list[Replacement] = []
    try:
        for fragment in fragments:
            what = f"replace {new.columns} {'tables' if new.tables is not None else new.read_columns}"
            file = at.file(fragment, fields, what, partial(_values, at, new, fragment, schema))
            done.append(Replacement(fragment.id, file))
            if new.progress is not None:
                new.progress(len(done), len(fragments))
    except Exception as error:
        if not isinstance(error, TiltyardError):
            at.kept.discard(InvalidInput(str(error)))
        raise
    return tuple(done)


def _fields(at: FilesAt, columns: Sequence[str]) -> list[Field]:
    """The columns in the table's order, with all that is below them."""
    tree = tree_of(at.manifest)
    chosen: set[int] = set()
    for name in columns:
        found = find_field(tree, f"`{name.replace('`', '``')}`" if isinstance(name, str) else name, "columns")
        refuse_key(tree, found, "replaced")
        chosen.add(found.id)
    return [field for top in tree.below(ROOT) if top.id in chosen for field in family_of(tree, top)]


def _values(at: FilesAt, new: NewData, fragment: DataFragment, schema: pa.Schema) -> Batches:
    if new.tables is not None:
        table = new.tables[fragment.id]
        if table.num_rows != fragment.live_rows:
            what = f"Fragment {fragment.id} has {fragment.live_rows} rows, not {table.num_rows}."
            raise InvalidInput(what, argument="values", advice="Give a value for each row that is not deleted, in order.")
        for batch in table.to_batches():
            yield fitting_batch(batch, schema, batch.num_rows, "values")
        return
    assert new.function is not None
    columns = list(new.read_columns if new.read_columns is not None else schema.names)
    known = [field.name for field in at.manifest.fields if field.parent_id == ROOT]
    if unknown := [column for column in columns if column not in known]:
        raise InvalidInput(f"There is no column {unknown[0]!r} to read.", argument="read_columns")
    for batch in scanned(at.kept.access, at.dataset, fragment.id, columns):
        if batch.num_rows:
            yield fitting_batch(new.function(batch.select(columns)), schema, batch.num_rows, "values")
