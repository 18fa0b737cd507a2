"""New values for columns of one fragment, whose rows stay where they are: a file of those columns, with a value for each row there is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import TOMBSTONE, DataFile, DataFragment, Field
from tiltyard.verbs.columns.column_files import quoted
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import data_file_name, fragment_from_lance, is_plain
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import ADDRESS, bitmap_of, offsets_in
from tiltyard.verbs.engine.row_input import cast

if TYPE_CHECKING:
    from lance import LanceDataset

_LARGEST: Final = 1 << 30
"""Bytes of values that are put in order here; Arrow's offsets end at twice that."""
_AT_ONCE: Final = 1 << 16


def with_values(
    access: TableAccess, dataset: LanceDataset, manifest: Manifest, before: DataFragment, values: pa.Table
) -> tuple[DataFragment, list[int], BitMap]:
    """Writes new values of some rows.

    Args:
        access: the table.
        dataset: pylance's handle on the version.
        manifest: the version.
        before: the fragment.
        values: the addresses of rows, and their new values by column.

    Returns:
        The fragment with its new file, the fields that are in it, and the rows.
    """
    offsets = offsets_in(values.column(ADDRESS).to_numpy())
    names = [name for name in values.column_names if name != ADDRESS]
    fields = [field for field in manifest.fields if field.parent_id < 0 and field.name in names]
    data_version = manifest.data_format.version if manifest.data_format else ""
    members = {field.parent_id for field in manifest.fields}
    simple = (
        is_plain(fields, data_version)
        and members.isdisjoint(field.id for field in fields)
        and all(file.major >= 2 for file in before.files)
    )
    if not simple or before.physical_rows * values.nbytes > _LARGEST * len(offsets):
        return *_joined(access, dataset, before, values), bitmap_of(offsets)
    whole = _for_all_rows(access, dataset, before, offsets, values.select([field.name for field in fields]))
    file = _file(access, whole, fields, data_version)
    taken = {field.id for field in fields}
    files = [replace(file, fields=tuple(TOMBSTONE if number in taken else number for number in file.fields)) for file in before.files]
    return replace(before, files=(*files, file)), list(file.fields), bitmap_of(offsets)


def _for_all_rows(access: TableAccess, dataset: LanceDataset, before: DataFragment, offsets: Any, new: pa.Table) -> tuple[pa.Table, Any]:
    """Values, and for each row of the fragment which of them is its: the new one, else its old one, and any at all if it is deleted."""
    places = np.zeros(before.physical_rows, np.int64)
    if len(offsets) < before.live_rows:
        with lance_errors(access, "read old values", dataset.version):
            fragment = dataset.get_fragment(before.id)
            assert fragment is not None
            columns = {name: quoted(name) for name in new.column_names}
            old = dataset.scanner(columns=columns, fragments=[fragment], with_row_address=True).to_table()
        places[offsets_in(old.column(ADDRESS).to_numpy())] = np.arange(old.num_rows)
        same = [cast(old.column(item.name), item.type) for item in new.schema]
        values = pa.concat_tables([pa.table(same, schema=new.schema), new])
        places[offsets] = np.arange(old.num_rows, values.num_rows)
        return values.combine_chunks(), places
    places[offsets] = np.arange(len(offsets))
    return new, places


def _file(access: TableAccess, whole: tuple[pa.Table, Any], fields: list[Field], data_version: str) -> DataFile:
    from lance.file import LanceFileWriter

    values, places = whole
    schema = arrow_from_fields(fields, {})
    values = pa.table(values.columns, schema=schema)
    in_order = len(places) == values.num_rows and bool((places == np.arange(len(places))).all())
    name = data_file_name(access.runtime.random)
    with lance_errors(access, "write columns"):
        writer = LanceFileWriter(f"{access.lance_uri}/data/{name}", schema, version=data_version, storage_options=access.lance_options())
        for begin in range(0, len(places), _AT_ONCE):
            some = values.slice(begin, _AT_ONCE) if in_order else values.take(pa.array(places[begin : begin + _AT_ONCE]))
            for batch in some.to_batches():
                writer.write_batch(batch)
        writer.close()
    major, minor = (int(part) for part in data_version.split("."))
    return DataFile(name, tuple(field.id for field in fields), tuple(range(len(fields))), major, minor, writer.size_bytes or 0)


def _joined(access: TableAccess, dataset: LanceDataset, before: DataFragment, values: pa.Table) -> tuple[DataFragment, list[int]]:
    """The same by pylance, which looks up each row: for columns that are more than plain values, or too large to be held twice."""
    with lance_errors(access, "write columns"):
        fragment = dataset.get_fragment(before.id)
        assert fragment is not None
        written, fields = fragment.update_columns(values, left_on=ADDRESS, right_on=ADDRESS)
    known = {(file.path, file.base_id): file for file in before.files}
    files = tuple(
        replace(known[file.path, file.base_id], fields=file.fields) if (file.path, file.base_id) in known else file
        for file in fragment_from_lance(written).files
    )
    return replace(before, files=files), list(fields)
