"""An append is read after the version below it by what it adds: always with the result that reading all of it gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.proving import pick
from tiltyard.errors import CorruptTable, UnsupportedFeature
from tiltyard.format import lance_pb2 as pb
from tiltyard.format import manifest_extension
from tiltyard.format.codec import integer, length_delimited
from tiltyard.format.fragments import FragmentList, encode_fragment_record
from tiltyard.format.manifest import Manifest, Message, Offsets, check_added, decode_manifest, encode_manifest, encode_tail, extend_message
from tiltyard.format.manifest_extension import decode_extension
from tiltyard.format.values import BasePath, DataFile, DataFormat, DataFragment, DeletionFile, Field, WriterVersion

OURS = WriterVersion("tiltyard", "1.0")
AT = Offsets(None, 0)


def fragment(number: int, **more: Any) -> DataFragment:
    return DataFragment(number, (DataFile(f"{number}.lance", (0,), (0,), size=100),), 10, **more)


OLD = Manifest(
    version=7,
    fields=(Field("a", 0, -1, "int64"), Field("b", 1, -1, "string")),
    fragments=FragmentList([fragment(0), fragment(1)]),
    schema_metadata={"m": b"x"},
    timestamp_ns=1_700_000_000_123_456_789,
    max_fragment_id=5,
    transaction_file="6-u.txn",
    writer=OURS,
    data_format=DataFormat("lance", "2.2"),
    config={"k": "v"},
)
NEW = replace(OLD, version=8, timestamp_ns=OLD.timestamp_ns + 1, transaction_file="7-v.txn", max_fragment_id=7)


def known(manifest: Manifest = OLD, offsets: Offsets = AT) -> tuple[Manifest, Message]:
    manifest, _, message = decode_manifest(encode_manifest(manifest, offsets).joined(), "old")
    return manifest, message


def extended(old: tuple[Manifest, Message], new: Manifest, added: list[DataFragment], offsets: Offsets = AT) -> bytes:
    return extend_message(old[1], added, new, offsets).joined()


def assert_alike(message: bytes, before: tuple[Manifest, Message]) -> bool:
    """Whether it could be read by what it adds; if so, all of it is what reading everything gives."""
    quick = decode_extension(message, "new", *before)
    if quick is None:
        return False
    manifest, offsets, cut = decode_manifest(message, "new")
    assert quick == (manifest, offsets, cut)
    assert quick[0].fragments.records() == manifest.fragments.records()
    assert quick[2].joined() == message
    return True


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_an_append_is_read_by_what_it_adds(count: int) -> None:
    before = known()
    added = [fragment(6 + number) for number in range(count)]
    assert assert_alike(extended(before, replace(NEW, max_fragment_id=5 + count), added), before)


def test_one_after_the_other() -> None:
    """Whoever was away for some versions reads the last of them by what all of them added."""
    first = known()
    second = decode_extension(extended(first, NEW, [fragment(6)]), "new", *first)
    assert second is not None
    later = replace(NEW, version=9, max_fragment_id=8)
    message = extended((second[0], second[2]), later, [fragment(8)])
    assert assert_alike(message, first)
    assert assert_alike(message, (second[0], second[2]))


ODD: dict[str, Callable[[tuple[Manifest, Message]], bytes]] = {
    "another beginning": lambda old: encode_manifest(replace(NEW, config={"k": "w"}), AT).joined(),
    "nothing after it": lambda old: old[1].body,
    "cut short": lambda old: extended(old, NEW, [fragment(6)])[:-3],
    "a member before the tail": lambda old: old[1].body + length_delimited(8, b"tag") + encode_tail(NEW, AT),
    "a member after the tail": lambda old: extended(old, NEW, []) + length_delimited(8, b"tag"),
    "an unknown member": lambda old: old[1].body + integer(77, 7) + encode_tail(NEW, AT),
    "a setting more": lambda old: old[1].body + pb.ManifestHead(config={"x": "y"}).SerializeToString() + encode_tail(NEW, AT),
    "a column more": lambda old: (
        old[1].body + pb.ManifestHead(fields=[pb.Field(name="c", id=2)]).SerializeToString() + encode_tail(NEW, AT)
    ),
    "no transaction inside": lambda old: extended(old, NEW, [fragment(6)], Offsets(None, None)),
    "a tail in another order": lambda old: old[1].body + integer(14, 0) + encode_tail(NEW, AT),
    "a fragment twice": lambda old: extended(old, NEW, [fragment(6), fragment(6)]),
    "a fragment of before": lambda old: extended(old, NEW, [fragment(1)]),
    "an id above the highest": lambda old: extended(old, NEW, [fragment(9)]),
    "a path that leaves the table": lambda old: extended(old, NEW, [replace(fragment(6), files=(DataFile("../x", (0,), (0,)),))]),
    "a transaction elsewhere": lambda old: extended(old, replace(NEW, transaction_file="../x.txn"), []),
    "a lower mark of rows": lambda old: extended(old, NEW, [fragment(6)]),
    "no highest id": lambda old: extended(old, replace(NEW, max_fragment_id=None), []),
    "nobody wrote it": lambda old: extended(old, replace(NEW, writer=None), []),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_not_certainly_an_append_is_read_in_full(what: str) -> None:
    before = known(replace(OLD, next_row_id=99) if what == "a lower mark of rows" else OLD)
    assert decode_extension(ODD[what](before), "new", *before) is None


def test_what_shows_through_from_below_is_read_in_full() -> None:
    """Sub-messages merge, and what is optional cannot be taken back: the tail must override all that may stand before it."""
    indexed = known(replace(OLD, index_section=b"index"), Offsets(0, 9))
    indexed = (replace(indexed[0], index_section=b"index"), indexed[1])
    assert decode_extension(extended(indexed, NEW, []), "new", *indexed) is None
    assert decode_extension(extended(indexed, NEW, [], Offsets(0, 12)), "new", *indexed) is not None
    theirs = known(replace(OLD, writer=WriterVersion("other", "1", "rc1")))
    assert decode_extension(extended(theirs, NEW, []), "new", *theirs) is None
    whole = (OLD, Message(encode_manifest(OLD, AT).joined(), b""))
    assert decode_extension(extended(whole, NEW, []), "new", *whole) is None, "the tail of before is part of it"


def test_what_was_not_checked_vouches_for_nothing() -> None:
    manifest, message = known()
    manifest.fragments.check_later(lambda: None)
    assert decode_extension(extended((manifest, message), NEW, [fragment(6)]), "new", manifest, message) is None


def test_features_that_we_do_not_know_are_refused() -> None:
    before = known()
    with pytest.raises(UnsupportedFeature):
        decode_extension(extended(before, replace(NEW, reader_flags=2**40), []), "new", *before)


@pytest.mark.parametrize("seed", range(pick(40, 4000)))
def test_any_bytes_after_a_known_beginning(seed: int) -> None:
    """Fragments, tails and rubbish in any order: what is read quickly is what is read in full, or is not read quickly."""
    print(f"seed {seed}")
    choose = random.Random(f"extension {seed}")
    before = known(replace(OLD, base_paths=(BasePath(3, "/elsewhere", True, "n"),)) if choose.random() < 0.3 else OLD)
    new = replace(NEW, next_row_id=choose.choice((0, 5)), max_fragment_id=choose.choice((5, 9, 40)), version=choose.choice((7, 8, 300)))
    pieces = [
        *(encode_fragment_record(fragment(choose.choice((6, 7, 8, 9)))) for _ in range(choose.choice((0, 1, 2)))),
        *(encode_fragment_record(fragment(30, deletion_file=DeletionFile(False, 3, 4, 5))) for _ in range(choose.choice((0, 0, 1)))),
        *choose.choices((integer(3, 9), integer(77, 1), length_delimited(8, b"t"), encode_tail(OLD, AT)), k=choose.choice((0, 0, 1))),
    ]
    choose.shuffle(pieces)
    message = before[1].body + b"".join(pieces) + encode_tail(new, AT)
    try:
        full = decode_manifest(message, "new")
    except CorruptTable:
        full = None
    quick = decode_extension(message, "new", *before)
    assert quick is None or quick == full


def test_whoever_reads_in_turn_decodes_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fragments there are."""
    decoded: list[int] = []
    real = check_added

    def counted(manifest: Manifest, added: Any, source: str, *, above: int) -> None:
        decoded.append(len(added))
        real(manifest, added, source, above=above)

    monkeypatch.setattr(manifest_extension, "check_added", counted)
    before = known(replace(OLD, fragments=FragmentList([fragment(number) for number in range(1000)]), max_fragment_id=999))
    assert decode_extension(extended(before, replace(NEW, max_fragment_id=1000), [fragment(1000)]), "new", *before) is not None
    assert decoded == [1]
