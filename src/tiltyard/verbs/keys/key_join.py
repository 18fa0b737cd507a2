"""Rows of a table and of a source that have the same key, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from tiltyard.verbs.engine.sql_expressions import bracketed, checked, expressions
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
    """The outcome of looking for a source's keys: what is in both, and rows that only the table has, if asked for."""

    pairs: Pairs
    others: Pairs
    """Without rows of the source: their numbers say nothing."""


def match_rows(access: TableAccess, dataset: LanceDataset, key: Key, known: KnownKeys, manifest: Manifest, *, others: bool) -> Matched:
    """Finds the rows of a version that have keys of the source."""
    stable = has_stable_row_ids(manifest)
    options: dict[str, Any] = {"with_row_address": True, "with_row_id": stable}
    count = len(manifest.fragments)
    if count >= _SMALL_BATCH and manifest.fragments.live_rows() <= count * _SMALL_BATCH:
        # pylance joins the rows of small fragments, since each batch costs the same; the quicker, the fewer rows it is to join.
        options |= {"batch_size": _SMALL_BATCH, "strict_batch_size": True}
    pairs, rest = _Found(stable), _Found(stable)
    seen = 0
    for piece in key_batches(access, dataset, key, at_once=max(known.at_once, _AT_ONCE), **options):
        both, found = known.matches(piece.select(range(len(key.paths))))
        pairs.add(piece, both, found, seen)
        if others:
            alone = np.delete(np.arange(piece.num_rows), both)
            rest.add(piece, alone, np.full(len(alone), -1), seen)
        seen += piece.num_rows
    return Matched(pairs.joined(), rest.joined())


