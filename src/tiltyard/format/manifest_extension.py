"""Reads a manifest that is one read before with fragments added: what both share is compared as bytes, and not decoded again.

Writers that take turns read each other's versions, and nearly every one of them is an append. Its message begins with that of the version
below up to the tail, whatever number of fragments that names. What comes after is decoded and encoded again: only where that gives the very
bytes, and an append could have been written so (``added_alone``), is the result what decoding all of them would give.
"""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import writer_from_pb
from tiltyard.format.flags import check_readable
from tiltyard.format.fragments import FragmentList, encode_fragment_record
from tiltyard.format.manifest import (
    Manifest,
    Message,
    Offsets,
    added_alone,
    check_added,
    checked_alike,
    encode_tail,
    offsets_in,
    timestamp_in,
)
from tiltyard.format.safe_text import check_relative


def decode_extension(message: bytes, source: str, before: Manifest, old: Message) -> tuple[Manifest, Offsets, Message] | None:
    """A manifest that adds fragments to one read before; None where it is not certain to be just that, so that all of it has to be read.

    Args:
        message: the serialized manifest.
        source: its file, for messages.
        before: the manifest read before.
        old: its message.

    Raises:
        UnsupportedFeature: a reader must know something that we do not.
    """
    if not (old.tail and old.extendable and before.fragments.checked and message.startswith(old.body)):
        return None
    rest = message[len(old.body) :]
    try:
        head = pb.ManifestHead.FromString(rest)
    except DecodeError:
        return None
    check_readable(head.reader_feature_flags)
    try:
        manifest, offsets = _as_before(head, before, source), offsets_in(head)
        tail = encode_tail(manifest, offsets)
        if b"".join([*map(encode_fragment_record, head.fragments), tail]) != rest or not _could_be_written(manifest, offsets, before):
            return None
        check_added(manifest, head.fragments, source, above=before.max_fragment_id or 0)
        if manifest.transaction_file and "/" in check_relative(manifest.transaction_file, source):
            return None
    except CorruptTable:
        return None  # whoever reads all of it says what is wrong
    body = message[: len(message) - len(tail)]
    return replace(manifest, fragments=FragmentList.from_message(body, source)), offsets, Message(body, tail)


def _as_before(head: pb.ManifestHead, before: Manifest, source: str) -> Manifest:
    """What a tail says, on top of what was known before; the same fragments still."""
    return replace(
        before,
        version=head.version,
        timestamp_ns=timestamp_in(head, source),
        reader_flags=head.reader_feature_flags,
        writer_flags=head.writer_feature_flags,
        max_fragment_id=head.max_fragment_id if head.HasField("max_fragment_id") else None,
        transaction_file=head.transaction_file,
        writer=writer_from_pb(head.writer_version) if head.HasField("writer_version") else None,
        next_row_id=head.next_row_id,
    )


def _could_be_written(manifest: Manifest, offsets: Offsets, before: Manifest) -> bool:
    """Whether the tail overrides whatever stands before it in the message: else some of that would show through."""
    if offsets.transaction is None or (before.index_section and offsets.index is None):
        return False
    return checked_alike(manifest, before) and added_alone(before, manifest) is not None
