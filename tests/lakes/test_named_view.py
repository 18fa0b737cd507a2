"""A table that is asked for by its name is read in one look, however many others the process uses: a server has many."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.lakes.table_names import full_name, shard_name

TABLES = 20


def test_one_look_for_a_table_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    get = SqlRecords.get

    def counted(self: SqlRecords, keys: Collection[str]) -> Any:
        looks.append(len(keys))
        return get(self, keys)

    with ty.Lake.open(tmp_path / "lake", durability="os") as lake:
        names = [full_name(f"t{number}") for number in range(TABLES)]
        for name in names:
            lake.create_table(name, pa.table({"id": [1]}))
            lake.view([name]).find(name)
        monkeypatch.setattr(SqlRecords, "get", counted)
        for name in names:
            head = lake.view([name, shard_name(name, 0)]).find(name)
            assert head is not None
            assert head.name == name
        assert looks == [4] * TABLES, "the tip, both names and the table"
        # A name that was given to another table since is looked up again, not taken from what is remembered.
        lake.drop_table("t3")
        made = lake.create_table("t3", pa.table({"id": [1, 2]}))
        found = lake.view(["t3"]).find("t3")
        assert found is not None
        assert found.location.rstrip("/").rpartition("/")[2] in made.uri
        lake.drop_table("t4")
        assert lake.view(["t4"]).find("t4") is None
        # Without names only the tables that were used last are read along.
        looks.clear()
        assert lake.view().find("t0") is not None
        assert looks[0] <= 1 + 2 * 8