class _Found:
    """Pairs, as they are found."""

    def __init__(self, stable: bool) -> None:
        self._stable = stable
        self._parts = [(_NONE, _NONE, _NOWHERE, _NOWHERE)]

    def add(self, piece: pa.RecordBatch | pa.Table, chosen: Numbers, rows: Numbers, seen: int) -> None:
        """Adds some rows of a batch, before which so many others came, with the rows of the source beside them."""
        ids = piece.column(ROW_ID).to_numpy()[chosen] if self._stable else _NOWHERE
        self._parts.append((rows, chosen + seen, piece.column(ADDRESS).to_numpy()[chosen], ids))

    def joined(self) -> Pairs:
        rows, places, addresses, ids = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return Pairs(rows, places, addresses, ids if self._stable else None)


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
                f"The merge would have to copy blobs of column {blobs[0]!r}, which is not supported.",
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

    def wanted(self, rows: Numbers, condition: str) -> npt.NDArray[np.bool_]:
        """For which rows of the source a condition over ``source.`` columns holds."""
        found = np.zeros(len(rows), np.bool_)
        for begin in range(0, len(rows), CHUNK):
            part = slice(begin, begin + CHUNK)
            found[part] = self._evaluated(self._of_rows(rows[part], condition), len(rows[part]), condition)
        return found

    def _of_rows(self, rows: Numbers, text: str) -> dict[str, pa.Array]:
        mentioned = self._mentioned(self.source.column_names, text)
        return {"source": _as_struct(self.source.select(mentioned).take(pa.array(rows)))} if mentioned else {}

    def new_values(self, pairs: Pairs, values: Mapping[str, str]) -> pa.Table:
        """Values of expressions over ``source.`` and ``target.`` columns, for few enough pairs."""
        return self._computed(self._of_pairs(pairs, " ".join(values.values())), len(pairs), values)

    def inserted_values(self, rows: Numbers, values: Mapping[str, str]) -> pa.Table:
        """Values of expressions over ``source.`` columns, for few enough rows of the source."""
        return self._computed(self._of_rows(rows, " ".join(values.values())), len(rows), values)

    def kept_values(self, pairs: Pairs, values: Mapping[str, str]) -> pa.Table:
        """Values of expressions over the table's columns, by their names, for few enough of its rows."""
        names = self._mentioned(self.schema.names, " ".join(values.values()))
        rows = self.of_table(pairs, names) if names else pa.table({})
        return self._computed(_bare_columns(rows), len(pairs), values)

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

    def check_own(self, condition: str) -> None:
        """Refuses a condition that is not one expression over the table's columns by their names, whether or not any row is asked about."""
        checked(condition, pa.schema([_bare(item) for item in self.schema if self._can_be_named(item.name)]), "where")

    def check_values(self, values: Mapping[str, str], *sides: str) -> None:
        """Refuses values that are no expressions over columns of some sides; of none, over the table's columns by their names."""
        both = {"source": self.source.schema, "target": self.schema}
        named = {side: [_bare(item) for item in both[side] if self._can_be_named(item.name)] for side in sides or ("target",)}
        structs = [pa.field(side, pa.struct(members)) for side, members in named.items()]
        expressions(values, pa.schema(structs if sides else named["target"]), "values")

    def _can_be_named(self, name: str) -> bool:
        """Whether conditions may be about a column: it is one of the table's, and no blob."""
        return name in self.schema.names and not _is_blob(self.schema.field(name))

    def _mentioned(self, names: Iterable[str], condition: str) -> list[str]:
        """Columns that a condition may be about; those it does not mention need not be there."""
        return [name for name in names if self._can_be_named(name) and name.lower() in condition.lower()]

    def _of_pairs(self, pairs: Pairs, text: str) -> dict[str, pa.Array]:
        both = {}
        for side, names, columns in (("source", self.source.column_names, self.of_source), ("target", self.schema.names, self.of_table)):
            if mentioned := self._mentioned(names, text):
                both[side] = _as_struct(columns(pairs, mentioned))
        return both

    def _holds(self, pairs: Pairs, condition: str) -> npt.NDArray[np.bool_]:
        return self._evaluated(self._of_pairs(pairs, condition), len(pairs), condition)

    def _evaluated(self, columns: Mapping[str, pa.Array], count: int, condition: str) -> npt.NDArray[np.bool_]:
        """For which of some rows, or pairs of rows, a condition holds."""
        with lance_errors(self.access, "apply a condition of the merge"):
            scanner = _in_memory(columns, count).scanner(columns=[_NUMBER], filter=bracketed(condition, "condition"))
            holds = scanner.to_table().column(_NUMBER).to_numpy()
        which = np.zeros(count, np.bool_)
        which[holds] = True
        return which

    def _computed(self, columns: Mapping[str, pa.Array], count: int, values: Mapping[str, str]) -> pa.Table:
        """The values of expressions over some rows, in the order of these."""
        wanted = {name: bracketed(text, "values") for name, text in values.items()}
        with lance_errors(self.access, "compute new values"):
            # With the address: pylance refuses a scan of constants alone.
            scanner = _in_memory(columns, count).scanner(columns=wanted, scan_in_order=True, with_row_address=True)
            return scanner.to_table().select([*values])


_NUMBER: Final = "pair number"


def _in_memory(columns: Mapping[str, pa.Array], count: int) -> LanceDataset:
    """Rows as a dataset: pylance evaluates SQL on nothing else."""
    import lance

    numbered = {} if _NUMBER in columns else {_NUMBER: pa.array(range(count), pa.int64())}
    return lance.write_dataset(pa.table({**columns, **numbered}), "memory://", data_storage_version="2.1")


def _is_blob(field: pa.Field) -> bool:
    return has_blobs(field) or is_legacy_blob(field)


def _as_struct(rows: pa.Table) -> pa.StructArray:
    """Rows as values of one column, without what their fields say of keys: a key must not lie in a struct that may be null."""
    return pa.StructArray.from_arrays([*_bare_columns(rows).values()], fields=[_bare(field) for field in rows.schema])


def _bare_columns(rows: pa.Table) -> dict[str, pa.Array]:
    return {field.name: _whole(rows.column(field.name).cast(_bare(field).type)) for field in rows.schema}


def _bare(field: pa.Field) -> pa.Field:
    kind = field.type
    return pa.field(field.name, pa.struct([_bare(member) for member in kind]) if pa.types.is_struct(kind) else kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
