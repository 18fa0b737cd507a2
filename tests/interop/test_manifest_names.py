"""V1 names become V2 names, by us and by pylance, on tables of both; a directory with both kinds is nobody's table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.samples import table_of
from tests.support.stock_tables import KINDS, SCHEMA
from tests.support.tables import MAX, Chronicle, open_stock


def _old_names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "_versions").glob("*.manifest") if len(path.name) < 29)


@pytest.fixture(params=["ours", "pylance"])
def v1(request: pytest.FixtureRequest, tmp_path: Path) -> Chronicle:
    if request.param == "pylance":
        KINDS["plain_2.2_v1_addresses"](tmp_path / "t")
    else:
        table = ty.Table.create(tmp_path / "t", table_of(SCHEMA, 20), durability="os", options=ty.TableOptions(manifest_naming="v1"))
        for start in (20, 30):
            table.append(table_of(SCHEMA, 5, start))
    assert _old_names(tmp_path / "t") == ["1.manifest", "2.manifest", "3.manifest"]
    return Chronicle(str(tmp_path / "t"))


@pytest.mark.parametrize("who", ["ours", "pylance"])
def test_all_versions_open_after_migration(who: str, v1: Chronicle) -> None:
    before = v1.agrees()
    if who == "ours":
        assert before.maintenance.migrate_manifest_names() == 3
    else:
        open_stock(v1.uri).migrate_manifest_paths_v2()
    assert _old_names(Path(v1.uri)) == []
    v1.agrees(anew=True)
    v1.sound()
    ty.Table.open(v1.uri).append(table_of(SCHEMA, 2, 60))
    open_stock(v1.uri).delete("id = 60")
    v1.agrees()
    v1.sound()
    assert ty.Table.open(v1.uri).layout.versions() == [1, 2, 3, 4, 5]
    assert ty.Table.open(v1.uri).maintenance.migrate_manifest_names() == 0


def test_our_handle_goes_on_after_its_own_migration(v1: Chronicle) -> None:
    table = v1.open()
    table.maintenance.migrate_manifest_names()
    assert table.append(table_of(SCHEMA, 2, 60)).version == 4
    assert _old_names(Path(v1.uri)) == []


def test_both_kinds_of_names_are_refused_with_advice(v1: Chronicle) -> None:
    versions = Path(v1.uri) / "_versions"
    shutil.copy(versions / "3.manifest", versions / f"{MAX - 3:020d}.manifest")
    with pytest.raises(ty.errors.CorruptTable, match="both kinds") as caught:
        ty.Table.open(v1.uri)
    assert "migration" in caught.value.advice
    with pytest.raises(ValueError, match="multiple manifest naming schemes"):
        open_stock(v1.uri)


def test_an_interrupted_migration_can_be_run_to_its_end(v1: Chronicle) -> None:
    v1.agrees()
    versions = Path(v1.uri) / "_versions"
    (versions / "3.manifest").rename(versions / f"{MAX - 3:020d}.manifest")
    shutil.copy(versions / "2.manifest", versions / f"{MAX - 2:020d}.manifest")  # linked, but not yet unlinked
    with pytest.raises(ty.errors.CorruptTable, match="both kinds"):
        ty.Table.open(v1.uri)
    assert ty.resume_migration(v1.uri) == 2
    assert _old_names(Path(v1.uri)) == []
    v1.agrees(anew=True)
    v1.sound()
