"""A manifest as a value, and the message it is written as.

The message we write has three parts, in this order: what seldom changes (schema, config, bases), the fragments, and a *tail* of what
every commit changes. Protobuf lets fields come in any order and the last scalar wins, so an append is: everything before the tail as it
was, the new fragments, a new tail. The result is byte for byte what encoding the new manifest from scratch would give, and its cost
does not depend on how many fragments there are. ``manifest_file`` wraps the message into a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable, UnsupportedFeature
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import (
    Encodable,
    base_path_from_pb,
    base_path_to_pb,
    data_format_from_pb,
    data_format_to_pb,
    encode_fields,
    field_from_pb,
    field_to_pb,
    index_from_pb,
    index_to_pb,
    parse_sound,
    refuse_misplaced,
    unknown_fields,
    writer_from_pb,
    writer_to_pb,
)
from tiltyard.format.fields import field_tree
from tiltyard.format.flags import WRITABLE, Feature, check_readable, check_writable
from tiltyard.format.fragment_check import check_fragments
from tiltyard.format.fragments import FragmentList, encode_fragment_record
from tiltyard.format.safe_text import check_relative
from tiltyard.format.values import BasePath, DataFormat, DataFragment, Field, IndexMetadata, WriterVersion

NANOS = 1_000_000_000
FORMAT_VERSION: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}", re.ASCII)
MAJOR_VERSION: Final = re.compile(r"([0-9]{1,3})\.[0-9]", re.ASCII)
NEWEST_MAJOR: Final = 2
CHECKED_AT_ONCE: Final = 256
"""Fragments that are checked when their manifest is read, whoever may wait: of so few it costs next to nothing."""
DETACHED: Final = 2**63
"""Versions from here on stand in no order."""
MIN_TIMESTAMP_SECONDS, MAX_TIMESTAMP_SECONDS = -62_135_596_800, 253_402_300_799
"""From the year 1 to the end of 9999: beyond them no calendar type goes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything one version of a table says."""

    version: int
    fields: tuple[Field, ...]
    fragments: FragmentList
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    index_section: bytes = b""
    """The serialized IndexSection; empty when there are no indices. See ``decode_indices``."""
    timestamp_ns: int = 0
    reader_flags: int = 0
    writer_flags: int = 0
    max_fragment_id: int | None = None
    transaction_file: str = ""
    writer: WriterVersion | None = None
    next_row_id: int = 0
    data_format: DataFormat | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    base_paths: tuple[BasePath, ...] = ()
    table_metadata: Mapping[str, str] = field(default_factory=dict)
    branch: str | None = None
    max_allocated_field_id: int | None = None
    version_aux_data: int = 0
    tag: str = ""
    fragment_tree: bytes = b""
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where the other sections of the file begin; None when there is no such section."""

    index: int | None
    transaction: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """A serialized manifest, cut before the tail where it is our own; ``body + tail`` is the message."""

    body: bytes
    tail: bytes
    extendable: bool = True
    """False where the old bytes hold something that a later field cannot override."""

    def joined(self) -> bytes:
        return self.body + self.tail if self.tail else self.body


