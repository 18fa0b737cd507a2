"""Each invariant, broken on purpose in a real table, is reported under its name; a sound table is reported sound."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, memory_table, plant, reopened, rows
from tests.support.stock import deletion_path, stock_manifest
from tests.support.tables import open_stock
from tiltyard import ops
from tiltyard.errors import CorruptTable, NotFound
from tiltyard.format.deletions import encode_deletions
from tiltyard.format.flags import Feature
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.row_ids import encode_row_ids, fresh_row_ids
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import to_be_sealed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four versions: ours, stock deletions, ours again, a stock index."""
    table = ty.Table.create(tmp_path / "t", rows(*range(10)), durability="os")
    open_stock(str(tmp_path / "t")).delete("id in (2, 3)")
    table.refresh().append(rows(10, 11))
    open_stock(str(tmp_path / "t")).create_scalar_index("id", "BTREE")
    return tmp_path / "t"


def _report(root: Path) -> ty.CheckReport:
    return ty.Table.open(root).check()


def _broken(root: Path) -> set[str]:
    return {problem.invariant for problem in _report(root).problems}


def _rewrite(root: Path, version: int, change: Callable[[Manifest], Manifest], transaction: bytes | None = None) -> None:
    """Writes a version's file anew with something else in it, and with the digest that belongs to it."""
    log = VersionLog(LocalStore(root))
    file = log.load(version, Scheme.V2)
    inline = transaction or file.transaction
    assert inline is not None
    with suppress(CorruptTable):  # for one that is none, too
        inline = to_be_sealed(Transaction.from_bytes(inline)).to_bytes()
    data, _ = encode_manifest_file(change(file.manifest), inline)
    log.store.put(manifest_path(version, Scheme.V2), data)


def _each(change: Callable[[DataFragment], DataFragment]) -> Callable[[Manifest], Manifest]:
    def changed(manifest: Manifest) -> Manifest:
        return replace(manifest, fragments=manifest.fragments.changed({one.id: change(one) for one in manifest.fragments}))

    return changed


def _manifest_path(root: Path, version: int) -> Path:
    return root / manifest_path(version)


def test_a_sound_table(root: Path) -> None:
    report = _report(root)
    assert report.ok
    assert (report.problems, report.orphans, report.not_checked) == ((), (), ())
    assert report.versions == 4
    # Two data files, a deletion file, four transactions, and those of the index.
    assert report.files == 7 + len(list((root / "_indices").rglob("*.*")))
    told = json.loads(json.dumps(report.to_dict()))
    assert told["ok"] is True
    assert told["uri"] == str(root)


def test_some_versions_only(root: Path) -> None:
    (root / "_transactions" / stock_manifest(root, 1).transaction_file).unlink()
    assert not _report(root).ok
    report = ty.Table.open(root).check(versions=[2, 4])
    assert report.ok
    assert report.versions == 2
    with pytest.raises(NotFound, match="no version 9"):
        ty.Table.open(root).check(versions=[4, 9])


def test_files_that_are_missing(root: Path) -> None:
    fragment = stock_manifest(root, 2).fragments[0]
    index = next(path for path in (root / "_indices").rglob("*.lance"))
    for missing in (
        root / "data" / fragment.files[0].path,
        root / "_transactions" / stock_manifest(root, 3).transaction_file,
        deletion_path(root, fragment),
        index,
    ):
        content = missing.read_bytes()
        missing.unlink()
        report = _report(root)
        found = [problem for problem in report.problems if str(missing.relative_to(root)) in problem.text and problem.invariant == "I2"]
        assert found, missing
        assert not report.ok
        assert report.orphans == ()  # nobody may be told to delete anything of a table that is not understood
        missing.write_bytes(content)
        assert _report(root).ok


def _vector(*offsets: int) -> bytes:
    is_bitmap, content = encode_deletions(BitMap(offsets))
    assert not is_bitmap
    return content


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", _vector(1, 2)[:-9], _vector(50, 51), _vector(1)],
    ids=["empty", "garbage", "torn", "rows that do not exist", "another count"],
)
def test_deletion_vectors_that_are_wrong(root: Path, content: bytes) -> None:
    deletion_path(root, stock_manifest(root, 2).fragments[0]).write_bytes(content)
    report = _report(root)
    assert "I5" in {problem.invariant for problem in report.problems}
    assert next(problem for problem in report.problems if problem.invariant == "I5").version == 2


