"""Fragments read all at once: whatever the quick way lets pass, the rules accept; and the usual shapes do take the quick way."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import CorruptTable
from tiltyard.format import fragment_check as module
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import integer, length_delimited, varint
from tiltyard.format.fragment_check import check_fragments
from tiltyard.format.fragments import check_fragment, check_new_fragment
from tiltyard.format.row_ids import encode_row_ids, encode_row_versions, fresh_row_ids, uniform_versions
from tiltyard.format.values import DataFile, DataFragment, DeletionFile

NEXT_ROW_ID, VERSION, BASES = 5000, 300, frozenset({0, 7, 2**32 - 1})
NUMBERS: Final = (0, 1, 2, 7, 127, 128, 299, 300, 301, 4999, 5000, 5001, 2**14, 2**28, 2**32 - 1, 2**32, 2**32 + 1, 2**62, 2**63, 2**64 - 1)
PATHS: Final = ("", "..", "a/b.lance", ".lance", "x.lance", "a" * 101 + ".lance", "é.lance")


def accepted_by_rules(record: bytes, next_row_id: int | None) -> int | None:
    try:
        return check_fragment(record, BASES, next_row_id, "file", version=VERSION)
    except CorruptTable:
        return None


def taken_quickly(records: list[bytes], next_row_id: int | None = None) -> list[int]:
    return [int(one) for one in module._plain_ids(records, module._Table("file", BASES, next_row_id, VERSION))]


def run(rows: int, start: int = 0) -> bytes:
    return encode_row_ids(fresh_row_ids(start, rows))


def versions(rows: int, version: int) -> bytes:
    return encode_row_versions(uniform_versions(rows, version))


def data_file(number: int, fields: list[int], size: int = 500, **members: int) -> pb.DataFile:
    columns = list(range(len(fields)))
    path = f"{number:08d}.lance"
    return pb.DataFile(path=path, fields=fields, column_indices=columns, file_major_version=2, file_size_bytes=size, **members)


def sound(number: int, random: Random, *, stable: bool) -> pb.DataFragment:
    """A fragment as writers make them, with members at random."""
    rows = random.choice([1, 2, 100, 127, 128, 300, 4000])
    files = [data_file(number, [0, 1], random.choice([0, 500, 2**28, 2**40, 2**64 - 1]))]
    if random.random() < 0.3:
        files.append(data_file(number + 1, [2, 3, -2], base_id=7))
    fragment = pb.DataFragment(id=number, files=files, physical_rows=rows)
    if random.random() < 0.3:
        fragment.deletion_file.CopyFrom(
            pb.DeletionFile(
                file_type=random.choice([pb.DeletionFile.ARROW_ARRAY, pb.DeletionFile.BITMAP]),
                read_version=random.choice([1, 200]),
                id=random.getrandbits(64),
                num_deleted_rows=random.randint(0, rows),
            )
        )
        if random.random() < 0.3:
            fragment.deletion_file.base_id = 0
    if stable:
        fragment.inline_row_ids = run(rows, random.randint(0, NEXT_ROW_ID - rows))
        fragment.inline_last_updated_at_versions = versions(rows, random.randint(1, VERSION))
        fragment.inline_created_at_versions = versions(rows, random.randint(1, VERSION))
    return fragment


# ---- nothing slips through ---------------------------------------------------------------------------------------------------


def _set_a_number(fragment: pb.DataFragment, random: Random) -> None:
    value = random.choice(NUMBERS)
    edits: list[Callable[[], object]] = [
        lambda: setattr(fragment, "id", value),
        lambda: setattr(fragment, "physical_rows", value),
        lambda: setattr(fragment.deletion_file, "num_deleted_rows", value),
        lambda: setattr(fragment.deletion_file, "base_id", value % 2**32),
        lambda: setattr(fragment.deletion_file, "file_type", value % 3),
        lambda: setattr(fragment.files[0], "base_id", value % 2**32),
        lambda: setattr(fragment.files[0], "file_major_version", value % 2**32),
        lambda: setattr(fragment.files[-1], "path", random.choice(PATHS)),
        lambda: fragment.files[0].column_indices.append(random.choice([-1, 0, 9])),
        lambda: fragment.files[-1].fields.append(random.choice([-2, 0, 9])),
        lambda: fragment.files.add().CopyFrom(fragment.files[0]),
        lambda: setattr(fragment, "inline_row_ids", segment(random)),
        lambda: setattr(fragment, "inline_created_at_versions", version_run(random)),
        lambda: setattr(fragment, "inline_last_updated_at_versions", version_run(random)),
        lambda: setattr(fragment.external_row_ids, "path", "x"),
        lambda: fragment.column_row_ids.SetInParent(),
        lambda: fragment.overlays.add(),
    ]  # fmt: skip
    random.choice(edits)()


def _range(random: Random) -> pb.U64Segment:
    start = random.choice(NUMBERS)
    length = random.choice([0, 1, 100, 127, 128, 300, 2**32])
    return pb.U64Segment(range=pb.U64Segment.Range(start=start, end=(start + length) % 2**64))


def segment(random: Random) -> bytes:
    return pb.RowIdSequence(segments=[_range(random) for _ in range(random.choice([0, 1, 1, 2]))]).SerializeToString()


def version_run(random: Random) -> bytes:
    runs = [pb.RowDatasetVersionRun(span=_range(random), version=random.choice(NUMBERS)) for _ in range(random.choice([0, 1, 1, 2]))]
    return pb.RowDatasetVersionSequence(runs=runs).SerializeToString()


def _wound(record: bytes, random: Random) -> bytes:
    """Bytes changed at places where they mean something else afterwards: tags, lengths, ends of numbers."""
    at = random.randrange(len(record))
    wounds: list[Callable[[], bytes]] = [
        lambda: record[:at] + bytes([record[at] ^ 1 << random.randrange(8)]) + record[at + 1 :],
        lambda: record[:at] + bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, record[at] | 0x80])]) + record[at + 1 :],
        lambda: record[:at] + bytes([record[at] | 0x80, 0]) + record[at + 1 :],
        lambda: record[:at] + record[at + 1 :],
        lambda: record[:at],
        lambda: record + random.choice([integer(1, 5), integer(4, 0), integer(4, 9), length_delimited(5, b""), b"\xa0\x1f\x07"]),
        lambda: integer(1, 3) + record,
        lambda: record[:at] + varint(random.choice(NUMBERS)) + record[at + 1 :],
    ]  # fmt: skip
    return random.choice(wounds)()


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32), stable=st.booleans(), hurt=st.integers(0, 3))
def test_what_passes_quickly_is_what_the_rules_accept(seed: int, stable: bool, hurt: int) -> None:
    random = Random(seed)
    next_row_id = NEXT_ROW_ID if stable else None
    records = []
    for number in range(40):
        fragment = sound(number * 37, random, stable=stable)
        for _ in range(random.choice([0, 1, 2]) if hurt & 1 else 0):
            _set_a_number(fragment, random)
        record = fragment.SerializeToString(deterministic=True)
        for _ in range(random.choice([0, 1, 2]) if hurt & 2 else 0):
            record = _wound(record, random) if record else record
        records.append(record)
    for record, quick in zip(records, taken_quickly(records, next_row_id), strict=True):
        slow = accepted_by_rules(record, next_row_id)
        assert quick in (-1, slow), record.hex()
        if not hurt:
            assert quick >= 0, f"a usual fragment should not need a closer look: {record.hex()}"


def test_every_single_byte_in_every_value() -> None:
    """The same, without chance: one byte of a record with all members takes each value."""
    random = Random(5)
    whole = sound(500, random, stable=True)
    whole.deletion_file.CopyFrom(pb.DeletionFile(file_type=pb.DeletionFile.BITMAP, read_version=9, id=2**64 - 1, num_deleted_rows=1))
    record = whole.SerializeToString(deterministic=True)
    mutants = [record[:at] + bytes([value]) + record[at + 1 :] for at in range(len(record)) for value in range(256)]
    quick = taken_quickly(mutants, NEXT_ROW_ID)
    assert [
        one for one, slow in zip(quick, (accepted_by_rules(m, NEXT_ROW_ID) for m in mutants), strict=True) if one not in (-1, slow)
    ] == []
    assert sum(one >= 0 for one in quick) > 1000, "names, ids and sizes may differ"


# ---- the usual shapes are quick ----------------------------------------------------------------------------------------------


def _shapes() -> dict[str, list[pb.DataFragment]]:
    some = range(1000)
    random = Random(7)

    def plain(number: int, size: int = 500, rows: int = 10) -> pb.DataFragment:
        return pb.DataFragment(id=number, files=[data_file(number, [0, 1], size)], physical_rows=rows)

    def stable(number: int) -> pb.DataFragment:
        fragment = plain(number, rows=5)
        fragment.inline_row_ids = run(5, number * 5)
        fragment.inline_created_at_versions = fragment.inline_last_updated_at_versions = versions(5, number % VERSION + 1)
        return fragment

    def hidden(number: int) -> pb.DataFragment:
        fragment = plain(number)
        fragment.deletion_file.CopyFrom(pb.DeletionFile(read_version=number, id=random.getrandbits(64), num_deleted_rows=number % 10 + 1))
        return fragment

    def two_files(number: int) -> pb.DataFragment:
        fragment = plain(number)
        fragment.files.add().CopyFrom(data_file(number + 5000, [2]))
        return fragment

    shapes = {
        "uniform": [plain(number) for number in some],
        "file sizes that differ": [plain(number, random.randint(10_000, 22_000)) for number in some],
        "row counts that differ": [plain(number, rows=random.randint(1, 300)) for number in some],
        "big files": [plain(number, random.randint(2**28, 2**40)) for number in some],
        "two files": [two_files(number) for number in some],
        "stable row ids": [stable(number) for number in some],
        "deletions": [hidden(number) for number in some],
    }
    return shapes | {"all of them in turn": [shape[number] for number, shape in zip(some, list(shapes.values()) * 200, strict=False)]}


@pytest.mark.parametrize("shape", _shapes())
def test_how_many_are_looked_at_closely(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: none but those of another make."""
    looked_at: list[bytes] = []

    def spy(record: bytes, *args: object, **how: object) -> int:
        looked_at.append(record)
        return check_fragment(record, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "check_fragment", spy)
    records = [one.SerializeToString(deterministic=True) for one in _shapes()[shape]]
    strange = pb.DataFragment(id=2000, physical_rows=3, overlays=[pb.DataOverlayFile()], files=[data_file(3, [0])])
    strange.inline_row_ids = run(3)
    records.insert(500, strange.SerializeToString(deterministic=True))
    next_row_id = NEXT_ROW_ID if shape == "stable row ids" else None
    check_fragments(records, "file", highest=2000, base_ids=BASES, next_row_id=next_row_id, version=VERSION)
    with_ids = sum(1 for record in records if b"\x2a" in record and pb.DataFragment.FromString(record).HasField("inline_row_ids"))
    expected = 1 if next_row_id else with_ids
    assert len([one for one in looked_at if pb.DataFragment.FromString(one).HasField("inline_row_ids")]) == expected
    assert len(looked_at) <= expected + module._MOST_SCHEMAS


