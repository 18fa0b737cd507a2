"""Every manifest stock pylance writes, decoded and encoded again in full: nothing is lost, and pylance opens the result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.stock_tables import KINDS
from tests.support.tables import Chronicle, open_stock
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.manifest import decode_indices, encode_indices
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file, encode_manifest_file
from tiltyard.transaction.transaction import Transaction


def _same_message(left: bytes, right: bytes) -> bool:
    """Compared by the protobuf library, not by our own values. Where the other sections lie may differ."""
    messages = [pb.Manifest.FromString(data) for data in (left, right)]
    for message in messages:
        message.ClearField("index_section")
        message.ClearField("transaction_section")
    return bool(messages[0] == messages[1])


def _encoded_again(file: ManifestFile, name: str) -> bytes:
    data, _ = encode_manifest_file(file.manifest, file.transaction)
    again = decode_manifest_file(data, source=name)
    assert again.manifest == file.manifest
    assert again.transaction == file.transaction
    assert _same_message(again.message.joined(), file.message.joined())
    assert encode_manifest_file(again.manifest, again.transaction)[0] == data
    indices = decode_indices(file.manifest, name)
    assert pb.IndexSection.FromString(encode_indices(indices)) == pb.IndexSection.FromString(file.manifest.index_section)
    assert file.transaction is not None
    transaction = Transaction.from_bytes(file.transaction)
    assert pb.Transaction.FromString(transaction.to_bytes()) == pb.Transaction.FromString(file.transaction)
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_pylance_opens_what_we_encoded_again(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind](tmp_path / "t")
    chronicle = Chronicle(made.uri, made.branch, made.allowed_bases)
    chronicle.agrees()
    original = tmp_path / "original"
    # The copy takes the table's place: branches and clones name their source by its full path.
    shutil.move(made.uri, original)
    shutil.copytree(original, made.uri)
    manifests = [path for path in Path(made.uri).rglob("*.manifest") if path.parent.name == "_versions"]
    assert len(manifests) >= len(chronicle.seen)
    for path in manifests:
        file = decode_manifest_file(path.read_bytes(), source=path.name)
        path.write_bytes(_encoded_again(file, path.name))
    chronicle.agrees(anew=True)
    chronicle.sound()
    stock = open_stock(chronicle.place)
    if stock.count_rows():
        stock.delete(f"{stock.schema.names[0]} is null")
    chronicle.agrees()