def test_a_transaction_that_made_two_versions(root: Path) -> None:
    log = VersionLog(LocalStore(root))
    first = log.committed(1, Scheme.V2).transaction
    third = log.committed(3, Scheme.V2).transaction
    _rewrite(root, 3, lambda manifest: manifest, replace(third, uuid=first.uuid).to_bytes())
    (problem,) = _report(root).problems
    assert (problem.invariant, problem.version) == ("I7", 3)
    assert first.uuid in problem.text


def test_a_hint_that_leads(root: Path) -> None:
    hint = root / "_versions" / "latest_version_hint.json"
    hint.write_text('{"version":77}')
    (problem,) = _report(root).problems
    assert (problem.invariant, problem.version) == ("I9", None)
    for harmless in ('{"version":1}', '{"version":4}', "nonsense", ""):
        hint.write_text(harmless)
        assert _report(root).ok
    hint.unlink()
    assert _report(root).ok


def test_a_commit_during_the_check_is_no_contradiction(root: Path) -> None:
    def commit() -> None:
        lance.write_dataset(rows(50), str(root), mode="append")

    store = InterruptedStore(LocalStore(root), lambda method, path: path.endswith("hint.json"), commit)
    assert handle(root, store).check().problems == ()


def test_a_gap(root: Path) -> None:
    _manifest_path(root, 2).unlink()
    assert ("I1", None) in {(problem.invariant, problem.version) for problem in _report(root).problems}
    _manifest_path(root, 1).unlink()
    assert _report(root).ok  # cleaned up from the beginning on, which is what cleanup does


def test_a_gap_above_a_tagged_version_is_in_order(root: Path) -> None:
    open_stock(str(root)).tags.create("keep", 1)
    _manifest_path(root, 2).unlink()
    _manifest_path(root, 3).unlink()
    assert _report(root).ok
    open_stock(str(root)).tags.delete("keep")
    assert _broken(root) == {"I1"}


def test_a_gap_above_the_fork_of_a_branch_is_in_order(root: Path) -> None:
    open_stock(str(root)).create_branch("dev", 1)
    _manifest_path(root, 2).unlink()
    assert _report(root).ok


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"X" + data[:-4] + b"CNAL"])
def test_a_manifest_that_cannot_be_read(root: Path, damage: Callable[[bytes], bytes]) -> None:
    path = _manifest_path(root, 2)
    path.write_bytes(damage(path.read_bytes()))
    problems = _report(root).problems
    assert {(problem.invariant, problem.version) for problem in problems} == {("I2", 2)}


def test_a_transaction_that_cannot_be_read(root: Path) -> None:
    _rewrite(root, 3, lambda manifest: manifest, b"\xff\xff")
    assert ("I2", 3) in {(problem.invariant, problem.version) for problem in _report(root).problems}


def test_a_version_under_another_number(root: Path) -> None:
    _manifest_path(root, 2).write_bytes(_manifest_path(root, 1).read_bytes())
    assert ("I2", 2) in {(problem.invariant, problem.version) for problem in _report(root).problems}


def test_rows_that_are_there_twice_by_their_key(tmp_path: Path) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, rows(1, 2, 3), primary_key=["id"])
    assert _report(root).ok
    lance.write_dataset(rows(2, 9).cast(open_stock(str(root)).schema), str(root), mode="append")
    (problem,) = _report(root).problems
    assert (problem.invariant, problem.version) == ("I4", 2)
    assert "id 2" in problem.text
    open_stock(str(root)).delete("id = 2")
    assert _report(root).ok


def test_keys_of_several_columns(tmp_path: Path) -> None:
    root = tmp_path / "t"
    data = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    table = ty.Table.create(root, data, primary_key=["b", "a"])
    assert table.check().ok
    table.append(pa.table({"a": [2], "b": ["x"], "v": [9]}), on_duplicate="allow")
    assert "b 'x', a 2" in table.check().problems[0].text


