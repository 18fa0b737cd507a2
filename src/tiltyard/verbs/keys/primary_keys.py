"""Keys of rows: which columns, what equal means, and whether others have the same.

Keys are looked up by whole arrays at a time, by their marks and then exactly, and only our own are held in memory. Where marks do not tell
our keys apart, they are compared column by column through numbers: each distinct value gets one, and so does each distinct beginning of a
key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput, KeyConflict, UnsupportedFeature
from tiltyard.format.fields import field_tree, format_path, parse_path
from tiltyard.format.keys import primary_key_fields
from tiltyard.format.logical_types import has_members, storage_type
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.key_filter import has_key_bytes, key_filter
from tiltyard.transaction.operations import KeyExistenceFilter
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import dataset_at
from tiltyard.verbs.engine.row_input import Rows
from tiltyard.verbs.keys.key_hash import KeyHashes

if TYPE_CHECKING:
    from lance import LanceDataset

Numbers: TypeAlias = npt.NDArray[np.int64]

SAMPLE: Final = 3
"""How many keys an error names."""
AT_ONCE: Final = 1 << 18
"""Rows looked up at a time, or as many as there are keys, where each time a table of our keys is built anew."""
_BATCH: Final = 1 << 16
_SHOWN: Final = 40
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLOATS: Final = frozenset({"halffloat", "float", "double"})


# ---- which columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """Columns that identify a row.

    Attributes:
        paths: names from the top-level column down, for each of them.
        fields: their field ids.
    """

    paths: tuple[tuple[str, ...], ...]
    fields: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(format_path(path) for path in self.paths)

    @property
    def columns(self) -> list[str]:
        """The top-level columns it needs."""
        return list(dict.fromkeys(path[0] for path in self.paths))

    @property
    def expressions(self) -> dict[str, str] | list[str]:
        """What pylance has to be asked for: expressions by name, or where they will do, the names, which cost less for each batch."""
        if all(len(path) == 1 and _PLAIN_NAME.fullmatch(path[0]) for path in self.paths):
            return [path[0] for path in self.paths]
        return {format_path(path): ".".join(f"`{part.replace('`', '``')}`" for part in path) for path in self.paths}

    def of(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """The key columns of rows, as the table types them."""
        return pa.table([_leaf(rows, path) for path in self.paths], names=[*self.names])


class HasFields(Protocol):
    """A version, or what is to become one."""

    @property
    def fields(self) -> Sequence[Field]: ...


def key_of_fields(manifest: HasFields, fields: Iterable[int]) -> Key | None:
    """The key by its field ids, as its columns are called in this version; None if one is gone."""
    tree = field_tree(manifest.fields)
    found = [tree.by_id.get(number) for number in fields]
    parts = [field for field in found if field is not None]
    if len(parts) < len(found) or not parts:
        return None
    return Key(tuple(parse_path(tree.path(part)) for part in parts), tuple(part.id for part in parts))


def primary_key_of(manifest: HasFields) -> Key | None:
    return key_of_fields(manifest, [field.id for field in primary_key_fields(manifest.fields)])


def check_comparable(manifest: HasFields, key: Key) -> Key:
    """The same key, if its values can be compared.

    Raises:
        UnsupportedFeature: they cannot: JSON is read in another spelling than it was written in, and vectors are no keys.
    """
    for number, name in zip(key.fields, key.names, strict=True):
        kind = next(field.logical_type for field in manifest.fields if field.id == number)
        if kind not in _FLOATS and not has_key_bytes(kind):
            raise UnsupportedFeature(
                f"Keys of type {kind} ({name}) cannot be compared.",
                feature=f"keys of type {kind}",
                writing=True,
                advice="Use another key, or append with on_duplicate='allow'.",
            )
    return key


def key_of_columns(manifest: Manifest, columns: Sequence[str]) -> Key:
    """The columns a caller names as a key.

    Raises:
        InvalidInput: there is no such column, or its values cannot be compared.
    """
    tree = field_tree(manifest.fields)
    by_path = {parse_path(tree.path(field)): field for field in tree.fields}
    found: dict[tuple[str, ...], Field] = {}
    for column in columns:
        path = parse_path(column)
        if path not in by_path:
            there = ", ".join(field.name for field in tree.fields if field.parent_id < 0)
            raise InvalidInput(f"There is no column {column}.", argument="on", advice=f"Columns are {there[:120]}.")
        if has_members(by_path[path].logical_type) or any(ancestor.logical_type != "struct" for ancestor in tree.ancestors(by_path[path])):
            raise InvalidInput(f"Column {column} has members or is inside a list and cannot be compared.", argument="on")
        found[path] = by_path[path]
    if len(found) < len(columns) or not found:
        raise InvalidInput("Name at least one column, and each only once.", argument="on")
    return Key(tuple(found), tuple(field.id for field in found.values()))


def _leaf(rows: pa.RecordBatch | pa.Table, path: Sequence[str]) -> pa.ChunkedArray | pa.Array:
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


# ---- equal values ----------------------------------------------------------------------------------------------------------


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column with one form for equal values, and of a type that Arrow can look up."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    column = column.cast(storage_type(column.type))
    kind = column.type
    if pa.types.is_dictionary(kind):
        return comparable(column.dictionary_decode())
    if pa.types.is_floating(kind):
        column = column.cast(pa.float32()) if kind.bit_width == 16 else column
        # There are two zeros and many values that are no number, which differ in their bits only.
        column = pc.add(column, pa.scalar(0.0, column.type))
        return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    return column


class KnownKeys:
    """Keys that can be looked up. Two nulls are not equal."""

    def __init__(self, keys: pa.Table) -> None:
        """Args: keys: the key columns of some rows."""
        self.keys = keys
        self._columns = [comparable(column) for column in keys.columns]
        self._marks = KeyHashes(self._columns)
        self._numbered: _NumberedKeys | None = None

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    @property
    def at_once(self) -> int:
        """How many keys are to be looked up at a time, at least."""
        return 1 if self._marks.distinct else max(AT_ONCE, len(self))

    def repeated(self) -> pa.Table:
        """Keys that are there more than once."""
        if self._marks.distinct:
            return self.keys.slice(0, 0)
        codes = self._numbers().find(self._columns)
        counts = pc.value_counts(codes)
        several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        return self.keys.take(pc.index_in(several, value_set=codes))

    def codes(self) -> Numbers:
        """A number for each key, the same for equal ones; -1 for one with a null in it, which equals none."""
        found: Numbers = self._numbers().find(self._columns).fill_null(-1).to_numpy().astype(np.int64)
        return found

    def matches(self, keys: pa.Table) -> tuple[Numbers, Numbers]:
        """Which of these keys we have, in order, and in which row each. Only where no key is repeated."""
        columns = [
            item if item.type.equals(ours.type) else item.cast(ours.type)
            for item, ours in zip(map(comparable, keys.columns), self._columns, strict=True)
        ]
        if not self._marks.distinct:
            found = self._numbers().find(columns)
            return np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)), found.drop_null().to_numpy().astype(np.int64)
        places, rows = self._marks.pairs(columns)
        for item, ours in zip(columns, self._columns, strict=True):
            equal = _equal(item.take(pa.array(places)), ours.take(pa.array(rows)))
            places, rows = places[equal], rows[equal]
        return places, rows

    def _numbers(self) -> _NumberedKeys:
        if self._numbered is None:
            self._numbered = _NumberedKeys(self._columns)
        return self._numbered


def _equal(some: pa.Array, others: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are the same, of two columns that ``comparable`` gave."""
    if pa.types.is_floating(some.type):  # what is not a number is not equal to itself either
        bits = pa.int64() if some.type.bit_width == 64 else pa.int32()
        some, others = some.view(bits), others.view(bits)
    same: npt.NDArray[np.bool_] = pc.equal(some, others).fill_null(False).to_numpy(zero_copy_only=False)
    return same


