"""Deletion vectors where they lie: below the table's root, in a base, or nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyroaring import BitMap

from tests.support.manifests import deletions, part
from tiltyard.errors import CorruptTable, NotFound, UnsupportedFeature
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore, SeededRandomness
from tiltyard.transaction.deletion_vectors import MAX_FILE_ID, DeletionVectors, all_rows

ROOT = BasePath(3, "memory://root", is_dataset_root=True)
PLAIN = BasePath(4, "memory://plain")


def _written(store: MemoryStore, *rows: int) -> DataFragment:
    return replace(part(5), deletion_file=DeletionVectors(store, SeededRandomness(1)).write(part(5), BitMap(rows), 7))


def test_what_was_written_is_read_once() -> None:
    store = MemoryStore()
    fragment = _written(store, 1, 4)
    file = fragment.deletion_file
    assert file is not None
    assert (file.read_version, file.deleted_rows, file.base_id) == (7, 2, None)
    assert 0 <= file.id < MAX_FILE_ID
    counting = CountingStore(store)
    vectors = DeletionVectors(counting, SeededRandomness(2))
    assert list(vectors.of(fragment)) == list(vectors.of(fragment)) == [1, 4]
    assert counting.calls["get"] == 1
    assert not vectors.of(part(5))
    own = DeletionVectors(counting, SeededRandomness(3))
    made = replace(part(6), deletion_file=own.write(part(6), BitMap([2]), 7))
    assert list(own.of(made)) == [2]
    assert counting.calls["get"] == 1, "what we wrote we know"


def test_two_files_do_not_get_one_name() -> None:
    store = MemoryStore()
    vectors = DeletionVectors(store, SeededRandomness(1))
    for row in range(5):
        vectors.write(part(5), BitMap([row]), 7)
    assert len(list(store.names("_deletions/"))) == 5


@pytest.mark.parametrize(("base", "moved"), [(ROOT, ""), (PLAIN, "_deletions/")], ids=["a table", "a plain directory"])
def test_a_file_in_a_base(base: BasePath, moved: str) -> None:
    """In a base that is the root of a table the file lies in its usual directory, otherwise right in the base."""
    origin, other = MemoryStore(), MemoryStore()
    fragment = _written(origin, 1, 4)
    assert fragment.deletion_file is not None
    path = fragment.deletion_file.path(5)
    other.put(path.removeprefix(moved), origin.get(path))
    there = replace(fragment, deletion_file=replace(fragment.deletion_file, base_id=base.id))
    asked = []

    def open_base(wanted: BasePath) -> MemoryStore:
        asked.append(wanted)
        return other

    vectors = DeletionVectors(MemoryStore(), SeededRandomness(2), open_base)
    assert list(vectors.of(there, (ROOT, PLAIN))) == [1, 4]
    assert asked == [base]
    assert list(DeletionVectors(origin, SeededRandomness(2)).of(fragment, (ROOT, PLAIN))) == [1, 4], "the table's own files are its own"


def test_bases_that_are_not_there_or_that_nobody_can_open() -> None:
    fragment = replace(part(5), deletion_file=replace(deletions(2), base_id=4))
    vectors = DeletionVectors(MemoryStore(), SeededRandomness(1))
    with pytest.raises(UnsupportedFeature, match="which the table does not have"):
        vectors.of(fragment, (ROOT,))
    with pytest.raises(UnsupportedFeature, match="base 4, which cannot be opened here"):
        vectors.of(fragment, (ROOT, PLAIN))


def test_files_that_are_missing_or_say_something_else() -> None:
    store = MemoryStore()
    fragment = _written(store, 1, 4)
    assert fragment.deletion_file is not None
    vectors = DeletionVectors(store, SeededRandomness(2))
    with pytest.raises(CorruptTable):
        vectors.of(replace(fragment, deletion_file=replace(fragment.deletion_file, deleted_rows=3)))
    with pytest.raises(CorruptTable):
        vectors.of(replace(fragment, physical_rows=3))
    with pytest.raises(NotFound):
        vectors.of(replace(fragment, id=6))


def test_all_rows() -> None:
    assert list(all_rows(part(0, 3))) == [0, 1, 2]
    assert not all_rows(part(0, 0))
