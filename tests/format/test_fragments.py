"""Lists of fragments: lazy, immutable, and aware of what was added to them; and the rules each fragment must keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.support.manifests import decoded_fragments
from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.fragment_check import check_fragments
from tiltyard.format.fragments import FragmentList, encode_fragment_record
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file
from tiltyard.format.values import DataFile, DataFragment, DeletionFile


def fragment(number: int, rows: int = 10, deleted: int = 0) -> DataFragment:
    deletion = DeletionFile(False, 1, 2, deleted) if deleted else None
    return DataFragment(number, (DataFile(f"{number:06d}.lance", (0, 1), (0, 1), size=1000 + number),), rows, deletion)


def read_list(values: Iterable[DataFragment]) -> FragmentList:
    """As it comes out of a file."""
    return FragmentList.from_message(FragmentList(values).wire(), "file")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The records that were turned into values."""
    return decoded_fragments(monkeypatch)


def test_it_is_a_sequence() -> None:
    values = [fragment(n) for n in range(5)]
    for made in (FragmentList(values), read_list(values), read_list(values[:2]).appended(values[2:])):
        assert len(made) == 5
        assert list(made) == values
        assert [made[n] for n in range(-5, 5)] == values + values
        assert made[1:4] == tuple(values[1:4])
        assert made[::-2] == tuple(values[::-2])
        assert made[7:] == ()
        assert values[3] in made
        assert made.index(values[4]) == 4
        assert made.ids() == [0, 1, 2, 3, 4]
        assert made == FragmentList(values)
        assert hash(made) == hash(FragmentList(values))
        assert made != FragmentList(values[1:])
        assert made != values
        assert repr(made) == "FragmentList(5 fragments)"
        for outside in (5, -6):
            with pytest.raises(IndexError):
                made[outside]


def test_an_empty_one() -> None:
    for empty in (FragmentList(), FragmentList.from_message(b"", "file")):
        assert list(empty) == []
        assert empty.ids() == []
        assert empty.with_deletions() == []
        assert empty.live_rows() == empty.physical_rows() == 0
        assert not empty.has_deletions()
        assert empty.wire() == b""


def test_rows_are_counted_without_decoding(decoded: list[bytes]) -> None:
    values = [fragment(0), fragment(1, 20, deleted=5), fragment(2, 1)]
    made = read_list(values)
    assert (made.physical_rows(), made.live_rows(), made.has_deletions()) == (31, 26, True)
    assert made.ids() == [0, 1, 2]
    assert decoded == []
    assert made.with_deletions() == [values[1]]
    assert len(decoded) == 1
    grown = made.appended([fragment(3, 4)])
    assert (grown.physical_rows(), grown.live_rows()) == (35, 30)


def test_who_looks_in_passing_leaves_bytes(decoded: list[bytes]) -> None:
    values = [fragment(0), fragment(1, 20, deleted=5), fragment(2, 1)]
    made = read_list(values[:2]).appended(values[2:])
    assert list(made.in_passing()) == list(made.in_passing()) == values
    assert len(decoded) == 4, "twice the two that are bytes: none was kept"
    assert made.row_counts() == [(one.id, one.physical_rows, one.live_rows) for one in values]
    assert len(decoded) == 4


def test_appending_remembers_where_it_came_from() -> None:
    base = read_list([fragment(0)])
    added = [fragment(1), fragment(2)]
    grown = base.appended(added)
    assert grown.extension_of(base) == added
    assert base.appended([]).extension_of(base) == []
    assert grown.extension_of(read_list([fragment(0)])) is None, "an equal list is not the same list"
    assert base.extension_of(base) is None
    assert base.extension_of(grown) is None
    assert grown.appended([fragment(3)]).extension_of(base) is None
    assert list(base) == [fragment(0)], "the old list stays as it was"


def test_changing_keeps_the_bytes_of_the_rest(decoded: list[bytes]) -> None:
    base = read_list([fragment(n) for n in range(4)]).appended([fragment(4)])
    changed = base.changed({1: replace(fragment(1), physical_rows=99), 2: None}, [fragment(9)])
    assert changed.ids() == [0, 1, 3, 4, 9]
    assert decoded == []
    assert [one.physical_rows for one in changed] == [10, 99, 10, 10, 10]
    assert changed.extension_of(base) is None
    assert base.changed({77: None}) == base


def test_bytes_of_newer_writers_stay(decoded: list[bytes]) -> None:
    record = pb.DataFragment(id=3, physical_rows=1).SerializeToString() + b"\xa0\x1f\x07"
    made = FragmentList.from_message(encode_fragment_record(record), "file")
    assert made.changed({}).wire() == encode_fragment_record(record)
    assert decoded == []
    assert FragmentList(list(made)).wire() == encode_fragment_record(record), "and through a value too"


