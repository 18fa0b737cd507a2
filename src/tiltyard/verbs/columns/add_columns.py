"""Adds columns to all rows: all null, by SQL, looked up by a key, or made by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tiltyard.errors import InvalidInput, TiltyardError, UnsupportedFeature
from tiltyard.format.fields import ROOT, FieldTree, field_tree, next_field_id
from tiltyard.format.keys import primary_key_fields
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import check_encodable, fields_from_arrow
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.operations import Merge
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.column_files import (
    ColumnFiles,
    FilesAt,
    Progress,
    check_new_names,
    family_of,
    file_version,
    refuse_blobs,
    tree_of,
)
from tiltyard.verbs.columns.column_values import AllNull, NewValues
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb


@dataclass(frozen=True, slots=True)
class Adding:
    """How columns are to be added."""

    values: NewValues
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.progress is not None and not callable(self.progress):
            raise InvalidInput("progress is a function of two numbers.", argument="progress")


def add_columns(
    access: TableAccess, read: ManifestFile, scheme: Scheme, adding: Adding, files: ColumnFiles, properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:  # fmt: skip
    """Adds columns. What was written for a fragment serves again after a conflict, unless that fragment changed."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        at = files.at(manifest)
        schema = adding.values.schema(at)
        if isinstance(adding.values, AllNull):
            operation = Merge(tuple(manifest.fragments), grown(manifest, schema), preserves_nullability=True)
        else:
            fields = new_fields(manifest, schema)
            if files.checkpoint is not None:
                files.checkpoint.begin(schema)
            preserves = all(field.nullable for field in fields if field.parent_id == ROOT)
            operation = Merge(_with_columns(at, adding, fields, schema), (*manifest.fields, *fields), preserves_nullability=preserves)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        done = access.committer.commit(transaction, run.read, run.scheme, run.policy)
        files.settle(operation.fragments)
        return done

    return discarding(files, lambda: run_verb(access, read, scheme, execute, policy))


def discarding(files: ColumnFiles, work: Callable[[], Committed]) -> Committed:
    """Runs a verb that writes columns, and removes its files where it failed for certain."""
    try:
        return work()
    except TiltyardError as error:
        files.discard(error)
        raise


def new_fields(manifest: Manifest, schema: pa.Schema, first: int | None = None) -> tuple[Field, ...]:
    """Fields for columns that the table does not have, numbered from ``first`` on, or from the first id nobody has."""
    if not len(schema):
        raise InvalidInput("There is no column to add.", argument="columns")
    check_new_names(manifest, schema.names)
    for item in schema:
        if pa.types.is_null(item.type):
            raise InvalidInput(f"Column {item.name!r} has no type.", argument="columns", advice="Cast it, or give schema=.")
    version = file_version(manifest)
    if first is None:
        first = next_field_id(manifest.fields, manifest.fragments, manifest.max_allocated_field_id)
    fields, _ = fields_from_arrow(schema.remove_metadata(), first_id=first, file_version=version)
    check_encodable(fields, version)
    if keys := primary_key_fields(fields):
        raise InvalidInput(f"{keys[0].name!r} is marked as a primary key, which is chosen with the table.", argument="columns")
    return fields


def _with_columns(at: FilesAt, adding: Adding, fields: Sequence[Field], schema: pa.Schema) -> tuple[DataFragment, ...]:
    """All fragments, each with a file for the new columns."""
    before = at.manifest.fragments
    refuse_blobs(schema)
    done: list[DataFragment] = []
    try:
        for fragment in before:
            file = at.file(fragment, list(fields), adding.values.what, partial(adding.values.batches, at, fragment))
            done.append(replace(fragment, files=(*fragment.files, file)))
            if adding.progress is not None:
                adding.progress(len(done), len(before))
    except Exception as error:
        if not isinstance(error, TiltyardError):  # the caller's own: nothing was committed, and nobody else would clean up
            at.kept.discard(InvalidInput(str(error)))
        raise
    return tuple(done)


def grown(manifest: Manifest, schema: pa.Schema) -> tuple[Field, ...]:
    """The table's fields with columns that are null throughout; a struct that is there already gets the members it lacks."""
    tree = tree_of(manifest)
    first = next_field_id(manifest.fields, manifest.fragments, manifest.max_allocated_field_id)
    fields = list(manifest.fields)
    fresh: list[pa.Field] = []
    for parent, member in _lacking(tree, ROOT, list(schema)):
        if parent == ROOT:
            fresh.append(member)
            continue
        if file_version(manifest) == (2, 0):
            raise UnsupportedFeature("Members cannot be added to structs in data format 2.0.", feature="members of structs", writing=True)
        [top, *below] = new_fields(replace(manifest, fields=()), pa.schema([member]), first)
        whole = family_of(field_tree(fields), tree.by_id[parent])
        position = next(number for number, field in enumerate(fields) if field.id == whole[-1].id) + 1
        fields[position:position] = [replace(top, parent_id=parent), *below]
        first += 1 + len(below)
    if fresh or len(fields) == len(manifest.fields):
        fields.extend(new_fields(manifest, pa.schema(fresh), first))
    return tuple(fields)


def _lacking(tree: FieldTree, parent: int, given: Sequence[pa.Field]) -> Iterator[tuple[int, pa.Field]]:
    """Columns and members that are not there yet, each with the id of what it is to be in."""
    for item in given:
        if not item.nullable:
            raise InvalidInput(f"Column {item.name!r} takes no nulls, but the rows have no values for it.", argument="columns")
        there = next((field for field in tree.below(parent) if field.name == item.name), None)
        if there is None:
            yield parent, item
        elif there.logical_type == "struct" and pa.types.is_struct(item.type):
            yield from _lacking(tree, there.id, list(item.type))
        else:
            raise InvalidInput(f"There is a column {item.name!r} already.", argument="columns", advice="Choose another name.")
