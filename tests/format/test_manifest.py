"""The manifest message: every member both ways, and when a version can be made from the bytes of the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.format.test_manifest_file import FULL, fragment
from tiltyard.errors import CorruptTable, UnsupportedFeature
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import integer, length_delimited
from tiltyard.format.fragment_check import check_fragments
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import (
    CHECKED_AT_ONCE,
    STATIC,
    Manifest,
    Message,
    Offsets,
    added_alone,
    decode_indices,
    decode_manifest,
    encode_indices,
    encode_manifest,
    encode_tail,
    extend_message,
)
from tiltyard.format.values import BasePath, DataFormat, DataFragment, Field, IndexFile, IndexMetadata, WriterVersion

NOWHERE = Offsets(None, None)


def read(message: bytes, known: tuple[Manifest, Message] | None = None) -> Manifest:
    return decode_manifest(message, "file", known)[0]


def written(manifest: Manifest, offsets: Offsets = NOWHERE) -> bytes:
    return encode_manifest(manifest, offsets).joined()


def test_every_member_is_written_and_read() -> None:
    """None of the members of the test's manifest is at its default, so a forgotten one shows."""
    empty = Manifest(version=0, fields=(), fragments=FragmentList())
    for member in fields(Manifest):
        assert getattr(FULL, member.name) != getattr(empty, member.name), member.name
    assert read(written(FULL)) == replace(FULL, index_section=b"")
    assert read(written(empty)) == empty


def test_protobuf_reads_the_same() -> None:
    message = pb.Manifest.FromString(written(FULL, Offsets(5, 0)))
    assert message.version == FULL.version
    assert message.timestamp.seconds * 10**9 + message.timestamp.nanos == FULL.timestamp_ns
    assert [one.id for one in message.fragments] == FULL.fragments.ids()
    assert (message.index_section, message.transaction_section) == (5, 0)
    assert message.HasField("transaction_section")
    assert not message.HasField("transaction_section_deprecated")


@pytest.mark.parametrize("timestamp", [0, 1, -1, -(10**9), 10**18 + 1, -62_135_596_800 * 10**9])
def test_times_of_any_age(timestamp: int) -> None:
    assert read(written(replace(FULL, timestamp_ns=timestamp))).timestamp_ns == timestamp


@pytest.mark.parametrize(
    ("extra", "offsets"),
    [
        (b"", Offsets(None, None)),
        (integer(21, 40), Offsets(None, 40)),
        (integer(23, 0), Offsets(None, 0)),
        (integer(21, 40) + integer(23, 50), Offsets(None, 50)),
        (integer(23, 50) + integer(21, 40), Offsets(None, 50)),
        (integer(6, 0) + integer(23, 9), Offsets(0, 9)),
    ],
)
def test_old_and_new_home_of_the_transaction(extra: bytes, offsets: Offsets) -> None:
    _, found, message = decode_manifest(integer(3, 1) + extra, "file")
    assert found == offsets
    assert message.extendable == (integer(21, 40) not in extra)


def test_unknown_members_are_kept() -> None:
    newer = integer(30, 1) + length_delimited(31, b"new")
    manifest = read(written(FULL) + newer)
    assert manifest.unknown == FULL.unknown + newer
    assert read(written(manifest)) == manifest


# ---- the tail --------------------------------------------------------------------------------------------------------------


def test_our_own_tail_is_found_and_cut() -> None:
    message = encode_manifest(FULL, Offsets(3, 0))
    _, offsets, again = decode_manifest(message.joined(), "file")
    assert again == message
    assert offsets == Offsets(3, 0)
    assert again.tail == encode_tail(FULL, Offsets(3, 0))


def test_the_message_of_another_writer_is_all_body() -> None:
    other = pb.Manifest.FromString(written(FULL)).SerializeToString()
    message = decode_manifest(other, "file")[2]
    assert message.tail == b""
    assert message.joined() == other


@pytest.mark.parametrize(
    "wrap", [lambda text: length_delimited(16, length_delimited(1, b"k") + length_delimited(2, text)), lambda t: length_delimited(900, t)]
)
def test_the_bytes_of_a_tail_inside_a_text_are_no_tail(wrap: Any) -> None:
    """Hostile config: a value that ends in what the tail would be. Cut there, the config would be lost at the next append."""
    plain = Manifest(version=1, fields=(), fragments=FragmentList())
    tail = encode_tail(plain, NOWHERE)
    hostile = tail + wrap(tail)
    assert hostile.endswith(tail)
    manifest, offsets, message = decode_manifest(hostile, "file")
    assert message.tail == b""
    grown = replace(manifest, version=2, fragments=manifest.fragments.appended([fragment(0)]), max_fragment_id=0)
    after = read(extend_message(message, [fragment(0)], grown, offsets).joined())
    assert after == grown
    assert (after.config, after.unknown) == (manifest.config, manifest.unknown)
    assert after.config or after.unknown


