"""Rows of a table and of a source that have the same key, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import is_legacy_blob
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import ADDRESS, ROW_ID
from tiltyard.verbs.engine.sql_expressions import bracketed, checked
from tiltyard.verbs.keys.primary_keys import Key, KnownKeys, Numbers, key_batches

if TYPE_CHECKING:
    from lance import LanceDataset

Addresses64 = npt.NDArray[np.uint64]

_SMALL_BATCH: Final = 1 << 10
_AT_ONCE: Final = 1 << 13
"""Rows of the table that are looked up together, at least."""
CHUNK: Final = 1 << 16
"""Pairs whose columns are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows.

    Attributes:
        rows: which rows of the source.
        places: which rows of the table, counted as a scan gives them.
        addresses: where those are.
        ids: and their row ids, on tables whose rows keep them.
    """

    rows: Numbers
    places: Numbers
    addresses: Addresses64
    ids: Addresses64 | None

    def __len__(self) -> int:
        return len(self.rows)

    def chosen(self, which: npt.NDArray[np.bool_]) -> Pairs:
        return Pairs(self.rows[which], self.places[which], self.addresses[which], None if self.ids is None else self.ids[which])

    def chunks(self) -> Iterator[Pairs]:
        for begin in range(0, len(self), CHUNK):
            part = slice(begin, begin + CHUNK)
            yield Pairs(self.rows[part], self.places[part], self.addresses[part], None if self.ids is None else self.ids[part])


@dataclass(frozen=True, slots=True)
class Matched:
    """The outcome of looking for a source's keys: what is in both, and where the rows are that only the table has, if asked for."""

    pairs: Pairs
    others: Addresses64


def match_rows(access: TableAccess, dataset: LanceDataset, key: Key, known: KnownKeys, manifest: Manifest, *, others: bool) -> Matched:
    """Finds the rows of a version that have keys of the source."""
    stable = has_stable_row_ids(manifest)
    options: dict[str, Any] = {"with_row_address": True, "with_row_id": stable}
    count = len(manifest.fragments)
    if count >= _SMALL_BATCH and manifest.fragments.live_rows() <= count * _SMALL_BATCH:
        # pylance joins the rows of small fragments, since each batch costs the same; the quicker, the fewer rows it is to join.
        options |= {"batch_size": _SMALL_BATCH, "strict_batch_size": True}
    rows, places, addresses, ids, rest = [_NONE], [_NONE], [_NOWHERE], [_NOWHERE], [_NOWHERE]
    seen = 0
    for piece in key_batches(access, dataset, key, at_once=max(known.at_once, _AT_ONCE), **options):
        both, found = known.matches(piece.select(range(len(key.paths))))
        where = piece.column(ADDRESS).to_numpy()
        rows.append(found)
        places.append(both + seen)
        addresses.append(where[both])
        if stable:
            ids.append(piece.column(ROW_ID).to_numpy()[both])
        if others:
            rest.append(np.delete(where, both))
        seen += piece.num_rows
    kept = np.concatenate(ids) if stable else None
    return Matched(Pairs(np.concatenate(rows), np.concatenate(places), np.concatenate(addresses), kept), np.concatenate(rest))


_NONE: Final = np.empty(0, np.int64)
_NOWHERE: Final = np.empty(0, np.uint64)