def decode_manifest(
    message: bytes, source: str, known: tuple[Manifest, Message] | None = None, *, check: bool = True, lazily: bool = False
) -> tuple[Manifest, Offsets, Message]:
    """Reads a manifest message. Fragments are checked but not yet turned into values.

    Args:
        message: the serialized manifest.
        source: its file, for messages.
        known: a manifest read before; fragments that stand in both are not checked again.
        check: whether the fragments are looked at. Where not, the result is good for facts about the version, not to read or build on.
        lazily: whether that may wait, where they are many or go on from those of ``known``, until somebody asks for one, who then gets to
            know what is wrong with them.

    Raises:
        CorruptTable: naming ``source`` and the reason.
        UnsupportedFeature: a reader must know something that we do not; what seems wrong may only be new then.
    """
    try:
        head = pb.ManifestHead.FromString(message)
    except DecodeError as error:
        raise CorruptTable(source, f"the manifest cannot be decoded ({error})") from error
    check_readable(head.reader_feature_flags)
    records = list(head.fragments)
    manifest = Manifest(
        version=head.version,
        fields=tuple(field_from_pb(field, source) for field in head.fields),
        fragments=FragmentList.from_message(message, source, records),
        schema_metadata=dict(head.schema_metadata),
        timestamp_ns=timestamp_in(head, source),
        reader_flags=head.reader_feature_flags,
        writer_flags=head.writer_feature_flags,
        max_fragment_id=head.max_fragment_id if head.HasField("max_fragment_id") else None,
        transaction_file=head.transaction_file,
        writer=writer_from_pb(head.writer_version) if head.HasField("writer_version") else None,
        next_row_id=head.next_row_id,
        data_format=data_format_from_pb(head.data_format) if head.HasField("data_format") else None,
        config=dict(head.config),
        base_paths=tuple(base_path_from_pb(base) for base in head.base_paths),
        table_metadata=dict(head.table_metadata),
        branch=head.branch if head.HasField("branch") else None,
        max_allocated_field_id=head.max_allocated_field_id if head.HasField("max_allocated_field_id") else None,
        version_aux_data=head.version_aux_data,
        tag=head.tag,
        fragment_tree=head.fragment_tree,
        unknown=unknown_fields(head),
    )
    _check_head(manifest, head, source)
    offsets = offsets_in(head)
    if not check:
        return manifest, offsets, Message(message, b"", extendable=False)
    if known is not None and not known[0].fragments.checked:
        known = None
    if lazily and (known is not None or len(records) > CHECKED_AT_ONCE):
        manifest.fragments.check_later(lambda: _check_fragments(manifest, records, message, source, known))
    else:
        _check_fragments(manifest, records, message, source, known)
    return manifest, offsets, _cut_tail(message, manifest, offsets, extendable=not head.HasField("transaction_section_deprecated"))


def _check_head(manifest: Manifest, head: pb.ManifestHead, source: str) -> None:
    """All but the fragments."""
    parts = (manifest, manifest.writer, manifest.data_format, *manifest.base_paths, *manifest.fields)
    if any(part is not None and part.unknown for part in parts) or unknown_fields(head.timestamp):
        refuse_misplaced(head, "the manifest", source)
    field_tree(manifest.fields, source)
    if manifest.transaction_file and "/" in check_relative(manifest.transaction_file, source):
        raise CorruptTable(source, f"its transaction file is called {manifest.transaction_file[:60]!r}")
    if manifest.data_format is not None:
        _check_data_format(manifest.data_format.version, source)
    if len({base.id for base in manifest.base_paths}) != len(manifest.base_paths):
        raise CorruptTable(source, "two base paths share one id")


def _check_data_format(version: str, source: str) -> None:
    newer = MAJOR_VERSION.match(version)
    if newer is not None and int(newer[1]) > NEWEST_MAJOR:
        raise UnsupportedFeature(f"The data files of {source} have the format {version[:40]!r}.", feature=f"data format {version[:40]}")
    if not FORMAT_VERSION.fullmatch(version):
        raise CorruptTable(source, f"its data files have the format {version[:40]!r}")


def _check_fragments(
    manifest: Manifest, records: Sequence[bytes], message: bytes, source: str, known: tuple[Manifest, Message] | None
) -> None:
    added = _added(records, message, known[1]) if known is not None and checked_alike(manifest, known[0]) else None
    if added is not None and known is not None:
        try:
            check_added(manifest, added, source, above=known[0].max_fragment_id or 0)
            return
        except CorruptTable:
            # Or not an append: fragments that were deleted in the one read before stand here still, or again. Look at all of them.
            pass
    # Writers that gave no or wrong counts did not give their name either; see legacy.py.
    counted = manifest.data_format is not None or manifest.writer is not None
    check_added(manifest, records, source, above=-1, counted=counted)


def check_added(manifest: Manifest, added: Sequence[bytes], source: str, *, above: int, counted: bool = True) -> None:
    """Checks fragments of a manifest, apart from those that were before; ids up to ``above`` are theirs.

    Raises:
        CorruptTable: naming what is wrong.
    """
    check_fragments(
        added,
        source,
        above=above,
        highest=manifest.max_fragment_id,
        base_ids=frozenset(base.id for base in manifest.base_paths),
        next_row_id=manifest.next_row_id if _stable_row_ids(manifest) else None,
        version=manifest.version if manifest.version < DETACHED else None,
        counted=counted,
    )