@pytest.mark.parametrize("claimed", [9, 11])
def test_rows_that_the_files_do_not_hold(root: Path, claimed: int) -> None:
    """Too few would cut rows off, without an error of any reader."""
    _rewrite(root, 4, _each(lambda one: replace(one, physical_rows=claimed) if one.id == 0 else one))
    problems = _report(root).problems
    assert problems
    assert {problem.version for problem in problems} == {4}
    assert {problem.invariant for problem in problems} <= {"I2", "I13"}


def test_files_of_another_format(root: Path) -> None:
    _rewrite(root, 4, _each(lambda one: replace(one, files=tuple(replace(file, minor=1) for file in one.files))))
    assert ("I2", 4) in {(problem.invariant, problem.version) for problem in _report(root).problems}


def test_what_pylance_cannot_open(root: Path) -> None:
    _rewrite(root, 3, lambda manifest: replace(manifest, data_format=replace(manifest.data_format, version="2.3")))  # type: ignore[type-var]
    assert ("I13", 3) in {(problem.invariant, problem.version) for problem in _report(root).problems}


def _stable(tmp_path: Path) -> Path:
    table = ty.Table.create(tmp_path / "t", rows(1, 2, 3), stable_row_ids=True)
    table.append(rows(4))
    table.append(rows(5))
    assert table.check().ok
    return tmp_path / "t"


def _is_refused(root: Path, version: int) -> bool:
    """Ids that cannot be are told as such, or the manifest is refused as a whole."""
    found = {problem.invariant for problem in _report(root).problems if problem.version == version}
    return bool(found) and found <= {"I2", "I6", "I13"} and bool(found & {"I2", "I6"})


def test_row_ids_above_the_mark(tmp_path: Path) -> None:
    root = _stable(tmp_path)
    _rewrite(root, 2, lambda manifest: replace(manifest, next_row_id=3))
    assert _is_refused(root, 2)


@pytest.mark.parametrize("ids", [None, encode_row_ids(fresh_row_ids(0, 99)), b"\xff"], ids=["none", "too many", "garbage"])
def test_row_ids_that_do_not_fit(tmp_path: Path, ids: bytes | None) -> None:
    root = _stable(tmp_path)
    _rewrite(root, 2, _each(lambda one: replace(one, row_ids=ids) if one.id == 1 else one))
    assert _is_refused(root, 2)


def test_fragment_ids_above_the_mark(root: Path) -> None:
    _rewrite(root, 3, lambda manifest: replace(manifest, max_fragment_id=0))
    assert _is_refused(root, 3)


def test_fragment_ids_twice(root: Path) -> None:
    _rewrite(root, 3, _each(lambda one: replace(one, id=1)))
    assert _is_refused(root, 3)


def test_orphans_are_listed_and_are_no_problem(root: Path) -> None:
    (root / "data" / "left.lance").write_bytes(b"x")
    (root / "_transactions" / "1-left.txn").write_bytes(b"x")
    (root / "_deletions" / "0-1-7.arrow").write_bytes(b"x")
    report = _report(root)
    assert report.ok
    assert report.orphans == ("_deletions/0-1-7.arrow", "_transactions/1-left.txn", "data/left.lance")


def test_a_version_that_keeps_no_transaction(root: Path) -> None:
    log = VersionLog(LocalStore(root))
    file = log.load(3, Scheme.V2)
    data, _ = encode_manifest_file(replace(file.manifest, transaction_file=""), None)
    log.store.put(manifest_path(3, Scheme.V2), data)
    report = _report(root)
    assert report.ok
    assert report.not_checked == ("I7 for version 3: it keeps no transaction",)


def test_a_store_pylance_cannot_see() -> None:
    store = MemoryStore()
    memory_table(store)
    store.put("data/first.lance", b"x")
    plant(store, ops.ReserveFragments(1))
    report = reopened(store).check()
    assert report.ok
    assert report.not_checked == ("I13: pylance cannot see this store",)