# ---- columns of pairs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sides:
    """Where the columns of pairs come from."""

    access: TableAccess
    dataset: LanceDataset
    schema: pa.Schema
    """Of the table."""
    source: pa.Table

    def of_table(self, pairs: Pairs, columns: list[str]) -> pa.Table:
        """Columns of the table's rows."""
        if blobs := [name for name in columns if _is_blob(self.schema.field(name))]:
            raise UnsupportedFeature(
                f"The merge would have to carry blobs of column {blobs[0]!r} along.",
                feature="merge that keeps blobs",
                writing=True,
                advice="Give the column in the source.",
            )
        with lance_errors(self.access, "read matching rows", self.dataset.version):
            return self.dataset.take(pairs.places.tolist(), columns=columns)

    def of_source(self, pairs: Pairs, columns: list[str]) -> pa.Table:
        return self.source.select(columns).take(pa.array(pairs.rows))

    def holding(self, pairs: Pairs, condition: str | None) -> npt.NDArray[np.bool_]:
        """For which pairs a condition over ``source.`` and ``target.`` columns holds."""
        if condition is None:
            return np.ones(len(pairs), np.bool_)
        found = [self._holds(chunk, condition) for chunk in pairs.chunks()]
        return np.concatenate([np.empty(0, np.bool_), *found])

    def wanted(self, rows: Numbers, conditions: Sequence[str]) -> npt.NDArray[np.bool_]:
        """For which rows of the source one of some conditions over ``source.`` columns holds."""
        found = np.zeros(len(rows), np.bool_)
        for condition in conditions:
            for begin in range(0, len(rows), CHUNK):
                part = slice(begin, begin + CHUNK)
                mentioned = self._mentioned(self.source.column_names, condition)
                sources = {"source": _as_struct(self.source.select(mentioned).take(pa.array(rows[part])))} if mentioned else {}
                found[part] |= self._evaluated(sources, len(rows[part]), condition)
        return found

    def check(self, condition: str, *sides: str) -> None:
        """Refuses a condition that is not one expression over columns of both sides, or of some, whether or not any rows match."""
        both = {"source": self.source.schema, "target": self.schema}
        fields = {side: [_bare(item) for item in both[side] if self._can_be_named(item.name)] for side in sides or ("source", "target")}
        try:
            checked(condition, pa.schema([pa.field(side, pa.struct(members)) for side, members in fields.items()]), "condition")
        except InvalidInput as error:
            known = ", ".join(member.name for member in fields[[*fields][-1]])[:100]
            names = " and ".join(f"{side}.NAME" for side in fields)
            raise error.advised(f"Write {names}; columns are {known}.") from error

    def _can_be_named(self, name: str) -> bool:
        """Whether conditions may be about a column: it is one of the table's, and no blob."""
        return name in self.schema.names and not _is_blob(self.schema.field(name))

    def _mentioned(self, names: Iterable[str], condition: str) -> list[str]:
        """Columns that a condition may be about; those it does not mention need not be there."""
        return [name for name in names if self._can_be_named(name) and name.lower() in condition.lower()]

    def _holds(self, pairs: Pairs, condition: str) -> npt.NDArray[np.bool_]:
        both = {}
        for side, names, columns in (("source", self.source.column_names, self.of_source), ("target", self.schema.names, self.of_table)):
            if mentioned := self._mentioned(names, condition):
                both[side] = _as_struct(columns(pairs, mentioned))
        return self._evaluated(both, len(pairs), condition)

    def _evaluated(self, sides: Mapping[str, pa.StructArray], count: int, condition: str) -> npt.NDArray[np.bool_]:
        """For which of some rows, or pairs of rows, a condition holds."""
        import lance

        # pylance evaluates SQL on datasets only, so the rows become one, in memory.
        table = pa.table({**sides, _NUMBER: pa.array(range(count), pa.int64())})
        with lance_errors(self.access, "apply a condition of the merge"):
            dataset = lance.write_dataset(table, "memory://", data_storage_version="2.1")
            holds = dataset.scanner(columns=[_NUMBER], filter=bracketed(condition, "condition")).to_table().column(_NUMBER).to_numpy()
        which = np.zeros(count, np.bool_)
        which[holds] = True
        return which


_NUMBER: Final = "pair number"


def _is_blob(field: pa.Field) -> bool:
    return has_blobs(field) or is_legacy_blob(field)


def _as_struct(rows: pa.Table) -> pa.StructArray:
    """Rows as values of one column, without what their fields say of keys: a key must not lie in a struct that may be null."""
    fields = [_bare(field) for field in rows.schema]
    columns = [_whole(column.cast(field.type)) for column, field in zip(rows.columns, fields, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=fields)


def _bare(field: pa.Field) -> pa.Field:
    kind = field.type
    return pa.field(field.name, pa.struct([_bare(member) for member in kind]) if pa.types.is_struct(kind) else kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
