"""Which shard a row belongs to: a hash that is the same in every process, on every machine and in every release.

    h = 0;  for each shard column:  h = xxh64(bytes of the value, seed=h);  shard = h mod number of shards

The bytes of a value depend on what it says, not on how wide it is stored:

| type | bytes |
|---|---|
| integers, booleans | the number as 64 bits, little-endian, two's complement |
| floats | as a 64-bit float, little-endian; -0.0 is 0.0, and there is one NaN (0x7ff8000000000000) |
| decimals | the unscaled number as 256 bits, little-endian, two's complement |
| dates | days since 1970 as 64 bits |
| timestamps, times, durations | the stored number, in the unit of the column, as 64 bits; a time zone plays no part |
| text | UTF-8 |
| binary, fixed-size binary | the bytes |
| dictionaries | those of the value |
| null | none |

This is version 1. A table says which version it was made with; another one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.logical_types import storage_type

HASH_VERSION: Final = 1

Hashes = npt.NDArray[np.uint64]

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_DAY: Final = 86_400_000
_NAN: Final = np.uint64(0x7FF8000000000000)


def check_hashable(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuses columns that no row can be assigned to a shard by.

    Raises:
        InvalidInput: there is no such column, or one is named twice.
        UnsupportedFeature: its type has no hash.
    """
    if not columns or len(set(columns)) < len(columns):
        raise InvalidInput("shard_by names at least one column, and each once.", argument="shard_by")
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(f"There is no column {name!r} to shard by.", argument="shard_by", advice="Name top-level columns.")
        kind = schema.field(name).type
        if isinstance(kind, pa.BaseExtensionType) or not _is_hashable(kind):
            raise UnsupportedFeature(
                f"Column {name} is {kind}, which rows cannot be sharded by.",
                feature=f"shards by {kind}",
                writing=True,
                advice="Shard by a column of numbers, text, bytes, dates or timestamps.",
            )


def _is_hashable(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_hashable(kind.value_type)
    tests = (
        pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp,
        pa.types.is_time, pa.types.is_duration, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
        pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def shard_numbers(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], shards: int) -> npt.NDArray[np.int64]:
    """The shard of each row. The columns have the types of the table."""
    return (key_hashes([rows.column(name) for name in columns], rows.num_rows) % np.uint64(shards)).astype(np.int64)


def key_hashes(columns: Sequence[pa.Array | pa.ChunkedArray], count: int) -> Hashes:
    """The hash of each of so many rows over their shard columns."""
    hashes = np.zeros(count, np.uint64)
    for column in columns:
        hashes = _hash_column(column, hashes)
    return hashes


def _hash_column(column: pa.Array | pa.ChunkedArray, seeds: Hashes) -> Hashes:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column = column.cast(storage_type(column.type)) if isinstance(column.type, pa.BaseExtensionType) else column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    words = _words(column)
    if words is None:
        return _hash_bytes(column, seeds)
    hashed = _xxh64_of_word(words, seeds)
    if column.null_count:
        nothing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        hashed[nothing] = [xxh64_intdigest(b"", seed) for seed in seeds[nothing].tolist()]
    return hashed


def _words(column: pa.Array) -> Hashes | None:
    """The values as words of 64 bits; None for those that are bytes. What stands for a null is of no interest."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_date64(kind):
        milliseconds = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(np.floor_divide(milliseconds, _DAY).astype(np.int64).view(np.uint64))
    elif pa.types.is_floating(kind):
        return _float_words(column)
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(kind):
        return None
    if pa.types.is_unsigned_integer(column.type):
        return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64))
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))


def _float_words(column: pa.Array) -> Hashes:
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    words: Hashes = values.view(np.uint64).copy()
    words[np.isnan(values)] = _NAN
    return words


def _hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    if pa.types.is_decimal(column.type):
        values = column.cast(pa.decimal256(76, column.type.scale)).view(pa.binary(32)).to_pylist()
    elif pa.types.is_fixed_size_binary(column.type):
        values = column.to_pylist()
    else:
        values = column.cast(pa.large_binary()).to_pylist()
    hashed = (xxh64_intdigest(value or b"", seed) for value, seed in zip(values, seeds.tolist(), strict=True))
    return np.fromiter(hashed, np.uint64, len(column))


def _xxh64_of_word(words: Hashes, seeds: Hashes) -> Hashes:
    """xxh64 of eight bytes, each with a seed of its own, for many at once."""
    with np.errstate(over="ignore"):
        hashed = seeds + _P5 + np.uint64(8)
        hashed ^= _rotated(words * _P2, 31) * _P1
        hashed = _rotated(hashed, 27) * _P1 + _P4
        hashed ^= hashed >> np.uint64(33)
        hashed *= _P2
        hashed ^= hashed >> np.uint64(29)
        hashed *= _P3
        hashed ^= hashed >> np.uint64(32)
    return hashed


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
