"""Arrow schemas in the JSON form of the Lance Namespace, and JSON types back to Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from lance_namespace_urllib3_client.models.json_arrow_data_type import JsonArrowDataType
from lance_namespace_urllib3_client.models.json_arrow_field import JsonArrowField
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

from tiltyard.errors import InvalidInput

_SAME_NAME: Final = (pa.null(), pa.bool_(), *map(pa.type_for_alias, (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))))
_PLAIN: Final[dict[str, pa.DataType]] = {
    **{str(kind): kind for kind in _SAME_NAME},
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_FAMILIES: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_time32, "time32"),
    (pa.types.is_time64, "time64"),
    (pa.types.is_duration, "duration"),
    (pa.types.is_decimal128, "decimal128"),
    (pa.types.is_decimal256, "decimal256"),
)
_SCALE: Final = 1000
"""Of a decimal, precision times this plus scale is its length."""


def schema_to_json(schema: pa.Schema) -> JsonArrowSchema:
    """A schema as the namespace tells it."""
    return JsonArrowSchema(fields=[_field(field) for field in schema], metadata=_text(schema.metadata))


def _field(field: pa.Field) -> JsonArrowField:
    return JsonArrowField(name=field.name, nullable=field.nullable, type=_type(field.type), metadata=_text(field.metadata))


def _text(metadata: Mapping[bytes, bytes] | None) -> dict[str, str] | None:
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()} if metadata else None


def _type(kind: pa.DataType) -> JsonArrowDataType:
    if kind in _NAMES:
        return JsonArrowDataType(type=_NAMES[kind])
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_struct(kind):
        return JsonArrowDataType(type="struct", fields=[_field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_fixed_size_list(kind):
        return JsonArrowDataType(type="fixed_size_list", fields=[_field(kind.value_field)], length=kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return JsonArrowDataType(type="list" if pa.types.is_list(kind) else "large_list", fields=[_field(kind.value_field)])
    if pa.types.is_fixed_size_binary(kind):
        return JsonArrowDataType(type="fixed_size_binary", length=kind.byte_width)
    for belongs, name in _FAMILIES:
        if belongs(kind):
            length = kind.precision * _SCALE + kind.scale if name.startswith("decimal") else None
            return JsonArrowDataType(type=name, length=length)
    return JsonArrowDataType(type=str(kind))


def type_from_json(given: Mapping[str, Any]) -> pa.DataType:
    """The plain type that a client asks for a column.

    Raises:
        InvalidInput: it is none that a column can be cast to.
    """
    name = given.get("type")
    if not isinstance(name, str) or name not in _PLAIN:
        raise InvalidInput(f"{str(name)[:80]!r} is not a type that a column can be cast to.", argument="data_type")
    return _PLAIN[name]