def _added(records: Sequence[bytes], message: bytes, old: Message) -> Sequence[bytes] | None:
    """The fragments after those of a message read before; None if these do not begin with those."""
    if old.tail and message.startswith(old.body):  # an append of ours: the old fragments stand where they stood
        return pb.ManifestHead.FromString(message[len(old.body) :]).fragments
    before = pb.ManifestHead.FromString(old.body).fragments  # others write what is around them anew
    return records[len(before) :] if records[: len(before)] == list(before) else None


def checked_alike(manifest: Manifest, before: Manifest) -> bool:
    """Whether all that the fragments of one read before were checked against holds as it did then."""
    return (
        before.base_paths == manifest.base_paths
        and before.max_fragment_id is not None
        and manifest.max_fragment_id is not None
        and before.max_fragment_id <= manifest.max_fragment_id
        and before.next_row_id <= manifest.next_row_id
        and before.version <= manifest.version
        and _stable_row_ids(before) == _stable_row_ids(manifest)
    )


def _stable_row_ids(manifest: Manifest) -> bool:
    return bool((manifest.reader_flags | manifest.writer_flags) & Feature.STABLE_ROW_IDS)


def timestamp_in(head: pb.ManifestHead, source: str) -> int:
    stamp = head.timestamp
    if not MIN_TIMESTAMP_SECONDS <= stamp.seconds <= MAX_TIMESTAMP_SECONDS or not 0 <= stamp.nanos < NANOS:
        raise CorruptTable(source, "its time stamp is out of range")
    return stamp.seconds * NANOS + stamp.nanos


def offsets_in(head: pb.ManifestHead) -> Offsets:
    transaction = None
    if head.HasField("transaction_section"):
        transaction = head.transaction_section
    elif head.HasField("transaction_section_deprecated"):
        transaction = head.transaction_section_deprecated
    return Offsets(head.index_section if head.HasField("index_section") else None, transaction)


def encode_manifest(manifest: Manifest, offsets: Offsets) -> Message:
    """The message from scratch."""
    return Message(_encode_static(manifest) + manifest.fragments.wire(), encode_tail(manifest, offsets))


def extend_message(old: Message, added: Sequence[DataFragment], manifest: Manifest, offsets: Offsets) -> Message:
    """The message of ``manifest``, which is the old one with ``added`` at the end and another tail."""
    body = b"".join([old.body, *(encode_fragment_record(fragment) for fragment in added)])
    return Message(body, encode_tail(manifest, offsets))


def _cut_tail(message: bytes, manifest: Manifest, offsets: Offsets, *, extendable: bool) -> Message:
    """Splits off the tail if the message ends in exactly the one we would have written.

    What remains must be whole by itself: the same bytes could stand at the end of some string.
    """
    tail = encode_tail(manifest, offsets)
    if message.endswith(tail):
        body = message[: -len(tail)]
        try:
            pb.Marker.FromString(body)  # knows no member, so it only counts their lengths
        except DecodeError:
            return Message(message, b"", extendable)
        return Message(body, tail, extendable)
    return Message(message, b"", extendable)


STATIC = (
    "fields",
    "schema_metadata",
    "data_format",
    "config",
    "base_paths",
    "table_metadata",
    "branch",
    "max_allocated_field_id",
    "version_aux_data",
    "tag",
    "fragment_tree",
    "unknown",
)
"""What a splice cannot change."""


def added_alone(old: Manifest, new: Manifest) -> Sequence[DataFragment] | None:
    """The fragments by which ``new`` differs from ``old``, if it differs by nothing else but what the tail says; None otherwise."""
    added = () if new.fragments is old.fragments else new.fragments.extension_of(old.fragments)
    if added is None:
        return None
    writer = old.writer
    if writer is not None and (writer.prerelease is not None or writer.build_metadata is not None or writer.unknown):
        return None  # sub-messages merge: what the old writer said and we do not would linger
    if writer is not None and (new.writer is None or not new.writer.library or not new.writer.version):
        return None
    if (old.index_section and not new.index_section) or (old.max_fragment_id is not None and new.max_fragment_id is None):
        return None  # an optional field can be replaced but not taken back
    return added if all(getattr(new, name) is getattr(old, name) or getattr(new, name) == getattr(old, name) for name in STATIC) else None


