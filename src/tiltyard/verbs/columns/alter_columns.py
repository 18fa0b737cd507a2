"""Columns renamed, cast, or made to take nulls or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.fields import ROOT, FieldTree, next_field_id
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields, check_encodable, fields_from_arrow
from tiltyard.format.values import CREATED_AT_FIELD, ROW_ID_FIELD, UPDATED_AT_FIELD, DataFragment, Field
from tiltyard.transaction.operations import Merge, Operation, Project
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.add_columns import discarding
from tiltyard.verbs.columns.column_files import (
    Batches,
    ColumnFiles,
    FilesAt,
    check_new_name,
    family_of,
    file_version,
    find_field,
    fitting,
    quoted,
    refuse_blobs,
    refuse_key,
    scanned,
    tree_of,
)
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb

_EXTENSION = "ARROW:extension:"
_LINEAGE = frozenset({ROW_ID_FIELD, CREATED_AT_FIELD, UPDATED_AT_FIELD})


@dataclass(frozen=True, slots=True)
class Alteration:
    """What is to become of one column; None leaves it as it is."""

    path: str
    name: str | None = None
    nullable: bool | None = None
    data_type: pa.DataType | None = None


def alterations(given: Sequence[Any]) -> tuple[Alteration, ...]:
    """Alterations as a caller writes them: ``{"path": "x", "name": ..., "nullable": ..., "data_type": ...}``."""
    if not given:
        raise InvalidInput("Name at least one column to alter.", argument="alterations")
    made = []
    for item in given:
        if not isinstance(item, Mapping) or "path" not in item:
            raise InvalidInput('An alteration is a mapping with a "path".', argument="alterations")
        if unknown := sorted(map(str, item.keys() - {"path", "name", "nullable", "data_type"})):
            raise InvalidInput(f"An alteration says nothing of {unknown[0]!r}.", argument="alterations")
        nullable, kind = item.get("nullable"), item.get("data_type")
        if nullable is not None and not isinstance(nullable, bool):
            raise InvalidInput("nullable is True or False.", argument="nullable")
        if kind is not None and not isinstance(kind, pa.DataType):
            raise InvalidInput("data_type is an Arrow type.", argument="data_type")
        made.append(Alteration(item["path"], item.get("name"), nullable, kind))
    return tuple(made)


def alter_columns(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    wanted: Sequence[Alteration],
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Alters columns, all in one commit. Only a cast writes files."""
    files = ColumnFiles(access)

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        at = files.at(manifest)
        plan = _plan(manifest, wanted)
        if plan.fields == manifest.fields:
            files.settle(())  # an earlier run may have written some, before somebody else did the same
            return nothing_done(run, Project.name, {})
        _refuse_nulls(at, plan)
        operation: Operation = Project(plan.fields, preserves_nullability=not plan.strict)
        if plan.casts:
            operation = Merge(_cast_fragments(at, plan), plan.fields, preserves_nullability=not plan.strict)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        done = access.committer.commit(transaction, run.read, run.scheme, run.policy)
        files.settle(operation.fragments if isinstance(operation, Merge) else ())
        return done

    return discarding(files, lambda: run_verb(access, read, scheme, execute, policy))


