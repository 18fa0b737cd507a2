"""What a table says of itself beside its rows: config, metadata of the table, its schema and its columns, and further places for files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from tiltyard.errors import AlreadyExists, CorruptTable, InvalidInput, UnsupportedFeature
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme, migration_plan
from tiltyard.format.safe_text import check_base, check_encodes, check_text
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import BasePath
from tiltyard.options import Storage
from tiltyard.storage import lance_uri
from tiltyard.transaction.apply.maps import update_config
from tiltyard.transaction.log import VERSIONS
from tiltyard.transaction.operations import Operation, UpdateBases, UpdateConfig, UpdateMap
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.column_files import find_field, tree_of
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.engine.access import ANYWHERE, TableAccess, open_access
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import dataset_at
from tiltyard.verbs.keys.primary_keys import check_comparable, distinct_keys, key_batches, primary_key_of

_LAID_OUT: Final = ("lance-encoding:blob", "lance-encoding:packed", "packed", "ARROW:extension:")
"""Field metadata by which files are written and read: it cannot change under files that are there."""


def changes(values: object, replace: bool, argument: str) -> UpdateMap:
    """Changes to a map of texts, as a caller gives them: None removes a key."""
    if not isinstance(values, Mapping):
        raise InvalidInput("Settings must map keys to text; None removes a key.", argument=argument)
    for key, value in values.items():
        if not isinstance(key, str) or not key or not (value is None or isinstance(value, str)):
            raise InvalidInput(f"Settings must map keys to text, not {key!r}: {value!r}.", argument=argument)
        check_encodes(check_text(key, "The name of a setting", argument) + (value or ""), "A setting", argument)
        if replace and value is None:
            raise InvalidInput(f"{key!r} is None, but replace=True removes every key that is not named.", argument=argument)
    if not values and not replace:
        raise InvalidInput("There is no setting to change.", argument=argument)
    return UpdateMap(tuple(values.items()), replace)


def update_settings(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    operation: UpdateConfig,
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Changes config, table metadata or schema metadata."""
    return _commit(access, read, scheme, lambda manifest: _readable(operation, manifest), properties, policy)


def update_field(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    path: str,
    update: UpdateMap,
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Changes the metadata of one column."""

    def plan(manifest: Manifest) -> Operation:
        field = find_field(tree_of(manifest), path, "path")
        written = {key for key, _ in update.entries} | (set(field.metadata) if update.replace else set())
        said = {key: None if value is None else value.encode() for key, value in update.entries}
        for key in sorted(written):
            if key.startswith(_LAID_OUT) and said.get(key) != field.metadata.get(key):
                raise InvalidInput(f"{key!r} says how the column is stored, which cannot change.", argument="values")
        operation = _readable(UpdateConfig(field_metadata_updates={field.id: update}), manifest)
        _check_declared_key(access, manifest, operation)
        return operation

    return _commit(access, read, scheme, plan, properties, policy)


def _check_declared_key(access: TableAccess, manifest: Manifest, operation: UpdateConfig) -> None:
    """Refuses a primary key that rows of the version are not told apart by. Keys of types that nobody can compare are taken as they are.

    Raises:
        KeyConflict: naming duplicate keys.
    """
    made = update_config(operation, manifest)
    key = primary_key_of(made)
    if key is None or key == primary_key_of(manifest) or not len(manifest.fragments):
        return
    try:
        check_comparable(made, key)
    except UnsupportedFeature:
        return
    keys = list(key_batches(access, dataset_at(access, manifest), key))
    if keys:
        distinct_keys(pa.concat_tables(keys), f"Version {manifest.version} has", UpdateConfig.name)


def _readable(operation: UpdateConfig, manifest: Manifest) -> UpdateConfig:
    """Refuses settings that would make a schema nobody can read."""
    made = update_config(operation, manifest)
    try:
        arrow_from_fields(made.fields, made.schema_metadata)
    except CorruptTable as error:
        raise InvalidInput(f"With this metadata the schema could not be read: {error.reason}.", argument="values") from error
    return operation


# ---- bases -----------------------------------------------------------------------------------------------------------------


def new_bases(given: Any, is_dataset_root: bool) -> tuple[BasePath, ...]:
    """Places as a caller names them: paths, or paths by name."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInput("Bases are a list of paths, or paths by name.", argument="bases")
    named: list[tuple[Any, Any]] = list(given.items()) if isinstance(given, Mapping) else [(None, path) for path in given]
    if not named:
        raise InvalidInput("Name at least one base.", argument="bases")
    made = []
    for name, path in named:
        if not isinstance(path, str) or not path or not (name is None or (isinstance(name, str) and name)):
            raise InvalidInput(f"A base is a path, perhaps with a name, not {path!r}.", argument="bases")
        made.append(BasePath(0, lance_uri(path), is_dataset_root=is_dataset_root, name=name))
    return tuple(made)


def add_bases(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    bases: tuple[BasePath, ...],
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:
    """Adds places where files of the table may lie. Only such as this handle may read, or it could not go on."""
    if ANYWHERE not in access.allowed_bases:
        for base in bases:
            try:
                check_base(base.path, [access.main_uri, *access.allowed_bases])
            except CorruptTable as error:
                advice = "Open the table with allowed_bases=[...] that names it; all its readers will have to."
                raise InvalidInput(f"{base.path[:80]!r} is outside the table.", argument="bases", advice=advice) from error

    def plan(manifest: Manifest) -> Operation:
        for base in bases:
            for old in manifest.base_paths:
                if base.path == old.path or (base.name is not None and base.name == old.name):
                    raise InvalidInput(f"There is a base at {old.path[:60]!r} or of that name already.", argument="bases")
        return UpdateBases(bases)

    return _commit(access, read, scheme, plan, properties, policy)


def _commit(
    access: TableAccess, read: ManifestFile, scheme: Scheme, plan: Any, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), plan(manifest), properties)
        return access.committer.commit(transaction, run.read, run.scheme, run.policy)

    return run_verb(access, read, scheme, execute, policy)


def resume_migration(uri: str | os.PathLike[str], *, storage: Storage | None = None) -> int:
    """Resumes an interrupted migration of manifest names, after which a table may not open.

    Returns how many it renamed.

    Args:
        uri: where the table is.
        storage: how the store is reached.
    """
    return migrate_names(open_access(uri, storage))


def migrate_names(access: TableAccess) -> int:
    """Carries out the plan; can be run again after it was interrupted.

    Raises:
        CorruptTable: both names exist and hold different bytes; nothing is deleted then.
    """
    plan = migration_plan(access.store.names(VERSIONS))
    for old, new in plan:
        try:
            access.store.rename_if_absent(VERSIONS + old, VERSIONS + new)
        except AlreadyExists as error:
            if access.store.get(VERSIONS + old) != access.store.get(VERSIONS + new):
                raise CorruptTable(VERSIONS + new, f"it differs from {old}, which names the same version") from error
            access.store.delete(VERSIONS + old)
    return len(plan)
