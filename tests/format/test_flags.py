"""Feature flags: which are refused, which contradict each other, and which stock writers set."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stock import stock_manifest
from tiltyard.errors import CorruptTable, UnsupportedFeature
from tiltyard.format.flags import (
    READABLE,
    SUPPORT,
    WRITABLE,
    Feature,
    check_consistent,
    check_readable,
    check_writable,
    compute_flags,
    describe,
)

UNREADABLE = [64, 512, 4096, 8192, *(1 << bit for bit in range(16, 64))]
READ_ONLY = [1024, 16384]
words = st.integers(0, 2**64 - 1) | st.integers(0, 63) | st.sampled_from(Feature).map(int)


def test_every_known_feature_is_decided() -> None:
    assert set(SUPPORT) == set(Feature)
    assert all(support.why for support in SUPPORT.values())
    assert all(support.read for support in SUPPORT.values() if support.write)


@pytest.mark.parametrize("bit", UNREADABLE)
def test_what_we_cannot_read(bit: int) -> None:
    for flags in (bit, bit | 3):
        with pytest.raises(UnsupportedFeature) as caught:
            check_readable(flags)
        assert caught.value.bits == (bit,)
        assert not caught.value.writing
        assert str(bit) in str(caught.value)
    with pytest.raises(UnsupportedFeature):
        check_writable(bit, 0)


@pytest.mark.parametrize("bit", UNREADABLE + READ_ONLY)
def test_what_we_cannot_write(bit: int) -> None:
    for words in ((bit, 0), (0, bit), (bit | 1, bit | 1)):
        with pytest.raises(UnsupportedFeature) as caught:
            check_writable(*words)
        assert caught.value.bits == (bit,)
        assert caught.value.writing


def test_what_we_can() -> None:
    check_readable(READABLE)
    check_writable(WRITABLE, WRITABLE)
    assert sum([1, 2, 4, 8, 16, 32, 128, 256, 1024, 2048, 16384, 32768]) == READABLE
    assert READABLE & ~WRITABLE == 1024 | 16384


def test_names() -> None:
    assert describe(64 | 1 << 17) == "data overlays (64), bit 17 (131072)"
    assert describe(0) == "none"


@pytest.mark.parametrize("bit", [256, 1024, 16384])
def test_bits_that_belong_in_both_words(bit: int) -> None:
    check_consistent(bit, bit, max_allocated_field_id=None, source="m")
    for words in ((bit, 0), (0, bit)):
        with pytest.raises(CorruptTable, match="one word only"):
            check_consistent(*words, max_allocated_field_id=None, source="m")


def test_field_ids_that_are_not_used_again() -> None:
    check_consistent(0, 32768, max_allocated_field_id=7, source="m")
    check_writable(0, 32768)
    check_writable(3, 3, new_fields=True)
    with pytest.raises(UnsupportedFeature) as caught:
        check_writable(0, 32768, new_fields=True)
    assert caught.value.bits == (32768,)
    with pytest.raises(CorruptTable, match="without the highest field id"):
        check_consistent(0, 32768, max_allocated_field_id=None, source="m")
    with pytest.raises(CorruptTable, match="for readers"):
        check_consistent(32768, 32768, max_allocated_field_id=7, source="m")


@given(words, words)
def test_any_words_are_accepted_or_refused_by_name(reader: int, writer: int) -> None:
    refused = (reader | writer) & ~WRITABLE
    if not refused:
        check_writable(reader, writer)
        return
    with pytest.raises(UnsupportedFeature) as caught:
        check_writable(reader, writer)
    assert sum(caught.value.bits) == refused
    assert len(str(caught.value)) < 300


STABLE = int(Feature.STABLE_ROW_IDS)


def test_words_of_stock_writers(tmp_path: Path) -> None:
    root = tmp_path / "t"
    dataset = lance.write_dataset(pa.table({"a": range(10)}), root, enable_stable_row_ids=True)
    dataset.update_config({"k": "v"})
    dataset.delete("a = 1")
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    dataset.delete_config_keys(["k"])
    seen = []
    for version in range(1, dataset.version + 1):
        manifest = stock_manifest(root, version)
        words = (manifest.reader_feature_flags, manifest.writer_feature_flags)
        assert words == compute_flags(
            has_deletions=any(fragment.HasField("deletion_file") for fragment in manifest.fragments),
            has_config=bool(manifest.config),
            old_reader=STABLE,
            old_writer=STABLE,
        )
        seen.append(words)
    assert seen[:3] == [(2, 2), (2, 10), (3, 11)]
    assert seen[-1] == (2, 2)
    clone = dataset.shallow_clone(str(tmp_path / "c"), dataset.version)
    manifest = stock_manifest(tmp_path / "c", clone.version)
    assert (manifest.reader_feature_flags, manifest.writer_feature_flags) == compute_flags(
        has_bases=True, old_reader=STABLE, old_writer=STABLE
    )


def test_what_stays_and_what_goes() -> None:
    sticky = 2 | 256 | 1024 | 16384
    assert compute_flags(old_reader=sticky | 1 | 4 | 16, old_writer=sticky | 1 | 4 | 16 | 8 | 32) == (sticky, sticky | 32)
    assert compute_flags(spilled_lineage=True, covering_indices=True) == (2048 | 128, 2048 | 128)
    assert compute_flags(max_allocated_field_id=0) == (0, 32768)
