"""Key filters: which keys a merge inserted, in few enough bytes to travel inside its transaction. Pure.

Two merges that both insert a key nobody had before touch no common row; only their filters can tell. A filter may accuse wrongly, which
costs a repetition. It must never acquit wrongly, which would leave two rows with one key. We write three forms, all bloom filters, since
pylance takes a set of hashes beside a bloom filter for a conflict whatever is in them:

* plain: pylance's own, bit for bit, for the key types that pylance puts into its filters;
* empty: the same without a key, and ``number_of_items`` 0, which pylance reads as its default but never writes. Its own empty filter can
  also mean keys it could not read (text handed over as Arrow's ``string_view``), so that one is doubted here;
* strict: half the size, for the key types pylance leaves out. Its own filter is empty for those, and meets nothing, not even a filter with
  all bits set; one of another size it takes for a conflict. So pylance cannot pass us by, and among ourselves keys are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

from tiltyard.errors import InvalidInput
from tiltyard.format.logical_types import field_logical_type, storage_type
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment
from tiltyard.transaction.footprint import arrivals, fragments_of
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.operations import Append, BloomFilter, DataReplacement, KeyExistenceFilter, Update

ITEMS: Final = 8192
PROBABILITY: Final = 0.00057
PLAIN_BYTES: Final = 32768
STRICT_BYTES: Final = PLAIN_BYTES // 2
STRICT_ITEMS: Final = 4099
"""A number that goes with the size and that nobody takes for a default: it marks the form as ours."""

_INTEGERS: Final = frozenset({"int32", "int64", "uint32", "uint64"})
_TEXT: Final = frozenset({"string", "large_string", "binary", "large_binary"})
_BYTEWISE: Final = _INTEGERS | _TEXT | {"int8", "int16", "uint8", "uint16", "bool", "decimal", "fixed_size_binary"}
_MOMENTS: Final = frozenset({"date32", "date64", "time32", "time64", "timestamp", "duration"})

_BLOCK: Final = 32
"""Bytes of a block: eight words of 32 bits, and every key has one bit in each word of one block."""
_SALTS: Final = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_PRIMES: Final = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Overlap:
    """Whether two merges may have inserted one key, and why we think so: half a sentence, fit for a message."""

    possible: bool
    reason: str


def supported_by_pylance(logical_type: str) -> bool:
    """Whether pylance puts keys of this type into its filters. For any other type its filter stays empty, whatever was inserted."""
    return logical_type in _INTEGERS or logical_type in _TEXT


# ---- key bytes -------------------------------------------------------------------------------------------------------------


def has_key_bytes(logical_type: str) -> bool:
    """Whether equal keys of this type have equal bytes. Not so floats (two zeros), JSON (spelling) and whatever has members."""
    kind, _, rest = logical_type.partition(":")
    return (rest.partition(":")[0] if kind == "dict" else kind) in _BYTEWISE | _MOMENTS


def key_bytes(columns: pa.RecordBatch) -> list[bytes]:
    """The key of each row; ``columns`` are the key columns alone, in key order, as the table types them.

    Raises:
        InvalidInput: a key is null, or its type has no key bytes.
    """
    if not columns.num_columns:
        raise InvalidInput("A key has at least one column.", argument="columns")
    parts = [_column_bytes(field, columns.column(index)) for index, field in enumerate(columns.schema)]
    return parts[0] if len(parts) == 1 else [b"\0".join(key) + b"\0" for key in zip(*parts, strict=True)]


def _column_bytes(field: pa.Field, column: pa.Array) -> list[bytes]:
    if not has_key_bytes(_logical_type(field)):
        raise InvalidInput(f"Keys of type {field.type} ({field.name}) have no key bytes.", argument=field.name)
    column = column.cast(storage_type(column.type))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        raise InvalidInput(f"Key column {field.name} holds nulls.", argument=field.name, advice="Fill them, or drop these rows.")
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.view(pa.binary(kind.byte_width))
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        texts: list[bytes] = column.cast(pa.large_binary()).to_pylist()
        return texts
    wide, order = (pa.uint64(), "<u8") if pa.types.is_unsigned_integer(column.type) else (pa.int64(), "<i8")
    raw = column.cast(wide).to_numpy().astype(order).tobytes()
    return [raw[at : at + 8] for at in range(0, len(raw), 8)]


def _logical_type(field: pa.Field) -> str:
    return field_logical_type(field, field.name)[0]


# ---- making ----------------------------------------------------------------------------------------------------------------


def key_filter(field_ids: Sequence[int], inserted: pa.Table) -> KeyExistenceFilter:
    """The filter to commit with a merge. ``inserted`` are the key columns of the rows it inserts, those it updates left out."""
    types = [_logical_type(field) for field in inserted.schema]
    if len(types) != len(field_ids) or not types:
        raise InvalidInput(f"{len(field_ids)} key fields were named, but {len(types)} columns given.", argument="inserted")
    plain = all(supported_by_pylance(name) for name in types)
    if all(has_key_bytes(name) for name in types):
        hashes = np.concatenate([np.empty(0, np.uint64), *map(_hashes, inserted.to_batches())])
        bloom = _bloom(hashes, strict=not plain)
    else:
        bits = b"\xff" if inserted.num_rows else b"\0"
        bloom = BloomFilter(bits * STRICT_BYTES, STRICT_BYTES * 8, STRICT_ITEMS, PROBABILITY)
    return KeyExistenceFilter(field_ids=tuple(field_ids), bloom=bloom)


def bloom_of(keys: Iterable[bytes], *, strict: bool = False) -> BloomFilter:
    """A filter that holds these keys, in the plain form unless told otherwise; without any, in the empty form."""
    return _bloom(np.fromiter(map(xxh64_intdigest, keys), dtype=np.uint64), strict=strict)


def _hashes(columns: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    if columns.num_columns == 1 and _logical_type(columns.schema.field(0)) in _INTEGERS and not columns.column(0).null_count:
        column = columns.column(0)
        wide = column.cast(pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64())
        return hashes_of_numbers(wide.to_numpy().view(np.uint64))
    return np.fromiter(map(xxh64_intdigest, key_bytes(columns)), dtype=np.uint64)


def hashes_of_numbers(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """xxh64 of the eight bytes of each number, for all at once: keys are numbers most of the time, and there may be many."""
    one, two, three, four, five = (np.uint64(prime) for prime in _PRIMES)
    found = _turned(_turned(numbers * two, 31) * one ^ (five + np.uint64(8)), 27) * one + four
    found = (found ^ found >> np.uint64(33)) * two
    found = (found ^ found >> np.uint64(29)) * three
    return found ^ found >> np.uint64(32)


def _turned(values: npt.NDArray[np.uint64], by: int) -> npt.NDArray[np.uint64]:
    return values << np.uint64(by) | values >> np.uint64(64 - by)


def _bloom(hashes: npt.NDArray[np.uint64], *, strict: bool) -> BloomFilter:
    size, items = (STRICT_BYTES, STRICT_ITEMS) if strict else (PLAIN_BYTES, ITEMS if hashes.size else 0)
    blocks = ((hashes >> np.uint64(32)) * np.uint64(size // _BLOCK)) >> np.uint64(32)
    low = hashes.astype(np.uint32)  # drops the upper half
    bits = np.zeros(size * 8, dtype=np.bool_)
    for word, salt in enumerate(_SALTS):
        bits[blocks * np.uint64(_BLOCK * 8) + np.uint64(word * 32) + ((low * np.uint32(salt)) >> np.uint32(27))] = True
    return BloomFilter(np.packbits(bits, bitorder="little").tobytes(), size * 8, items, PROBABILITY)


def exact_of(keys: Iterable[bytes]) -> frozenset[int]:
    """The hashes by which a set of hashes names these keys. Slow, and good for a look into what others wrote; pylance writes none."""
    return frozenset(siphash13(len(key).to_bytes(8, "little") + key) for key in keys)


def siphash13(data: bytes) -> int:
    """SipHash with one round for each word, three at the end, and a key of zeros."""
    a, b, c, d = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        a, b, c, d = _sip_round(a, b, c, d ^ word)
        a ^= word
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


def _sip_round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a, c = (a + b) & _U64, (c + d) & _U64
    b, d = _turn(b, 13) ^ a, _turn(d, 16) ^ c
    a, c = (_turn(a, 32) + d) & _U64, (c + b) & _U64
    b, d = _turn(b, 17) ^ c, _turn(d, 21) ^ a
    return a, b, _turn(c, 32), d


def _turn(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _U64


# ---- asking ----------------------------------------------------------------------------------------------------------------


def contains(one: KeyExistenceFilter, key: bytes) -> bool:
    """Whether the filter may hold the key. It denies only keys it would name; ask ``names_all_keys`` first where that matters."""
    if one.bloom is None:
        return not exact_of([key]).isdisjoint(one.exact or ())
    words = _words(one.bloom)
    if words is None:
        return True
    digest = xxh64_intdigest(key)
    block = words[((digest >> 32) * len(words)) >> 32].tolist()
    return all(word >> (((digest & _U32) * salt & _U32) >> 27) & 1 for word, salt in zip(block, _SALTS, strict=True))


def names_all_keys(one: KeyExistenceFilter, key_types: Sequence[str]) -> bool:
    """Whether the filter holds every key its merge inserted, so that it may deny one. ``key_types``: logical types of its fields."""
    if not key_types or len(key_types) != len(one.field_ids):
        return False
    if one.bloom is not None and _size(one.bloom) == (STRICT_BYTES, STRICT_ITEMS, PROBABILITY):
        return True
    if not all(supported_by_pylance(each) for each in key_types):
        return False
    return not _holds_nothing(one) or _INTEGERS.issuperset(key_types) or (one.bloom is not None and one.bloom.number_of_items == 0)


def may_share_a_key(mine: KeyExistenceFilter, theirs: KeyExistenceFilter, key_types: Sequence[str]) -> Overlap:
    """Whether two merges may have inserted one key. ``key_types``: logical types of the fields of ``mine``, from the schema.

    Of two bloom filters pylance asks for any common bit. We ask for a block with a common bit in each of its words: a key that is in both
    gives one, and several hundred different keys seldom do.
    """
    if mine.field_ids != theirs.field_ids:
        return Overlap(True, "the key filters are about different columns")
    if any(their.unknown or (their.bloom and their.bloom.unknown) for their in (mine, theirs)):
        return Overlap(True, "a key filter has parts this release does not know")
    if (mine.bloom is None) != (theirs.bloom is None):
        return Overlap(True, "a bloom filter cannot be compared with a set of hashes")
    if mine.bloom and theirs.bloom and _size(mine.bloom) != _size(theirs.bloom):
        return Overlap(True, "the bloom filters differ in size or parameters")
    if any(their.bloom and _words(their.bloom) is None for their in (mine, theirs)):
        return Overlap(True, "a bloom filter is not made of whole blocks")
    complete = [names_all_keys(their, key_types) for their in (mine, theirs)]
    if any(whole and _holds_nothing(key_filter) for whole, key_filter in zip(complete, (mine, theirs), strict=True)):
        return Overlap(False, "one of them inserted no key")
    if not all(complete):
        return Overlap(True, f"a key filter may leave out keys of type {', '.join(key_types)}")
    shared = _have_common(mine, theirs)
    return Overlap(shared, "both may have inserted one key" if shared else "they inserted different keys")


def _have_common(mine: KeyExistenceFilter, theirs: KeyExistenceFilter) -> bool:
    left, right = (None if their.bloom is None else _words(their.bloom) for their in (mine, theirs))
    if left is None or right is None:
        return not frozenset(mine.exact or ()).isdisjoint(theirs.exact or ())
    return bool(((left & right) != 0).all(axis=1).any())


def _size(bloom: BloomFilter) -> tuple[int, int, float]:
    """What must be equal before bits are compared, with the defaults for what is unset."""
    return len(bloom.bitmap), bloom.number_of_items or ITEMS, bloom.probability or PROBABILITY


def _words(bloom: BloomFilter) -> npt.NDArray[np.uint32] | None:
    """The blocks, one a row; None if the bitmap is none."""
    size = len(bloom.bitmap)
    if not size or size % _BLOCK or bloom.num_bits not in (0, size * 8):
        return None
    return np.frombuffer(bloom.bitmap, dtype="<u4").reshape(-1, len(_SALTS))


def _holds_nothing(one: KeyExistenceFilter) -> bool:
    return not one.exact if one.bloom is None else not one.bloom.bitmap.strip(b"\0")


class WrittenKeys(Protocol):
    """Keys of rows that a commit brings and that were not there at the version it was built on."""

    @property
    def filter(self) -> KeyExistenceFilter | None:
        """The same keys as a filter; None where there is none."""

    @property
    def fields(self) -> Sequence[int]:
        """Ids of the columns they are made of."""

    def shared_with(self, fragments: Sequence[DataFragment], manifest: Manifest) -> Sequence[str]:
        """Some keys of ours, in words, that live rows of these fragments of a version have, too."""


def newly_written(theirs: CreatedVersion, before: Manifest, fields: Sequence[int]) -> list[DataFragment]:
    """Fragments in which a commit may have put keys that were nowhere in ``before``: new ones, and those whose key it wrote anew."""
    operation, key = theirs.transaction.operation, frozenset(fields)
    if isinstance(operation, Append):
        return list(arrivals(theirs.manifest, before).values())
    if isinstance(operation, Update):
        changed = [fragment.id for fragment in operation.updated_fragments] if key.intersection(operation.fields_modified) else []
        new = arrivals(theirs.manifest, before).values() if operation.new_fragments else ()
        return [*new, *fragments_of(theirs.manifest, changed).values()]
    if isinstance(operation, DataReplacement):
        changed = [replacement.fragment_id for replacement in operation.replacements if key.intersection(replacement.new_file.fields)]
        return list(fragments_of(theirs.manifest, changed).values())
    return []


def unsettled(mine: WrittenKeys, theirs: CreatedVersion, before: Manifest, key_types: Sequence[str]) -> list[DataFragment]:
    """Fragments in which a commit may have put keys that we write as well; none where filters rule that out."""
    fragments = newly_written(theirs, before, mine.fields)
    operation = theirs.transaction.operation
    if fragments and isinstance(operation, Update) and operation.inserted_rows is not None and mine.filter is not None:
        in_place = frozenset(mine.fields).intersection(operation.fields_modified)
        if not in_place and not may_share_a_key(mine.filter, operation.inserted_rows, key_types).possible:
            return []
    return fragments
