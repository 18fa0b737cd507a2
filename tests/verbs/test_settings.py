"""Config, metadata and bases through the handle, beside other writers, and as stock pylance sees the outcome."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import handle
from tests.support.evolving import FORMATS, STABLE, interrupted, make, more, seen
from tests.support.tables import open_stock
from tiltyard.errors import IncompatibleConflict, InvalidInput, OutcomeUnknown, StorageError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore

VERBS: dict[str, tuple[Callable[..., Any], Callable[[ty.Table], dict[str, str]], Callable[[Any], dict[str, str]]]] = {
    "config": (ty.Table.update_config, lambda t: dict(t.settings.config), lambda stock: stock.config()),
    "metadata": (
        lambda table, *a, **k: table.settings.update_metadata(*a, **k),
        lambda t: dict(t.settings.metadata),
        lambda stock: stock.metadata,
    ),
    "schema": (
        lambda table, *a, **k: table.settings.update_schema_metadata(*a, **k),
        lambda t: _text(t.schema.metadata),
        lambda stock: _text(stock.schema.metadata),
    ),
    "field": (
        lambda table, *a, **k: table.update_field_metadata("x", *a, **k),
        lambda t: _text(t.schema.field("x").metadata),
        lambda stock: _text(stock.schema.field("x").metadata),
    ),
}
EACH = pytest.mark.parametrize("what", VERBS)


def _text(metadata: dict[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}


def _agreed(root: Path, what: str) -> dict[str, str]:
    """What the newest version says, the same for us and for pylance."""
    seen(root)
    _, ours, stock = VERBS[what]
    found = ours(ty.Table.open(root))
    assert stock(open_stock(str(root))) == found
    return found


@EACH
@STABLE
@FORMATS
def test_settings(tmp_path: Path, what: str, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    verb, ours, _ = VERBS[what]
    result = verb(table, {"a": "1", "b": "ä"}, message="set")
    assert (result.version, result.operation, table.history()[0].message) == (3, "UpdateConfig", "set")
    assert ours(table) == _agreed(root, what) == {"a": "1", "b": "ä"}
    verb(table, {"a": None, "c": "", "never": None})
    assert _agreed(root, what) == {"b": "ä", "c": ""}
    verb(table, {"d": "4"}, replace=True)
    assert _agreed(root, what) == {"d": "4"}
    verb(table, {}, replace=True)
    assert _agreed(root, what) == {}
    assert ours(ty.Table.open(root, version=3)) == {"a": "1", "b": "ä"}


@EACH
@pytest.mark.parametrize("values", [{}, None, {"a": 1}, {1: "a"}, {"": "a"}, ["a"]])
def test_settings_that_cannot_be(tmp_path: Path, what: str, values: Any) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        VERBS[what][0](table, values)
    with pytest.raises(InvalidInput, match="removes every key"):
        VERBS[what][0](table, {"a": None}, replace=True)
    assert table.layout.latest_version() == 2


def test_metadata_of_a_member(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    table.update_field_metadata("s.a", {"unit": "m"})
    assert seen(root).schema.field("s").type.field("a").metadata == {b"unit": b"m"}
    with pytest.raises(InvalidInput, match="no column"):
        table.update_field_metadata("s.c", {"unit": "m"})


@pytest.mark.parametrize("key", ["lance-encoding:blob", "lance-encoding:packed", "packed", "ARROW:extension:name"])
def test_how_a_column_is_stored_stays(tmp_path: Path, key: str) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match="stored"):
        table.update_field_metadata("x", {key: "true"})
    seen(tmp_path / "t")


def test_an_extension_type_survives_a_replacement_that_names_it(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, pa.table({"u": pa.array([b"0" * 16], pa.uuid())}))
    with pytest.raises(InvalidInput, match="stored"):
        table.update_field_metadata("u", {"a": "1"}, replace=True)
    table.update_field_metadata("u", {"a": "1"})
    assert seen(root).schema.field("u").type == pa.uuid()


def test_a_key_is_made_once(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    key = {"lance-schema:unenforced-primary-key": "true"}
    with pytest.raises(InvalidInput, match="nullable"):
        table.update_field_metadata("id", key)
    table.alter_columns({"path": "id", "nullable": False})
    table.update_field_metadata("id", key)
    assert ty.Table.open(root).primary_key == ("id",)
    with pytest.raises(InvalidInput, match="primary key"):
        table.update_field_metadata("id", {}, replace=True)
    table.update_field_metadata("id", {"unit": "m"})
    seen(root)


@EACH
def test_settings_beside_others(tmp_path: Path, what: str) -> None:
    root = tmp_path / "t"
    make(root)
    verb = VERBS[what][0]
    result = verb(interrupted(root, lambda: verb(ty.Table.open(root), {"theirs": "1"})), {"ours": "1"})
    assert [one.operation for one in result.rebased_over] == ["UpdateConfig"]
    assert _agreed(root, what) == {"theirs": "1", "ours": "1"}
    with pytest.raises(IncompatibleConflict):
        verb(interrupted(root, lambda: verb(ty.Table.open(root), {"ours": "2"})), {"ours": "3"})
    assert _agreed(root, what)["ours"] == "2"
    verb(interrupted(root, lambda: ty.Table.open(root).append(more(20))), {"ours": "4"})
    assert (_agreed(root, what)["ours"], ty.Table.open(root).count_rows()) == ("4", 11)


def test_metadata_of_a_column_that_goes_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    with pytest.raises((InvalidInput, IncompatibleConflict)):
        interrupted(root, lambda: open_stock(str(root)).drop_columns(["x"])).update_field_metadata("x", {"a": "1"})
    seen(root)


# ---- bases -----------------------------------------------------------------------------------------------------------------


@STABLE
def test_bases(tmp_path: Path, stable: bool) -> None:
    root, cold, colder = tmp_path / "t", tmp_path / "cold", tmp_path / "colder"
    make(root, stable=stable)
    table = ty.Table.open(root, allowed_bases=[cold, colder])
    assert table.settings.add_bases([str(cold)]).operation == "UpdateBases"
    table.settings.add_bases({"attic": f"file://{colder}"}, is_dataset_root=True)
    bases = [(one.id, one.path, one.name, one.is_dataset_root) for one in table._file.manifest.base_paths]
    assert bases == [(1, str(cold), None, False), (2, str(colder), "attic", True)]
    for again in ([str(cold)], {"attic": str(cold / "deeper")}):
        with pytest.raises(InvalidInput, match="already"):
            table.settings.add_bases(again)
    seen(root, allowed_bases=[cold, colder])
    lance.write_dataset(more(20), str(root), mode="append", target_bases=["attic"])
    assert len(list((colder / "data").iterdir())) == 1, "pylance writes there"
    assert seen(root, allowed_bases=[cold, colder]).num_rows == 11
    with pytest.raises(ty.CorruptTable):
        ty.Table.open(root)


def test_a_base_inside_needs_no_leave(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root).settings.add_bases([str(root / "cold")])
    seen(root)


@pytest.mark.parametrize("bases", [[], "cold", [""], [7], {"": "x"}, {"a": ""}, 7])
def test_bases_that_cannot_be(tmp_path: Path, bases: Any) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        table.settings.add_bases(bases)
    with pytest.raises(InvalidInput, match="outside"):
        table.settings.add_bases([str(tmp_path / "other")])
    assert table.layout.latest_version() == 2


def test_two_who_add_a_base(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    theirs = ty.Table.open(root)
    interrupted(root, lambda: theirs.settings.add_bases([str(root / "b1")])).settings.add_bases([str(root / "b2")])
    assert [one.id for one in ty.Table.open(root)._file.manifest.base_paths] == [1, 2]
    with pytest.raises((IncompatibleConflict, InvalidInput)):
        interrupted(root, lambda: theirs.settings.add_bases([str(root / "b3")])).settings.add_bases([str(root / "b3")])
    seen(root)


@pytest.mark.parametrize("verb", ["config", "bases"])
def test_every_fault_leaves_the_table_sound(tmp_path: Path, verb: str) -> None:
    for kind in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER):
        for number in range(1, 30):
            root = tmp_path / f"{kind.name} {number}"
            make(root)
            faulty = FaultStore(LocalStore(root), kind, at=number)
            table = handle(root, faulty)
            try:
                table.update_config({"a": "1"}) if verb == "config" else table.settings.add_bases([str(root / "b")])
            except (StorageError, OutcomeUnknown):
                pass
            assert open_stock(str(root)).count_rows() == 10
            if not faulty.fired:
                break
        else:
            pytest.fail("the verb never passed")