# ---- row versions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["inline_created_at_versions", "inline_last_updated_at_versions"])
@pytest.mark.parametrize("many", [1, 50])
def test_row_versions_are_looked_at(member: str, many: int) -> None:
    hostile = {
        "too few": versions(9, 1),
        "too many": versions(11, 1),
        "none": b"",
        "from the future": versions(10, VERSION + 1),
        "garbage": b"\xff\xff",
        "backwards": pb.RowDatasetVersionSequence(
            runs=[pb.RowDatasetVersionRun(span=pb.U64Segment(range=pb.U64Segment.Range(start=20, end=10)), version=1)]
        ).SerializeToString(),
    }
    for what, content in {"right": versions(10, VERSION), **hostile}.items():
        fragments = [pb.DataFragment(id=number, files=[data_file(number, [0])], physical_rows=10) for number in range(many)]
        setattr(fragments[many // 2], member, content)
        records = [fragment.SerializeToString() for fragment in fragments]
        if what == "right":
            check_fragments(records, "file", highest=None, base_ids=BASES, version=VERSION)
            continue
        with pytest.raises(CorruptTable):
            check_fragments(records, f"file with {what}", highest=None, base_ids=BASES, version=VERSION)
    fragment = pb.DataFragment(id=1, physical_rows=10)
    setattr(fragment, member, versions(10, 2**64 - 1))
    check_fragments([fragment.SerializeToString()], "file", highest=None, base_ids=BASES, version=None)


# ---- fragments that are to be ------------------------------------------------------------------------------------------------


def test_new_fragments_keep_the_same_rules() -> None:
    check_new_fragment(DataFragment(0, (DataFile("a.lance", (0, 1), (0, 1), base_id=77),), 5), None, "the operation")
    with pytest.raises(CorruptTable, match="base 77"):
        check_new_fragment(DataFragment(0, (DataFile("a.lance", (0, 1), (0, 1), base_id=77),), 5), BASES, "the operation")
    for files, rows in (
        ((DataFile("a.lance", (0, 1), (0, 1)),), 0),
        ((DataFile("a.lance", (0, 0), (0, 1)),), 5),
        ((DataFile("a.lance", (0, 1), (0, 0)),), 5),
        ((DataFile("../a.lance", (0,), (0,)),), 5),
        ((DataFile("a.lance", (0,), (0,)), DataFile("b.lance", (0,), (0,))), 5),
        ((DataFile("a.lance", (0,), (0,)),), 2**33),
        ((DataFile("a.lance", (0,), (0,)),), -1),
        ((DataFile("a.lance", (2**40,), (0,)),), 5),
    ):
        with pytest.raises(CorruptTable) as caught:
            check_new_fragment(DataFragment(0, files, rows), BASES, "the operation")
        assert caught.value.file == "the operation"
    for broken in (
        DataFragment(0, (DataFile("a.lance", (0,), (0,)),), 5, DeletionFile(False, 1, 1, 6)),
        DataFragment(0, (DataFile("a.lance", (0,), (0,)),), 5, created_at=b"\xff"),
        DataFragment(0, (DataFile("a.lance", (0,), (0,)),), 5, overlays=(b"\xff",)),
    ):
        with pytest.raises(CorruptTable):
            check_new_fragment(broken, BASES, "the operation")
