"""A changed byte in a file we wrote is found, by those who ask for it (P16)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final, Literal

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick
from tests.support.rot import NOW, files, flipped, ids, of_all_types, with_branches, with_history
from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.testing import CountingStore
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.engine.digest_history import RECORDS

FLIPS: Final = pick(2, 40)
"""Of each file."""
SEED: Final = 20261116
DATA: Final = ("data", "_deletions", "_indices")
MAKERS: Final = (with_history, with_branches, of_all_types)


def _open(root: Path, table: ty.Table, verify: Literal["read"] | None = None) -> ty.Table:
    return ty.Table.open(root, table.version, branch=table.branch, storage=ty.Storage(durability="os", verify=verify))


def _rows_or_file(table: ty.Table) -> pa.Table | str:
    """What is read, or the file that is said to be corrupt."""
    try:
        return table.to_arrow()
    except CorruptTable as error:
        return error.file


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_flip_is_found(tmp_path: Path, make: Callable[[Path], ty.Table]) -> None:
    table = make(tmp_path / "t")
    sound = table.check(data=True)
    assert (sound.problems, sound.unverified) == ((), 0)
    expected = table.to_arrow()
    refused = 0
    random = Random(SEED)
    for path in files(tmp_path, *DATA):
        for _ in range(FLIPS):
            with flipped(path, random) as at:
                what = f"byte {at} of {path.relative_to(tmp_path)}, seed {SEED}"
                lines = [_open(tmp_path / "t", table), *([ty.Table.open(tmp_path / "t")] if table.branch else [])]
                found = [problem.text for line in lines for problem in line.check(data=True).problems]
                assert any(path.name in text for text in found), what
                rows = _rows_or_file(_open(tmp_path / "t", table, verify="read"))
                assert path.name in rows if isinstance(rows, str) else rows == expected, what
                refused += isinstance(rows, str)
    assert refused
    assert table.check(data=True).ok


def test_versions_and_transactions_are_compared_with_themselves(tmp_path: Path) -> None:
    """A version has a digest of itself inside, and a copy of its transaction."""
    table = with_history(tmp_path / "t")
    random = Random(SEED)
    for path in files(tmp_path, "_versions", "_transactions"):
        for _ in range(5 * FLIPS if path.suffix in (".manifest", ".txn") else 0):
            data = path.read_bytes()
            with flipped(path, random) as at:
                marks = [data.find(name.encode()) for name in ("tiltyard.parent", "tiltyard.seal")]
                if path.suffix == ".txn" and any(begin <= at < begin + 60 for begin in marks if begin >= 0):
                    continue  # of a transaction file these two are nothing that anybody reads
                what = f"byte {at} of {path.name}, seed {SEED}"
                try:
                    assert not ty.Table.open(tmp_path / "t").check(data=True).ok, what
                except (CorruptTable, ty.UnsupportedFeature):
                    pass
    assert table.check(data=True).ok


def test_a_reader_that_verifies_refuses_a_damaged_version(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1, 2), durability="os", options=ty.TableOptions(config={"owner": "me"}))
    path = min((tmp_path / "t" / "_versions").glob("*.manifest"))
    path.write_bytes(path.read_bytes().replace(b"owner", b"owned"))
    assert ty.Table.open(tmp_path / "t").settings.config == {"owned": "me"}
    with pytest.raises(CorruptTable, match="digest differs"):
        ty.Table.open(tmp_path / "t", storage=ty.Storage(verify="read"))
    with pytest.raises(CorruptTable):
        VersionLog(table._access.store, verify=True).load(1, table._scheme)
    assert [problem.invariant for problem in ty.Table.open(tmp_path / "t").check().problems] == ["I2"]


def test_files_of_foreign_writers_are_counted_and_pass(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1, 2), durability="os")
    lance.dataset(tmp_path / "t").insert(ids(3))
    lance.dataset(tmp_path / "t").delete("id = 1")
    report = table.refresh().check(data=True)
    assert (report.ok, report.verified, report.unverified) == (True, 1, 2)
    assert ty.Table.open(tmp_path / "t", storage=ty.Storage(verify="read")).to_arrow().column("id").to_pylist() == [2, 3]
    lance.dataset(tmp_path / "t").optimize.compact_files()
    assert (table.refresh().check(data=True, versions=[table.version]).verified, table.check(data=True).ok) == (0, True)


def test_what_others_made_and_we_commit_has_no_digest(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    made = lance.fragment.write_fragments(ids(2), lance.dataset(tmp_path / "t"), mode="append")
    from tiltyard.verbs.engine.data_files import fragment_from_lance

    table.commit(ty.ops.Append(tuple(map(fragment_from_lance, made))))
    assert (table.check(data=True).verified, table.check(data=True).unverified) == (1, 1)


@pytest.mark.parametrize("shallow", [True, False])
def test_clones_bring_their_digests(tmp_path: Path, shallow: bool) -> None:
    table = with_history(tmp_path / "t")
    table.clone(tmp_path / "clone", shallow)
    if not shallow:
        for path in (tmp_path / "t").rglob("*.txn"):
            path.unlink()
    clone = ty.Table.open(tmp_path / "clone", allowed_bases=["*"], durability="os")
    clone.append(pa.table({"id": pa.array([9000], pa.int64())}))
    clone.delete("id = 301")
    report = clone.check(data=True)
    assert (report.problems, report.unverified) == ((), 0)
    victim = files(tmp_path / ("t" if shallow else "clone"), "data")
    random = Random(SEED)
    named = {file.path for fragment in clone.layout.fragments for file in fragment.files}
    with flipped(next(path for path in victim if path.name in named), random):
        assert {problem.invariant for problem in clone.check(data=True).problems} == {"I14"}
        with pytest.raises(CorruptTable, match=r"data/"):
            ty.Table.open(tmp_path / "clone", storage=ty.Storage(allowed_bases=["*"], verify="read")).to_arrow()


def test_digests_survive_restores_and_foreign_cleanups(tmp_path: Path) -> None:
    table = with_history(tmp_path / "t")
    table.tags.create("kept")
    table.overwrite(ids(1))
    table.restore(table.tags["kept"].version)
    assert table.check(data=True).unverified == 0
    before = table.check(data=True, versions=[table.version]).verified
    table.cleanup(keep_versions=1, grace=NOW)
    assert table.check(data=True, versions=[table.version]).verified == before
    assert list((tmp_path / "t" / RECORDS).iterdir())
    table.append(pa.table({"id": pa.array([9000], pa.int64())}))
    lance.dataset(tmp_path / "t").cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    report = ty.Table.open(tmp_path / "t").check(data=True)
    assert (report.problems, report.unverified) == ((), 0)


def test_a_record_of_digests_that_is_damaged_is_named(tmp_path: Path) -> None:
    table = with_history(tmp_path / "t")
    (record,) = (tmp_path / "t" / RECORDS).iterdir()
    for seed in range(20):
        with flipped(record, Random(seed)):
            assert any(RECORDS in problem.text for problem in table.check(data=True).problems), seed
            with pytest.raises(CorruptTable, match="digests"):
                ty.Table.open(tmp_path / "t", storage=ty.Storage(verify="read")).to_arrow()


def test_a_record_that_was_never_written_to_its_end_says_nothing(tmp_path: Path) -> None:
    """Its cleanup failed there, before it deleted a transaction; the next one takes it away."""
    table = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    table.append(ids(2))
    torn = tmp_path / "t" / RECORDS / "00000000-0000-4000-8000-000000000001-500.txt"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"xxh3-128 0011223344556677\nab")
    assert (table.check(data=True).ok, table.check(data=True).unverified) == (True, 0)
    table.append(ids(3))
    table.cleanup(keep_versions=1, grace=NOW)
    assert not torn.exists()
    assert (table.check(data=True).ok, table.check(data=True).unverified) == (True, 0)


def test_records_are_merged_and_forget_what_is_gone(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    for number in range(2, 30):
        table.append(ids(number))
        if number % 3 == 0:
            table.cleanup(keep_versions=1, grace=NOW)
        if number % 9 == 0:
            table.compact(target_rows=5)
    table.compact()
    table.append(ids(100))
    table.cleanup(keep_versions=1, grace=NOW)
    (record,) = (tmp_path / "t" / RECORDS).iterdir()
    there = {path.name for path in files(tmp_path, *DATA)}
    assert {line.rpartition("/")[2] for line in record.read_text().splitlines()[1:]} <= there
    assert table.check(data=True).unverified == 0


def test_pieces_bring_their_digests(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    piece = table.distributed.write_task().write(ids(2, 3))
    assert set(piece.digests) == {f"data/{path}" for path in piece.paths}
    with flipped(tmp_path / "t" / next(iter(piece.digests)), Random(SEED)):
        table.distributed.append([piece])
        assert [problem.invariant for problem in table.check(data=True).problems] == ["I14"]
    assert table.check(data=True).ok


def test_files_in_a_base_have_digests(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    ty.Table.create(tmp_path / "t", ids(1), durability="os")
    table = ty.Table.open(tmp_path / "t", allowed_bases=[tmp_path], durability="os")
    table.settings.add_bases({"far": str(tmp_path / "far")})
    table.append(ids(2), files=ty.FileLimits(base="far"))
    assert (table.check(data=True).verified, table.check(data=True).unverified) == (2, 0)
    (far,) = files(tmp_path, "far")
    with flipped(far, Random(SEED)):
        assert any(far.name in problem.text for problem in table.check(data=True).problems)
        with pytest.raises(CorruptTable, match=far.name):
            ty.Table.open(tmp_path / "t", storage=ty.Storage(allowed_bases=[tmp_path], verify="read")).to_arrow()


def test_each_file_is_compared_once(tmp_path: Path) -> None:
    writer = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    store = CountingStore(writer._access.store)
    table = ty.Table._open(open_access(tmp_path / "t", ty.Storage(verify="read"), store=store))

    def read() -> list[str]:
        store.log.clear()
        table.to_arrow()
        table.count_rows("id > 0")
        return [path for method, path in store.log if method == "get_range" and path.startswith("data/")]

    assert len(read()) == 1
    assert not read()
    writer.append(ids(2))
    table.refresh()
    assert len(read()) == 1


def test_damage_is_found_by_verbs_of_a_verifying_handle(tmp_path: Path) -> None:
    """What a verb reads it must be able to believe, too."""
    ty.Table.create(tmp_path / "t", ids(*range(100)), durability="os")
    table = ty.Table.open(tmp_path / "t", storage=ty.Storage(verify="read", durability="os"))
    (path,) = files(tmp_path, "data")
    with flipped(path, Random(SEED)):
        for verb in (
            lambda: table.delete("id > 3"),
            lambda: table.update({"name": "'y'"}, where="id = 4"),
            lambda: table.scan().read_all(),
            lambda: table.distributed.scan_task(),
        ):
            with pytest.raises(CorruptTable, match=path.name):
                verb()
    assert table.delete("id > 3").version == 2


def test_the_property_is_ours(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1), options=ty.TableOptions(properties={"mine": "1"}))
    with pytest.raises(InvalidInput, match=r"tiltyard\.digests"):
        table.append(ids(2), commit=ty.CommitOptions(properties={"tiltyard.digests": "x"}))
    assert dict(table.transactions.describe().properties) == {"mine": "1"}
    with pytest.raises(InvalidInput, match="verify"):
        ty.Table.open(tmp_path / "t", storage=ty.Storage(verify="always"))  # type: ignore[arg-type]
