"""Names of versions and transactions, and the hint."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import damaged
from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format.names import (
    HINT_PATH,
    Scheme,
    VersionName,
    all_versions,
    decode_hint,
    detached_name,
    encode_hint,
    latest_version,
    manifest_name,
    migration_plan,
    parse_manifest_name,
    parse_transaction_name,
)

NOISE = [
    "latest_version_hint.json",
    "foo.manifest",
    ".manifest",
    "manifest",
    "tmp.abc",
    ".tmp_5.manifest_1234",
    "18446744073709551600.manifest.tmp",
    "18446744073709551600.manifest#1",
    "99999999999999999999.manifest",  # beyond 64 bits
    "00000000000000000001.manifest",  # would be a version only detached ones may have
    "07.manifest",
    "+7.manifest",
    "-7.manifest",
    " 7.manifest",
    "٧.manifest",
    "7.MANIFEST",
    "7.manifest\n",
    "d5.manifest",
    "dd9223372036854775808.manifest",
    "d09223372036854775808.manifest",
    "99999999999999999999999999999999.manifest",
    "",
]

versions = st.integers(0, 2**63 - 1)
v1_versions = st.integers(0, 10**18)


def test_known_names() -> None:
    assert manifest_name(1) == "18446744073709551614.manifest"
    assert manifest_name(1, Scheme.V1) == "1.manifest"
    assert detached_name(1 << 63) == "d9223372036854775808.manifest"
    assert manifest_name(2**63 - 1) == "09223372036854775808.manifest"


@given(versions)
def test_v2_round_trip_and_order(version: int) -> None:
    assert parse_manifest_name(manifest_name(version)) == VersionName(version, Scheme.V2)
    if version:
        assert manifest_name(version) < manifest_name(version - 1)


@given(v1_versions)
def test_v1_round_trip(version: int) -> None:
    assert parse_manifest_name(manifest_name(version, Scheme.V1)) == VersionName(version, Scheme.V1)


@given(st.integers(2**63, 2**64 - 1))
def test_detached_round_trip(version: int) -> None:
    assert parse_manifest_name(detached_name(version)) == VersionName(version, Scheme.V2, detached=True)


@given(st.text())
def test_any_text_is_a_name_or_none(text: str) -> None:
    for name in (text, text + ".manifest", text + ".txn"):
        parsed = parse_manifest_name(name)
        if parsed is not None:
            again = detached_name(parsed.version) if parsed.detached else manifest_name(parsed.version, parsed.scheme)
            assert again == name
        transaction = parse_transaction_name(name)
        assert transaction is None or "{}-{}.txn".format(*transaction) == name


@pytest.mark.parametrize("name", NOISE)
def test_names_that_are_none(name: str) -> None:
    assert parse_manifest_name(name) is None


@given(st.sets(v1_versions, min_size=1, max_size=20), st.sampled_from(Scheme), st.integers(0, 2**32))
def test_the_latest_is_the_highest(found: set[int], scheme: Scheme, seed: int) -> None:
    names = [manifest_name(version, scheme) for version in found] + [*NOISE, detached_name(2**63 + 5)]
    Random(seed).shuffle(names)
    assert latest_version(names, ordered=False) == (max(found), scheme)
    assert latest_version(sorted(names), ordered=True) == (max(found), scheme)
    assert [parsed.version for parsed in all_versions(names)] == sorted(found)


def test_an_ordered_listing_is_left_at_the_first_v2_name() -> None:
    names = iter(sorted(manifest_name(version) for version in range(1, 100)))
    assert latest_version(itertools.chain(["!temporary"], names), ordered=True) == (99, Scheme.V2)
    assert len(list(names)) == 98


def test_nothing_there() -> None:
    assert latest_version([], ordered=True) is None
    assert latest_version(NOISE, ordered=False) is None
    assert all_versions(NOISE) == []
    assert migration_plan(NOISE) == []


@pytest.mark.parametrize("ordered", [True, False])
def test_both_kinds_of_names(ordered: bool) -> None:
    names = sorted([manifest_name(1, Scheme.V1), manifest_name(2)])
    with pytest.raises(CorruptTable, match="both kinds"):
        latest_version(names, ordered=ordered)
    with pytest.raises(CorruptTable, match="both kinds"):
        all_versions(names)


@pytest.mark.parametrize("version", [-1, 2**63])
def test_numbers_that_are_no_version(version: int) -> None:
    with pytest.raises(InvalidInput):
        manifest_name(version)
    with pytest.raises(InvalidInput):
        detached_name(2**63 - 1)


def v1_table(root: Path, count: int = 12) -> lance.LanceDataset:
    dataset = lance.write_dataset(pa.table({"a": [0]}), root, enable_v2_manifest_paths=False)
    for number in range(1, count):
        dataset = lance.write_dataset(pa.table({"a": [number]}), root, mode="append")
    return dataset


def listing(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "_versions").iterdir())


@pytest.mark.parametrize("scheme", list(Scheme))
def test_directories_of_stock_writers(tmp_path: Path, scheme: Scheme) -> None:
    root = tmp_path / "t"
    dataset = v1_table(root)
    if scheme is Scheme.V2:
        dataset.migrate_manifest_paths_v2()  # type: ignore[no-untyped-call]
    assert latest_version(listing(root), ordered=False) == (12, scheme)
    assert latest_version(listing(root), ordered=True) == (12, scheme)
    assert [parsed.version for parsed in all_versions(listing(root))] == list(range(1, 13))
    assert all(parse_transaction_name(path.name) for path in (root / "_transactions").iterdir())
    assert decode_hint((root / HINT_PATH).read_bytes()) == 12
    assert encode_hint(12) == (root / HINT_PATH).read_bytes()


def test_migration_step_by_step(tmp_path: Path) -> None:
    root = tmp_path / "t"
    v1_table(root)
    plan = migration_plan(listing(root))
    assert plan[0] == ("12.manifest", manifest_name(12))
    for done, (old, new) in enumerate(plan, start=1):
        (root / "_versions" / old).rename(root / "_versions" / new)
        v2_names = [name for name in listing(root) if len(name) == 29]
        assert parse_manifest_name(v2_names[0]) == VersionName(12, Scheme.V2)
        assert migration_plan(listing(root)) == plan[done:]
        assert lance.dataset(root, version=1).count_rows() == 1
    assert latest_version(listing(root), ordered=True) == (12, Scheme.V2)
    assert lance.dataset(root).count_rows() == 12
    assert lance.write_dataset(pa.table({"a": [99]}), root, mode="append").version == 13
    assert manifest_name(13) in listing(root)


def test_transaction_names() -> None:
    uuid = "b2f97106-5374-4687-9ba7-44b09000bcbc"
    assert parse_transaction_name(f"7-{uuid}.txn") == (7, uuid)
    for name in (f"07-{uuid}.txn", f"7-{uuid.upper()}.txn", f"-{uuid}.txn", f"7-{uuid}.txn.tmp", f"{2**64}-{uuid}.txn"):
        assert parse_transaction_name(name) is None


@given(st.integers(1, 2**63 - 1))
def test_hint_round_trip(version: int) -> None:
    assert decode_hint(encode_hint(version)) == version


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"7",
        b'{"version":"7"}',
        b'{"version":true}',
        b'{"version":7.0}',
        b'{"version":-1}',
        b'{"version":0}',
        b'{"version":9223372036854775808}',
        b'{"version":1e400}',
        b"[" * 250,
        b'{"version":%s}' % (b"9" * 5000),
        b"\xff\xfe",
        b'{"version":NaN}',
    ],
)
def test_a_hint_that_is_garbage(data: bytes) -> None:
    assert decode_hint(data) is None


def test_damaged_hints() -> None:
    outcomes = {decode_hint(data) for data in damaged([encode_hint(1), encode_hint(123_456)], 3000, seed=31)}
    assert None in outcomes
    assert all(version is None or 0 < version < 2**63 for version in outcomes)
