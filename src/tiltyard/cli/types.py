"""Arrow types, as Arrow itself writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa

import tiltyard as ty

_DECIMAL: Final = re.compile(r"decimal(128|256)?\s*\(\s*(\d{1,3})\s*,\s*(-?\d{1,3})\s*\)")
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([\w/+:-]+))?\]")
_FIXED: Final = re.compile(r"fixed_size_(?:list|binary)(?:<(?:item: )?(.+)>)?\[(\d{1,9})\]")
_LIST: Final = re.compile(r"(large_)?list<(?:item: )?(.+)>")

_ALIASES: Final[dict[str, Callable[[], pa.DataType]]] = {
    "large_string": pa.large_string,
    "large_binary": pa.large_binary,
    "float": pa.float32,
}


def arrow_type(text: str) -> pa.DataType:
    """The type a text names.

    >>> str(arrow_type("decimal(10, 2)")), str(arrow_type("fixed_size_list<float>[8]"))
    ('decimal128(10, 2)', 'fixed_size_list<item: float>[8]')
    """
    wanted = text.strip()
    try:
        return _nested(wanted) or (_ALIASES[wanted]() if wanted in _ALIASES else pa.type_for_alias(wanted))
    except (ValueError, pa.ArrowException, RecursionError) as error:
        if isinstance(error, ty.InvalidInput):
            raise
        advice = "Write int64, double, string, bool, date32, timestamp[us], decimal128(10, 2), list<int64> or fixed_size_list<float>[8]."
        raise ty.InvalidInput(f"{text[:60]!r} is no Arrow type.", argument="type", advice=advice) from None


def _nested(text: str) -> pa.DataType | None:
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal256 if found[1] == "256" else pa.decimal128
        return make(int(found[2]), int(found[3]))
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _FIXED.fullmatch(text):
        return pa.list_(arrow_type(found[1]), int(found[2])) if found[1] else pa.binary(int(found[2]))
    if found := _LIST.fullmatch(text):
        return (pa.large_list if found[1] else pa.list_)(arrow_type(found[2]))
    return None