def test_keys_that_cannot_be_read_are_said_to_be_unchecked() -> None:
    store = MemoryStore()
    memory_table(store)
    store.put("data/first.lance", b"x")
    keyed = tuple(replace(one, primary_key=True, nullable=False) for one in reopened(store)._file.manifest.fields)
    plant(store, ops.Project(keyed), fields=keyed)
    assert any(text.startswith("I4") for text in reopened(store).check().not_checked)


def test_files_in_another_base(tmp_path: Path) -> None:
    source, clone = tmp_path / "source", tmp_path / "clone"
    ty.Table.create(source, rows(*range(6)))
    open_stock(str(source)).delete("id = 1")
    open_stock(str(source)).shallow_clone(str(clone), 2)
    table = ty.Table.open(clone, allowed_bases=[source])
    assert table.check().ok
    table.append(rows(9))
    assert table.check().ok
    fragment = stock_manifest(source, 2).fragments[0]
    for missing in (deletion_path(source, fragment), source / "data" / fragment.files[0].path):
        missing.unlink()
        texts = [problem.text for problem in table.check().problems if problem.invariant == "I2"]
        assert any(missing.name in text for text in texts)


def test_a_base_that_may_not_be_looked_at(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not even to see whether a file is there: an older version of a crafted table names it."""
    secret = tmp_path_factory.mktemp("secret")  # a short path, of which a message shows all

    def lead_astray(manifest: Manifest) -> Manifest:
        base = BasePath(1, str(secret))
        moved = _each(lambda one: replace(one, files=tuple(replace(file, base_id=1) for file in one.files)))(manifest)
        flags = int(Feature.BASE_PATHS)
        return replace(moved, base_paths=(base,), reader_flags=moved.reader_flags | flags, writer_flags=moved.writer_flags | flags)

    _rewrite(root, 3, lead_astray)
    (problem,) = _report(root).problems
    assert (problem.invariant, problem.version) == ("I2", 3)
    assert "secret" in problem.text
    allowed = ty.Table.open(root, allowed_bases=[secret]).check()
    assert any("cannot be read" in problem.text for problem in allowed.problems)


def test_a_base_of_no_known_kind(root: Path) -> None:
    def lead_nowhere(manifest: Manifest) -> Manifest:
        moved = _each(lambda one: replace(one, files=tuple(replace(file, base_id=1) for file in one.files)))(manifest)
        return replace(moved, base_paths=(BasePath(1, "gopher://hole"),))

    _rewrite(root, 3, lead_nowhere)
    report = ty.Table.open(root, allowed_bases=["*"]).check()
    assert ("I2", 3) in {(problem.invariant, problem.version) for problem in report.problems}


def test_a_transaction_value_round_trips(root: Path) -> None:
    """The tests above rewrite transactions; this one makes sure that rewriting alone breaks nothing."""
    transaction = VersionLog(LocalStore(root)).committed(3, Scheme.V2).transaction
    assert Transaction.from_bytes(transaction.to_bytes()) == transaction
    _rewrite(root, 3, lambda manifest: manifest, transaction.to_bytes())
    assert _report(root).ok


def test_what_only_a_detached_version_names_is_no_orphan(root: Path) -> None:
    written = lance.fragment.write_fragments(rows(20), str(root), mode="append")
    lance.LanceDataset.commit(str(root), lance.LanceOperation.Append(written), read_version=4, detached=True)
    (detached,) = (root / "_versions").glob("d*.manifest")
    assert (_report(root).problems, _report(root).orphans, _report(root).not_checked) == ((), (), ())
    stray = root / "data" / "stray.lance"
    stray.write_bytes(b"x")
    assert _report(root).orphans == ("data/stray.lance",)
    detached.write_bytes(detached.read_bytes()[:-1])
    report = _report(root)
    assert report.orphans == ()
    assert [note.partition(":")[0] for note in report.not_checked] == ["I8"]
    detached.unlink()
    assert len(_report(root).orphans) == 3


def test_a_store_that_pylance_cannot_see_is_said_once() -> None:
    store = MemoryStore()
    memory_table(store)
    plant(store, ops.UpdateConfig())
    report = reopened(store).check()
    assert [note for note in report.not_checked if note.startswith("I13")] == ["I13: pylance cannot see this store"]