class _NumberedKeys:
    """Keys by the numbers of their values, where marks do not tell them apart. Each search builds a table of all of them."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._values: list[pa.Array] = []
        self._beginnings: list[pa.Array] = []
        codes: pa.Array | None = None
        for level, values in enumerate(columns):
            self._values.append(values.unique())
            own = pc.index_in(values, value_set=self._values[level])
            if codes is None:
                codes = own
                continue
            together = self._together(codes, own, level)
            self._beginnings.append(together.unique())
            codes = pc.index_in(together, value_set=self._beginnings[-1])

    def _together(self, codes: pa.Array, own: pa.Array, level: int) -> pa.Array:
        """One number for the beginning of a key and the value that comes next."""
        return pc.add(pc.multiply(codes.cast(pa.int64()), pa.scalar(len(self._values[level]), pa.int64())), own.cast(pa.int64()))

    def find(self, columns: Sequence[pa.Array]) -> pa.Array:
        """For each key its number, null where it has none. If no key is repeated, that is the row of ours it is in."""
        codes: pa.Array | None = None
        for level, values in enumerate(columns):
            own = pc.index_in(values, value_set=self._values[level], skip_nulls=True)
            if codes is None:
                codes = own
            else:
                codes = pc.index_in(self._together(codes, own, level), value_set=self._beginnings[level - 1], skip_nulls=True)
        return codes


def in_words(keys: pa.Table) -> list[str]:
    """A few keys, fit for a message."""
    named = list(zip(keys.column_names, keys.columns, strict=True))
    return [", ".join(f"{name} {_shown(column[row])}" for name, column in named) for row in range(min(SAMPLE, keys.num_rows))]


def _shown(value: pa.Scalar) -> str:
    if isinstance(value, pa.ExtensionScalar):
        value = value.value
    text = repr(value.as_py()) if not pa.types.is_temporal(value.type) else str(value.cast(pa.string()))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


# ---- of a table ------------------------------------------------------------------------------------------------------------


def key_batches(
    access: TableAccess, dataset: LanceDataset, key: Key, fragments: Iterable[int] | None = None, at_once: int = 1, **more: Any
) -> Iterator[pa.Table]:
    """The key columns of live rows of a version, in order and in pieces of so many rows or more; ``more`` are options of pylance's
    scanner."""
    with lance_errors(access, "read keys", dataset.version):
        if fragments is not None:
            more["fragments"] = [dataset.get_fragment(number) for number in fragments]
        batches = iter(dataset.scanner(columns=key.expressions, **{"batch_size": _BATCH, **more}).to_batches())
        while pieces := _next_rows(batches, at_once):
            yield pa.Table.from_batches(pieces)


def _next_rows(batches: Iterator[pa.RecordBatch], rows: int) -> list[pa.RecordBatch]:
    pieces: list[pa.RecordBatch] = []
    seen = 0
    for batch in batches:
        if batch.num_rows:
            pieces.append(batch)
            seen += batch.num_rows
        if seen >= rows:
            break
    return pieces


# ---- at a commit -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewKeys:
    """Keys that a commit brings, and that are not in the version it was built on."""

    access: TableAccess
    key: Key
    keys: pa.Table
    """The key columns of the new rows, each key once."""
    filter: KeyExistenceFilter | None = None

    @property
    def fields(self) -> Sequence[int]:
        return self.key.fields

    def shared_with(self, fragments: Sequence[DataFragment], manifest: Manifest) -> list[str]:
        return self._shared(manifest, [fragment.id for fragment in fragments])

    def shared_with_all(self, manifest: Manifest) -> list[str]:
        """Some keys, in words, that rows of the version have."""
        return self._shared(manifest, None) if len(manifest.fragments) else []

    def _shared(self, manifest: Manifest, fragments: list[int] | None) -> list[str]:
        key = key_of_fields(manifest, self.key.fields)
        if key is None or not self.keys.num_rows:  # without its columns nobody can have it
            return []
        found: dict[str, None] = {}
        known = KnownKeys(self.keys)
        for piece in key_batches(self.access, dataset_at(self.access, manifest), key, fragments, known.at_once):
            _, rows = known.matches(piece)
            if len(rows):
                found.update(dict.fromkeys(in_words(self.keys.take(pa.array(rows[:SAMPLE])))))
            if len(found) >= SAMPLE:
                break
        return list(islice(found, SAMPLE))


@dataclass(frozen=True, slots=True)
class AnyKeys:
    """Keys of rows that may be there already, since the caller says so."""

    filter: None = None
    fields: tuple[int, ...] = ()

    def shared_with(self, fragments: Sequence[DataFragment], manifest: Manifest) -> Sequence[str]:
        return ()


def filter_of(key: Key, table: pa.Schema, keys: pa.Table) -> KeyExistenceFilter:
    """What tells other merges which keys are inserted, under the types of the table."""
    schema = key.of(pa.Table.from_batches([], table)).schema
    return key_filter(key.fields, keys.cast(schema) if not keys.schema.equals(schema) else keys)


def distinct_keys(keys: pa.Table, what: str, operation: str) -> KnownKeys:
    """The keys of rows to be written, each there once.

    Raises:
        KeyConflict: naming some that are not.
    """
    known = KnownKeys(keys)
    repeated = known.repeated()
    if repeated.num_rows:
        sample = in_words(repeated)
        raise KeyConflict(
            f"{what} {repeated.num_rows} duplicate key{'' if repeated.num_rows == 1 else 's'}: {'; '.join(sample)}.",
            operation=operation,
            sample=sample,
            retryable=False,
            advice="Nothing was committed. Keep one row for each key.",
        )
    return known


@dataclass(slots=True)
class PassingKeys:
    """Keeps the keys of rows that go by."""

    key: Key
    _parts: list[pa.Table] = field(default_factory=list)

    def noting(self, rows: Rows) -> Rows:
        if isinstance(rows, pa.Table):
            self._parts.append(self.key.of(rows))
            return rows
        return pa.RecordBatchReader.from_batches(rows.schema, self._noted(rows))

    def _noted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # Copied: a column of a batch can keep all of its columns in memory.
            self._parts.append(self.key.of(batch).take(pa.array(np.arange(batch.num_rows))))
            yield batch

    def keys(self) -> pa.Table | None:
        return pa.concat_tables(self._parts) if self._parts else None