def test_extending_gives_the_same_bytes_as_writing_anew() -> None:
    old = encode_manifest(FULL, Offsets(0, 9))
    added = [fragment(90), fragment(91)]
    new = replace(FULL, version=8, fragments=FULL.fragments.appended(added), max_fragment_id=91, timestamp_ns=10**18, next_row_id=3000)
    assert extend_message(old, added, new, Offsets(0, 70)) == encode_manifest(new, Offsets(0, 70))


# ---- when bytes can be used again ------------------------------------------------------------------------------------------

WRITER = WriterVersion("tiltyard", "1.0")
OLD = replace(FULL, writer=WRITER)


def after(**changes: Any) -> Manifest:
    return replace(OLD, version=OLD.version + 1, fragments=OLD.fragments.appended([fragment(90)]), max_fragment_id=90, **changes)


def test_what_every_commit_changes_is_no_hindrance() -> None:
    assert added_alone(OLD, after()) is not None
    assert added_alone(OLD, replace(OLD, version=9)) is not None
    tail_only = {
        "timestamp_ns": 5, "reader_flags": 0, "writer_flags": 0, "transaction_file": "", "next_row_id": 9000,
        "index_section": b"another", "writer": WriterVersion("x", "y"),
    }  # fmt: skip
    assert added_alone(OLD, after(**tail_only)) is not None
    assert added_alone(replace(OLD, writer=None), after(writer=WRITER)) is not None
    assert added_alone(replace(OLD, writer=None), after(writer=None)) is not None


