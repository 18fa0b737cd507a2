"""Values and messages: every member both ways, and what newer writers may add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import (
    base_path_from_pb,
    base_path_to_pb,
    data_file_from_pb,
    data_file_to_pb,
    data_format_from_pb,
    data_format_to_pb,
    deletion_file_from_pb,
    deletion_file_to_pb,
    field_from_pb,
    field_to_pb,
    fragment_from_pb,
    fragment_to_pb,
    index_file_from_pb,
    index_file_to_pb,
    index_from_pb,
    index_to_pb,
    integer,
    length_delimited,
    parse_sound,
    uuid_from_pb,
    uuid_to_pb,
    writer_from_pb,
    writer_to_pb,
)
from tiltyard.format.values import (
    BasePath,
    DataFile,
    DataFormat,
    DataFragment,
    DeletionFile,
    Field,
    IndexFile,
    IndexMetadata,
    WriterVersion,
)

UUID = "0c0ffee0-1234-4abc-8def-0123456789ab"
FILE = DataFile("a.lance", (0, 2, -2), (0, 1, 2), 2, 1, 4711, 3)
DELETION = DeletionFile(True, 7, 2**64 - 1, 4, 3)
FRAGMENT = DataFragment(9, (FILE, replace(FILE, path="b.lance", base_id=None)), 10, DELETION, b"ids", b"updated", b"created")
INDEX = IndexMetadata(UUID, (1, 2), "idx", 5, b"bits", ("/lance.x", b"d"), 0, 99, 3, (IndexFile("page", 8),), (4,))
FIELD = Field("n", 3, -1, "int64", False, {"k": b"v"}, 1, 2, (0, 0), "ext", True, 2, True, 1)

ROUND_TRIPS: list[tuple[Any, Any, Any]] = [
    (FILE, data_file_to_pb, lambda message: data_file_from_pb(message, "s")),
    (DELETION, deletion_file_to_pb, lambda message: deletion_file_from_pb(message, 10, "s")),
    (FRAGMENT, fragment_to_pb, lambda message: fragment_from_pb(message, "s")),
    (
        DataFragment(0, (), 0, row_ids_spilled=True, updated_at_spilled=True, created_at_spilled=True, overlays=(integer(3, 4),)),
        fragment_to_pb,
        lambda message: fragment_from_pb(message, "s"),
    ),
    (BasePath(0, "/x", True, ""), base_path_to_pb, base_path_from_pb),
    (BasePath(4, "s3://b/x"), base_path_to_pb, base_path_from_pb),
    (WriterVersion("w", "1", "", "b"), writer_to_pb, writer_from_pb),
    (WriterVersion("w", "1"), writer_to_pb, writer_from_pb),
    (DataFormat("lance", "2.1"), data_format_to_pb, data_format_from_pb),
    (IndexFile("a/b", 0), index_file_to_pb, lambda message: index_file_from_pb(message, "s")),
    (INDEX, index_to_pb, lambda message: index_from_pb(message, "s")),
    (IndexMetadata(UUID, (), "n", 0), index_to_pb, lambda message: index_from_pb(message, "s")),
    (FIELD, field_to_pb, lambda message: field_from_pb(message, "s")),
]
NEWER = integer(500, 7) + length_delimited(501, b"new")


@pytest.mark.parametrize(("value", "write", "read"), ROUND_TRIPS)
def test_every_member_both_ways(value: Any, write: Any, read: Any) -> None:
    wire = write(value).SerializeToString(deterministic=True)
    assert read(type(write(value)).FromString(wire)) == value


@pytest.mark.parametrize(("value", "write", "read"), ROUND_TRIPS)
def test_members_of_a_newer_writer_are_written_back(value: Any, write: Any, read: Any) -> None:
    message = type(write(value)).FromString(write(value).SerializeToString() + NEWER)
    again = read(message)
    assert again == replace(value, unknown=again.unknown)
    assert again.unknown
    assert write(again).SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("value", "write", "read", "inside"),
    [
        (INDEX, index_to_pb, index_from_pb, ("uuid", "index_details")),
        (FIELD, field_to_pb, field_from_pb, ("dictionary",)),
        (
            DataFragment(0, (), 0, row_ids_spilled=True, updated_at_spilled=True, created_at_spilled=True),
            fragment_to_pb,
            fragment_from_pb,
            ("column_row_ids", "column_last_updated_at_versions", "column_created_at_versions"),
        ),
    ],
)
def test_even_inside_messages_that_are_no_values(value: Any, write: Any, read: Any, inside: tuple[str, ...]) -> None:
    message = write(value)
    for member in inside:
        getattr(message, member).MergeFromString(NEWER)
    wire = message.SerializeToString(deterministic=True)
    assert len(wire) > len(write(value).SerializeToString()) + len(inside) * len(NEWER) - 1
    assert write(read(message, "s")).SerializeToString(deterministic=True) == wire


def test_uuids() -> None:
    assert uuid_from_pb(uuid_to_pb(UUID), "s") == UUID
    for size in (0, 15, 17):
        with pytest.raises(CorruptTable, match=f"{size} bytes instead of 16"):
            uuid_from_pb(pb.Uuid(uuid=b"x" * size), "s")


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (pb.DataFile(path="../x"), data_file_from_pb),
        (pb.DataFile(path="x", fields=[1], column_indices=[1, 2]), data_file_from_pb),
        (pb.IndexFile(path="/x"), index_file_from_pb),
        (pb.DataFragment(id=2**32), fragment_from_pb),
        (pb.DataFragment(physical_rows=2**32 + 1), fragment_from_pb),
        (pb.DataFragment(external_created_at_versions=pb.ExternalFile()), fragment_from_pb),
        (pb.DataFragment(deletion_file=pb.DeletionFile(num_deleted_rows=1)), fragment_from_pb),
        (pb.DataFragment(deletion_file=pb.DeletionFile(file_type=7)), fragment_from_pb),  # type: ignore[arg-type]
        (pb.IndexMetadata(), index_from_pb),
    ],
)
def test_what_is_refused(message: Any, read: Any) -> None:
    with pytest.raises(CorruptTable) as caught:
        read(message, "the file")
    assert caught.value.file == "the file"


def test_a_known_number_in_another_wire_type_is_damage_and_a_new_number_is_not() -> None:
    sound = pb.DataFragment(id=1, physical_rows=2).SerializeToString()
    assert parse_sound(pb.DataFragment, sound + NEWER, "it", "s").id == 1
    for misplaced in (
        length_delimited(4, b"x"),
        integer(2, 1),
        length_delimited(2, integer(1, 5)),
        length_delimited(3, length_delimited(7, b"")),
    ):
        with pytest.raises(CorruptTable, match="in a form that no writer uses"):
            parse_sound(pb.DataFragment, sound + misplaced, "it", "s")
    in_a_map = pb.Transaction.FromString(b"")
    in_a_map.update_config.field_metadata_updates[3].MergeFromString(length_delimited(2, b""))
    with pytest.raises(CorruptTable, match="replace in a form"):
        parse_sound(pb.Transaction, in_a_map.SerializeToString(), "it", "s")
    with pytest.raises(CorruptTable, match="cannot be decoded"):
        parse_sound(pb.DataFragment, sound[:-1], "it", "s")
