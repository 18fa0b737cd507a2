"""Batches of one Arrow schema as batches of another that means the same: without a copy where the bytes are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.spark.spark_types import is_list

Step = Callable[[pa.Array], pa.Array]

_PER_MICROSECOND: Final = 1000


def batch_converter(source: pa.Schema, target: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function for many batches of one schema; columns are found by name.

    Raises:
        InvalidInput: a column is missing, or its type cannot be turned into the other.
    """
    steps: list[tuple[int, Step | None]] = []
    for field in target:
        place = source.get_field_index(field.name)
        if place < 0:
            raise InvalidInput(f"There is no column {field.name!r}.", argument=field.name)
        steps.append((place, converter(source.field(place).type, field.type, field.name)))

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(place) if step is None else step(batch.column(place)) for place, step in steps]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=target)

    return run


def converter(source: pa.DataType, target: pa.DataType, path: str) -> Step | None:
    """What turns arrays of one type into arrays of another; None where nothing has to be done."""
    if isinstance(source, pa.BaseExtensionType):
        inner = converter(source.storage_type, target, path)
        return lambda array: array.storage if inner is None else inner(array.storage)
    if source.equals(target, check_metadata=True):
        return None
    if pa.types.is_fixed_size_list(source) and pa.types.is_list(target):
        return _from_vectors(source, target, path)
    if pa.types.is_list(source) and pa.types.is_fixed_size_list(target):
        return _to_vectors(source, target, path)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _structs(source, target, path)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return _maps(source, target, path)
    if is_list(source) and pa.types.is_list(target):
        return _lists(source, target, path)
    if pa.types.is_dictionary(source):
        decoded = converter(source.value_type, target, path)
        return lambda array: array.dictionary_decode() if decoded is None else decoded(array.dictionary_decode())
    if _is_nanoseconds(source) and _is_microseconds(target):
        return lambda array: _without_nanoseconds(array, target)
    return _cast(source, target, path)


def _cast(source: pa.DataType, target: pa.DataType, path: str) -> Step:
    def run(array: pa.Array) -> pa.Array:
        try:
            return array.cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInput(f"Column {path}, {source}, does not fit into {target}: {error}", argument=path) from error

    return run


def _plain_step(step: Step | None) -> Step:
    return step if step is not None else lambda array: array


def _from_vectors(source: pa.DataType, target: pa.DataType, path: str) -> Step:
    step, size = _plain_step(converter(source.value_type, target.value_type, f"{path}.element")), source.list_size

    def run(array: pa.FixedSizeListArray) -> pa.ListArray:
        # Rows that are null have a place among the values too, so the offsets are the same with and without them.
        values = step(array.values.slice(array.offset * size, len(array) * size))
        offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * size)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=mask)

    return run


def _to_vectors(source: pa.DataType, target: pa.DataType, path: str) -> Step:
    step, size = _plain_step(converter(source.value_type, target.value_type, f"{path}.element")), target.list_size

    def run(array: pa.ListArray) -> pa.FixedSizeListArray:
        lengths = pc.list_value_length(array)
        if pc.any(pc.not_equal(lengths, size)).as_py():
            wrong = next(length for length in lengths.to_pylist() if length is not None and length != size)
            raise InvalidInput(f"Column {path} holds vectors of {size} values, but one has {wrong}.", argument=path)
        if not array.null_count:
            return pa.FixedSizeListArray.from_arrays(step(array.flatten()), type=target)
        # A null row has no values in a list but has its place in a vector.
        where = pc.if_else(array.is_valid(), pc.cumulative_sum(pc.cast(array.is_valid(), pa.int64())), 1).to_numpy() - 1
        places = (where[:, None] * size + np.arange(size)).reshape(-1)
        values = step(array.flatten())
        filled = values.take(pa.array(places)) if len(values) else pa.nulls(len(places), target.value_type)
        return pa.FixedSizeListArray.from_arrays(filled, type=target, mask=array.is_null())

    return run


def _lists(source: pa.DataType, target: pa.DataType, path: str) -> Step:
    step = _plain_step(converter(source.value_type, target.value_type, f"{path}.element"))

    def run(array: pa.Array) -> pa.ListArray:
        if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
            array = array.cast(pa.large_list(source.value_field))
        if pa.types.is_large_list(array.type):
            first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
            if last - first > np.iinfo(np.int32).max:
                raise InvalidInput(
                    f"A batch of column {path} holds more values than Spark takes.", argument=path, advice="Use a smaller batch_rows."
                )
        offsets = array.offsets.to_numpy()
        first = int(offsets[0]) if len(offsets) else 0
        values = step(array.values.slice(first, int(offsets[-1]) - first if len(offsets) else 0))
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(pa.array((offsets - first).astype(np.int32, copy=False)), values, type=target, mask=mask)

    return run


def _structs(source: pa.DataType, target: pa.DataType, path: str) -> Step:
    steps: list[tuple[int, Step]] = []
    for field in target:
        place = source.get_field_index(field.name)
        if place < 0:
            raise InvalidInput(f"There is no field {path}.{field.name}.", argument=path)
        steps.append((place, _plain_step(converter(source.field(place).type, field.type, f"{path}.{field.name}"))))

    def run(array: pa.StructArray) -> pa.StructArray:
        # ``field`` leaves the parent's nulls out, which is right: they come with the mask. It does heed a slice.
        children = [step(array.field(place)) for place, step in steps]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

    return run


def _maps(source: pa.DataType, target: pa.DataType, path: str) -> Step:
    keys_step = _plain_step(converter(source.key_type, target.key_type, f"{path}.key"))
    items_step = _plain_step(converter(source.item_type, target.item_type, f"{path}.value"))

    def run(array: pa.MapArray) -> pa.MapArray:
        offsets = array.offsets.to_numpy()
        first = int(offsets[0])
        count = int(offsets[-1]) - first
        keys, items = keys_step(array.keys.slice(first, count)), items_step(array.items.slice(first, count))
        shifted = pa.array((offsets - first).astype(np.int32, copy=False))
        return pa.MapArray.from_arrays(shifted, keys, items, type=target, mask=array.is_null() if array.null_count else None)

    return run


def _is_nanoseconds(kind: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "ns")


def _is_microseconds(kind: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "us")


def _without_nanoseconds(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Down to whole microseconds, before 1970 as well, where a plain cast would go up."""
    numbers = array.view(pa.int64())
    values = np.floor_divide(numbers.fill_null(0).to_numpy(), _PER_MICROSECOND)
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, pa.int64(), mask=mask).view(target)
