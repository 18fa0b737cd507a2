"""The file of one version: sections, footer, splicing, and what is refused."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import integer, length_delimited
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest, encode_indices
from tiltyard.format.manifest_file import FOOTER, ManifestFile, decode_manifest_file, encode_manifest_file
from tiltyard.format.names import Scheme, manifest_name
from tiltyard.format.values import BasePath, DataFile, DataFormat, DataFragment, DeletionFile, Field, IndexMetadata, WriterVersion
from tiltyard.transaction.apply.next_manifest import Stamp, apply
from tiltyard.transaction.operations import Append

WRITER = WriterVersion("tiltyard", "1.0")
INDEX = encode_indices((IndexMetadata("0c0ffee0-1234-4abc-8def-0123456789ab", (0,), "idx", 1, b"", ("/u", b"v")),))
TRANSACTION = pb.Transaction(read_version=6, uuid="u", append=pb.Transaction.Append()).SerializeToString()


def fragment(number: int, path: str | None = None, base_id: int | None = None) -> DataFragment:
    return DataFragment(number, (DataFile(path or f"{number}.lance", (0,), (0,), size=100, base_id=base_id),), 10)


FULL = Manifest(
    version=7,
    fields=(Field("a", 0, -1, "int64"), Field("s", 1, -1, "struct"), Field("b", 2, 1, "string", metadata={"k": b"v"})),
    fragments=FragmentList([fragment(0), fragment(1), replace(fragment(5), deletion_file=DeletionFile(False, 3, 4, 5))]),
    schema_metadata={"m": b"\xff"},
    index_section=INDEX,
    timestamp_ns=1_700_000_000_123_456_789,
    reader_flags=17,
    writer_flags=25,
    max_fragment_id=9,
    transaction_file="6-u.txn",
    writer=WriterVersion("other", "1", "rc1", "b7"),
    next_row_id=2000,
    data_format=DataFormat("lance", "2.2"),
    config={"k": "v"},
    base_paths=(BasePath(3, "/elsewhere", True, "name"),),
    table_metadata={"t": "x"},
    branch="dev",
    max_allocated_field_id=44,
    version_aux_data=1,
    tag="old",
    fragment_tree=b"tree",
    unknown=integer(77, 7),
)


def decode(data: bytes, version: int | None = None, known: ManifestFile | None = None) -> ManifestFile:
    return decode_manifest_file(data, source="the file", version=version, known=known)


def test_all_of_it_comes_back() -> None:
    data, made = encode_manifest_file(FULL, TRANSACTION)
    file = decode(data, 7)
    assert file.manifest == made.manifest == FULL
    assert file.transaction == made.transaction == TRANSACTION
    assert file.message == made.message
    assert encode_manifest_file(file.manifest, file.transaction)[0] == data


def test_the_layout() -> None:
    data, _ = encode_manifest_file(FULL, TRANSACTION)
    position, major, minor, magic = FOOTER.unpack(data[-16:])
    assert (major, minor, magic) == (0, 2, b"LANC")
    message = pb.Manifest.FromString(data[position + 4 : -16])
    assert struct.unpack_from("<I", data, position) == (len(data) - 16 - position - 4,)
    assert message.index_section == 0
    assert data[4 : 4 + len(INDEX)] == INDEX
    assert message.transaction_section == 4 + len(INDEX)
    assert data[message.transaction_section + 4 : position] == TRANSACTION


@pytest.mark.parametrize("index", [b"", INDEX])
@pytest.mark.parametrize("transaction", [None, TRANSACTION])
def test_with_and_without_each_section(index: bytes, transaction: bytes | None) -> None:
    file = decode(encode_manifest_file(replace(FULL, index_section=index), transaction)[0])
    assert (file.manifest.index_section, file.transaction) == (index, transaction)
    message = pb.Manifest.FromString(file.message.joined())
    assert message.HasField("index_section") == bool(index)
    assert message.HasField("transaction_section") == (transaction is not None)


def framed(message: bytes, before: bytes = b"", after: bytes = b"", position: int | None = None) -> bytes:
    start = len(before) if position is None else position
    return before + struct.pack("<I", len(message)) + message + after + FOOTER.pack(start, 0, 2, b"LANC")


def section(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def test_both_homes_of_the_transaction_offset() -> None:
    other = pb.Transaction(uuid="w").SerializeToString()
    before = section(TRANSACTION) + section(other)
    second = len(section(TRANSACTION))
    for members, expected in (
        (integer(21, 0), TRANSACTION),
        (integer(23, 0), TRANSACTION),
        (integer(23, second) + integer(21, 0), other),
        (integer(21, 2**40) + integer(23, second), other),
        (b"", None),
    ):
        file = decode(framed(integer(3, 1) + members, before), 1)
        assert file.transaction == expected


def test_a_version_after_one_with_the_old_home_is_written_anew() -> None:
    """The old offset cannot be taken back by adding bytes, and points nowhere in the new file."""
    old = decode(framed(integer(3, 1) + integer(21, 0), section(TRANSACTION)))
    assert not old.message.extendable
    new, _ = encode_manifest_file(replace(old.manifest, version=2), TRANSACTION, old)
    message = pb.Manifest.FromString(decode(new, 2).message.joined())
    assert not message.HasField("transaction_section_deprecated")
    assert message.HasField("transaction_section")


def test_a_version_after_one_with_an_empty_index_section_is_written_anew() -> None:
    old = decode(framed(integer(3, 1) + integer(6, 0), section(b"")))
    assert old.manifest.index_section == b""
    new, _ = encode_manifest_file(replace(old.manifest, version=2), TRANSACTION, old)
    assert not pb.Manifest.FromString(decode(new, 2).message.joined()).HasField("index_section")


BODY = integer(3, 1)
SOUND = framed(BODY)
LIES: dict[str, bytes] = {
    "nothing": b"",
    "fifteen bytes": SOUND[-15:],
    "only a footer": SOUND[-16:],
    "another magic": SOUND[:-4] + b"LANX",
    "cut at the end": SOUND[:-1],
    "cut at the beginning": SOUND[1:],
    "a byte more at the end": SOUND + b"\0",
    "a byte more at the beginning": b"\0" + SOUND,
    "stray bytes before the footer": framed(BODY, after=b"\0\0\0\0"),
    "a manifest beyond the file": framed(BODY, position=2**40),
    "a negative offset": framed(BODY, position=-1),
    "an offset at the footer": framed(BODY, position=len(SOUND) - 16),
    "an offset in the footer": framed(BODY, position=len(SOUND) - 10),
    "a length too great": struct.pack("<I", 2**32 - 1) + SOUND[4:],
    "a length too small": struct.pack("<I", 1) + SOUND[4:],
    "no message": framed(b"\xff" * 30),
    "a transaction beyond the sections": framed(BODY + integer(23, 0)),
    "a transaction in the manifest": framed(BODY + integer(23, 12), section(b"\0" * 8)),
    "a transaction longer than the sections": framed(BODY + integer(23, 0), section(TRANSACTION)[:-1]),
    "a transaction from the middle on": framed(BODY + integer(23, 2), section(TRANSACTION) + b"\0" * 9),
    "a transaction that is none": framed(BODY + integer(23, 0), section(b"\x0c" * 9)),
    "a transaction in another form": framed(BODY + integer(23, 0), section(length_delimited(1, b"x"))),
    "an index section beyond": framed(BODY + integer(6, 2**63)),
    "an index section that is none": framed(BODY + integer(6, 0), section(b"\xff")),
    "an index without a uuid": framed(BODY + integer(6, 0), section(pb.IndexSection(indices=[pb.IndexMetadata()]).SerializeToString())),
    "two sections in one place": framed(BODY + integer(6, 0) + integer(23, 0), section(length_delimited(900, b"x"))),
    "one section inside another": framed(BODY + integer(6, 6) + integer(23, 0), section(length_delimited(900, section(b"") * 3))),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_the_layout(lie: str) -> None:
    assert decode(SOUND, 1).manifest.version == 1
    with pytest.raises(CorruptTable) as caught:
        decode(LIES[lie], 1)
    assert caught.value.file == "the file"
    assert caught.value.reason


def test_the_version_must_be_the_one_in_the_name() -> None:
    with pytest.raises(CorruptTable, match="its name says version 2, its content 1"):
        decode(SOUND, 2)
    assert decode(SOUND).manifest.version == 1


def test_other_numbers_in_the_footer_do_not_matter() -> None:
    """Stock readers look at neither."""
    assert decode(SOUND[:-8] + struct.pack("<HH", 9, 9) + b"LANC", 1).manifest.version == 1


# ---- splicing --------------------------------------------------------------------------------------------------------------


def table_of(count: int) -> ManifestFile:
    # Ids that are as wide in a small table as in a great one, so that their bytes cost the same.
    manifest = replace(FULL, writer=WRITER, index_section=b"", max_fragment_id=2**20)
    many = replace(manifest, fragments=FragmentList([fragment(n) for n in range(count)]))
    return decode(encode_manifest_file(many, TRANSACTION)[0])


def appended(file: ManifestFile) -> tuple[bytes, ManifestFile]:
    """One more fragment, the way a commit adds it."""
    stamp = Stamp(1_800_000_000_000_000_000, WRITER, "7-v.txn")
    return encode_manifest_file(apply(Append((replace(fragment(0), id=0),)), file.manifest, stamp), TRANSACTION, file)


def test_splicing_gives_the_bytes_that_writing_anew_gives() -> None:
    file = table_of(30)
    for _ in range(5):
        data, made = appended(file)
        assert data == encode_manifest_file(made.manifest, TRANSACTION)[0]
        again = decode(data, file.manifest.version + 1, known=file)
        assert again.manifest == made.manifest
        assert again.message == made.message
        file = again


def test_splicing_onto_another_writers_bytes() -> None:
    """Order and spelling of the old message are anybody's; what it says must come out the same."""
    old = table_of(3)
    foreign = pb.Manifest.FromString(old.message.joined())
    foreign.transaction_section = 0
    file = decode(framed(foreign.SerializeToString(), section(TRANSACTION)))
    assert file.message.tail == b""
    data, made = appended(file)
    assert made.message.body.startswith(file.message.joined()), "the old bytes are used"
    assert decode(data, 8).manifest == replace(made.manifest, fragments=made.manifest.fragments)
    assert decode(data, 8).manifest == decode(encode_manifest_file(made.manifest, TRANSACTION)[0], 8).manifest
    grown, _ = appended(decode(data))
    assert len(grown) < len(data) + 200, "the tail is replaced, not piled up"


