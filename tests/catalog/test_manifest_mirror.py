"""The mirror of a ``__manifest`` table shows what the table holds, whoever wrote it and from whatever version it comes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.catalog.manifest_mirror import RowMirror
from tiltyard.catalog.manifest_records import NAME, ManifestRecords
from tiltyard.catalog.manifest_rows import SCHEMA
from tiltyard.catalog.records import Body, Writes

SEED = 20261116


def write(records: ManifestRecords, put: dict[str, Body], delete: tuple[str, ...] = ()) -> None:
    records.transact([*put, *delete], [], lambda _: Writes(None, put, delete))


def stored(root: Path) -> dict[str, str | None]:
    """What pylance reads."""
    rows = lance.dataset(str(root / NAME)).to_table(columns=["object_id", "metadata"]).to_pylist()
    return {row["object_id"]: row["metadata"] for row in rows}


def shown(records: ManifestRecords) -> dict[str, str | None]:
    mirror = records._mirror
    return {name: row.metadata for name, row in mirror.rows(mirror._rows).items()}


def test_it_follows_many_writers_and_their_upkeep(tmp_path: Path) -> None:
    random = Random(SEED)
    print(f"seed {SEED}")
    several = [ManifestRecords(tmp_path, durability="os", upkeep=5) for _ in range(3)]
    model: dict[str, Body] = {}
    for number in range(60):
        records = random.choice(several)
        names = random.sample([f"k/{name}" for name in range(12)], 3)
        put: dict[str, Body] = {name: {"n": number} for name in names[:2]}
        write(records, put, (names[2],))
        model.update(put)
        model.pop(names[2], None)
        looking = random.choice(several)
        assert dict(looking.scan(["k/"])) == model
        assert list(looking.scan(["k/1"])) == sorted((key, body) for key, body in model.items() if key.startswith("k/1"))
        assert looking.get(names) == {name: model[name] for name in names if name in model}
    for records in several:
        records.get(["k/0"])
        assert shown(records) == stored(tmp_path)


def test_it_follows_other_clients(tmp_path: Path) -> None:
    records = ManifestRecords(tmp_path, durability="os")
    write(records, {"k/1": {"n": 1}, "name/main/t": {"location": "x"}})
    dataset = lance.dataset(str(tmp_path / NAME))
    theirs = pa.Table.from_pylist([{"object_id": "theirs", "object_type": "table", "location": "y"}], SCHEMA)
    dataset.merge_insert("object_id").when_matched_update_all().when_not_matched_insert_all().execute(theirs)
    assert records.get(["name/main/theirs"]) == {"name/main/theirs": {"location": "y", "foreign": True}}
    lance.dataset(str(tmp_path / NAME)).delete("object_id = 't'")
    assert records.get(["name/main/t", "k/1"]) == {"k/1": {"n": 1}}
    write(records, {"k/1": {"n": 2}})
    assert shown(records) == stored(tmp_path)


def test_an_id_that_came_twice_loses_all_its_rows_when_it_is_replaced(tmp_path: Path) -> None:
    records = ManifestRecords(tmp_path, durability="os")
    write(records, {"k/1": {"n": 1}})
    again = pa.Table.from_pylist([{"object_id": "k/1", "object_type": "tiltyard", "metadata": '{"n":7}'}], SCHEMA)
    lance.write_dataset(again, str(tmp_path / NAME), mode="append")
    assert records.get(["k/1"]) == {"k/1": {"n": 7}}
    lance.dataset(str(tmp_path / NAME)).delete("metadata = '{\"n\":7}'")
    assert records.get(["k/1"]) == {"k/1": {"n": 1}}
    lance.write_dataset(again, str(tmp_path / NAME), mode="append")
    write(records, {"k/1": {"n": 2}})
    assert [row for row in stored(tmp_path).items() if row[0] == "k/1"] == [("k/1", '{"n":2}')]
    assert lance.dataset(str(tmp_path / NAME)).count_rows("object_id = 'k/1'") == 1


def test_it_goes_back_as_well(tmp_path: Path) -> None:
    records = ManifestRecords(tmp_path, durability="os")
    versions = []
    for number in range(4):
        write(records, {f"k/{number % 2}": {"n": number}})
        versions.append((records._newest(), dict(records.scan(["k/"]))))
    mirror = RowMirror(records._access)
    for file, expected in [*versions[::-1], *versions]:
        mirror.follow(file)
        assert {key: row.body("") for key, row in mirror.scan(["k/"])} == expected


def test_a_table_with_columns_of_another_client_keeps_them(tmp_path: Path) -> None:
    records = ManifestRecords(tmp_path, durability="os")
    write(records, {"k/1": {"n": 1}, "k/2": {"n": 1}})
    ty.Table.open(tmp_path / NAME).add_columns({"more": "'kept'"})
    write(records, {"k/1": {"n": 2}}, ("k/2",))
    assert dict(records.scan(["k/"])) == {"k/1": {"n": 2}}
    rows = lance.dataset(str(tmp_path / NAME)).to_table(filter="object_id = 'k/1'").to_pylist()
    assert [(row["metadata"], row["more"]) for row in rows] == [('{"n":2}', "kept")]


def test_a_publish_of_ones_own_is_not_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = ManifestRecords(tmp_path, durability="os")
    write(records, {"k/1": {"n": 1}})

    def refuse(*_: object) -> None:
        pytest.fail("rows that we wrote are known")

    monkeypatch.setattr(RowMirror, "_scanned", refuse)
    for number in range(5):
        write(records, {"k/1": {"n": number}, f"k/new{number}": {}})
    assert records.get(["k/1"]) == {"k/1": {"n": 4}}
