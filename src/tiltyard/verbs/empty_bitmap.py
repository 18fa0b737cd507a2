"""A BITMAP index over no rows: the one kind that pylance builds of nothing only in a commit of its own.

So it is built in a table of our own beside, empty and with that one column, and its file is taken from there.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.format.field_tree import field_tree, parse_path
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.applying.coverage import indices_of
from tiltyard.verbs.lance import lance_errors
from tiltyard.verbs.place import Place, open_place


def empty_bitmap(place: Place, manifest: Manifest, column: str, name: str) -> IndexMetadata:
    """Writes the files of a BITMAP segment that covers no fragment of a version.

    Raises:
        InvalidInput: there is no such column, or it is of a type that the index cannot hold.
    """
    import lance

    tree = field_tree(manifest.fields)
    field = next((field for field in manifest.fields if tree.path(field) == column), None)
    if field is None:
        raise InvalidInput(f"There is no column {column!r}.", argument="column")
    schema = pa.schema([arrow_from_fields(manifest.fields, {}).field(parse_path(column)[0])])
    with tempfile.TemporaryDirectory(prefix="tiltyard-") as scratch:
        with lance_errors(place, "write index"):
            lance.write_dataset(schema.empty_table(), scratch).create_scalar_index(column, "BITMAP", name=name)
        beside = open_place(scratch, durability="os")
        [made] = indices_of(beside.load(*beside.head()).manifest)
        segment = replace(
            made,
            uuid=place.runtime.random.uuid(),
            fields=(field.id,),
            name=name,
            dataset_version=manifest.version,
        )
        for file in made.files:
            place.store.put(f"_indices/{segment.uuid}/{file.path}", beside.store.get(f"_indices/{made.uuid}/{file.path}"))
    return segment
