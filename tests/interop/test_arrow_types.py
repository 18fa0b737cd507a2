"""Every Arrow type, alone and nested, in every file format: we create, append and overwrite, stock pylance reads every version.

Refused, each with ``InvalidInput`` before anything is committed (pylance refuses them too, or takes the rows and cannot give them back):

| what | file formats | who refuses | what pylance alone would do |
|---|---|---|---|
| maps, at any depth | 2.0, 2.1 | pylance | refuse |
| null structs | 2.0 | pylance | refuse |
| null structs without members, as the only column | 2.1, 2.2 | pylance | refuse |
| structs without members beside or inside anything else | 2.1, 2.2 | we | write, then read null for the columns after them |
| fixed-size lists of strings, binaries or dictionaries | all | we | panic, or write what cannot be read |
| fixed-size lists of structs | 2.0, 2.1 | we | write what cannot be read; refuse |
| fixed-size lists of structs beside or inside anything else, or holding lists | 2.2 | we | write what cannot be read |
| a stream into a map whose members are not called key and value | 2.2 | pylance | refuse what it read itself |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.arrow_types import EXTENSIONS, NESTED, SIMPLE, STORABLE, UNSTORABLE
from tests.support.samples import table_of
from tests.support.tables import Chronicle, open_stock

FORMATS: Final = ("2.0", "2.1", "2.2")
MAPS: Final = {name for name in STORABLE if "map" in name}
VARIABLE_VECTORS: Final = {"vector_string", "vector_dictionary"}
STRUCT_VECTORS: Final = {"vector_struct", "vector_struct_named"}

WRAPPERS: Final[dict[str, Callable[[pa.DataType], pa.DataType]]] = {
    "alone": lambda kind: kind,
    "in_struct": lambda kind: pa.struct([pa.field("n", pa.int8()), pa.field("m", kind, metadata={"m": "é"}), pa.field("o", pa.string())]),
    "in_list": lambda kind: pa.list_(kind),
    "in_list_of_structs": lambda kind: pa.large_list(pa.struct([pa.field("m", kind), pa.field("n", pa.int8(), nullable=False)])),
}


def refusal(name: str, wrapper: str, data_format: str) -> str | None:
    """The table above, in terms of the names here: the reason why a column is refused, as a pattern."""
    nested = wrapper != "alone"
    if name in MAPS and data_format < "2.2":
        return "(?i)map"
    if name in VARIABLE_VECTORS:
        return "fixed width"
    if name in STRUCT_VECTORS and (nested or data_format < "2.2"):
        return "fixed-size list of structs"
    if name == "struct_empty" and nested and data_format > "2.0":
        return "without members"
    return None


def has_null_structs(name: str, wrapper: str) -> bool:
    """Whether samples of this column hold structs that are null, not only members that are."""
    return "struct" in name or wrapper in ("in_struct", "in_list_of_structs")


def same(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.equals(right)) or [plain(row) for row in left.to_pylist()] == [plain(row) for row in right.to_pylist()]


def plain(value: Any) -> Any:
    """An item of a fixed-size list loses its extension type in any table; what is stored is the same."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def schema_of(kind: pa.DataType, beside: bool) -> pa.Schema:
    fields = [pa.field("c", kind, metadata={"unit": "m/s"})]
    if beside:
        fields = [pa.field("before", pa.string()), *fields, pa.field("after", pa.int64(), nullable=False)]
    return pa.schema(fields, metadata={"made by": "us", "ü": "é"})


CASES: Final = [
    pytest.param(name, wrapper, data_format, id=f"{name}-{wrapper}-{data_format}")
    for name in STORABLE
    for wrapper in WRAPPERS
    for data_format in FORMATS
    if wrapper == "alone" or data_format == FORMATS[-1]
]
"""Nested types are among the names too, so that older formats meet nesting as well."""


def test_no_type_is_left_out() -> None:
    assert {case.values[0] for case in CASES} == set(SIMPLE) | set(NESTED) | set(EXTENSIONS)
    assert len(CASES) == len(STORABLE) * (len(FORMATS) + len(WRAPPERS) - 1)


@pytest.mark.parametrize(("name", "wrapper", "data_format"), CASES)
def test_pylance_reads_every_version_of_every_type(name: str, wrapper: str, data_format: str, tmp_path: Path) -> None:
    kind = WRAPPERS[wrapper](STORABLE[name])
    only_column = name in STRUCT_VECTORS or (name == "struct_empty" and data_format > "2.0")
    schema = schema_of(kind, beside=not only_column)
    # Every fifth sample is null, from the fourth on: three rows have none.
    size = 3 if has_null_structs(name, wrapper) and (data_format == "2.0" or name == "struct_empty") else 13
    parts = [table_of(schema, size, start) for start in (0, 20, 40)]
    uri = str(tmp_path / "t")
    reason = refusal(name, wrapper, data_format)
    if reason is not None:
        with pytest.raises(ty.errors.InvalidInput, match=reason):
            ty.Table.create(uri, parts[0], durability="os", options=ty.TableOptions(data_format=data_format))
        with pytest.raises(ValueError, match="not found"):
            lance.dataset(uri)
        return
    table = ty.Table.create(uri, parts[0], durability="os", options=ty.TableOptions(data_format=data_format))
    table.append(parts[1])
    if name == "map_named":
        with pytest.raises(ty.errors.InvalidInput, match="mismatched children"):
            table.append(parts[2].to_reader())
    table.append(parts[2] if name == "map_named" else parts[2].to_reader())
    table.overwrite(parts[2])
    chronicle = Chronicle(uri)
    chronicle.agrees()
    chronicle.sound()
    more = table.to_arrow() if name == "vector_uuid" else parts[1]  # pylance takes no uuids there, but what they are stored as
    assert lance.write_dataset(more, uri, mode="append").count_rows() == ty.Table.open(uri).count_rows() == 2 * size
    for version, expected in {1: parts[:1], 2: parts[:2], 3: parts, 4: parts[2:]}.items():
        assert same(open_stock(uri, version).to_table(), pa.concat_tables(expected))


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_type_no_table_holds_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(ty.errors.InvalidInput, match="cannot be stored"):
        ty.Table.create(tmp_path / "t", pa.schema([pa.field("c", UNSTORABLE[name])]), durability="os")
    assert not (tmp_path / "t").exists()


def test_columns_are_found_by_name_whatever_their_order_and_missing_ones_are_null(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("a", pa.int64()), pa.field("s", pa.struct([("x", pa.int8()), ("y", pa.string())])), pa.field("b", pa.string())]
    )
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, table_of(schema, 3), durability="os")
    table.append(
        pa.table({"s": [{"y": "z", "x": 1}], "a": pa.array([9], pa.int64())}, schema=pa.schema([schema.field("s"), schema.field("a")]))
    )
    table.append(pa.table({"b": ["only"]}).to_reader())
    table.append(pa.table({"s": pa.array([{"y": "q", "x": 7}], pa.struct([("y", pa.string()), ("x", pa.int8())]))}))
    assert open_stock(uri).to_table().to_pylist()[3:] == [
        {"a": 9, "s": {"x": 1, "y": "z"}, "b": None},
        {"a": None, "s": None, "b": "only"},
        {"a": None, "s": {"x": 7, "y": "q"}, "b": None},
    ]
    Chronicle(uri).sound()