def test_a_big_manifest_is_read_without_building_its_fragments(decoded: list[bytes]) -> None:
    """100,000 fragments, some 8 MB: reading, counting, appending and writing build none of them."""
    name = "0" * 24 + "f" * 20
    many = FragmentList([DataFragment(n, (DataFile(f"{name}{n:06d}.lance", (0, 1), (0, 1), size=9999),), 10) for n in range(100_000)])
    manifest = Manifest(version=1, fields=(), fragments=many, max_fragment_id=99_999)
    data, _ = encode_manifest_file(manifest, b"")
    assert len(data) > 8_000_000
    file = decode_manifest_file(data, source="big", version=1)
    assert file.manifest.fragments.live_rows() == 1_000_000
    assert len(file.manifest.fragments) == 100_000
    grown = replace(file.manifest, version=2, fragments=file.manifest.fragments.appended([fragment(100_000)]), max_fragment_id=100_000)
    again, made = encode_manifest_file(grown, b"", file)
    assert decode_manifest_file(again, source="big", version=2, known=made).manifest.max_fragment_id == 100_000
    assert decoded == []
    assert file.manifest.fragments[50_000].id == 50_000
    assert len(decoded) == 1


def check(values: Iterable[pb.DataFragment], **how: object) -> None:
    facts: dict[str, object] = {"highest": None, "base_ids": frozenset[int]()} | how
    check_fragments([value.SerializeToString() for value in values], "file", **facts)  # type: ignore[arg-type]


def plain(number: int, **members: object) -> pb.DataFragment:
    file = pb.DataFile(path=f"{number:08d}.lance", fields=[0, 1], column_indices=[0, 1], file_major_version=2, file_size_bytes=500)
    return pb.DataFragment(**({"id": number, "physical_rows": 100, "files": [file]} | members))  # type: ignore[arg-type]


def test_many_fragments_of_one_make_are_checked_like_one() -> None:
    """Whatever is wrong with one of a thousand that look alike is found, although they are compared and not decoded."""
    sound = [plain(n) for n in range(200, 1200)]
    check(sound)
    bad: list[pb.DataFragment] = [plain(500), plain(500, id=501), plain(500, physical_rows=2**33), plain(500, physical_rows=0)]
    for path in ("../00500.lance", "a\x00b00500.lance", "0000050\n.lance", "0000/500.lance"):
        bad.append(plain(500))
        bad[-1].files[0].path = path
    bad[-1].files[0].path = "/0000500.lance"
    for columns in ([0, 0], [0], [1, -7]):
        bad.append(plain(500))
        del bad[-1].files[0].column_indices[:]
        bad[-1].files[0].column_indices.extend(columns)
    for place in (0, 1, 300, 999):
        for hostile in bad[1:]:
            values = list(sound)
            values[place] = hostile
            if values[place].id == 500:
                values = [one for one in values if one.id != 500 or one is hostile]
            with pytest.raises(CorruptTable):
                check(values)
    with pytest.raises(CorruptTable, match="fragment 500 is listed twice"):
        check([*sound, plain(500)])
    with pytest.raises(CorruptTable, match="fragment 1199 has an id above"):
        check(sound, highest=1198)
    with pytest.raises(CorruptTable, match="fragment 200 is listed twice"):
        check(sound, above=200)


def test_an_explicit_zero_of_rows_is_seen_among_many() -> None:
    """Zero means unknown to other readers; its explicit spelling is as long as a small number's."""
    records = [plain(n, physical_rows=5).SerializeToString() for n in range(200, 300)]
    assert records[50][-2:] == b"\x20\x05"
    records[50] = records[50][:-1] + b"\x00"
    with pytest.raises(CorruptTable, match="does not say how many rows"):
        check_fragments(records, "file", highest=None, base_ids=frozenset())


def test_lengths_that_lie_cost_nothing() -> None:
    """Alike, sound and in an order of members that nobody writes: none of their bytes may be taken for a length."""
    big = b"\x20\xff\xff\xff\x7f"
    records = [big + pb.DataFragment(id=n).SerializeToString() for n in range(200, 300)]
    check_fragments(records, "file", highest=None, base_ids=frozenset())


def test_a_hundred_thousand_doubles_are_found_at_once() -> None:
    records = [plain(n).SerializeToString() for n in range(50_000)]
    with pytest.raises(CorruptTable, match="is listed twice"):
        check_fragments(records + records[::-1], "file", highest=None, base_ids=frozenset())
