"""Whether the indices of a version agree with its rows: their columns are there, and their answers are those of a scan."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.apply.coverage import SYSTEM, covered, current
from tiltyard.verbs.columns.column_files import quoted
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import ROW_ID, dataset_at

if TYPE_CHECKING:
    from lance import LanceDataset

_EXACT: Final = ("BTreeIndexDetails", "BitmapIndexDetails")
"""Kinds that answer comparisons by themselves: what they leave out nobody looks for in the rows."""
_SAMPLES: Final = 8
"""Fragments of which one row is looked up."""
_EPOCH: Final = "1970-01-01"


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """An index, and in what its answer differs from a scan."""

    index: str
    text: str


def lost_columns(manifest: Manifest, indices: tuple[IndexMetadata, ...]) -> Iterator[str]:
    """Indices on columns that the version does not have."""
    there = {field.id for field in manifest.fields}
    for index in indices:
        gone = [number for number in index.fields if number not in there]
        if index.name not in SYSTEM and gone:
            yield f"index {index.name} is on column id {gone[0]}, which the table does not have"


def wrong_answers(access: TableAccess, manifest: Manifest, *, every: bool) -> Iterator[WrongAnswer | str]:
    """Compares what indices answer with a scan.

    Args:
        access: the table.
        manifest: the version.
        every: whether all rows are compared, or one of a few fragments each.

    Yields:
        What differs; as plain text, what could not be compared.
    """
    schema = {field.name: field for field in arrow_from_fields(manifest.fields)}
    top = {field.id: field.name for field in manifest.fields if field.parent_id < 0}
    dataset: LanceDataset | None = None
    seen: set[str] = set()
    for index in current(manifest):
        if index.name in seen or index.details is None or not index.details[0].endswith(_EXACT):
            continue
        seen.add(index.name)
        name = top.get(index.fields[0]) if len(index.fields) == 1 else None
        everything = None if name is None else _everything(quoted(name), schema[name].type)
        if name is None or everything is None:
            yield f"the answers of index {index.name}: its column is of a kind that is not compared"
            continue
        try:
            dataset = dataset or dataset_at(access, manifest)
            with lance_errors(access, "compare an index with its rows"):
                found = _differs(dataset, index, name, everything if every else None, manifest)
        except TiltyardError as error:
            yield WrongAnswer(index.name, f"index {index.name} cannot be asked: {error}")
            continue
        if found is not None:
            yield WrongAnswer(index.name, found)


def _everything(column: str, kind: pa.DataType) -> str | None:
    """A condition that holds for every value, and that an index answers."""
    if pa.types.is_integer(kind):
        return f"{column} >= 0 OR {column} < 0"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"{column} >= ''"
    if pa.types.is_boolean(kind):
        return f"{column} = true OR {column} = false"
    if pa.types.is_date32(kind):
        return f"{column} >= date '{_EPOCH}' OR {column} < date '{_EPOCH}'"
    return None


def _differs(dataset: LanceDataset, index: IndexMetadata, name: str, everything: str | None, manifest: Manifest) -> str | None:
    if everything is not None:
        found = _compared(dataset, everything)
        if found is not None:
            return f"index {index.name} on {name} {found}"
    fragments = [fragment.id for fragment in manifest.fragments if fragment.live_rows and fragment.id in (covered(index) or ())]
    step = max(len(fragments) // _SAMPLES, 1)
    for number in fragments[::step]:
        condition = _of_a_row(dataset, name, number)
        found = None if condition is None else _compared(dataset, condition)
        if found is not None:
            return f"index {index.name} on {name}, asked for {condition[:80]}, {found}" if condition else found
    return None


def _of_a_row(dataset: LanceDataset, name: str, fragment: int) -> str | None:
    """A condition that holds for a row of a fragment."""
    column = quoted(name)
    inside: Any = dataset.get_fragment(fragment)
    rows = dataset.scanner(
        columns={"value": column}, filter=f"{column} IS NOT NULL", fragments=[inside], limit=1,
        use_scalar_index=False,
    ).to_table()  # fmt: skip
    if not rows.num_rows:
        return None
    literal = _literal(rows.column("value")[0].as_py())
    return None if literal is None else f"{column} = {literal}"


def _literal(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 63 else None
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'" if "\0" not in value and len(value) < 1000 else None
    return f"date '{value.isoformat()}'" if isinstance(value, datetime.date) else None


def _compared(dataset: LanceDataset, condition: str) -> str | None:
    """What a scan finds for a condition and the index does not, or the other way round."""
    with_index, without = (
        set(dataset.scanner(columns=[], filter=condition, with_row_id=True, use_scalar_index=used).to_table().column(ROW_ID).to_pylist())
        for used in (True, False)
    )
    if without - with_index:
        return f"misses {len(without - with_index)} of {len(without)} rows; drop it and create it again"
    if with_index - without:
        return f"gives {len(with_index - without)} rows that a scan does not; drop it and create it again"
    return None
