"""Every Arrow type a table can hold, by a name fit for test ids; and those it cannot."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_INT = pa.int32()
_POINT = pa.struct([pa.field("x", _INT), pa.field("y", pa.string(), nullable=False)])

SIMPLE: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "fixed_size_binary": pa.binary(7),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32_s": pa.time32("s"),
    "time32_ms": pa.time32("ms"),
    "time64_us": pa.time64("us"),
    "time64_ns": pa.time64("ns"),
    **{f"timestamp_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    "timestamp_utc": pa.timestamp("ns", "UTC"),
    "timestamp_named": pa.timestamp("ms", "America/New_York"),
    "timestamp_offset": pa.timestamp("s", "+01:00"),
    **{f"duration_{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
    "decimal128": pa.decimal128(38, 10),
    "decimal128_negative_scale": pa.decimal128(10, -3),
    "decimal256": pa.decimal256(76, 2),
    "dictionary_string": pa.dictionary(_INT, pa.string()),
    "dictionary_ordered": pa.dictionary(pa.int8(), pa.string(), ordered=True),
    "dictionary_numbers": pa.dictionary(pa.uint16(), pa.int64()),
    "dictionary_large": pa.dictionary(pa.int64(), pa.large_binary()),
}

NESTED: Final[dict[str, pa.DataType]] = {
    "list": pa.list_(_INT),
    "large_list": pa.large_list(_INT),
    "list_not_null": pa.list_(pa.field("item", _INT, nullable=False)),
    "list_named": pa.list_(pa.field("element", _INT, metadata={"k": "v"})),
    "list_struct": pa.list_(_POINT),
    "large_list_struct": pa.large_list(_POINT),
    "list_list": pa.list_(pa.list_(_INT)),
    "list_list_struct": pa.list_(pa.large_list(_POINT)),
    "list_dictionary": pa.list_(pa.dictionary(_INT, pa.string())),
    "struct": pa.struct([pa.field("a", _INT), pa.field("l", pa.list_(pa.string()), nullable=False)]),
    "struct_empty": pa.struct([]),
    "struct_struct": pa.struct([pa.field("p", _POINT, nullable=False), pa.field("x.y", _INT)]),
    "vector": pa.list_(pa.float32(), 4),
    "vector_float16": pa.list_(pa.float16(), 4),
    "vector_not_null": pa.list_(pa.field("v", pa.float32(), nullable=False), 4),
    "vector_string": pa.list_(pa.string(), 2),
    "vector_timestamp": pa.list_(pa.timestamp("us", "+01:00"), 2),
    "vector_decimal": pa.list_(pa.decimal128(5, 2), 2),
    "vector_dictionary": pa.list_(pa.dictionary(_INT, pa.string()), 2),
    "vector_vector": pa.list_(pa.list_(pa.float32(), 2), 3),
    "vector_struct": pa.list_(_POINT, 3),
    "vector_struct_named": pa.list_(pa.field("el", _POINT, nullable=False), 3),
    "list_vector": pa.list_(pa.list_(_INT, 2)),
    "map": pa.map_(pa.string(), _INT),
    "map_struct": pa.map_(_INT, _POINT),
    "map_list": pa.map_(pa.string(), pa.list_(_INT)),
    "map_named": pa.map_(pa.field("k", pa.string(), nullable=False, metadata={"a": "b"}), pa.field("v", _INT, nullable=False)),
    "list_map": pa.list_(pa.map_(pa.string(), _INT)),
}

EXTENSIONS: Final[dict[str, pa.DataType]] = {
    "json": pa.json_(),
    "json_large": pa.json_(pa.large_string()),
    "uuid": pa.uuid(),
    "bool8": pa.bool8(),
    "opaque": pa.opaque(_INT, "kind", "vendor"),
    "tensor": pa.fixed_shape_tensor(pa.float32(), [2, 2], dim_names=["r", "c"]),
    "list_json": pa.list_(pa.json_()),
    "struct_uuid": pa.struct([pa.field("u", pa.uuid(), metadata={"k": "v"})]),
    "map_json": pa.map_(pa.string(), pa.json_()),
    "vector_uuid": pa.list_(pa.uuid(), 2),
    "list_tensor": pa.list_(pa.fixed_shape_tensor(pa.float32(), [2, 2])),
}

STORABLE: Final = SIMPLE | NESTED | EXTENSIONS

UNSTORABLE: Final[dict[str, pa.DataType]] = {
    "list_view": pa.list_view(_INT),
    "large_list_view": pa.large_list_view(_INT),
    "interval": pa.month_day_nano_interval(),
    "dense_union": pa.dense_union([pa.field("a", _INT)]),
    "sparse_union": pa.sparse_union([pa.field("a", _INT)]),
    "run_end_encoded": pa.run_end_encoded(_INT, pa.string()),
    "decimal32": pa.decimal32(5, 2),
    "decimal64": pa.decimal64(10, 2),
    "decimal_scale": pa.decimal128(3, 1000),
    "map_sorted": pa.map_(pa.string(), _INT, keys_sorted=True),
    "vector_empty": pa.list_(_INT, 0),
    "vector_list": pa.list_(pa.list_(_INT), 2),
    "vector_map": pa.list_(pa.map_(pa.string(), _INT), 2),
    "vector_vector_struct": pa.list_(pa.list_(_POINT, 2), 2),
    "dictionary_timestamp": pa.dictionary(_INT, pa.timestamp("us")),
    "dictionary_list": pa.dictionary(_INT, pa.list_(_INT)),
    "dictionary_dictionary": pa.dictionary(_INT, pa.dictionary(_INT, pa.string())),
    "dictionary_fixed_binary": pa.dictionary(_INT, pa.binary(3)),
}
