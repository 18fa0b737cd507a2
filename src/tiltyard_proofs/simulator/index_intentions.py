"""Intentions about indices and compaction. What an index holds is modelled by the addresses or row ids it would have on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from pyroaring import BitMap

from tiltyard.format.manifest import decode_indices
from tiltyard.format.roaring import decode_roaring, encode_roaring
from tiltyard.format.row_ids import decode_row_versions, encode_row_ids, encode_row_versions, row_ids_of, row_versions_of
from tiltyard.format.values import DataFragment, Field, IndexMetadata
from tiltyard.transaction import operations as ops
from tiltyard.transaction.footprint import SINGLETONS
from tiltyard.transaction.row_map import KEPT, ROW_ORDER
from tiltyard_proofs.simulator.intentions import PLAIN_BUILDERS, Builder, Built, Intention, View, built
from tiltyard_proofs.simulator.model import Effect, Value
from tiltyard_proofs.simulator.world import Placed

BTREE: Final = "/lance.table.BTreeIndexDetails"
BITMAP: Final = "/lance.table.BitmapIndexDetails"
ORDERED: Final = "ordered"
"""As the name of a compaction: one that says that it kept the order of rows."""
ORDER_KEPT: Final[Mapping[str, str]] = {ROW_ORDER: KEPT}


def index_path(uuid: str) -> str:
    return f"_indices/{uuid}/page_data.lance"


def indices_of(view: View) -> tuple[IndexMetadata, ...]:
    return decode_indices(view.manifest, "simulated") if view.manifest.index_section else ()


def _uuid(view: View) -> str:
    text = view.world.fresh(view.actor + "i").encode()
    number = int.from_bytes(text[-12:], "big")
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _index(view: View, wanted: Intention) -> Built | None:
    """An index over a column: of the fragments with the given keys, or of all."""
    column = view.field(wanted.column)
    name = wanted.name or f"{wanted.column}_idx"
    if column is None or any(index.name == name for index in indices_of(view)):
        return None
    chosen = [piece for piece, _, _ in view.targets(wanted.keys)] if wanted.keys else list(view.manifest.fragments)
    by_row_id = view.stable and wanted.number == 1
    uuid = _uuid(view)
    entries: dict[object, Value] = {}
    for fragment in chosen:
        ids = view.world.row_ids(fragment) if by_row_id else []
        for row in view.world.live(fragment, view.fields):
            entries[ids[row.offset] if by_row_id else (fragment.id, row.offset)] = row.row[column.name]
    _keep(view, uuid, entries, by_row_id=by_row_id)
    bitmap = encode_roaring(BitMap(piece.id for piece in chosen))
    details = (BITMAP if by_row_id else BTREE, b"")
    entry = IndexMetadata(uuid, (column.id,), name, view.manifest.version, bitmap, details, 0)
    return built(ops.CreateIndex((entry,)), Effect(index=(name, column.name)))


def _keep(view: View, uuid: str, entries: Mapping[object, Value], *, by_row_id: bool) -> None:
    view.world.index_values[uuid] = entries
    if by_row_id:
        view.world.by_row_id.add(uuid)
    view.world.put(index_path(uuid), b"index")


def _drop_index(view: View, wanted: Intention) -> Built | None:
    found = [index for index in indices_of(view) if index.name == wanted.name]
    return built(ops.CreateIndex((), tuple(found)), Effect(dropped_index=wanted.name)) if found else None


# ---- compaction ------------------------------------------------------------------------------------------------------------


def _compact(view: View, wanted: Intention) -> Built | None:
    """The fragments with the given keys become one, whose id (``number``) was reserved."""
    old = [piece for piece, _, _ in view.targets(wanted.keys)]
    rows = [(fragment, live) for fragment in old for live in view.world.live(fragment, view.fields)]
    if not rows:
        return None
    columns = {field.id: [row.row[field.name] for _, row in rows] for field in view.fields}
    file = view.world.write_file(view.actor, [row.rid for _, row in rows], columns)
    new = replace(_lineage(view, old, rows, DataFragment(0, (file,), len(rows))), id=wanted.number)
    group = ops.RewriteGroup(tuple(old), (new,))
    operation = ops.Rewrite((group,), _remapped(view, old, rows, wanted.number))
    return built(operation, properties=ORDER_KEPT if wanted.name == ORDERED else None)


def _lineage(view: View, old: Sequence[DataFragment], rows: Sequence[tuple[DataFragment, Placed]], made: DataFragment) -> DataFragment:
    if not view.stable:
        return made
    ids = {piece.id: view.world.row_ids(piece) for piece in old}
    made = replace(made, row_ids=encode_row_ids(row_ids_of([ids[fragment.id][row.offset] for fragment, row in rows])))
    created, updated = (
        {fragment.id: _versions(data, fragment) for fragment, data in zip(old, several, strict=True)}
        for several in ([piece.created_at for piece in old], [piece.updated_at for piece in old])
    )
    return replace(made, created_at=_carried(created, rows), updated_at=_carried(updated, rows))


def _carried(versions: Mapping[int, Sequence[int]], rows: Sequence[tuple[DataFragment, Placed]]) -> bytes:
    return encode_row_versions(row_versions_of(np.array([versions[fragment.id][row.offset] for fragment, row in rows], np.uint64)))


def _versions(data: bytes | None, fragment: DataFragment) -> list[int]:
    if data is None:
        return [1] * fragment.physical_rows
    return [int(version) for version in decode_row_versions(data, physical_rows=fragment.physical_rows, source="").to_numpy()]


def _remapped(
    view: View, old: Sequence[DataFragment], rows: Sequence[tuple[DataFragment, Placed]], number: int
) -> tuple[ops.RewrittenIndex, ...]:
    """Indices that cover all of the old fragments, with the addresses of rows as they are to be."""
    moved: dict[object, object] = {(fragment.id, row.offset): (number, place) for place, (fragment, row) in enumerate(rows)}
    taken = BitMap(piece.id for piece in old)
    result = []
    for index in indices_of(view):
        if index.name in SINGLETONS or index.fragment_bitmap is None or index.uuid in view.world.by_row_id:
            continue
        if not taken <= decode_roaring(index.fragment_bitmap, ""):
            continue
        uuid = _uuid(view)
        before = view.world.index_values[index.uuid]
        entries = {moved.get(place, place): value for place, value in before.items()}
        _keep(view, uuid, entries, by_row_id=False)
        result.append(ops.RewrittenIndex(index.uuid, uuid, index.details, index.index_version or 0))
    return tuple(result)


def column_of(index: IndexMetadata, fields: Sequence[Field]) -> Field | None:
    return next((field for field in fields if field.id in index.fields), None)


BUILDERS: Final[Mapping[str, Builder]] = {**PLAIN_BUILDERS, "index": _index, "drop-index": _drop_index, "compact": _compact}


def build(view: View, wanted: Intention) -> Built | None:
    """Works an intention out on a version; None where there is nothing to do there."""
    return BUILDERS[wanted.kind](view, wanted)