@dataclass(frozen=True, slots=True)
class _Cast:
    """A column that becomes another type: it gets a field of its own, since files hold the old one."""

    path: tuple[str, ...]
    """Names from the top, as the values are read now."""
    column: pa.Field
    fields: tuple[Field, ...]
    """The new field and what is below it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    fields: tuple[Field, ...]
    casts: Mapping[int, _Cast]
    """By the id of the old field."""
    strict: tuple[tuple[str, ...], ...]
    """Columns that took nulls and are to take none."""


def _plan(manifest: Manifest, wanted: Sequence[Alteration]) -> _Plan:
    tree = tree_of(manifest)
    first = next_field_id(manifest.fields, manifest.fragments, manifest.max_allocated_field_id)
    changed: dict[int, Field] = {}
    casts: dict[int, _Cast] = {}
    strict: list[tuple[str, ...]] = []
    for alteration in wanted:
        old = find_field(tree, alteration.path, "path")
        if old.id in changed or any(above.id in casts for above in tree.ancestors(old)):
            raise InvalidInput(f"{alteration.path!r} is altered twice.", argument="path")
        names = (*(above.name for above in tree.ancestors(old)), old.name)
        new = _renamed(tree, old, alteration.name, changed)
        if alteration.nullable is not None and alteration.nullable != old.nullable:
            if alteration.nullable:
                refuse_key(tree, old, "nullable")
            else:
                strict.append(names)
            new = replace(new, nullable=alteration.nullable)
        changed[old.id] = new
        if alteration.data_type is not None and not alteration.data_type.equals(_arrow(tree, old).type):
            refuse_key(tree, old, "cast")
            casts[old.id] = _cast(manifest, tree, names, old, new, alteration.data_type, first)
            first += len(casts[old.id].fields)
    gone = {below.id for number in casts for below in family_of(tree, tree.by_id[number])}
    fields: list[Field] = []
    for field in tree.fields:
        if field.id in casts:
            fields.extend(casts[field.id].fields)
        elif field.id not in gone:
            fields.append(changed.get(field.id, field))
    return _Plan(tuple(fields), casts, tuple(strict))


def _renamed(tree: FieldTree, old: Field, name: str | None, changed: Mapping[int, Field]) -> Field:
    if name is None or name == old.name:
        return old
    siblings = {changed.get(field.id, field).name for field in tree.below(old.parent_id) if field.id != old.id}
    return replace(old, name=check_new_name(name, siblings, "name"))


def _arrow(tree: FieldTree, top: Field) -> pa.Field:
    family = family_of(tree, top)
    return arrow_from_fields([replace(family[0], parent_id=-1), *family[1:]]).field(0)


def _cast(manifest: Manifest, tree: FieldTree, names: tuple[str, ...], old: Field, new: Field, kind: pa.DataType, first: int) -> _Cast:
    version = file_version(manifest)
    if len(names) > 1 and version == (2, 0):
        # Stock readers fail on a struct whose members lie in several files of this format.
        raise UnsupportedFeature("Members of structs cannot be cast in data format 2.0.", feature="cast", writing=True)
    refuse_blobs(pa.schema([_arrow(tree, old)]))
    metadata = {key: value for key, value in new.metadata.items() if not key.startswith(_EXTENSION)}
    column = pa.field(new.name, kind, new.nullable, metadata or None)
    fields, _ = fields_from_arrow(pa.schema([column]), first_id=first, file_version=version)
    check_encodable(fields, version)
    refuse_blobs(arrow_from_fields(fields))
    return _Cast(names, arrow_from_fields(fields).field(0), (replace(fields[0], parent_id=old.parent_id), *fields[1:]))


def _refuse_nulls(at: FilesAt, plan: _Plan) -> None:
    for names in plan.strict:
        with lance_errors(at.kept.access, "look for nulls", at.dataset.version):
            count = int(at.dataset.count_rows(f"{quoted(*names)} IS NULL"))
        if count:
            path = ".".join(names)
            raise InvalidInput(f"{path} is null in {count} rows, so it cannot be made not null.", argument=path, advice="Fill them first.")


# ---- values ----------------------------------------------------------------------------------------------------------------


def _cast_fragments(at: FilesAt, plan: _Plan) -> tuple[DataFragment, ...]:
    tree = tree_of(at.manifest)
    live = {field.id for field in plan.fields} | _LINEAGE
    made = []
    for before in at.manifest.fragments:
        files = [file for file in before.files if live.intersection(file.fields)]
        for number, cast in plan.casts.items():
            # Members are stored together with what is above them: whether the struct is null is part of their values.
            fields = [*tree.ancestors(tree.by_id[number]), *cast.fields]
            values = partial(_values, at, before, fields, cast)
            files.append(at.file(before, fields, f"cast {cast.path} {cast.column}", values))
        made.append(replace(before, files=tuple(files)))
    return tuple(made)


def _values(at: FilesAt, before: DataFragment, fields: list[Field], one: _Cast) -> Batches:
    target = arrow_from_fields(fields)
    for batch in scanned(at.kept.access, at.dataset, before.id, [one.path[0]]):
        yield pa.RecordBatch.from_arrays([_within(batch.column(0), one.path[1:], target.field(0))], schema=target)


def _within(column: pa.Array, path: tuple[str, ...], target: pa.Field) -> pa.Array:
    """The column cast; of a struct only the member that is, under the struct's own nulls."""
    if not path:
        return fitting(column, target, "data_type")
    inner = target.type.field(0)
    member = _within(column.field(column.type.get_field_index(path[0])), path[1:], inner.with_nullable(True))
    return pa.StructArray.from_arrays([member], fields=[inner], mask=column.is_null() if column.null_count else None)


def dropped_paths(columns: object) -> tuple[str, ...]:
    """The columns to drop, as a caller names them."""
    given = [columns] if isinstance(columns, str) else columns
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise InvalidInput("Columns to drop are a list of names.", argument="columns")
    paths = tuple(given)
    if not paths:
        raise InvalidInput("Name at least one column to drop.", argument="columns")
    return paths


def drop_columns(
    access: TableAccess, read: ManifestFile, scheme: Scheme, paths: Sequence[str], properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Drops columns. Their values stay in the files, unread, until those are rewritten."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        # Whatever another writer adds meanwhile fits a schema with fewer columns.
        operation = Project(_without(tree_of(manifest), paths), preserves_nullability=True)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        return access.committer.commit(transaction, run.read, run.scheme, run.policy)

    return run_verb(access, read, scheme, execute, policy)


def _without(tree: FieldTree, paths: Sequence[str]) -> tuple[Field, ...]:
    gone: set[int] = set()
    for path in paths:
        found = find_field(tree, path, "columns")
        refuse_key(tree, found, "dropped")
        gone.update(field.id for field in family_of(tree, found))
    # A struct without members can be neither read nor written: it goes with the last of them.
    for field in reversed(tree.fields):
        members = tree.below(field.id)
        if members and all(member.id in gone for member in members):
            gone.add(field.id)
    if all(field.id in gone for field in tree.below(ROOT)):
        raise InvalidInput("A table keeps at least one column.", argument="columns")
    return tuple(field for field in tree.fields if field.id not in gone)
