"""The bytes of one file in ``_versions``: index section, transaction section, manifest message, footer."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import parse_sound
from tiltyard.format.digests import check_seal, sealed
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import (
    Manifest,
    Message,
    Offsets,
    added_alone,
    decode_indices,
    decode_manifest,
    encode_manifest,
    extend_message,
)
from tiltyard.format.manifest_extension import decode_extension

MAGIC = b"LANC"
FOOTER = struct.Struct("<qHH4s")
LENGTH = struct.Struct("<I")
FILE_MAJOR, FILE_MINOR = 0, 2
MAX_SECTION = 2**31 - 1
"""Protobuf refuses messages of 2 GiB and more."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest with the transaction that made it, and the message it is (or was) written as."""

    manifest: Manifest
    transaction: bytes | None
    """The inline transaction; None when the file has none."""
    message: Message
    transaction_at: int | None = None
    """Where the inline transaction begins in the file, its length before it."""
    partial: bool = False
    """Whether nobody read more of it than its transaction; see ``known_by_transaction``."""


def known_by_transaction(below: ManifestFile, version: int, transaction: bytes, at: int) -> ManifestFile:
    """A version of which only the transaction was read: new rows on top of ``below``, from which all is taken that new rows leave alone.

    That is enough to add rows to it. Whoever reads it, or builds the next version, has to read it first: its fragments are not known.
    """
    fragments = FragmentList()
    fragments.check_later(_refuse_unread)
    manifest = replace(below.manifest, version=version, fragments=fragments)
    return ManifestFile(manifest, transaction, Message(b"", b"", extendable=False), at, partial=True)


def _refuse_unread() -> None:
    raise AssertionError("This version was not read: only its transaction is known.")


def decode_manifest_file(
    data: bytes, *, source: str, version: int | None = None, known: ManifestFile | None = None, check: bool = True, lazily: bool = False
) -> ManifestFile:
    """Reads a manifest file.

    Args:
        data: the whole file.
        source: its path, for messages.
        version: the version its name stands for; it must be the one inside.
        known: another version of the same table, read before; what both share is not checked twice.
        check: whether fragments and indices are looked at. Where not, nothing may be read by the result and no commit built on it.
        lazily: whether looking at the fragments may wait until somebody asks for one.

    Raises:
        CorruptTable: whatever is wrong with the bytes.
        UnsupportedFeature: a reader must know something that we do not.
    """
    size = len(data)
    if size < FOOTER.size:
        raise CorruptTable(source, f"it has only {size} bytes")
    position, _, _, magic = FOOTER.unpack_from(data, size - FOOTER.size)
    if magic != MAGIC:
        raise CorruptTable(source, "it does not end in the magic LANC")
    limit = size - FOOTER.size
    body = _section(data, position, limit, "manifest", source)
    if position + LENGTH.size + len(body) != limit:
        raise CorruptTable(source, "there are stray bytes between manifest and footer")
    before = (known.manifest, known.message) if known else None
    extended = decode_extension(body, source, *before) if before and check else None
    manifest, offsets, message = extended or decode_manifest(body, source, before, check=check, lazily=lazily)
    if version is not None and manifest.version != version:
        raise CorruptTable(source, f"its name says version {version}, its content {manifest.version}")
    transaction = None
    if offsets.transaction is not None:
        transaction = _section(data, offsets.transaction, position, "transaction", source)
        # Stock readers die of a transaction they cannot decode, so it is looked at before they see it.
        parse_sound(pb.Transaction, transaction, "the transaction", source)
    if offsets.index is not None:
        manifest = replace(manifest, index_section=_section(data, offsets.index, position, "index", source))
        if not manifest.index_section:
            message = replace(message, extendable=False)  # a later version without indices could not take the offset back
        if check and (known is None or manifest.index_section != known.manifest.index_section):
            decode_indices(manifest, source)
    _check_apart(offsets, transaction or b"", manifest.index_section, source)
    return ManifestFile(manifest, transaction, message, offsets.transaction)


def is_intact(data: bytes, file: ManifestFile, source: str) -> bool:
    """Compares the bytes of a version with the digest inside them; False if they have none.

    Raises:
        CorruptTable: they were changed since they were written.
    """
    if file.transaction is None or file.transaction_at is None:
        return False
    return check_seal(data, file.transaction_at + LENGTH.size, len(file.transaction), source)


def _check_apart(offsets: Offsets, transaction: bytes, index: bytes, source: str) -> None:
    """Two sections in the same bytes cannot both be what they claim."""
    if offsets.transaction is None or offsets.index is None:
        return
    (first, length), (second, _) = sorted([(offsets.transaction, len(transaction)), (offsets.index, len(index))])
    if first + LENGTH.size + length > second:
        raise CorruptTable(source, "its index and transaction sections overlap")


def _section(data: bytes, position: int, limit: int, what: str, source: str) -> bytes:
    if not 0 <= position <= limit - LENGTH.size:
        raise CorruptTable(source, f"the {what} section begins at {position}, outside the file")
    (length,) = LENGTH.unpack_from(data, position)
    start = position + LENGTH.size
    if start + length > limit:
        raise CorruptTable(source, f"the {what} section claims {length} bytes, more than there are")
    return data[start : start + length]


def encode_manifest_file(manifest: Manifest, transaction: bytes | None, previous: ManifestFile | None = None) -> tuple[bytes, ManifestFile]:
    """The bytes of a new version's file, and the same as a value to go on from.

    Args:
        manifest: the new version.
        transaction: its serialized transaction, stored inline.
        previous: the version it was made from; an append then reuses its bytes.
    """
    sections: list[bytes] = []
    position = 0
    index = inline = None
    if manifest.index_section:
        index = position
        position += _add(sections, manifest.index_section)
    if transaction is not None:
        inline = position
        position += _add(sections, transaction)
    offsets = Offsets(index, inline)
    message = _message(manifest, offsets, previous)
    size = len(message.body) + len(message.tail)
    if size > MAX_SECTION:
        raise CorruptTable("manifest", "it would exceed 2 GiB", advice="Compact the table first.")
    # Joined once: of a table with many fragments each copy takes as long as all else.
    parts = [*sections, LENGTH.pack(size), message.body, message.tail, FOOTER.pack(position, FILE_MAJOR, FILE_MINOR, MAGIC)]
    if transaction is not None:
        parts[len(sections) - 1] = transaction = sealed(parts, len(sections) - 1)
    data = b"".join(parts)
    written = replace(manifest, fragments=FragmentList.from_message(message.body, "manifest"))
    return data, ManifestFile(written, transaction, message, inline)


def _message(manifest: Manifest, offsets: Offsets, previous: ManifestFile | None) -> Message:
    if previous is not None and previous.message.extendable and offsets.transaction is not None:
        added = added_alone(previous.manifest, manifest)
        if added is not None:
            return extend_message(previous.message, added, manifest, offsets)
    return encode_manifest(manifest, offsets)


def _add(sections: list[bytes], content: bytes) -> int:
    sections += [LENGTH.pack(len(content)), content]
    return LENGTH.size + len(content)
