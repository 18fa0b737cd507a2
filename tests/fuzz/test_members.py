"""Real manifests in which one member says something it must not: well-formed bytes, hostile content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import Corpus, message_of, with_message
from tests.support.hostile import read_or_refuse
from tests.support.limits import memory_limit
from tests.support.mutations import EXTREMES, quiet
from tests.support.proving import pick
from tests.support.soundness import assert_sound, assert_written_back
from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.manifest_file import decode_manifest_file

SOURCE = "_versions/5.manifest"
MEMORY = 200 * 2**20
EXAMPLES = pick(800, 4000)

Edit = Callable[[pb.Manifest], object]


def _first(message: pb.Manifest) -> pb.DataFragment:
    return message.fragments[0]


def _file(message: pb.Manifest) -> pb.DataFile:
    return message.fragments[0].files[0]


def _path(path: str) -> Edit:
    return lambda message: setattr(_file(message), "path", path)


def _twice(message: pb.Manifest) -> None:
    message.fragments.add().CopyFrom(message.fragments[0])


def _highest_below(message: pb.Manifest) -> None:
    _first(message).id = 5
    message.max_fragment_id = 4


def _another_column(message: pb.Manifest) -> None:
    _file(message).file_major_version = 2
    _file(message).column_indices.append(99)


def _another_field(message: pb.Manifest) -> None:
    _file(message).file_major_version = 2
    _file(message).fields.append(99)


def _cycle(message: pb.Manifest) -> None:
    message.fields[0].parent_id = message.fields[0].id


def _later_parent(message: pb.Manifest) -> None:
    message.fields.add(name="late", id=9000, parent_id=9001, logical_type="int64")
    message.fields.add(name="parent", id=9001, parent_id=-1, logical_type="struct")


def _hide_more(message: pb.Manifest) -> None:
    _first(message).deletion_file.num_deleted_rows = _first(message).physical_rows + 1


def _two_bases(message: pb.Manifest) -> None:
    message.base_paths.add(id=7, path="/a")
    message.base_paths.add(id=7, path="/b")


def _one_column_twice(message: pb.Manifest) -> None:
    file = _file(message)
    del file.fields[:], file.column_indices[:]
    file.fields.extend([0, 1])
    file.column_indices.extend([0, 0])


def _one_field_twice(message: pb.Manifest) -> None:
    _first(message).files.add().CopyFrom(_file(message))


def _row_ids_of_nobody(message: pb.Manifest) -> None:
    message.reader_feature_flags |= 2
    message.writer_feature_flags |= 2
    _first(message).inline_row_ids = b""


def _row_ids_beyond_the_next(message: pb.Manifest) -> None:
    message.reader_feature_flags |= 2
    message.writer_feature_flags |= 2
    message.next_row_id = 10
    for fragment in message.fragments:
        span = pb.U64Segment.Range(start=10, end=10 + fragment.physical_rows)
        fragment.inline_row_ids = pb.RowIdSequence(segments=[pb.U64Segment(range=span)]).SerializeToString()


def _row_versions(rows: int, version: int) -> Edit:
    def edit(message: pb.Manifest) -> None:
        first = _first(message)
        span = pb.U64Segment(range=pb.U64Segment.Range(start=0, end=first.physical_rows + rows))
        runs = [pb.RowDatasetVersionRun(span=span, version=message.version + version)]
        first.inline_created_at_versions = pb.RowDatasetVersionSequence(runs=runs).SerializeToString()

    return edit


MUST_BE_REFUSED: Final[dict[str, Edit]] = {
    "a fragment stands twice": _twice,
    "an id above the highest": lambda m: setattr(_first(m), "id", m.max_fragment_id + 1),
    "an id of 33 bits": lambda m: setattr(_first(m), "id", 2**32),
    "highest id below the others": _highest_below,
    "2**60 rows": lambda m: setattr(_first(m), "physical_rows", 2**60),
    "no rows": lambda m: setattr(_first(m), "physical_rows", 0),
    "more deleted than there are": _hide_more,
    "a huge number of deleted rows": lambda m: setattr(_first(m).deletion_file, "num_deleted_rows", 2**63),
    "deletions in a file of no known type": lambda m: setattr(_first(m).deletion_file, "file_type", 9),
    "deletions in an unknown base": lambda m: setattr(_first(m).deletion_file, "base_id", 77),
    "a path upwards": _path("../../x.lance"),
    "a path down and up": _path("a/../../b.lance"),
    "an absolute path": _path("/etc/passwd"),
    "a path with NUL": _path("a\0.lance"),
    "a path with a newline": _path("a\n.lance"),
    "a path with a backslash": _path("..\\..\\x"),
    "a path in disguise": _path("%2e%2e/x.lance"),
    "a URI": _path("s3://bucket/x.lance"),
    "an empty path": _path(""),
    "a dot": _path("."),
    "a path of 5000 letters": _path("a" * 5000),
    "an unknown base": lambda m: setattr(_file(m), "base_id", 77),
    "two bases of one id": _two_bases,
    "more columns than fields": _another_column,
    "more fields than columns": _another_field,
    "one column for two fields": _one_column_twice,
    "one field in two files": _one_field_twice,
    "a retired member": lambda m: setattr(_first(m).external_row_ids, "path", "x"),
    "a time beyond the calendar": lambda m: setattr(m.timestamp, "seconds", 2**62),
    "a time before the calendar": lambda m: setattr(m.timestamp, "seconds", -(10**11)),
    "a second and more of nanoseconds": lambda m: setattr(m.timestamp, "nanos", 10**9),
    "negative nanoseconds": lambda m: setattr(m.timestamp, "nanos", -1),
    "a field that is its own parent": _cycle,
    "a parent that comes later": _later_parent,
    "a parent that is not there": lambda m: setattr(m.fields[0], "parent_id", 4711),
    "a field id used twice": lambda m: m.fields.add(name="x", id=m.fields[0].id, parent_id=-1, logical_type="int64"),
    "a negative field id": lambda m: setattr(m.fields[0], "id", -2),
    "a field without a type": lambda m: setattr(m.fields[0], "logical_type", ""),
    "another version": lambda m: setattr(m, "version", m.version + 1),
    "a transaction file elsewhere": lambda m: setattr(m, "transaction_file", "../../x.txn"),
    "a transaction file below": lambda m: setattr(m, "transaction_file", "a/x.txn"),
    "a transaction file with NUL": lambda m: setattr(m, "transaction_file", "a\0.txn"),
    "a data format that is none": lambda m: setattr(m.data_format, "version", "two"),
    "a transaction offset beyond the file": lambda m: setattr(m, "transaction_section", 2**40),
    "a transaction offset at the manifest": lambda m: setattr(m, "transaction_section", 2**63 - 1),
    "an index offset beyond the file": lambda m: setattr(m, "index_section", 2**40),
    "an index section in the transaction": lambda m: setattr(m, "index_section", 0),
    "no row ids where there must be some": _row_ids_of_nobody,
    "row ids not yet given out": _row_ids_beyond_the_next,
    "row versions for more rows than there are": _row_versions(1, 0),
    "row versions for fewer rows than there are": _row_versions(-1, 0),
    "rows from a later version": _row_versions(0, 1),
    "row versions that are garbage": lambda m: setattr(_first(m), "inline_last_updated_at_versions", b"\xff"),
}


def _with_inline_transaction(corpus: Corpus) -> list[tuple[bytes, int]]:
    """Manifests of the usual make: some fragments, transaction first, no indices."""
    found = [(data, version) for data, version in corpus.manifests if message_of(data).fragments and not message_of(data).base_paths]
    return [(data, version) for data, version in found if not message_of(data).HasField("index_section")]


@pytest.mark.parametrize("what", MUST_BE_REFUSED)
def test_what_must_be_refused(corpus: Corpus, what: str) -> None:
    files = _with_inline_transaction(corpus)
    assert files
    for data, version in files:
        message = message_of(data)
        MUST_BE_REFUSED[what](message)
        hostile = with_message(data, message.SerializeToString(deterministic=True))
        with memory_limit(MEMORY), pytest.raises(CorruptTable) as caught:
            decode_manifest_file(hostile, source=SOURCE, version=version)
        assert caught.value.file == SOURCE
        assert len(str(caught.value)) < 300


def test_a_fragment_cannot_vanish_by_a_flipped_bit(corpus: Corpus) -> None:
    """A member in a wire type that is not its own would be skipped as unknown, and its rows with it."""
    seen = 0
    for data, version in _with_inline_transaction(corpus):
        whole = message_of(data)
        record = whole.fragments[0].SerializeToString(deterministic=True)
        message = whole.SerializeToString(deterministic=True)
        at = message.index(record) - (1 if len(record) < 128 else 2) - 1
        assert message[at] == 0x12
        for bit in range(8):
            flipped = message[:at] + bytes([0x12 ^ 1 << bit]) + message[at + 1 :]
            hostile = with_message(data, flipped)
            file = read_or_refuse(lambda: decode_manifest_file(hostile, source=SOURCE, version=version), SOURCE)  # noqa: B023
            assert file is None or len(file.manifest.fragments) >= len(whole.fragments)
            seen += 1
    assert seen > 100


_LEAVES: Final = tuple(
    (kind, field)
    for kind in (pb.Manifest, pb.Field, pb.DataFragment, pb.DataFile, pb.DeletionFile, pb.BasePath, pb.WriterVersion, pb.DataStorageFormat)
    for field in kind.DESCRIPTOR.fields
    if field.message_type is None
)
_TEXTS: Final = ("", "x", "..", "/", "../../x", "/etc/passwd", "a/../../b", "a\0b", "é" * 3000, "int64", "struct", "list", "2.2", "main")


def _instances(message: Any, kind: Any) -> list[Any]:
    """All messages of a kind inside a manifest."""
    found = [message] if isinstance(message, kind) else []
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                found += _instances(part, kind)
    return found


def _set(target: Any, field: Any, number: int, text: str) -> None:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        value: Any = text.encode() if field.type == field.TYPE_BYTES else text
    elif kind == field.CPPTYPE_BOOL:
        value = bool(number & 1)
    elif kind in (field.CPPTYPE_INT32, field.CPPTYPE_ENUM):
        value = number % 2**32 - (2**32 if number % 2**32 >= 2**31 else 0)
    else:
        value = number % 2**32 if kind == field.CPPTYPE_UINT32 else number % 2**64
    repeated = getattr(target, field.name)
    if hasattr(repeated, "append"):
        repeated.append(value)
    else:
        setattr(target, field.name, value)


def test_any_member_set_to_anything(corpus: Corpus) -> None:
    files = [(data, version) for data, version in corpus.manifests if len(data) < 10_000]
    messages = [message_of(data) for data, _ in files]
    numbers = st.sampled_from(EXTREMES) | st.integers(0, 300)
    edits = st.lists(st.tuples(st.sampled_from(_LEAVES), st.integers(0, 50), numbers, st.sampled_from(_TEXTS)), min_size=1, max_size=2)
    calls = accepted = 0

    @quiet(EXAMPLES)
    @given(st.integers(0, len(files) - 1), edits)
    def run(which: int, changes: list[tuple[tuple[Any, Any], int, int, str]]) -> None:
        nonlocal calls, accepted
        calls += 1
        message = pb.Manifest()
        message.CopyFrom(messages[which])
        for (kind, field), place, number, text in changes:
            targets = _instances(message, kind)
            if targets:
                _set(targets[place % len(targets)], field, number, text)
        data, version = files[which]
        hostile = with_message(data, message.SerializeToString(deterministic=True))
        file = read_or_refuse(lambda: decode_manifest_file(hostile, source=SOURCE, version=version), SOURCE)
        if file is not None:
            accepted += 1
            assert_sound(file, version)
            assert_written_back(file)

    with memory_limit(MEMORY):
        run()
    assert calls >= EXAMPLES
    assert 0 < accepted < calls
