"""Tables with every kind of file, and single bytes of these changed, as a bad disk does it. Deterministic by seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import pyarrow as pa

import tiltyard as ty
from tests.support.arrow_types import STORABLE
from tests.support.samples import sample
from tiltyard.errors import InvalidInput
from tiltyard.format.schema import check_encodable, fields_from_arrow

NOW = timedelta(0)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "name": [f"n{number}" for number in numbers]})


def with_history(root: Path) -> ty.Table:
    """Appends, deletions, an update, indices, a new column, compaction, and a cleanup that took most versions."""
    table = ty.Table.create(root, ids(*range(200)), durability="os", primary_key=["id"])
    table.append(ids(*range(200, 260)))
    table.create_index("id", "BTREE")
    table.delete("id % 7 = 0")
    table.update({"name": "'x'"}, where="id = 5")
    table.compact()
    table.append(ids(300, 301))
    table.delete("id = 300")
    table.create_index("name", "BITMAP")
    table.add_columns({"twice": "id * 2"})
    table.cleanup(keep_versions=2, grace=NOW)
    return table


def with_branches(root: Path) -> ty.Table:
    """A branch with files of its own and of the main line, which went on and was cleaned up."""
    table = ty.Table.create(root, ids(*range(50)), durability="os", stable_row_ids=True)
    table.create_index("id", "BTREE")
    table.delete("id = 3")
    table.branches.create("b")
    table.append(ids(60))
    table.delete("id = 4")
    table.cleanup(keep_versions=1, grace=NOW)
    branch = ty.Table.open(root, branch="b", durability="os")
    branch.append(ids(70))
    branch.delete("id = 5")
    return branch


def of_all_types(root: Path) -> ty.Table:
    """A column of each type that data files of the default format can hold, half of the values null."""
    columns = {"id": pa.array(range(20), pa.int64())}
    for name, kind in STORABLE.items():
        fields, _ = fields_from_arrow(
            pa.schema([pa.field("c", kind), pa.field("after", pa.int64())]), primary_key=None, file_version=(2, 2)
        )
        with suppress(InvalidInput):
            check_encodable(fields, (2, 2))
            columns[name] = sample(kind, 20)
    return ty.Table.create(root, pa.table(columns), durability="os")


def files(root: Path, *kinds: str) -> list[Path]:
    """All files below directories of these names, in an order of their own."""
    return sorted(path for path in root.rglob("*") if path.is_file() and any(kind in path.relative_to(root).parts[:-1] for kind in kinds))


@contextmanager
def flipped(path: Path, random: Random) -> Iterator[int]:
    """The file with one byte changed; where."""
    data = path.read_bytes()
    at = random.randrange(len(data))
    path.write_bytes(data[:at] + bytes([data[at] ^ random.randrange(1, 256)]) + data[at + 1 :])
    try:
        yield at
    finally:
        path.write_bytes(data)
