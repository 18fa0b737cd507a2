"""Back to an older version, beside other writers, and as stock pylance sees the outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import handle
from tests.support.evolving import FORMATS, LIVE, STABLE, column, interrupted, make, more, seen
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput, NotFound, OutcomeUnknown, StorageError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore


@STABLE
@FORMATS
def test_restore(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    table.update_config({"a": "1"})
    table.append(more(20))
    table.alter_columns({"path": "x", "name": "y", "data_type": pa.int64()})
    table.drop_columns(["s"])
    highest = table._file.manifest.max_fragment_id
    result = table.restore(3, message="back")
    assert (result.version, result.operation, table.history()[0].message) == (7, "Restore", "back")
    assert column(root, "x") == {number: 10 * number for number in LIVE}
    assert (table.schema.names, dict(table.settings.config)) == (["id", "x", "s"], {"a": "1"})
    table.append(more(20))
    assert table._file.manifest.max_fragment_id == (highest or 0) + 1, "ids are not given out twice"
    table.restore(1)
    assert (table.count_rows(), dict(table.settings.config)) == (12, {})
    seen(root)
    assert ty.Table.open(root, version=6).schema.names == ["id", "y"]
    stock = open_stock(str(root))
    stock.delete("id = 3")
    assert ty.Table.open(root).count_rows() == 11


def test_restore_by_tag(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    table.tags.create("first", 1)
    table.restore("first")
    assert table.count_rows() == 12
    table.branches.create("side", 2)
    table.tags.create("elsewhere", 2, branch="side")
    with pytest.raises(InvalidInput, match="branch side"):
        table.restore("elsewhere")
    side = ty.Table.open(root, branch="side")
    side.append(more(20))
    side.restore("elsewhere")
    assert (side.version, side.count_rows()) == (4, 10)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (9, NotFound),
        ("nope", NotFound),
        (0, InvalidInput),
        (-1, InvalidInput),
        (True, InvalidInput),
        (1.0, InvalidInput),
        (None, InvalidInput),
    ],
)
def test_versions_that_are_none(tmp_path: Path, version: Any, kind: type[Exception]) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(kind):
        table.restore(version)
    assert table.layout.latest_version() == 2
    seen(tmp_path / "t")


def test_a_version_that_was_cleaned_up(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    next(path for path in (root / "_versions").iterdir() if path.name.startswith("18446744073709551614")).unlink()
    with pytest.raises(NotFound, match="no version 1"):
        table.restore(1)


@STABLE
def test_a_restore_wins_over_what_came_meanwhile(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    make(root, stable=stable)
    result = interrupted(root, lambda: ty.Table.open(root).append(more(20))).restore(1)
    assert [one.operation for one in result.rebased_over] == ["Append"]
    assert seen(root).num_rows == 12
    assert ty.Table.open(root, version=3).count_rows() == 11, "what came between stays in the history"


def test_every_fault_leaves_the_table_sound(tmp_path: Path) -> None:
    for kind in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER):
        for number in range(1, 30):
            root = tmp_path / f"{kind.name} {number}"
            make(root)
            faulty = FaultStore(LocalStore(root), kind, at=number)
            try:
                handle(root, faulty).restore(1)
            except (StorageError, OutcomeUnknown):
                pass
            assert open_stock(str(root)).count_rows() in (10, 12)
            if not faulty.fired:
                break
        else:
            pytest.fail("the verb never passed")
