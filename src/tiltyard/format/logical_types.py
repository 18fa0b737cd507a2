"""Logical type strings <-> Arrow types.

A logical type names one field's own type. Lists, maps and structs have their members as fields of their own below them; a fixed-size
list of anything but structs has none, its item type being part of the string.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput

MAX_DEPTH: Final = 63
"""Levels a column may have. Arrow's C data interface, by which pylance hands out schemas, refuses more."""

JSON: Final = "json"
ARROW_JSON: Final = "arrow.json"
LANCE_JSON: Final = "lance.json"
BFLOAT16: Final = "lance.bfloat16"

PLAIN, VAR_BINARY, DICTIONARY = 1, 2, 3
"""Values of ``Field.encoding``: a hint for readers of the oldest file format, which pylance still writes."""

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
}
"""Types that may also be the values of a dictionary."""

_FIXED: Final[dict[str, pa.DataType]] = {
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    **{f"duration:{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}

_PLAIN_TYPES: Final = _SIMPLE | _FIXED
# Views differ from their plain types in memory only.
_NAMES: Final[dict[pa.DataType, str]] = {arrow: name for name, arrow in _PLAIN_TYPES.items()} | {
    pa.string_view(): "string",
    pa.binary_view(): "binary",
}
_INDEX_TYPES: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_MAX_I32: Final = 2**31 - 1
_PRECISION: Final = {128: 38, 256: 76}
_UNSIGNED: Final = re.compile(r"[0-9]{1,10}")
_SIGNED: Final = re.compile(r"-?[0-9]{1,4}")
_LISTS: Final = {"list": pa.list_, "list.struct": pa.list_, "large_list": pa.large_list, "large_list.struct": pa.large_list}
_FSL: Final = "fixed_size_list:"
_FSL_STRUCT: Final = re.compile(r"fixed_size_list:struct:([0-9]{1,10})")


# ---- Arrow -> string -------------------------------------------------------------------------------------------------------


def logical_type(arrow_type: pa.DataType, path: str = "") -> str:
    """The string for an Arrow type; of an extension type, for its storage. ``path`` names the column in errors."""
    arrow = storage_type(arrow_type)
    if arrow in _NAMES:
        return _NAMES[arrow]
    for suits, write in _WRITERS:
        if suits(arrow):
            return write(arrow, path)
    raise _unsupported(path, arrow, "tables have no such type")


def field_logical_type(field: pa.Field, path: str) -> tuple[str, dict[bytes, bytes]]:
    """Logical type and metadata of an Arrow field. JSON text is the one extension that has a logical type of its own."""
    metadata = full_metadata(field)
    arrow = storage_type(field.type)
    name = metadata.get(EXTENSION_NAME.encode(), b"")
    if name == ARROW_JSON.encode() and arrow in (pa.string(), pa.large_string()):
        return JSON, metadata | {EXTENSION_NAME.encode(): LANCE_JSON.encode()}
    if name == LANCE_JSON.encode() and arrow == pa.large_binary():
        return JSON, metadata
    return logical_type(arrow, path), metadata


def member_fields(arrow_type: pa.DataType) -> list[pa.Field]:
    """The members of a nested type that become fields of their own."""
    arrow = storage_type(arrow_type)
    if pa.types.is_struct(arrow):
        return list(arrow)
    if pa.types.is_map(arrow):
        return [pa.field("entries", pa.struct([arrow.key_field, arrow.item_field]), nullable=False)]
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return [arrow.value_field]
    if pa.types.is_fixed_size_list(arrow) and pa.types.is_struct(storage_type(arrow.value_type)):
        return [arrow.value_field]
    return []


def encoding_hint(logical: str) -> int:
    """``Field.encoding`` as pylance writes it."""
    if logical in ("struct", "null"):
        return 0
    if logical in ("string", "large_string", "binary", "large_binary", JSON):
        return VAR_BINARY
    return DICTIONARY if logical.startswith("dict:") else PLAIN


def _unsupported(path: str, arrow: pa.DataType, why: str, advice: str = "Cast the column to another type.") -> InvalidInput:
    column = f"column {path} of type" if path else "type"
    return InvalidInput(f"{column} {_short(arrow)} cannot be stored: {why}.", argument=path, advice=advice)


def _short(arrow: pa.DataType) -> str:
    text = str(arrow)
    return text if len(text) <= 80 else text[:77] + "..."


def _write_decimal(arrow: pa.DataType, path: str) -> str:
    if not -128 <= arrow.scale <= 127:
        raise _unsupported(path, arrow, "the scale must be from -128 to 127")
    return f"decimal:{arrow.bit_width}:{arrow.precision}:{arrow.scale}"


def _write_timestamp(arrow: pa.DataType, path: str) -> str:
    if arrow.tz == "-":
        raise _unsupported(path, arrow, "'-' stands for no time zone in a table")
    return f"timestamp:{arrow.unit}:{arrow.tz or '-'}"


def _write_fixed_binary(arrow: pa.DataType, path: str) -> str:
    if arrow.byte_width < 0:
        raise _unsupported(path, arrow, "the width is negative")
    return f"fixed_size_binary:{arrow.byte_width}"


def _write_dictionary(arrow: pa.DataType, path: str) -> str:
    values = _NAMES.get(storage_type(arrow.value_type))
    if values not in _SIMPLE:
        raise _unsupported(path, arrow, "dictionary values must be numbers, booleans, text or binary", "Decode the dictionary first.")
    return f"dict:{values}:{_NAMES[arrow.index_type]}:false"


def _write_list(arrow: pa.DataType, path: str) -> str:
    name = "large_list" if pa.types.is_large_list(arrow) else "list"
    return f"{name}.struct" if pa.types.is_struct(storage_type(arrow.value_type)) else name


def _write_map(arrow: pa.DataType, path: str) -> str:
    if arrow.keys_sorted:
        raise _unsupported(path, arrow, "tables do not record that keys are sorted", "Use a map type with keys_sorted=False.")
    return "map"


def _write_fixed_list(arrow: pa.DataType, path: str) -> str:
    """Works inwards in a loop: a list inside a fixed-size list must itself be fixed-size, and structs end it at the first level."""
    sizes: list[int] = []
    field = pa.field("item", arrow)
    while pa.types.is_fixed_size_list(inner := storage_type(field.type)):
        sizes.append(inner.list_size)
        field = inner.value_field
        if inner.list_size < 1 or len(sizes) >= MAX_DEPTH:
            raise _unsupported(path, arrow, "a fixed-size list needs a size of at least 1 and bounded nesting")
    if pa.types.is_struct(inner) and len(sizes) == 1:
        item = "struct"
    elif pa.types.is_nested(inner):
        raise _unsupported(path, arrow, "a fixed-size list holds no lists, maps or structs below its first level", "Use a list instead.")
    else:
        # The item's name, nullability and metadata have no place in the string; of all extension types only this one has a name there.
        item = BFLOAT16 if full_metadata(field).get(EXTENSION_NAME.encode()) == BFLOAT16.encode() else logical_type(inner, path)
    return _FSL * len(sizes) + item + "".join(f":{size}" for size in reversed(sizes))


_WRITERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], str]], ...]] = (
    (pa.types.is_struct, lambda arrow, path: "struct"),
    (pa.types.is_map, _write_map),
    (pa.types.is_list, _write_list),
    (pa.types.is_large_list, _write_list),
    (pa.types.is_fixed_size_list, _write_fixed_list),
    (pa.types.is_timestamp, _write_timestamp),
    (pa.types.is_dictionary, _write_dictionary),
    (pa.types.is_fixed_size_binary, _write_fixed_binary),
    (pa.types.is_decimal128, _write_decimal),
    (pa.types.is_decimal256, _write_decimal),
)


