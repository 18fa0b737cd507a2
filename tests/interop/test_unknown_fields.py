"""What a newer writer put into a message and we do not know stays there when we append or encode anew."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

import tiltyard as ty
from tests.support.samples import table_of
from tests.support.stock_tables import KINDS, SCHEMA
from tests.support.tables import Chronicle, manifest_message, manifest_path, open_stock
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.digests import SEAL
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT

PLANTED = b"\xea\x04\x05newer"
"""Member 77, text: no message of today has it, and below 100 it is no operation."""


def plant(message: Message) -> None:
    """The same member in this message and in every one below."""
    for inner in list(_below(message)):
        plant(inner)
    if type(message).__name__ != "Timestamp":
        message.MergeFromString(PLANTED)


def _below(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        yield from value if field.is_repeated else [value]


def write_planted(uri: str, version: int) -> tuple[pb.Manifest, pb.IndexSection, pb.Transaction]:
    """Writes a version's file again, with members nobody knows in every message of it."""
    path = manifest_path(uri, version)
    file = decode_manifest_file(path.read_bytes(), source=path.name)
    assert file.transaction is not None
    indices, transaction = pb.IndexSection.FromString(file.manifest.index_section), pb.Transaction.FromString(file.transaction)
    manifest = pb.Manifest.FromString(file.message.joined())
    data = b""
    for section, message in (("index_section", indices), ("transaction_section", transaction)):
        plant(message)
        setattr(manifest, section, len(data))
        body = message.SerializeToString()
        data += struct.pack("<I", len(body)) + body
    plant(manifest)
    body = manifest.SerializeToString()
    path.write_bytes(data + struct.pack("<I", len(body)) + body + struct.pack("<qHH4s", len(data), 0, 2, b"LANC"))
    return manifest, indices, transaction


@pytest.fixture
def planted(tmp_path: Path) -> tuple[str, pb.Manifest, pb.IndexSection, pb.Transaction]:
    """A table with deletions, an index, bases and config, so that every kind of message is there."""
    made = KINDS["shallow_clone"](tmp_path / "t")
    version = open_stock(made.uri).version
    open_stock(made.uri).update_config({"a": "b"})
    messages = write_planted(made.uri, version + 1)
    return made.uri, *messages


def test_every_kind_of_message_is_planted(planted: tuple[str, pb.Manifest, pb.IndexSection, pb.Transaction]) -> None:
    _, manifest, indices, transaction = planted
    kinds = {type(inner).__name__ for message in (manifest, indices, transaction) for inner in [message, *_all(message)]}
    assert kinds >= {"Manifest", "Field", "DataFragment", "DataFile", "DeletionFile", "BasePath", "WriterVersion", "DataStorageFormat"}
    assert kinds >= {"IndexSection", "IndexMetadata", "IndexFile", "Transaction"}


def _all(message: Message) -> Iterator[Message]:
    for inner in _below(message):
        yield inner
        yield from _all(inner)


def test_they_survive_an_append_and_an_encoding_from_scratch(
    planted: tuple[str, pb.Manifest, pb.IndexSection, pb.Transaction], tmp_path: Path
) -> None:
    uri, manifest, indices, transaction = planted
    rows = open_stock(uri).count_rows()
    table = ty.Table.open(uri, allowed_bases=[tmp_path], durability="os")
    old = table._file
    version = table.append(table_of(SCHEMA, 3)).version
    scratch = encode_manifest_file(old.manifest, old.transaction)[0]
    again = decode_manifest_file(scratch, source="again")
    for after in (pb.Manifest.FromString(manifest_message(uri, version)), pb.Manifest.FromString(again.message.joined())):
        assert list(after.fields) == list(manifest.fields)
        assert list(after.fragments)[: len(manifest.fragments)] == list(manifest.fragments)
        assert list(after.base_paths) == list(manifest.base_paths)
        assert after.data_format == manifest.data_format
        assert PLANTED in after.SerializeToString().replace(manifest.fields[0].SerializeToString(), b"")
    assert pb.Manifest.FromString(again.message.joined()).writer_version == manifest.writer_version
    new = decode_manifest_file(manifest_path(uri, version).read_bytes(), source="new")
    assert pb.IndexSection.FromString(new.manifest.index_section) == indices
    assert new.manifest.unknown == PLANTED == again.manifest.unknown
    assert Transaction.from_bytes(old.transaction or b"").to_bytes() == transaction.SerializeToString(deterministic=True)
    assert open_stock(uri).count_rows() == rows + 3
    Chronicle(uri, allowed_bases=[str(tmp_path)]).agrees()


def test_they_survive_in_a_transaction_that_we_commit_for_somebody(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, table_of(SCHEMA, 3), durability="os")
    table.append(table_of(SCHEMA, 3))
    message = pb.Transaction.FromString(table._file.transaction or b"")
    message.uuid = "00000000-0000-4000-8000-000000000001"
    message.read_version = 2
    plant(message)
    table.commit(ty.Transaction.from_bytes(message.SerializeToString()))
    stored = pb.Transaction.FromString(table._file.transaction or b"")
    for mark in (PARENT, SEAL):
        assert stored.transaction_properties.pop(mark), "which we add to every transaction"
        message.transaction_properties.pop(mark)
    assert stored == message
    added = pb.Manifest.FromString(manifest_message(uri, 3)).fragments[-1]
    assert PLANTED in added.SerializeToString()
    assert PLANTED in added.files[0].SerializeToString()
    assert open_stock(uri).count_rows() == 9
