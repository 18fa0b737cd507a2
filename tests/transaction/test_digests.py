"""Which digests a transaction keeps, of the files it brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.manifests import data_file, index, part, table
from tiltyard import ops
from tiltyard.errors import CorruptTable
from tiltyard.format.digests import DIGESTS, SEAL, UNSEALED, Digest, decode_digests, digest, encode_digests, file_key
from tiltyard.format.fields import BLOB_V2
from tiltyard.format.logical_types import EXTENSION_NAME
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file, is_intact
from tiltyard.format.names import Scheme, manifest_name
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.log import VERSIONS, VersionLog
from tiltyard.transaction.new_files import NO_DIGESTS, Taken
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import to_be_sealed, without_marks

BASE = table([part(0), part(1)])
FAR = replace(part(0, name="far"), files=(data_file("far", base_id=3),))


class Counted:
    """Makes a digest of each path's name, and remembers who asked."""

    def __init__(self, in_bases: Mapping[str, Digest] | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.blobs = False
        self._in_bases = dict(in_bases or {})

    def note(self, path: str, data: bytes) -> None:
        raise AssertionError(path, data)

    def of(self, paths: Sequence[str], *, blobs: bool) -> Mapping[str, Digest]:
        self.asked.append(tuple(paths))
        self.blobs = blobs
        found = {}
        for path in paths:
            for name in [path + "a", path + "b"] if path.endswith("/") else [path]:
                found[name] = digest(name.encode())
            if blobs:
                found[path.removesuffix(".lance") + "/1.blob"] = digest(b"blob")
        return found

    def noted(self, keys: Iterable[str]) -> Mapping[str, Digest]:
        return {key: self._in_bases[key] for key in keys if key in self._in_bases}


def _kept(transaction: Transaction) -> dict[str, Digest]:
    return decode_digests(transaction.properties[DIGESTS], "test")


def _transaction(operation: Operation, **properties: str) -> Transaction:
    return Transaction(1, "0c0ffee0-0000-4000-8000-000000000000", operation, properties)


def test_each_file_is_asked_for_once() -> None:
    digests = Counted()
    taken = Taken(digests)
    append = _transaction(ops.Append((part(0, name="n"),)), mine="1")
    for _ in range(3):
        made = taken.added_to(append, BASE)
        assert _kept(made) == {"data/n.lance": digest(b"data/n.lance")}
        assert made.properties["mine"] == "1"
    assert digests.asked == [("data/n.lance",)]
    other = taken.added_to(_transaction(ops.Append((part(0, name="m"),))), BASE)
    assert set(_kept(other)) == {"data/m.lance"}, "what an attempt before it brought is not its own"


def test_what_a_transaction_says_already_is_not_asked_again() -> None:
    digests = Counted()
    said = _transaction(ops.Append((part(0, name="n"),)), **{DIGESTS: encode_digests({"data/n.lance": digest(b"known")})})
    assert _kept(Taken(digests).added_to(said, BASE)) == {"data/n.lance": digest(b"known")}
    assert not digests.asked


def test_files_that_come_with_others() -> None:
    built = _transaction(ops.CreateIndex((replace(index("w", [4], [0], uuid=2), files=()),)))
    (directory,) = {key.rpartition("/")[0] for key in _kept(Taken(Counted()).added_to(built, BASE))}
    assert directory.startswith("_indices/")
    blob = replace(BASE.fields[0], metadata={EXTENSION_NAME: BLOB_V2.encode()})
    for operation, base in (
        (ops.Append((part(0, name="n"),)), replace(BASE, fields=(blob,))),
        (ops.Overwrite((part(0, name="n"),), (blob,)), None),
    ):
        assert set(_kept(Taken(Counted()).added_to(_transaction(operation), base))) == {"data/n.lance", "data/n/1.blob"}


def test_files_in_bases_are_those_whose_writer_told() -> None:
    key = file_key("data/far.lance", 3)
    assert _kept(Taken(Counted({key: digest(b"far")})).added_to(_transaction(ops.Append((FAR,))), BASE)) == {key: digest(b"far")}
    plain = _transaction(ops.Append((FAR,)))
    assert Taken(Counted()).added_to(plain, BASE) is plain


def test_a_change_without_files_keeps_none() -> None:
    plain = _transaction(ops.Project(()))
    assert Taken(Counted()).added_to(plain, BASE) is plain
    NO_DIGESTS.note("data/n.lance", b"")
    assert Taken(NO_DIGESTS).added_to(_transaction(ops.Append((FAR, part(0, name="n")))), BASE).properties == {}


def test_the_text_of_digests() -> None:
    some = {"data/a b.lance": Digest(10, "0" * 32), "@3/data/ä.lance": Digest(0, "f" * 32)}
    assert decode_digests(encode_digests(some), "x") == some
    assert decode_digests(encode_digests({**some, "data/a\nb": Digest(1, "0" * 32)}), "x") == some, "no line could hold it"
    text = encode_digests(some)
    for at in range(len(text)):
        damaged = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        if at >= text.index(" "):
            with pytest.raises(CorruptTable, match="digests"):
                decode_digests(damaged, "x")
    assert decode_digests(text.replace("xxh3-128", "newer"), "x") == {}
    with pytest.raises(CorruptTable):
        decode_digests(encode_digests({"a": Digest(1, "short")}), "x")


def test_a_version_is_sealed_and_every_byte_counts() -> None:
    inline = to_be_sealed(_transaction(ops.Append((part(0, name="n"),)))).to_bytes()
    data, made = encode_manifest_file(BASE, inline)
    assert made.transaction is not None
    assert len(made.transaction) == len(inline)
    assert Transaction.from_bytes(made.transaction).properties[SEAL] != UNSEALED
    assert without_marks(Transaction.from_bytes(made.transaction)).properties == {}
    file = decode_manifest_file(data, source="v")
    assert is_intact(data, file, "v")
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        inside = damaged.find(b"\x0a\x0dtiltyard.seal\x12\x20")
        if inside >= 0:
            with pytest.raises(CorruptTable, match="digest differs"):
                is_intact(damaged, file, "v")
    for transaction in (None, _transaction(ops.Append(())).to_bytes()):
        data, _ = encode_manifest_file(BASE, transaction)
        assert not is_intact(data, decode_manifest_file(data, source="v"), "v"), "nothing to compare with"


def test_a_log_that_verifies() -> None:
    store = MemoryStore()
    data, _ = encode_manifest_file(BASE, to_be_sealed(_transaction(ops.Append((part(0, name="n"),)))).to_bytes())
    path = VERSIONS + manifest_name(BASE.version, Scheme.V2)
    store.put(path, data)
    assert VersionLog(store, verify=True).load(BASE.version, Scheme.V2).manifest.version == BASE.version
    store.put(path, data.replace(b"part", b"pert") if b"part" in data else data.replace(b"n.lance", b"m.lance", 1))
    VersionLog(store).load(BASE.version, Scheme.V2)
    with pytest.raises(CorruptTable, match="digest differs"):
        VersionLog(store, verify=True).load(BASE.version, Scheme.V2)
