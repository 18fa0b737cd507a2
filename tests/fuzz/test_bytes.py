"""Real metadata files with damaged bytes: refused as ``CorruptTable`` that names the file, or sound; never anything else.

Each run is the same: inputs are derived from the test's name. All of them are read under a bound on memory; one that would hang meets
the time limit of the test. Together with ``test_members`` these are more than 20,000 inputs.

A manifest has no checksum, so damage that leaves a manifest other writers could have written is accepted. ``test_tables`` shows what
becomes of the rows then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import Corpus
from tests.support.hostile import read_or_refuse
from tests.support.limits import memory_limit
from tests.support.mutations import damaged, quiet
from tests.support.soundness import assert_sound, assert_written_back
from tiltyard.format.deletions import decode_deletions, encode_deletions
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import decode_hint, encode_hint
from tiltyard.format.refs import decode_branch, decode_tag, encode_branch, encode_tag
from tiltyard.format.row_ids import decode_row_ids, decode_row_versions, encode_row_ids, encode_row_versions
from tiltyard.transaction.transaction import Transaction

SOURCE = "_versions/5.manifest"
MEMORY = 200 * 2**20


def run_on_damaged(originals: list[bytes], examples: int, check: Callable[[int, bytes], Any]) -> int:
    """Calls ``check`` with the place of a file and its damaged bytes; returns how many came to a value and not to a refusal."""
    calls = accepted = 0

    @quiet(examples)
    @given(damaged(originals))
    def run(mutant: tuple[int, bytes]) -> None:
        nonlocal calls, accepted
        calls += 1
        accepted += check(*mutant) is not None

    with memory_limit(MEMORY):
        run()
    assert calls >= examples
    return accepted


def test_the_corpus_is_sound_and_has_every_kind_of_file(corpus: Corpus) -> None:
    for data, version in corpus.manifests:
        file = decode_manifest_file(data, source=SOURCE, version=version)
        assert_sound(file, version)
        assert_written_back(file)
    assert len(corpus.manifests) > 60
    assert len(corpus.transactions) > 60
    assert {deletion.bitmap for deletion in corpus.deletions} == {True, False}
    assert min(len(corpus.row_ids), len(corpus.row_versions)) > 10
    assert min(len(corpus.tags), len(corpus.branches), len(corpus.hints)) >= 2


@pytest.mark.parametrize("part", range(3))
def test_manifests(corpus: Corpus, part: int) -> None:
    files = corpus.manifests[part::3]

    def check(which: int, data: bytes) -> Any:
        version = files[which][1]
        file = read_or_refuse(lambda: decode_manifest_file(data, source=SOURCE, version=version), SOURCE)
        glance = read_or_refuse(lambda: decode_manifest_file(data, source=SOURCE, version=version, check=False), SOURCE)
        assert glance is not None or file is None, "a glance sees less, not more"
        if glance is not None:
            read_or_refuse(glance.manifest.fragments.live_rows, SOURCE)
        if file is not None:
            assert_sound(file, version)
            assert_written_back(file)
        return file

    accepted = run_on_damaged([data for data, _ in files], 2500, check)
    assert accepted  # some damage must be harmless, or the test looks at nothing but refusals


def test_manifests_read_after_a_sound_version(corpus: Corpus) -> None:
    """What is known of an earlier version must not make a later one pass that would be refused by itself."""
    known = [decode_manifest_file(data, source="known") for data, _ in corpus.manifests]

    def check(which: int, data: bytes) -> Any:
        fresh = read_or_refuse(lambda: decode_manifest_file(data, source=SOURCE), SOURCE)
        file = read_or_refuse(lambda: decode_manifest_file(data, source=SOURCE, known=known[which]), SOURCE)
        assert (fresh is None) == (file is None)
        if fresh is not None and file is not None:
            assert file.manifest == fresh.manifest
        return file

    assert run_on_damaged([data for data, _ in corpus.manifests], 2000, check)


def test_transactions(corpus: Corpus) -> None:
    def check(which: int, data: bytes) -> Any:
        transaction = read_or_refuse(lambda: Transaction.from_bytes(data, SOURCE), SOURCE)
        if transaction is not None:
            assert Transaction.from_bytes(transaction.to_bytes(), "again") == transaction
        return transaction

    assert run_on_damaged(corpus.transactions, 5000, check)


def test_deletion_files(corpus: Corpus) -> None:
    files = corpus.deletions[:40]

    def check(which: int, data: bytes) -> Any:
        file = files[which]
        deleted = read_or_refuse(
            lambda: decode_deletions(data, bitmap=file.bitmap, physical_rows=file.rows, expected_count=file.count, source=SOURCE), SOURCE
        )
        if deleted is not None:
            assert len(deleted) == file.count
            assert not deleted or deleted.max() < file.rows
            bitmap, again = encode_deletions(deleted)
            assert deleted == decode_deletions(again, bitmap=bitmap, physical_rows=file.rows, expected_count=file.count, source="again")
        return deleted

    assert run_on_damaged([file.data for file in files], 2500, check)


def test_row_ids(corpus: Corpus) -> None:
    def check(which: int, data: bytes) -> Any:
        rows = corpus.row_ids[which][1]
        ids = read_or_refuse(lambda: decode_row_ids(data, physical_rows=rows, source=SOURCE), SOURCE)
        if ids is not None:
            values = ids.to_numpy()
            assert len(values) == rows
            assert ids.highest() == int(values.max())
            assert (decode_row_ids(encode_row_ids(ids), physical_rows=rows, source="again").to_numpy() == values).all()
        return ids

    assert run_on_damaged([data for data, _ in corpus.row_ids], 1500, check)


def test_row_versions(corpus: Corpus) -> None:
    def check(which: int, data: bytes) -> Any:
        rows = corpus.row_versions[which][1]
        versions = read_or_refuse(lambda: decode_row_versions(data, physical_rows=rows, source=SOURCE), SOURCE)
        if versions is not None:
            assert len(versions.to_numpy()) == rows
            assert decode_row_versions(encode_row_versions(versions), physical_rows=rows, source="again") == versions
        return versions

    assert run_on_damaged([data for data, _ in corpus.row_versions], 1000, check)


def test_tags_and_branches(corpus: Corpus) -> None:
    def check_tag(which: int, data: bytes) -> Any:
        tag = read_or_refuse(lambda: decode_tag(data, SOURCE), SOURCE)
        if tag is not None:
            assert decode_tag(encode_tag(tag), "again") == tag
        return tag

    def check_branch(which: int, data: bytes) -> Any:
        branch = read_or_refuse(lambda: decode_branch(data, SOURCE), SOURCE)
        if branch is not None:
            assert decode_branch(encode_branch(branch), "again") == branch
        return branch

    assert run_on_damaged(corpus.tags, 750, check_tag)
    assert run_on_damaged(corpus.branches, 750, check_branch)


def test_hints(corpus: Corpus) -> None:
    """A hint is advice: garbage is no error, it only says nothing."""

    def check(which: int, data: bytes) -> Any:
        version = decode_hint(data)
        assert version is None or decode_hint(encode_hint(version)) == version
        return version

    assert run_on_damaged(corpus.hints, 500, check)


@quiet(500)
@given(st.binary(max_size=200))
def test_bytes_that_never_were_a_file(data: bytes) -> None:
    assert read_or_refuse(lambda: decode_manifest_file(data, source=SOURCE), SOURCE) is None
    read_or_refuse(lambda: Transaction.from_bytes(data, SOURCE), SOURCE)
    for bitmap in (False, True):
        read_or_refuse(lambda: decode_deletions(data, bitmap=bitmap, physical_rows=9, expected_count=1, source=SOURCE), SOURCE)  # noqa: B023
