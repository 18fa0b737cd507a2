"""What writers want, in terms of rows and columns, and the operation that says so on the wire.

An intention names rows by key and fragments by the keys in them, so that it can be worked out on any version: a
builder does that, and gives the operation together with its effect in the model. None where there is nothing to do on that version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyroaring import BitMap

from tiltyard.format import lance_pb2 as pb
from tiltyard.format.fields import next_field_id
from tiltyard.format.keys import PRIMARY_KEY, key_members
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.row_ids import encode_row_ids, row_ids_of
from tiltyard.format.values import TOMBSTONE, BasePath, DataFile, DataFragment, Field
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction import operations as ops
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.footprint import MEM_WAL
from tiltyard.transaction.key_filter import bloom_of
from tiltyard.transaction.pending_rows import PendingRows
from tiltyard_proofs.simulator.model import KEY, Effect, Row, Value
from tiltyard_proofs.simulator.offered_rows import OfferedRows
from tiltyard_proofs.simulator.world import Placed, World

FIELDS: Final = (Field(KEY, 0, -1, "int64", nullable=False), Field("a", 1, -1, "string"), Field("b", 2, -1, "string"))
_KEY_METADATA: Final = {PRIMARY_KEY: b"true"}
KEYED_FIELDS: Final = (replace(FIELDS[0], metadata=_KEY_METADATA, **key_members(_KEY_METADATA)), *FIELDS[1:])
TELLING: Final = "telling"
"""As the name of an append: one that tells which keys it writes."""
SHARD: Final = "00000000-0000-0000-0000-000000000001"


@dataclass(frozen=True, slots=True)
class Intention:
    """One thing a writer wants.

    Attributes:
        kind: which of the builders.
        keys: the rows meant; or the rows whose fragments are meant.
        column: the column meant.
        name: a config key, base, index or the like.
        number: a version, a generation, a fragment id that was reserved.
    """

    kind: str
    keys: tuple[int, ...] = ()
    column: str = "a"
    name: str = ""
    number: int = 0

    def __str__(self) -> str:
        parts = [f"keys {','.join(map(str, self.keys))}"] if self.keys else []
        parts += [self.column] if self.kind in COLUMN_KINDS else []
        parts += [self.name] if self.name else []
        return f"{self.kind}({' '.join(parts)})"


COLUMN_KINDS: Final = frozenset({"update", "update-columns", "merge", "index", "drop-column", "replace"})


@dataclass(frozen=True, slots=True)
class Built:
    """An intention worked out on one version."""

    operation: ops.Operation
    effect: Effect
    properties: Mapping[str, str]
    keys: ops.KeyExistenceFilter | None = None
    """For an append, the keys it writes, if it tells."""
    pending: PendingRows | None = None
    """For an append, its rows, where they are in no file yet."""


@dataclass(frozen=True, slots=True)
class View:
    """A version as the writer who builds on it sees it."""

    world: World
    manifest: Manifest
    actor: str
    store: ObjectStore | None = None
    """For a writer who leaves it to whoever commits them to write his new rows: where they are written."""

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.manifest.fields

    @property
    def stable(self) -> bool:
        return has_stable_row_ids(self.manifest)

    def live(self) -> list[tuple[DataFragment, list[Placed]]]:
        return [(fragment, self.world.live(fragment, self.fields)) for fragment in self.manifest.fragments]

    def targets(self, keys: Iterable[int]) -> list[tuple[DataFragment, list[Placed], int]]:
        """Fragments with rows of these keys: the fragment, those rows, and how many live rows it has."""
        wanted = frozenset(keys)
        found = []
        for fragment, rows in self.live():
            met = [row for row in rows if row.row[KEY] in wanted]
            if met:
                found.append((fragment, met, len(rows)))
        return found

    def keys(self) -> set[Value]:
        return {row.row[KEY] for _, rows in self.live() for row in rows}

    def generation(self) -> int | None:
        """How far the write-ahead log has come; None where there is none."""
        for index in decode_indices(self.manifest, "simulated") if self.manifest.index_section else ():
            if index.name == MEM_WAL and index.details is not None:
                details = pb.MemWalIndexDetails.FromString(index.details[1])
                return max((table.generation for table in details.compacted_sstables), default=0)
        return None

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)

    def new_fragment(self, rows: Sequence[tuple[str, Mapping[str, Value]]], moved: Sequence[int] = ()) -> DataFragment:
        """A fragment of these rows; the first of them moved here with the row ids given."""
        columns = {field.id: [row.get(field.name) for _, row in rows] for field in self.fields}
        file = self.world.write_file(self.actor, [rid for rid, _ in rows], columns)
        made = DataFragment(0, (file,), len(rows))
        return replace(made, row_ids=encode_row_ids(row_ids_of(list(moved)))) if moved else made

    def with_deletions(self, fragment: DataFragment, rows: Sequence[Placed]) -> DataFragment:
        deleted = self.world.deleted(fragment) | BitMap(row.offset for row in rows)
        return replace(fragment, deletion_file=self.world.write_deletions(self.actor, fragment, deleted, self.manifest.version))

    def new_rows(self, keys: Iterable[int]) -> list[tuple[str, dict[str, Value]]]:
        rows: list[tuple[str, dict[str, Value]]] = []
        for key in keys:
            rid = f"{self.world.fresh(self.actor + '.r')}"
            rows.append((rid, {field.name: key if field.name == KEY else f"{field.name}{key}{self.actor}" for field in self.fields}))
        return rows


Builder = Callable[[View, Intention], Built | None]


def built(operation: ops.Operation, effect: Effect | None = None, properties: Mapping[str, str] | None = None) -> Built:
    return Built(operation, effect or Effect(), properties or {})


# ---- rows ------------------------------------------------------------------------------------------------------------------


def _append(view: View, wanted: Intention) -> Built | None:
    """New rows; on a table with a primary key only of keys that are not there."""
    keys = wanted.keys
    if any(field.primary_key for field in view.fields):
        there = view.keys()
        keys = tuple(key for key in keys if key not in there)
    rows = view.new_rows(keys)
    if not rows:
        return None
    if view.store is not None and wanted.name != TELLING and not any(field.primary_key for field in view.fields):
        pending = OfferedRows(view.world, view.store, view.actor, view.fields, rows)
        return replace(built(ops.Append((pending.planned,)), Effect(added=dict(rows))), pending=pending)
    made = built(ops.Append((view.new_fragment(rows),)), Effect(added=dict(rows)))
    return replace(made, keys=_filter(keys)) if wanted.name == TELLING else made


def _filter(keys: Iterable[int]) -> ops.KeyExistenceFilter:
    return ops.KeyExistenceFilter((FIELDS[0].id,), bloom=bloom_of(key.to_bytes(8, "little") for key in keys))


def _without(view: View, keys: Iterable[int]) -> tuple[list[DataFragment], list[int], dict[str, Placed], list[int]]:
    """Rows taken out: fragments with new deletions, ids of those that have no rows left, the rows, and their row ids."""
    updated, removed, row_ids = [], [], []
    gone: dict[str, Placed] = {}
    for fragment, rows, live in view.targets(keys):
        gone |= {row.rid: row for row in rows}
        if view.stable:
            ids = view.world.row_ids(fragment)
            row_ids += [ids[row.offset] for row in rows]
        if len(rows) == live:
            removed.append(fragment.id)
        else:
            updated.append(view.with_deletions(fragment, rows))
    return updated, removed, gone, row_ids


def _delete(view: View, wanted: Intention) -> Built | None:
    updated, removed, gone, _ = _without(view, wanted.keys)
    if not gone:
        return None
    seen = {rid: row.row for rid, row in gone.items()}
    return built(ops.Delete(tuple(updated), tuple(removed), "key in (...)"), Effect(seen=seen, deleted=frozenset(gone)))


def _update(view: View, wanted: Intention) -> Built | None:
    """Changed rows leave their fragments for a new one."""
    return _moved(view, wanted, ())


def _moved(view: View, wanted: Intention, inserted: Sequence[int], keys: ops.KeyExistenceFilter | None = None) -> Built | None:
    column = view.field(wanted.column)
    updated, removed, gone, row_ids = _without(view, wanted.keys)
    if column is None or not (gone or inserted):
        return None
    more = f"+{view.world.fresh(view.actor + '.v')}"
    changed = [(rid, {**row.row, column.name: f"{row.row[column.name]}{more}"}) for rid, row in gone.items()]
    added = view.new_rows(inserted)
    fragments = (view.new_fragment([*changed, *added], row_ids),)
    assigned = tuple(field.id for field in view.fields) if keys is not None else (column.id,)
    operation = ops.Update(tuple(removed), tuple(updated), fragments, fields_for_preserving_frag_bitmap=assigned, inserted_rows=keys)
    seen = {rid: row.row for rid, row in gone.items()}
    return built(operation, Effect(seen=seen, appended={rid: {column.name: more} for rid in gone}, added=dict(added)))


def _merge(view: View, wanted: Intention) -> Built | None:
    """Rows whose key is there are updated, the others inserted; the filter tells which keys were."""
    there = view.keys()
    inserted = [key for key in wanted.keys if key not in there]
    return _moved(view, wanted, inserted, _filter(inserted))


def _update_columns(view: View, wanted: Intention) -> Built | None:
    """Changed columns get new files where they are."""
    column = view.field(wanted.column)
    found = view.targets(wanted.keys)
    if column is None or not found:
        return None
    more = f"+{view.world.fresh(view.actor + '.v')}"
    updated, told = [], {}
    seen: dict[str, Row] = {}
    for fragment, rows, _ in found:
        changed = {row.offset for row in rows}
        updated.append(_with_column(view, fragment, column, more, changed))
        told[fragment.id] = encode_roaring(BitMap(changed))
        seen |= {row.rid: row.row for row in rows}
    operation = ops.Update(
        (),
        tuple(updated),
        fields_modified=(column.id,),
        update_mode=ops.UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offsets=told,
    )
    return built(operation, Effect(seen=seen, appended={rid: {column.name: more} for rid in seen}))


def _column_file(view: View, fragment: DataFragment, column: Field, more: str, changed: Iterable[int] | None) -> DataFile:
    rows = view.world.physical(fragment, view.fields)
    places = None if changed is None else frozenset(changed)
    values = [f"{row.row[column.name]}{more}" if places is None or row.offset in places else row.row[column.name] for row in rows]
    return view.world.write_file(view.actor, [row.rid for row in rows], {column.id: values})


def _with_column(view: View, fragment: DataFragment, column: Field, more: str, changed: Iterable[int]) -> DataFragment:
    known = {field.id for field in view.fields}
    files = []
    for file in fragment.files:
        fields = tuple(TOMBSTONE if number == column.id else number for number in file.fields)
        if known.intersection(fields):
            files.append(replace(file, fields=fields))
    return replace(fragment, files=(*files, _column_file(view, fragment, column, more, changed)))


def _overwrite(view: View, wanted: Intention) -> Built | None:
    schema = KEYED_FIELDS if any(field.primary_key for field in view.fields) else FIELDS
    rows = View(view.world, replace(view.manifest, fields=schema), view.actor).new_rows(wanted.keys)
    fragment = View(view.world, replace(view.manifest, fields=schema), view.actor).new_fragment(rows)
    effect = Effect(added=dict(rows), replaced=tuple(field.name for field in schema))
    return built(ops.Overwrite((fragment,), schema), effect)


def _flush(view: View, wanted: Intention) -> Built | None:
    """Rows of the write-ahead log, brought into the table once."""
    if not _is_ahead(view, wanted.number):
        return None
    rows = [(f"wal-{wanted.number}-{key}", row) for key, (_, row) in zip(wanted.keys, view.new_rows(wanted.keys), strict=True)]
    progress = (ops.CompactedSsTable(SHARD, wanted.number),)
    assigned = tuple(field.id for field in view.fields)
    operation = ops.Update((), (), (view.new_fragment(rows),), compacted_sstables=progress, fields_for_preserving_frag_bitmap=assigned)
    return built(operation, Effect(added=dict(rows), generations={SHARD: wanted.number}))


# ---- columns ---------------------------------------------------------------------------------------------------------------


def _replace(view: View, wanted: Intention) -> Built | None:
    column = view.field(wanted.column)
    found = view.targets(wanted.keys)
    if column is None or not found:
        return None
    more = f"*{view.world.fresh(view.actor + '.v')}"
    new = tuple(ops.Replacement(fragment.id, _column_file(view, fragment, column, more, None)) for fragment, _, _ in found)
    seen = {row.rid: row.row for fragment, _, _ in found for row in view.world.live(fragment, view.fields)}
    return built(ops.DataReplacement(new), Effect(seen=seen, appended={rid: {column.name: more} for rid in seen}, loose=True))


def _add_column(view: View, wanted: Intention) -> Built | None:
    name = f"c{view.world.fresh(view.actor)}"
    number = next_field_id(view.fields, view.manifest.fragments, view.manifest.max_allocated_field_id)
    fragments = []
    values: dict[str, Value] = {}
    for fragment in view.manifest.fragments:
        rows = view.world.physical(fragment, view.fields)
        file = view.world.write_file(view.actor, [row.rid for row in rows], {number: [f"{name}:{row.rid}" for row in rows]})
        fragments.append(replace(fragment, files=(*fragment.files, file)))
        values |= {row.rid: f"{name}:{row.rid}" for row in rows}
    schema = (*view.fields, Field(name, number, -1, "string"))
    return built(ops.Merge(tuple(fragments), schema, preserves_nullability=True), Effect(new_column=(name, values)))


def _drop_column(view: View, wanted: Intention) -> Built | None:
    if view.field(wanted.column) is None:
        return None
    schema = tuple(field for field in view.fields if field.name != wanted.column)
    return built(ops.Project(schema, preserves_nullability=True), Effect(dropped_column=wanted.column))


# ---- settings --------------------------------------------------------------------------------------------------------------


def _set_config(view: View, wanted: Intention) -> Built | None:
    value = view.world.fresh(view.actor)
    operation = ops.UpdateConfig(ops.UpdateMap(((wanted.name, value),)))
    return built(operation, Effect(config={wanted.name: (view.manifest.config.get(wanted.name), value)}))


def _restore(view: View, wanted: Intention) -> Built | None:
    return built(ops.Restore(wanted.number), Effect(restored=wanted.number))


def _reserve(view: View, wanted: Intention) -> Built | None:
    return built(ops.ReserveFragments(max(wanted.number, 1)))


def _add_base(view: View, wanted: Intention) -> Built | None:
    if any(base.name == wanted.name for base in view.manifest.base_paths):
        return None
    return built(ops.UpdateBases((BasePath(0, f"memory://{wanted.name}", name=wanted.name),)), Effect(base=wanted.name))


def _is_ahead(view: View, generation: int) -> bool:
    known = view.generation()
    return known is not None and generation > known


def _advance(view: View, wanted: Intention) -> Built | None:
    if not _is_ahead(view, wanted.number):
        return None
    operation = ops.UpdateMemWalState((ops.CompactedSsTable(SHARD, wanted.number),))
    return built(operation, Effect(generations={SHARD: wanted.number}))


PLAIN_BUILDERS: Final[Mapping[str, Builder]] = {
    "append": _append,
    "delete": _delete,
    "update": _update,
    "update-columns": _update_columns,
    "merge": _merge,
    "overwrite": _overwrite,
    "flush": _flush,
    "replace": _replace,
    "add-column": _add_column,
    "drop-column": _drop_column,
    "set-config": _set_config,
    "restore": _restore,
    "reserve": _reserve,
    "add-base": _add_base,
    "advance": _advance,
}
