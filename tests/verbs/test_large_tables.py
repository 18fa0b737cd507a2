"""Ways that only large tables take, on small ones: each against the straightforward way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

import tiltyard as ty
from tiltyard.errors import CorruptTable, InvalidInput, NotFound
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.fragments import FragmentList, decode_fragment, encode_fragment_record, files_named
from tiltyard.transaction.transaction import Heading
from tiltyard.verbs import update
from tiltyard.verbs.engine import row_deletion
from tiltyard.verbs.engine.row_deletion import Addresses
from tiltyard.verbs.keys import key_join

COLUMNS = 130


def _wide(rows: int = 50) -> pa.Table:
    numbers = np.arange(rows, dtype=np.int64)
    return pa.table({"id": numbers, **{f"c {column}": numbers * 100 + column for column in range(COLUMNS)}})


# ---- many columns ------------------------------------------------------------------------------------------------------------


def _of_all_kinds(rows: int = 50) -> pa.Table:
    """Wide, with columns of kinds that are read in other ways than numbers, and nulls in each."""
    whole = list(range(rows))
    kinds: dict[str, pa.Array] = {
        "text": pa.array([f"text {number}" if number % 4 else None for number in whole]),
        "list": pa.array([[number] * (number % 3) if number % 5 else None for number in whole], pa.list_(pa.int32())),
        "struct": pa.array([{"x": number, "y": str(number)} if number % 6 else None for number in whole]),
        "vector": pa.array([[number / 7, 1.0] if number % 7 else None for number in whole], pa.list_(pa.float32(), 2)),
        "moment": pa.array([number * 1_000_000 if number % 3 else None for number in whole], pa.timestamp("us", "UTC")),
        "word": pa.array(["ab"[number % 2] if number % 9 else None for number in whole]).dictionary_encode(),
    }
    table = _wide(rows)
    for name, column in kinds.items():
        table = table.append_column(name, column)
    return table


@pytest.mark.parametrize("few", [update.FEW_ROWS, 5, -1])
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("where", ["id % 3 = 1", "`c 7` > 1000", "id = 17", "true", "id < 0"])
def test_an_update_of_many_columns_is_that_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, stable: bool, few: int
) -> None:
    monkeypatch.setattr(update, "FEW_ROWS", few)
    found = []
    for name, wide in (("wide", update.WIDE), ("narrow", COLUMNS * 2)):
        monkeypatch.setattr(update, "WIDE", wide)
        options = ty.TableOptions(files=ty.FileLimits(rows=20))
        table = ty.Table.create(tmp_path / name, _of_all_kinds(), durability="os", stable_row_ids=stable, options=options)
        table.delete("id in (4, 5, 23)")
        table.delete("id in (0, 31)")
        done = table.update({"c 7": "`c 7` + id", "c 0": "5", "text": "concat(text, '!')"}, where, mode="rows")
        found.append((done.rows, table.to_arrow()))
        assert table.check().ok
    assert found[0] == found[1]
    assert found[0][1].num_columns == COLUMNS + 7


@pytest.mark.parametrize("rows", [3, 40])
def test_a_few_rows_of_many_columns_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(update, "FEW_ROWS", 30)
    scans: list[int] = []
    beside = update._beside_another_scan

    def counted(*arguments: Any) -> Iterator[pa.RecordBatch]:
        scans.append(1)
        return beside(*arguments)

    monkeypatch.setattr(update, "_beside_another_scan", counted)
    table = ty.Table.create(tmp_path / "t", _wide(), durability="os")
    table.update({"c 7": "-1"}, f"id < {rows}", mode="rows")
    assert len(scans) == (rows > 30)
    assert table.count_rows("`c 7` = -1") == rows


def test_a_condition_that_differs_each_time_is_applied_once(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", _wide(), durability="os")
    done = table.update({"c 7": "-1"}, "random() < 0.5", mode="rows")
    assert done.rows["updated"] == sum(value == -1 for value in table.to_arrow().column("c 7").to_pylist())


@pytest.mark.parametrize("wrong", ["nothing = 1", "id = 'x' AND", "no_such_function(id)", "no_such_function()", "id + 1"])
def test_wrong_conditions_over_many_columns_are_refused(tmp_path: Path, wrong: str) -> None:
    table = ty.Table.create(tmp_path / "t", _wide(), durability="os")
    with pytest.raises(InvalidInput):
        table.delete(wrong)
    assert table.version == 1


# ---- many rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_addresses_are_kept_by_fragment(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = np.random.default_rng(seed)
    monkeypatch.setattr(row_deletion, "_FOLDED_AT_ONCE", int(random.integers(1, 40)))
    found, expected = Addresses(), dict[int, set[int]]()
    count = 0
    for _ in range(30):
        fragments, offsets = random.integers(0, 5, 9), random.integers(0, 2**32, 9)
        part = np.unique((fragments.astype(np.uint64) << np.uint64(32)) + offsets.astype(np.uint64))
        if random.random() < 0.5:
            part = part[::-1]
        found.add(pa.array(part))
        count += len(part)
        for address in part.tolist():
            expected.setdefault(address >> 32, set()).add(address & 0xFFFFFFFF)
    assert len(found) == count
    assert found.by_fragment() == {number: BitMap(expected[number]) for number in sorted(expected)}
    assert list(found.by_fragment()) == sorted(expected)
    assert Addresses().by_fragment() == {}


# ---- many fragments ----------------------------------------------------------------------------------------------------------


def _several(root: Path) -> ty.Table:
    options = ty.TableOptions(files=ty.FileLimits(rows=2))
    table = ty.Table.create(root / "t", pa.table({"id": range(10)}), durability="os", stable_row_ids=True, options=options)
    table.delete("id in (1, 2, 4, 5)")
    table.append(pa.table({"id": [20]}))
    return table


def test_names_of_files_are_those_of_the_decoded_fragment(tmp_path: Path) -> None:
    table = _several(tmp_path)
    for record in table._access.load(table.version, table._scheme).manifest.fragments.records():
        fragment = decode_fragment(record, "test")
        names = [(f"data/{file.path}", file.base_id) for file in fragment.files]
        if fragment.deletion_file is not None:
            names.append((fragment.deletion_file.path(fragment.id), fragment.deletion_file.base_id))
        assert list(files_named(record, "test")) == names


def test_fragments_are_encoded_as_one_by_one(tmp_path: Path) -> None:
    fragments = _several(tmp_path).layout.fragments
    long = [fragment.__class__(fragment.id, fragment.files * 40, fragment.physical_rows) for fragment in fragments]
    values = [*fragments, *long]
    expected = b"".join(encode_fragment_record(fragment) for fragment in values)
    made = FragmentList(values)
    assert made.wire() == made.wire() == expected
    assert FragmentList(values[:2]).appended(values[2:]).wire() == expected


@pytest.mark.parametrize("inline", [True, False])
def test_the_heading_is_that_of_the_transaction(tmp_path: Path, inline: bool) -> None:
    table = _several(tmp_path)
    for version in range(1, table.version + 1):
        file = table._access.log.peek(version, table._scheme)
        file = file if inline else replace(file, transaction=None)
        whole, heading = table._access.log.transaction_of(file), table._access.log.heading_of(file)
        assert (heading.uuid, dict(heading.properties)) == (whole.uuid, dict(whole.properties))


def test_a_heading_with_an_impossible_id_is_refused() -> None:
    with pytest.raises(CorruptTable, match="cannot be a transaction id"):
        Heading.from_bytes(pb.Transaction(uuid="../x").SerializeToString(), "test")


def test_a_missing_file_is_told_of_each_version_that_names_it(tmp_path: Path) -> None:
    table = _several(tmp_path)
    table.update_config({"a": "b"})
    lost = next(fragment.files[0].path for fragment in table.layout.fragments if fragment.deletion_file is None)
    first = min(version for version in range(1, 5) if _names(table, version, lost))
    (tmp_path / "t" / "data" / lost).unlink()
    told = [problem.version for problem in table.check().problems if problem.invariant == "I2" and f"data/{lost} is named" in problem.text]
    assert told == [version for version in range(first, 5) if _names(table, version, lost)]
    assert len(told) > 1


def _names(table: ty.Table, version: int, path: str) -> bool:
    return any(file.path == path for fragment in ty.Table.open(table.uri, version=version).layout.fragments for file in fragment.files)


def test_a_tag_is_of_a_version_that_is_there(tmp_path: Path) -> None:
    table, other = _several(tmp_path), ty.Table.open(tmp_path / "t")
    assert table.tags.create("read").version == 3
    other.append(pa.table({"id": [30]}))
    assert table.tags.create("newer").version == 4
    table = ty.Table.open(tmp_path / "t")
    [newest] = [path for path in (tmp_path / "t" / "_versions").iterdir() if path.stat().st_size and _version(path) == 4]
    content = newest.read_bytes()
    newest.unlink()
    with pytest.raises(NotFound):
        table.tags.create("lost", 4)
    assert "lost" not in table.tags
    newest.write_bytes(content)


def _version(path: Path) -> int:
    number = int(path.stem) if path.suffix == ".manifest" else 0
    return 2**64 - 1 - number if number > 2**63 else number


@pytest.mark.parametrize("stable", [False, True])
def test_a_merge_into_many_small_fragments_is_that_into_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stable: bool) -> None:
    monkeypatch.setattr(key_join, "_SMALL_BATCH", 4)
    rows, found = pa.table({"id": range(60), "x": range(60)}), []
    for name, in_file in (("small", 1), ("large", 100)):
        options = ty.TableOptions(files=ty.FileLimits(rows=in_file))
        table = ty.Table.create(tmp_path / name, rows, durability="os", stable_row_ids=stable, options=options)
        table.delete("id % 7 = 2")
        source = pa.table({"id": [5, 9, 16, 40, 59, 70], "x": [-1] * 6})
        merge = table.merge(source, on="id").when_matched_update(["x"]).when_not_matched_insert_all()
        done = merge.when_not_matched_by_source_delete("id > 50").execute()
        found.append((done.rows, sorted(table.to_arrow().to_pylist(), key=lambda row: int(row["id"]))))
    assert found[0] == found[1]