# ---- string -> Arrow -------------------------------------------------------------------------------------------------------


class _Malformed(Exception):
    """A logical type that means nothing; never leaves this module."""


def arrow_type(logical: str, members: Sequence[pa.Field] = (), *, source: str = "schema", path: str = "") -> pa.DataType:
    """The Arrow type for a string and the fields below it. JSON comes as its text; the caller marks the field as an extension.

    Raises:
        CorruptTable: an unknown string, or members that do not suit it; ``source`` names the file.
    """
    try:
        return _nested(logical, members) if has_members(logical) else _memberless(logical, members)
    except _Malformed as malformed:
        where = f"field {path}" if path else "a field"
        raise CorruptTable(source, f"{where} of type {logical[:60]!r}: {malformed}") from None


def has_members(logical: str) -> bool:
    return logical in ("struct", "map") or logical in _LISTS or _FSL_STRUCT.fullmatch(logical) is not None


def fixed_list_levels(logical: str) -> int:
    """How many levels a fixed-size list keeps inside its string."""
    levels = 0
    while logical.startswith(_FSL, levels * len(_FSL)):
        levels += 1
    return levels


def _nested(logical: str, members: Sequence[pa.Field]) -> pa.DataType:
    if logical == "struct":
        return pa.struct(list(members))
    if len(members) != 1:
        raise _Malformed(f"needs exactly 1 field below it, has {len(members)}")
    (member,) = members
    if logical in _LISTS:
        return _LISTS[logical](member)
    if not pa.types.is_struct(member.type):
        raise _Malformed("the field below it is not a struct")
    if logical == "map":
        if member.type.num_fields != 2 or member.type.field(0).nullable:
            raise _Malformed("its entries must be a key that is not null and a value")
        return pa.map_(member.type.field(0), member.type.field(1))
    found = _FSL_STRUCT.fullmatch(logical)
    assert found is not None  # has_members() sends no other strings here
    return pa.list_(member, _bounded(found[1], 1, _MAX_I32, "size"))


def _memberless(logical: str, members: Sequence[pa.Field]) -> pa.DataType:
    if members:
        raise _Malformed(f"allows no fields below it, has {len(members)}")
    return pa.string() if logical == JSON else _leaf(logical)


def _leaf(logical: str) -> pa.DataType:
    if logical in _PLAIN_TYPES:
        return _PLAIN_TYPES[logical]
    kind, _, rest = logical.partition(":")
    reader = _READERS.get(kind)
    if reader is None:
        raise _Malformed("no such type")
    return reader(rest)


