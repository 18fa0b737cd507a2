"""Arrow extension types: taken apart into storage and metadata, and put together again.

A table keeps an extension column as its storage type plus two metadata keys. Arrow offers no call that tells the second key of an
arbitrary extension type, so we read it where Arrow itself writes it for other libraries: the C data interface.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

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
