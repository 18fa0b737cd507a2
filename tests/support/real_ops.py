"""What can be done to a table, each with pylance's own verb (or, where it has none, by hand), and what it means for the rows.

All deeds expect the tables of ``real_tables``: fragment ``f`` holds the ids ``10 f`` to ``10 f + 9``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import lance
import pyarrow as pa
from lance import DatasetBasePath, LanceDataset, LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile
from lance.optimize import Compaction
from pyroaring import BitMap

from tests.support import real_model as model
from tests.support.real_model import Effect, Row, row
from tiltyard import ops
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_to_pb
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.transaction.footprint import FRAGMENT_REUSE
from tiltyard.transaction.row_map import KEPT, ROW_ORDER

Rows = Mapping[int, Iterable[int]]
"""Offsets by fragment."""

FIELDS: Final = {"id": 0, "price": 1, "note": 2}
TYPES: Final = {"id": pa.int64(), "price": pa.float64(), "note": pa.string()}
SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), False), pa.field("price", pa.float64()), pa.field("note", pa.string())])
PRIMARY_KEY: Final = {"lance-schema:unenforced-primary-key": "true"}
KEYED_SCHEMA: Final = pa.schema([SCHEMA.field(0).with_metadata(PRIMARY_KEY), SCHEMA.field(1), SCHEMA.field(2)])
TARGET: Final = 20
SHARD, OTHER_SHARD = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"


@dataclass(frozen=True)
class Deed:
    """One thing done to a table.

    Attributes:
        words: what it is, for people; no two deeds say the same.
        operation: the operation its transaction carries.
        effect: what it means for the table.
        act: does it with pylance, on a handle that may be stale, without running again after a conflict.
        build: makes the operation by hand from the version it is built on, where pylance has no verb for it.
        change: what is changed of the operation pylance recorded.
        at: the version it is done on in place of the latest: an index that covers only what was there then.
        bare: offered to pylance as the operation it recorded, which does not tell which rows it is about.
        properties: what its transaction says beside the operation.
        stock_only: cannot be told by its transaction alone, so only pylance itself can commit it.
        planted: has no effect and no verb; stands in the history only if somebody writes it there by hand.
    """

    words: str
    operation: str
    effect: Effect = model.nothing
    act: Callable[[Any], object] | None = None
    build: Callable[[Manifest], ops.Operation] | None = None
    change: Callable[[Any], ops.Operation] | None = None
    at: int | None = None
    bare: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    stock_only: bool = False
    planted: bool = False

    def __str__(self) -> str:
        return f"{self.operation} ({self.words})"


def arrow(rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(one) for one in rows], schema=schema)


def fitting(stock: Any, rows: Iterable[Row]) -> pa.Table:
    """Rows in the schema a table has."""
    return arrow(rows, stock.schema)


def ids_of(rows: Rows) -> list[int]:
    return [fragment * 10 + offset for fragment, offsets in rows.items() for offset in offsets]


def where(ids: Iterable[int]) -> str:
    listed = ", ".join(map(str, ids))
    return f"id in ({listed})" if listed else "id < 0"


def offer(stock: Any, operation: Any) -> Any:
    return LanceDataset.commit(stock, operation, read_version=stock.version)


# ---- rows ------------------------------------------------------------------------------------------------------------------


def appends(*ids: int, **also: Any) -> Deed:
    new = [row(number) for number in ids or (100, 101)]
    return Deed(
        f"rows {ids}", "Append", model.added(new), lambda stock: lance.write_dataset(fitting(stock, new), stock, mode="append"), **also
    )


def deletes(rows: Rows, **also: Any) -> Deed:
    ids = ids_of(rows)
    return Deed(f"rows {ids}", "Delete", model.without(ids), lambda stock: stock.delete(where(ids), conflict_retries=0), **also)


def overwrites(**config: str) -> Deed:
    new = [row(number) for number in (200, 201)]
    return Deed(
        f"config {config}",
        "Overwrite",
        model.replaced_by(new, config),
        lambda stock: lance.write_dataset(arrow(new), stock, mode="overwrite"),
        change=(lambda operation: replace(operation, config_upsert_values=config)) if config else None,
    )


def moves(rows: Rows, column: str = "price", **also: Any) -> Deed:
    """An update that writes changed rows elsewhere."""
    ids = ids_of(rows)
    expression, value = {"price": ("price + 1000", lambda one: one["price"] + 1000), "note": ("'moved'", lambda one: "moved")}[column]
    effect = model.changed(ids, column, value)
    return Deed(
        f"{column} of rows {ids}",
        "Update",
        effect,
        lambda stock: stock.update({column: expression}, where(ids), conflict_retries=0),
        **also,
    )


def merges(updated: Iterable[int] = (), inserted: Iterable[int] = (), how: str = "both", words: str = "", **also: Any) -> Deed:
    """An upsert; ``how`` leaves out a half of it: ``insert``, ``update`` or ``delete``."""
    old, new = list(updated), list(inserted)
    rows = [row(number, number + 0.5, "merged") for number in (*old, *new)]

    def act(stock: Any) -> None:
        builder = stock.merge_insert("id")
        if how in ("both", "update"):
            builder = builder.when_matched_update_all()
        if how in ("both", "insert"):
            builder = builder.when_not_matched_insert_all()
        if how == "delete":
            builder = builder.when_matched_delete()
        builder.conflict_retries(0).execute(fitting(stock, rows))

    changes = model.both(
        model.changed(old, "price", lambda one: one["id"] + 0.5),
        model.changed(old, "note", lambda one: "merged"),
        model.added(rows[len(old) :]),
    )
    effect = model.without(old) if how == "delete" else changes
    return Deed(f"{how}: {old} changed, {new} new {words}", "Update", effect, act, **also)


def in_place(fragment: int, column: str, *offsets: int, told: bool = False) -> Deed:
    """A column rewritten where it is; if ``told``, the operation says in which rows."""
    rows = offsets or (5,)
    ids = [fragment * 10 + offset for offset in rows]
    values: list[Any] = [one + 0.25 for one in ids] if column == "price" else [f"in place {one}" for one in ids]

    def act(stock: Any) -> None:
        changed, modified = stock.get_fragment(fragment).update_columns(
            pa.table({"id": pa.array(ids, pa.int64()), column: pa.array(values, TYPES[column])}), "id", "id"
        )
        offer(stock, LanceOperation.Update(updated_fragments=[changed], fields_modified=modified, update_mode="rewrite_columns"))

    by_id = dict(zip(ids, values, strict=True))
    effect = model.changed(ids, column, lambda one: by_id[one["id"]])
    names = {fragment: bytes(BitMap(rows).serialize())}
    change = (lambda operation: replace(operation, updated_fragment_offsets=names)) if told else None
    return Deed(f"{column} of rows {ids} in place{', told' if told else ''}", "Update", effect, act, change=change)


def replaces(column: str, *fragments: int) -> Deed:
    def values(number: int) -> Any:
        return number + 0.75 if column == "price" else f"replaced {number}"

    def act(stock: Any) -> None:
        groups = []
        for fragment in fragments:
            path = Path(stock.uri) / "data" / f"{uuid4()}.lance"
            with LanceFileWriter(str(path), pa.schema([(column, TYPES[column])]), version=stock.data_storage_version) as writer:
                writer.write_batch(pa.table({column: pa.array([values(fragment * 10 + one) for one in range(10)], TYPES[column])}))
            major, minor = map(int, stock.data_storage_version.split("."))
            groups.append(
                LanceOperation.DataReplacementGroup(fragment, DataFile(path.name, [FIELDS[column]], [0], major, minor, path.stat().st_size))
            )
        offer(stock, LanceOperation.DataReplacement(groups))

    ids = [fragment * 10 + offset for fragment in fragments for offset in range(10)]
    return Deed(f"{column} of fragments {fragments}", "DataReplacement", model.changed(ids, column, lambda one: values(one["id"])), act)


def rewrites(*groups: tuple[int, ...], later: bool = False, target: int = TARGET, kept: bool = False) -> Deed:
    """A compaction of some fragments; ``later`` puts off the mapping of indices, ``kept`` promises that rows are in their old order."""
    options: Any = {"target_rows_per_fragment": target, "defer_index_remap": later}

    def act(stock: Any) -> None:
        plan: Any = Compaction.plan(stock, options)
        wanted = [task for task in plan.tasks if tuple(one.id for one in task.fragments) in groups]
        assert len(wanted) == len(groups), [[one.id for one in task.fragments] for task in plan.tasks]
        Compaction.commit(stock, [task.execute(stock) for task in wanted], options)

    words = f"fragments {groups}{', indices later' if later else ''}{', order kept' if kept else ''}"
    return Deed(words, "Rewrite", act=act, properties={ROW_ORDER: KEPT} if kept else {}, stock_only=later)


# ---- columns ---------------------------------------------------------------------------------------------------------------


def adds_column(name: str = "extra", promises: bool = True) -> Deed:
    """A computed column. One of a column without nulls would have none itself, and then pylance promises nothing."""
    return Deed(
        f"column {name}{'' if promises else ', no promise'}",
        "Merge",
        model.columned(name, lambda one: one["price"] * 2),
        lambda stock: stock.add_columns({name: "price * 2"}),
        change=None if promises else lambda operation: replace(operation, preserves_nullability=False),
    )


def adds_nulls(name: str = "extra") -> Deed:
    return Deed(
        f"empty column {name}", "Merge", model.columned(name, lambda one: None), lambda stock: stock.add_columns(pa.field(name, pa.int32()))
    )


def casts_price() -> Deed:
    """All values of the tests are as exact in half the bits."""

    def effect(world: model.World, past: model.Past) -> model.World:
        return replace(world, indices={index: column for index, column in world.indices.items() if column != "price"})

    return Deed("price cast", "Merge", effect, lambda stock: stock.alter_columns({"path": "price", "data_type": pa.float32()}))


def _unpromised(operation: Any) -> Any:
    return replace(operation, preserves_nullability=False)


def drops_column(name: str, promises: bool = True) -> Deed:
    words = f"{name} dropped{'' if promises else ', no promise'}"
    change = None if promises else _unpromised
    return Deed(words, "Project", model.dropped(name), lambda stock: stock.drop_columns([name]), change=change)


def renames(old: str = "note", new: str = "remark", promises: bool = True) -> Deed:
    words = f"{old} renamed to {new}{'' if promises else ', no promise'}"
    change = None if promises else _unpromised
    return Deed(words, "Project", model.renamed(old, new), lambda stock: stock.alter_columns({"path": old, "name": new}), change=change)


def tightens(name: str = "note") -> Deed:
    return Deed(f"{name} without nulls", "Project", act=lambda stock: stock.alter_columns({"path": name, "nullable": False}))


# ---- indices ---------------------------------------------------------------------------------------------------------------


def indexes(name: str = "price_idx", column: str = "price", at: int | None = None, kind: str = "BTREE", anew: bool = False) -> Deed:
    """A new index; ``anew`` in place of one of that name."""
    return Deed(
        f"{kind} {name} on {column}{'' if at is None else f' at version {at}'}{' anew' if anew else ''}",
        "CreateIndex",
        model.indexed(name, column),
        lambda stock: stock.create_scalar_index(column, kind, name=name, replace=anew),
        at=at,
    )


def drops_index(name: str) -> Deed:
    return Deed(f"{name} dropped", "CreateIndex", model.unindexed(name), lambda stock: stock.drop_index(name))


def extends_index(name: str) -> Deed:
    """Another segment, over what the others do not cover."""
    return Deed(
        f"{name} extended",
        "CreateIndex",
        act=lambda stock: stock.optimize.optimize_indices(num_indices_to_merge=0, index_names=[name]),
    )


def sets_up_log(shard: str = "", generation: int = 5) -> Deed:
    """The write-ahead log; with a shard, one that has come so far already."""

    def change(operation: Any) -> ops.Operation:
        (entry,) = operation.new_indices
        details = pb.MemWalIndexDetails.FromString(entry.details[1])
        details.compacted_sstables.add(shard_id=uuid_to_pb(shard), generation=generation)
        return ops.CreateIndex((replace(entry, details=(entry.details[0], details.SerializeToString())),))

    return Deed(
        f"the log, {f'{shard} at {generation}' if shard else 'no shard'}",
        "CreateIndex",
        act=lambda stock: stock.initialize_mem_wal(unsharded=True),
        change=change if shard else None,
    )


def trims_reuse(keep: int = 1) -> Deed:
    """The fragment reuse entry without its oldest versions; safe where no index has to follow them."""

    def build(manifest: Manifest) -> ops.Operation:
        (entry,) = (one for one in decode_indices(manifest, "") if one.name == FRAGMENT_REUSE)
        assert entry.details is not None
        details = pb.FragmentReuseIndexDetails.FromString(entry.details[1])
        assert len(details.inline.versions) > keep
        del details.inline.versions[:-keep]
        short = replace(entry, uuid=uuid4().hex, details=(entry.details[0], details.SerializeToString()))
        return ops.CreateIndex((short,), (entry,))

    return Deed(f"the reuse entry cut to {keep}", "CreateIndex", build=build)


# ---- the rest --------------------------------------------------------------------------------------------------------------


def restores(version: int = 1) -> Deed:
    return Deed(f"to version {version}", "Restore", model.back_to(version), lambda stock: stock.checkout_version(version).restore())


def reserves(count: int = 3) -> Deed:
    return Deed(f"{count} ids", "ReserveFragments", build=lambda _: ops.ReserveFragments(count))


def clones() -> Deed:
    return Deed("of version 1", "Clone", build=lambda _: ops.Clone(True, None, 1, "elsewhere"), planted=True)


def unknown() -> Deed:
    """A member of the transaction that nobody has given a meaning yet."""
    return Deed("a later one", "Unknown", build=lambda _: ops.UnknownOperation(4000, b"\x82\xfa\x01\x00"), planted=True)


def configures(entries: Mapping[str, str | None], whole: bool = False) -> Deed:
    return Deed(
        f"config {dict(entries)}{', whole' if whole else ''}",
        "UpdateConfig",
        model.mapped("config", entries, whole),
        lambda stock: stock.update_config(dict(entries), replace=whole),
    )


def notes(entries: Mapping[str, str | None], whole: bool = False) -> Deed:
    """Table metadata."""
    return Deed(
        f"table metadata {dict(entries)}{', whole' if whole else ''}",
        "UpdateConfig",
        model.mapped("metadata", entries, whole),
        lambda stock: stock.update_metadata(dict(entries), replace=whole),
    )


def notes_schema(entries: Mapping[str, str | None]) -> Deed:
    return Deed(
        f"schema metadata {dict(entries)}",
        "UpdateConfig",
        model.mapped("schema_metadata", entries, whole=False),
        lambda stock: stock.update_schema_metadata(dict(entries)),
    )


def notes_field(column: str, entries: Mapping[str, str | None]) -> Deed:
    return Deed(
        f"metadata of {column} {dict(entries)}",
        "UpdateConfig",
        model.described(column, entries),
        lambda stock: stock.update_field_metadata({column: dict(entries)}),
    )


def logs(generation: int, shard: str = SHARD) -> Deed:
    """How far the write-ahead log has come."""
    return Deed(
        f"{shard} at {generation}",
        "UpdateMemWalState",
        build=lambda _: ops.UpdateMemWalState((ops.CompactedSsTable(shard, generation),)),
    )


def takes_over(generation: int, shard: str = SHARD, key: int = 110) -> Deed:
    """A merge of rows out of the write-ahead log."""
    return merges(
        inserted=[key],
        words=f"{shard} at {generation}",
        change=lambda operation: replace(operation, compacted_sstables=(ops.CompactedSsTable(shard, generation),)),
    )


def adds_base(path: str, name: str | None = None, number: int | None = None) -> Deed:
    return Deed(
        f"{path} {name} {number}",
        "UpdateBases",
        model.with_base(path),
        lambda stock: stock.add_bases([DatasetBasePath(path, name=name, id=number)]),
    )