REASONS: dict[str, tuple[Manifest, Manifest]] = {
    "fragments were made anew": (OLD, replace(OLD, fragments=FragmentList(list(OLD.fragments)))),
    "fragments were changed": (OLD, replace(OLD, fragments=OLD.fragments.changed({0: None}))),
    "a prerelease wrote it": (replace(OLD, writer=replace(WRITER, prerelease="")), after()),
    "a build wrote it": (replace(OLD, writer=replace(WRITER, build_metadata="b")), after()),
    "a newer kind of writer wrote it": (replace(OLD, writer=replace(WRITER, unknown=integer(9, 1))), after()),
    "the writer is not named any more": (OLD, after(writer=None)),
    "the writer has no version": (OLD, after(writer=WriterVersion("x", ""))),
    "indices were dropped": (OLD, after(index_section=b"")),
    "the highest id was forgotten": (OLD, replace(after(), max_fragment_id=None)),
    **{f"{name} changed": (OLD, after(**{name: None})) for name in STATIC},
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_to_write_anew(reason: str) -> None:
    old, new = REASONS[reason]
    assert added_alone(replace(old, fragments=OLD.fragments), new) is None


# ---- what is known already ------------------------------------------------------------------------------------------------


def _known(manifest: Manifest = OLD) -> tuple[Manifest, Message]:
    decoded, _, message = decode_manifest(written(manifest), "file")
    assert message.tail
    return decoded, message


def test_an_append_after_a_known_version_checks_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    real = check_fragments

    def spy(records: Any, *args: Any, **how: Any) -> None:
        checked.append(len(records))
        real(records, *args, **how)

    monkeypatch.setattr("tiltyard.format.manifest.check_fragments", spy)
    known = _known()
    new = written(after())
    assert read(new, known) == read(new) == replace(after(), index_section=b"")
    assert checked == [len(OLD.fragments), 1, len(OLD.fragments) + 1]


def test_a_known_beginning_excuses_nothing() -> None:
    """A hostile manifest that begins with bytes we trust: what follows may still contradict them."""
    known = _known()
    body = known[1].body
    stable = replace(OLD, fields=(), reader_flags=0, writer_flags=0)
    hostile: dict[str, bytes] = {
        "an old fragment again": body + FragmentList([fragment(0)]).wire() + encode_tail(OLD, NOWHERE),
        "an id that was given out": body + FragmentList([fragment(1)]).wire() + encode_tail(OLD, NOWHERE),
        "a lower highest id": body + encode_tail(replace(OLD, max_fragment_id=0), NOWHERE),
        "the same base again": body + length_delimited(18, integer(1, OLD.base_paths[0].id)) + encode_tail(OLD, NOWHERE),
        "a path upwards": body + FragmentList([fragment(90, path="../x")]).wire() + encode_tail(after(), NOWHERE),
        "too high an id": body + FragmentList([fragment(95)]).wire() + encode_tail(after(), NOWHERE),
        "a field again": body + length_delimited(1, pb.Field(name="x", id=0, parent_id=-1, logical_type="int8").SerializeToString())
        + encode_tail(OLD, NOWHERE),
        "row ids out of nothing": body + encode_tail(replace(stable, reader_flags=2, writer_flags=2), NOWHERE),
    }  # fmt: skip
    for what, message in hostile.items():
        for trusted in (None, known):
            with pytest.raises(CorruptTable):
                print(what, read(message, trusted))


def test_a_base_taken_back_is_noticed() -> None:
    """The old fragments lie in a base that the new message lists otherwise."""
    base = BasePath(4, "/there")
    manifest = Manifest(
        version=1, fields=(), fragments=FragmentList([fragment(0, base_id=4)]), base_paths=(base,), max_fragment_id=0, writer=WRITER
    )
    known = _known(manifest)
    moved = pb.Manifest.FromString(written(manifest))
    moved.base_paths[0].id = 5
    with pytest.raises(CorruptTable, match="lies in base 4"):
        read(moved.SerializeToString(), known)


def test_a_lower_row_id_mark_is_noticed() -> None:
    ids = pb.RowIdSequence(segments=[pb.U64Segment(range=pb.U64Segment.Range(start=0, end=10))]).SerializeToString()
    one = replace(fragment(0), row_ids=ids)
    manifest = Manifest(
        version=1,
        fields=(),
        fragments=FragmentList([one]),
        max_fragment_id=0,
        next_row_id=10,
        reader_flags=2,
        writer_flags=2,
        writer=WRITER,
    )
    known = _known(manifest)
    lower = known[1].body + encode_tail(replace(manifest, next_row_id=9), NOWHERE)
    with pytest.raises(CorruptTable, match="holds row id 9"):
        read(lower, known)


# ---- indices ---------------------------------------------------------------------------------------------------------------


def test_the_index_section() -> None:
    uuid = "0c0ffee0-1234-4abc-8def-0123456789ab"
    entries = (IndexMetadata(uuid, (1,), "a", 3, b"bits", ("/u", b"v"), 0, 5, None, (IndexFile("x", 1),)), IndexMetadata(uuid, (), "b", 0))
    section = encode_indices(entries)
    assert decode_indices(replace(OLD, index_section=section), "file") == entries
    assert decode_indices(replace(OLD, index_section=b""), "file") == ()
    for damaged in (section[:-1], b"\x08\x01", encode_indices(entries).replace(b"\x0a\x10", b"\x0a\x0f", 1), b"\xff"):
        with pytest.raises(CorruptTable) as caught:
            decode_indices(replace(OLD, index_section=damaged), "file")
        assert caught.value.file == "file"


def test_schemas_that_make_no_tree_are_refused() -> None:
    leaf = Field("a", 0, -1, "int64")
    for schema in ((leaf, leaf), (replace(leaf, parent_id=0),), (replace(leaf, id=-1),), (replace(leaf, parent_id=7),)):
        with pytest.raises(CorruptTable):
            read(written(replace(OLD, fields=schema)))


@pytest.mark.parametrize("version", ["", "2", "2.x", "stable", "2.2.2", "-1.0", "²·²"])
def test_data_formats_that_are_none_are_refused(version: str) -> None:
    with pytest.raises(CorruptTable, match="data files have the format"):
        read(written(replace(OLD, data_format=DataFormat("lance", version))))


# ---- newer writers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0", "3.0-beta.1", "12.7"])
def test_newer_data_formats_are_not_damage(version: str) -> None:
    with pytest.raises(UnsupportedFeature, match="have the format") as caught:
        read(written(replace(OLD, data_format=DataFormat("lance", version))))
    assert caught.value.feature == f"data format {version}"


def test_features_are_asked_for_before_anything_seems_wrong() -> None:
    """What a reader does not know may change what the rest means."""
    strange = length_delimited(2, integer(1, 2**40)) + length_delimited(12, b"../x") + length_delimited(15, length_delimited(2, b"new"))
    with pytest.raises(CorruptTable):
        read(strange)
    with pytest.raises(UnsupportedFeature) as caught:
        read(strange + integer(9, 1 << 40))
    assert caught.value.bits == (1 << 40,)


# ---- facts only ------------------------------------------------------------------------------------------------------------


def test_without_a_check_fragments_are_only_counted() -> None:
    hostile = replace(OLD, fragments=FragmentList([fragment(3, path="../x"), fragment(3, path="../x")]), max_fragment_id=0)
    message = written(hostile)
    with pytest.raises(CorruptTable):
        read(message)
    manifest, _, kept = decode_manifest(message, "file", check=False)
    assert len(manifest.fragments) == 2
    assert manifest.fragments.live_rows() == 2 * fragment(3).live_rows
    assert kept == Message(message, b"", extendable=False), "nothing can be spliced onto it"
    with pytest.raises(CorruptTable, match=r"'\.\./x'"):
        manifest.fragments[0]
    hiding = pb.ManifestHead(fragments=[pb.DataFragment(deletion_file=pb.DeletionFile(num_deleted_rows=2**64 - 1)).SerializeToString()])
    assert decode_manifest(hiding.SerializeToString(), "file", check=False)[0].fragments.live_rows() == 1 - 2**64
    garbage = decode_manifest(length_delimited(2, b"\xff"), "file", check=False)[0]
    with pytest.raises(CorruptTable):
        garbage.fragments.live_rows()


# ---- later -----------------------------------------------------------------------------------------------------------------


def _many(last: DataFragment) -> bytes:
    fragments = [*(fragment(number) for number in range(CHECKED_AT_ONCE)), last]
    return written(replace(OLD, fragments=FragmentList(fragments), max_fragment_id=CHECKED_AT_ONCE))


LOOKS: dict[str, Callable[[FragmentList], object]] = {
    "len": len,
    "iteration": list,
    "an item": lambda several: several[0],
    "a slice": lambda several: several[:1],
    "ids": lambda several: several.ids(),
    "rows": lambda several: several.physical_rows(),
    "live rows": lambda several: several.live_rows(),
    "deletions": lambda several: several.with_deletions(),
    "any deletions": lambda several: several.has_deletions(),
    "wire": lambda several: several.wire(),
    "appended": lambda several: several.appended([]),
    "changed": lambda several: several.changed({}),
    "in order": lambda several: several.in_order(),
    "equality": lambda several: several == FragmentList(),
    "hash": hash,
    "repr": repr,
}


@pytest.mark.parametrize("look", LOOKS)
def test_many_fragments_are_checked_before_anybody_sees_one(look: str) -> None:
    """A check that was put off is not forgotten, whoever looks first, and however often."""
    hostile = decode_manifest(_many(fragment(CHECKED_AT_ONCE, path="../x")), "the file", lazily=True)[0].fragments
    for _ in range(2):
        with pytest.raises(CorruptTable, match="the file is corrupt"):
            LOOKS[look](hostile)
    sound = decode_manifest(_many(fragment(CHECKED_AT_ONCE)), "the file", lazily=True)[0].fragments
    assert not sound.checked
    LOOKS[look](sound)
    assert sound.checked


def test_few_fragments_are_checked_at_once() -> None:
    hostile = replace(OLD, fragments=FragmentList([fragment(0, path="../x")]))
    with pytest.raises(CorruptTable):
        decode_manifest(written(hostile), "file", lazily=True)


def test_what_was_not_checked_yet_vouches_for_nothing() -> None:
    """A version that begins with the bytes of one whose check was put off is checked from the first fragment on."""
    message = _many(fragment(CHECKED_AT_ONCE, path="../x"))
    unchecked, _, kept = decode_manifest(message, "file", lazily=True)
    with pytest.raises(CorruptTable):
        read(message, (unchecked, kept))


def test_fragments_known_from_a_later_version_are_checked_again() -> None:
    """Row versions are bounded by the version; a beginning that was fine in version 9 need not be fine in version 3."""
    runs = [pb.RowDatasetVersionRun(span=pb.U64Segment(range=pb.U64Segment.Range(start=0, end=10)), version=9)]
    one = replace(fragment(0), created_at=pb.RowDatasetVersionSequence(runs=runs).SerializeToString())
    manifest = Manifest(version=9, fields=(), fragments=FragmentList([one]), max_fragment_id=0, writer=WRITER)
    known = _known(manifest)
    with pytest.raises(CorruptTable, match="later than this version"):
        read(known[1].body + encode_tail(replace(manifest, version=3), NOWHERE), known)
