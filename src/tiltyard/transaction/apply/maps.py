"""The table's small print: UpdateConfig and UpdateBases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tiltyard.format.keys import (
    CLUSTERING_KEY_POSITION,
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    check_primary_key,
    key_members,
    primary_key_fields,
)
from tiltyard.format.logical_types import EXTENSION_NAME
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, Field
from tiltyard.transaction.apply.frame import gone, invalid, some
from tiltyard.transaction.operations import UpdateBases, UpdateConfig, UpdateMap

OF_PRIMARY_KEY = frozenset({PRIMARY_KEY, PRIMARY_KEY_POSITION})
OF_CLUSTERING_KEY = frozenset({CLUSTERING_KEY_POSITION})
MAX_BASE_ID = 2**32 - 1


def updated(old: Mapping[str, str], update: UpdateMap | None) -> Mapping[str, str]:
    """A map after its changes, of which the later one counts."""
    if update is None:
        return old
    new = {} if update.replace else dict(old)
    for key, value in update.entries:
        if value is None:
            new.pop(key, None)
        else:
            new[key] = value
    return new


def _updated_bytes(old: Mapping[str, bytes], update: UpdateMap | None) -> Mapping[str, bytes]:
    if update is None:
        return old
    new: dict[str, bytes] = {} if update.replace else dict(old)
    for key, value in update.entries:
        if value is None:
            new.pop(key, None)
        else:
            new[key] = value.encode()
    return new


def update_config(operation: UpdateConfig, base: Manifest) -> Manifest:
    if missing := operation.field_metadata_updates.keys() - {field.id for field in base.fields}:
        raise gone(operation.name, f"version {base.version} has no field {some(missing)}")
    fields = tuple(_with_metadata(field, operation.field_metadata_updates.get(field.id)) for field in base.fields)
    _check_keys(base.fields, fields, operation)
    return replace(
        base,
        version=base.version + 1,
        fields=fields,
        config=updated(base.config, operation.config_updates),
        table_metadata=updated(base.table_metadata, operation.table_metadata_updates),
        schema_metadata=_updated_bytes(base.schema_metadata, operation.schema_metadata_updates),
    )


def _with_metadata(field: Field, update: UpdateMap | None) -> Field:
    """The field with other metadata, and with the members that repeat some of it."""
    if update is None:
        return field
    metadata = MappingProxyType(dict(_updated_bytes(field.metadata, update)))
    extension = metadata.get(EXTENSION_NAME, b"").decode("utf-8", "replace")
    return replace(field, metadata=metadata, extension_name=extension, **key_members(metadata))


def _check_keys(before: tuple[Field, ...], after: tuple[Field, ...], operation: UpdateConfig) -> None:
    """Rows were written by the key there is: once set, neither kind of key changes."""
    written = {key for update in operation.field_metadata_updates.values() for key, _ in update.entries}
    primary = [[field.id for field in primary_key_fields(side)] for side in (before, after)]
    clustering = [[(field.id, field.clustering_key_position) for field in side if _clusters(field)] for side in (before, after)]
    for what, (old, new), keys in (("primary", primary, OF_PRIMARY_KEY), ("clustering", clustering, OF_CLUSTERING_KEY)):
        if old and (old != new or keys & written):
            raise invalid(f"The table has a {what} key, which cannot change.", "field_metadata_updates")
        if not old and not new and keys & written:
            raise invalid(f"This metadata does not make a valid {what} key.", "field_metadata_updates")
    if OF_PRIMARY_KEY & written:
        check_primary_key(after)


def _clusters(field: Field) -> bool:
    return field.clustering_key or bool(field.clustering_key_position)


def update_bases(operation: UpdateBases, base: Manifest) -> Manifest:
    bases = list(base.base_paths)
    for new in operation.new_bases:
        _check_base(new, bases)
        bases.append(replace(new, id=new.id or _unused(bases)))
    return replace(base, version=base.version + 1, base_paths=tuple(bases))


def _check_base(new: BasePath, bases: list[BasePath]) -> None:
    if not new.path or not 0 <= new.id <= MAX_BASE_ID:
        raise invalid(f"Base {new.id} at {new.path[:60]!r} is invalid: it needs a path, and an id in range.", "new_bases")
    for old in bases:
        if new.id and new.id == old.id:
            raise gone("UpdateBases", f"base {old.id} is {old.path[:60]!r} already")
        if new.path == old.path or (new.name is not None and new.name == old.name):
            raise gone("UpdateBases", f"the path or the name of {new.path[:60]!r} is that of base {old.id}")


def _unused(bases: list[BasePath]) -> int:
    """Ids begin at 1: on the wire 0 says that there is none yet."""
    taken = {base.id for base in bases}
    return next(number for number in range(1, MAX_BASE_ID + 1) if number not in taken)