def _encode_static(manifest: Manifest) -> bytes:
    head = pb.ManifestHead(
        fields=[field_to_pb(field) for field in manifest.fields],
        version_aux_data=manifest.version_aux_data,
        schema_metadata=manifest.schema_metadata,
        tag=manifest.tag,
        data_format=data_format_to_pb(manifest.data_format) if manifest.data_format else None,
        config=manifest.config,
        base_paths=[base_path_to_pb(base) for base in manifest.base_paths],
        table_metadata=manifest.table_metadata,
        branch=manifest.branch,
        fragment_tree=manifest.fragment_tree,
        max_allocated_field_id=manifest.max_allocated_field_id,
    )
    return head.SerializeToString(deterministic=True) + manifest.unknown


def encode_tail(manifest: Manifest, offsets: Offsets) -> bytes:
    """What every commit changes. Zeros are written too: a spliced message must override what stands before it."""
    seconds, nanos = divmod(manifest.timestamp_ns, NANOS)
    fields: list[tuple[int, Encodable]] = [
        (3, manifest.version),
        (7, [(1, seconds % 2**64), (2, nanos)]),
        (9, manifest.reader_flags),
        (10, manifest.writer_flags),
        (12, manifest.transaction_file.encode()),
        (14, manifest.next_row_id),
    ]
    if manifest.max_fragment_id is not None:
        fields.append((11, manifest.max_fragment_id))
    if manifest.writer is not None:
        fields.append((13, _writer_record(manifest.writer)))
    if offsets.index is not None:
        fields.append((6, offsets.index))
    if offsets.transaction is not None:
        fields.append((23, offsets.transaction))
    return encode_fields(fields)


@lru_cache(maxsize=16)
def _writer_record(writer: WriterVersion) -> bytes:
    """A writer's name and version as bytes; every version of a table says it, most often the same."""
    return writer_to_pb(writer).SerializeToString(deterministic=True)


def decode_indices(manifest: Manifest, source: str) -> tuple[IndexMetadata, ...]:
    """The index entries of a manifest."""
    parse_sound(pb.IndexSection, manifest.index_section, "the index section", source)
    return tuple(index_from_pb(index, source) for index in pb.IndexSection.FromString(manifest.index_section).indices)


def encode_indices(indices: tuple[IndexMetadata, ...]) -> bytes:
    return pb.IndexSection(indices=[index_to_pb(index) for index in indices]).SerializeToString(deterministic=True)


# ---- tables of the oldest writers ----------------------------------------------------------------------------------------------
# Before a manifest said which data format it has. Read in full, never written by us: what stands in their manifests cannot be
# rebased. Lance 0.7 wrote no row counts at all and 0.8 some that are wrong, beside no word of who wrote them; and the values of
# dictionary columns lie in the manifest's own file, by absolute offset. A version that we made would count wrongly or be unreadable.
# One commit by pylance brings counts up to date.


def is_legacy(manifest: Manifest) -> bool:
    """Whether its data files are of the first format; before there was a second one, manifests did not say."""
    return manifest.data_format is None or manifest.data_format.version.startswith("0.")


def has_sure_counts(manifest: Manifest) -> bool:
    """Whether the numbers of rows in it can be relied on: writers that gave wrong ones did not give their name either."""
    return manifest.data_format is not None or manifest.writer is not None


def check_buildable(manifest: Manifest) -> None:
    """Refuses to build on a version that our commit could break, or of which something would be lost.

    Raises:
        UnsupportedFeature: naming what.
    """
    if (manifest.reader_flags | manifest.writer_flags) & ~WRITABLE:
        check_writable(manifest.reader_flags, manifest.writer_flags)
    if not is_legacy(manifest):
        return
    if not has_sure_counts(manifest) and len(manifest.fragments):
        raise UnsupportedFeature(
            "A writer of the first releases of Lance made this version, and its row counts are missing or wrong.",
            feature="row counts of lance 0.8 and before",
            writing=True,
            advice="Commit once with pylance, which counts the rows again, or copy the table into a newer format.",
        )
    for column in manifest.fields:
        if column.dictionary is not None and column.dictionary[1]:
            raise UnsupportedFeature(
                f"The values of dictionary column {column.name} are in the manifest, where a new version cannot keep them.",
                feature="dictionaries of the first data format",
                writing=True,
                advice="Write with pylance, or copy the table into a newer format.",
            )