def _bounded(text: str, least: int, most: int, what: str, form: re.Pattern[str] = _UNSIGNED) -> int:
    if not form.fullmatch(text) or not least <= int(text) <= most:
        raise _Malformed(f"its {what} must be a number from {least} to {most}")
    return int(text)


def _read_timestamp(rest: str) -> pa.DataType:
    # Zones may hold colons themselves: +01:00.
    unit, colon, zone = rest.partition(":")
    if not colon or unit not in ("s", "ms", "us", "ns"):
        raise _Malformed("needs a unit and a time zone")
    return pa.timestamp(unit, None if zone == "-" else zone)


def _read_decimal(rest: str) -> pa.DataType:
    parts = rest.split(":")
    if len(parts) != 3 or parts[0] not in ("128", "256"):
        raise _Malformed("needs 128 or 256 bits, a precision and a scale")
    bits = int(parts[0])
    make = pa.decimal128 if bits == 128 else pa.decimal256
    return make(_bounded(parts[1], 1, _PRECISION[bits], "precision"), _bounded(parts[2], -128, 127, "scale", _SIGNED))


def _read_fixed_binary(rest: str) -> pa.DataType:
    return pa.binary(_bounded(rest, 0, _MAX_I32, "width"))


def _read_dictionary(rest: str) -> pa.DataType:
    parts = rest.split(":")
    # Whether a dictionary is ordered is written but never kept: readers report all as unordered.
    if len(parts) != 3 or parts[0] not in _SIMPLE or parts[1] not in _INDEX_TYPES or parts[2] not in ("true", "false"):
        raise _Malformed("needs a value type, an index type and whether it is ordered")
    return pa.dictionary(_SIMPLE[parts[1]], _SIMPLE[parts[0]])


def _read_fixed_list(rest: str) -> pa.DataType:
    """Unwraps nested lists in a loop, so that no string can make us recurse deeply."""
    item, sizes, total = rest, [], 1
    while True:
        item, colon, text = item.rpartition(":")
        size = _bounded(text if colon else "", 1, _MAX_I32, "size")
        sizes.append(size)
        total *= size
        if total > _MAX_I32 or len(sizes) >= MAX_DEPTH:
            raise _Malformed("too many values in one row")
        if not item.startswith(_FSL):
            break
        item = item.removeprefix(_FSL)
    if item == BFLOAT16:
        field = pa.field("item", pa.binary(2), metadata={EXTENSION_NAME: BFLOAT16, EXTENSION_METADATA: ""})
    else:
        field = pa.field("item", _leaf(item))
    for size in reversed(sizes):
        field = pa.field("item", pa.list_(field, size))
    return field.type


_READERS: Final[dict[str, Callable[[str], pa.DataType]]] = {
    "timestamp": _read_timestamp,
    "decimal": _read_decimal,
    "fixed_size_binary": _read_fixed_binary,
    "dict": _read_dictionary,
    "fixed_size_list": _read_fixed_list,
}


EXTENSION_NAME: Final = "ARROW:extension:name"
EXTENSION_METADATA: Final = "ARROW:extension:metadata"


class _ArrowSchema(ctypes.Structure):
    """The head of the C data interface's schema struct: as much of it as we read."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def storage_type(arrow_type: pa.DataType) -> pa.DataType:
    """What the values of a column are stored as: the type itself unless it is an extension."""
    while isinstance(arrow_type, pa.BaseExtensionType):
        arrow_type = arrow_type.storage_type
    return arrow_type


def full_metadata(field: pa.Field) -> dict[bytes, bytes]:
    """The field's metadata, with the two extension keys if its type is an extension."""
    if not isinstance(field.type, pa.BaseExtensionType):
        return dict(field.metadata or {})
    capsule = field.__arrow_c_schema__()
    address = _ArrowSchema.from_address(_capsule_pointer(capsule, b"arrow_schema")).metadata
    return {} if address is None else _read_pairs(address)


def _read_pairs(address: int) -> dict[bytes, bytes]:
    """Pairs in the C data interface's form: a count, then for each key and value its length and bytes, in native byte order."""

    def take_int() -> int:
        nonlocal address
        (number,) = struct.unpack("=i", ctypes.string_at(address, 4))
        address += 4
        return int(number)

    def take_bytes() -> bytes:
        nonlocal address
        size = take_int()
        data = ctypes.string_at(address, size)
        address += size
        return data

    return {take_bytes(): take_bytes() for _ in range(take_int())}


def with_extensions(fields: list[pa.Field], metadata: Mapping[bytes, bytes] | None) -> pa.Schema:
    """A schema whose extension columns have their registered types, as after a trip through any Arrow library.

    Raises what the extension's own code raises if its metadata or storage does not suit it.
    """
    schema = pa.schema(fields, metadata=metadata or None)
    # Arrow looks extension types up while it reads a schema message, at every depth; there is no other call that does so.
    return pa.ipc.read_schema(pa.py_buffer(schema.serialize()))