def test_indices_are_carried_and_their_offset_is_renewed() -> None:
    file = table_of(2)
    file = decode(encode_manifest_file(replace(file.manifest, index_section=INDEX), b"", file)[0])
    data, made = appended(file)
    assert decode(data, known=file).manifest.index_section == INDEX == made.manifest.index_section


def calls_of(act: Callable[[], Any]) -> int:
    """Calls of Python and C functions: a measure of work that no busy machine disturbs."""
    count = 0

    def notice(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(notice)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_the_cost_of_an_append_does_not_grow_with_the_fragments() -> None:
    few, many = table_of(10), table_of(20_000)
    costs = [calls_of(lambda file=file: appended(file)) for file in (few, many)]  # type: ignore[misc]
    assert costs[0] == costs[1]
    assert 0 < costs[0] < 1000


def test_the_cost_of_reading_an_append_after_the_version_before_does_not_grow_either() -> None:
    costs = []
    for count in (10, 20_000):
        file = table_of(count)
        data, _ = appended(file)
        costs.append(calls_of(lambda data=data, file=file: decode(data, known=file)))  # type: ignore[misc]
    assert costs[0] == costs[1]


def _by_another_writer(file: ManifestFile, change: Callable[[pb.Manifest], object]) -> bytes:
    """The version after it as others write it: the same fragments, and all around them written anew."""
    foreign = pb.Manifest.FromString(appended(file)[1].message.joined())
    foreign.transaction_section = 0
    change(foreign)
    return framed(foreign.SerializeToString(), section(TRANSACTION))


def test_after_the_version_before_another_writers_append_is_checked_alone() -> None:
    costs = []
    for count in (100, 20_000):
        file = table_of(count)
        data = _by_another_writer(file, lambda _: None)
        assert decode(data, known=file).message.tail == b"", "nothing of ours"
        assert len(decode(data, known=file).manifest.fragments) == count + 1
        costs.append(calls_of(lambda data=data, file=file: decode(data, known=file)))  # type: ignore[misc]
    assert costs[0] == costs[1]


@pytest.mark.parametrize("place", [0, 57, 99, 100])
def test_what_another_writer_changed_is_checked_wherever_it_stands(place: int) -> None:
    file = table_of(100)

    def spoil(foreign: pb.Manifest) -> None:
        foreign.fragments[place].files[0].path = "../elsewhere.lance"

    with pytest.raises(CorruptTable):
        decode(_by_another_writer(file, spoil), known=file)

    def double(foreign: pb.Manifest) -> None:
        foreign.fragments[place].id = foreign.fragments[place - 1].id

    with pytest.raises(CorruptTable, match="twice"):
        decode(_by_another_writer(file, double), known=file)


def test_names_and_contents_agree_for_every_version() -> None:
    for version in (1, 2**40, 2**63 - 1):
        data, _ = encode_manifest_file(replace(FULL, version=version), TRANSACTION)
        assert decode(data, version).manifest.version == version
        assert manifest_name(version, Scheme.V2) != manifest_name(version, Scheme.V1)
