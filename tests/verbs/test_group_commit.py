"""Several writers, one version: whoever leads commits for those who wait, and each gets its own result or its own conflict.

A test holds the lead until all who are to wait do so. Then it lets go, and the first of them leads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import ids_of, rows
from tests.support.in_line import LONG, Work, held, in_company, in_line, until, waiting
from tiltyard.errors import IncompatibleConflict, OutcomeUnknown, StorageError
from tiltyard.format.values import DataFragment
from tiltyard.storage import local_queue
from tiltyard.storage.local_queue import LocalPlace, LocalQueue
from tiltyard.transaction import turns
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.operations import Append, Delete
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, mark

OWN_FILES = ty.FileLimits(rows=2**20 - 1)
"""Whoever says how large files are to be writes them by itself."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy with other things, too, those who wait are to wait for the test."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    monkeypatch.setattr(local_queue, "_FIRST_LOOK", LONG)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    ty.Table.create(uri, rows(0), stable_row_ids=True)
    return uri


def appending(*ids: int, message: str | None = None, **properties: str) -> Work:
    return lambda table: table.append(rows(*ids), message=message, commit=ty.CommitOptions(properties=properties))


def appended(data: pa.Table) -> Work:
    return lambda table: table.append(data)


@pytest.mark.parametrize("company", [True, False], ids=["rows in memory", "rows in files"])
def test_all_who_wait_are_in_one_version(uri: str, company: bool) -> None:
    futures = in_line(uri, [appending(number, message=f"from {number}") for number in range(1, 6)], company=company)
    results = [future.result() for future in futures]
    table = ty.Table.open(uri)
    assert ids_of(table) == [0, 1, 2, 3, 4, 5]
    assert {result.version for result in results} == {2}
    assert table.version == 2
    assert len({result.transaction_id for result in results}) == 5
    assert all((result.read_version, result.rows, result.operation) == (1, {"inserted": 1}, "Append") for result in results)
    assert waiting(uri) == 0
    assert len(list((Path(uri) / "_transactions").glob("*.txn"))) == 2, "that of each version, and none of those that waited"
    assert lance.dataset(uri).count_rows() == 6
    assert len(table.layout.fragments) == (2 if company else 6)
    assert ty.Table.open(uri).check(data=True).ok


@pytest.mark.parametrize("company", [True, False], ids=["rows in memory", "rows in files"])
def test_each_is_found_by_its_id_ever_after(uri: str, company: bool) -> None:
    futures = in_line(uri, [appending(number, message=f"from {number}", who=str(number)) for number in range(1, 4)], company=company)
    table = ty.Table.open(uri)
    entry = next(iter(table.history()))
    assert len(entry.members) == 2
    for number, future in enumerate(futures, 1):
        result = future.result()
        assert table.transactions.outcome(result.transaction_id) == ty.outcomes.Committed(2)
        story = table.transactions.explain(result.transaction_id)
        assert story.entry is not None
        assert (story.entry.message, story.entry.properties["who"], story.entry.read_version) == (f"from {number}", str(number), 1)
    table.append(rows(9))
    table.maintenance.cleanup(keep_versions=1)
    for future in futures:
        assert table.transactions.outcome(future.result().transaction_id) == ty.outcomes.Committed(2), "and after its version is gone"
    assert table.check().ok


def test_handles_go_on_from_the_version_they_are_in(uri: str) -> None:
    def twice(first: int) -> Work:
        def work(table: ty.Table) -> Any:
            one = table.append(rows(first))
            assert table.version == one.version
            assert first in ids_of(table)
            return one, table.append(rows(first + 100))

        return work

    futures = in_line(uri, [twice(number) for number in range(1, 5)])
    for future in futures:
        one, two = future.result()
        assert two.version > one.version == 2
        assert two.read_version == one.version
        assert [winner.version for winner in two.rebased_over] == list(range(one.version + 1, two.version))
    assert ids_of(ty.Table.open(uri)) == sorted([0, *range(1, 5), *range(101, 105)])


def test_a_conflict_is_told_to_each_by_itself(uri: str) -> None:
    futures = in_line(uri, [appending(1), appending(2)], before=lambda: lance.write_dataset(rows(50), uri, mode="overwrite"))
    assert [type(future.exception()) for future in futures] == [IncompatibleConflict] * 2
    table = ty.Table.open(uri)
    assert ids_of(table) == [50]
    assert all(table.transactions.explain(future.exception().transaction_id).attempt is not None for future in futures)  # type: ignore[union-attr]
    assert table.check().ok


def test_versions_of_others_are_gone_over_once(uri: str) -> None:
    def others() -> None:
        lance.write_dataset(rows(50), uri, mode="append")
        lance.dataset(uri).delete("id = 0")

    futures = in_line(uri, [appending(1), appending(2), appending(3)], before=others)
    results = [future.result() for future in futures]
    assert {result.version for result in results} == {4}
    assert all([winner.version for winner in result.rebased_over] == [2, 3] for result in results)
    assert ids_of(ty.Table.open(uri)) == [1, 2, 3, 50]


def test_a_change_of_the_schema_is_for_each_writer_to_judge(uri: str) -> None:
    futures = in_line(uri, [appending(1), appending(2)], before=lambda: lance.dataset(uri).add_columns(pa.field("n", pa.int64())))
    assert [future.result().version for future in futures]
    table = ty.Table.open(uri)
    assert sorted(table.to_arrow(["id", "n"]).to_pylist(), key=lambda row: row["id"]) == [
        {"id": 0, "n": None},
        {"id": 1, "n": None},
        {"id": 2, "n": None},
    ]


def test_other_verbs_wait_for_their_turn(uri: str) -> None:
    futures = in_line(uri, [appending(1), lambda table: table.delete("id = 0"), appending(2), lambda table: table.update({"s": "'x'"})])
    results = [future.result() for future in futures]
    assert len({result.version for result in results}) >= 3
    assert ids_of(ty.Table.open(uri)) == [1, 2]


def test_numbered_work_is_committed_once(uri: str) -> None:
    same = [appending(1, **mark("q", 1)), appending(2, **mark("q", 1)), appending(3, **mark("r", 1))]
    futures = in_line(uri, same)
    failed = [future for future in futures if future.exception() is not None]
    assert [type(future.exception()) for future in failed] == [ty.errors.AlreadyCommitted]
    table = ty.Table.open(uri)
    assert sorted(ids_of(table)) in ([0, 1, 3], [0, 2, 3])
    assert (table.settings.config["tiltyard.once.q"], table.settings.config["tiltyard.once.r"]) == ("1", "1")


def test_keys_hold(tmp_path: Path) -> None:
    uri = str(tmp_path / "keyed")
    ty.Table.create(uri, rows(0), primary_key=["id"])
    futures = in_line(uri, [appending(1), appending(1), appending(2)])
    kinds = sorted(type(future.exception()).__name__ for future in futures)
    assert kinds == ["KeyConflict", "NoneType", "NoneType"]
    assert ids_of(ty.Table.open(uri)) == [0, 1, 2]


def test_threads_of_one_handle_may_share_a_version(uri: str) -> None:
    table = ty.Table.open(uri)
    with ThreadPoolExecutor(4) as pool:
        with held(uri):
            futures = [pool.submit(table.append, rows(number)) for number in range(1, 5)]
            until(lambda: waiting(uri) == 4)
        results = [future.result(LONG) for future in futures]
    assert {result.version for result in results} == {2}
    assert ids_of(table) == [0, 1, 2, 3, 4]


# ---- those who wait in vain ----------------------------------------------------------------------------------------------------------


def test_nobody_waits_for_a_leader_that_hangs(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.05)
    with held(uri) as leader:
        result = in_company(ty.Table.open(uri)).append(rows(1))
        assert leader.offers(9) == []
    assert (result.version, result.attempts) == (2, 1)
    assert ids_of(ty.Table.open(uri)) == [0, 1]
    assert len(list((Path(uri) / "_transactions").glob("*.txn"))) == 2


def test_a_deadline_ends_the_wait(uri: str) -> None:
    with held(uri):
        result = ty.Table.open(uri).append(rows(1), commit=ty.CommitOptions(deadline=0.05))
    assert result.version == 2


@pytest.mark.parametrize("files", [None, OWN_FILES], ids=["rows in memory", "rows in a file"])
def test_who_fails_while_a_leader_may_have_it_does_not_know(uri: str, monkeypatch: pytest.MonkeyPatch, files: ty.FileLimits | None) -> None:
    """The leader took the transaction, and hangs. Its writer goes on alone and fails: to delete its files now would be wrong."""
    monkeypatch.setattr(turns, "PATIENCE", 0.05)

    def broken(self: Committer, *_given: Any) -> Any:
        raise StorageError("The disk is full.", name="x")

    monkeypatch.setattr(Committer, "run_race", broken)
    table = in_company(ty.Table.open(uri))
    data = Path(uri) / "data"
    before = set(data.iterdir())
    with held(uri), pytest.raises(OutcomeUnknown, match="was asked to commit this") as caught:
        table.append(rows(1), files=files)
    assert len(set(data.iterdir()) - before) == (files is not None), "what was written is still there"
    assert caught.value.version == 2
    assert isinstance(table.transactions.outcome(caught.value.transaction_id), ty.outcomes.Unknown)
    monkeypatch.undo()
    ty.Table.open(uri).append(rows(2))
    assert isinstance(table.transactions.outcome(caught.value.transaction_id), ty.outcomes.NotCommitted)


@pytest.mark.parametrize(("step", "error"), [("_prepared", StorageError), ("_catch_up", OutcomeUnknown)])
def test_who_fails_with_the_lead_in_its_hands_knows_once_it_has_caught_up(
    uri: str, monkeypatch: pytest.MonkeyPatch, step: str, error: type[Exception]
) -> None:
    """Before that, a version of the last leader may name its files, so they stay."""

    def broken(self: Committer, *_given: Any) -> Any:
        raise StorageError("The disk is full.", name="x")

    monkeypatch.setattr(Committer, step, broken)
    data = Path(uri) / "data"
    before = set(data.iterdir())
    futures = in_line(uri, [appending(1)])
    assert type(futures[0].exception()) is error
    assert len(set(data.iterdir()) - before) == (error is OutcomeUnknown)


# ---- rows that the leader writes -----------------------------------------------------------------------------------------------------


def test_the_leader_writes_one_file_for_all(uri: str) -> None:
    in_line(uri, [appending(number, number + 10) for number in range(1, 5)])
    table = ty.Table.open(uri)
    assert [fragment.physical_rows for fragment in table.layout.fragments] == [1, 8]
    assert len(list((Path(uri) / "data").glob("*.lance"))) == 2
    assert table.to_arrow(["id"])["id"].to_pylist() == [0, 1, 11, 2, 12, 3, 13, 4, 14], "in the order in which they came"
    assert [member.fragments for member in next(iter(table.history())).members] == [0, 0, 0]
    assert table.check(data=True).ok


@pytest.mark.parametrize("first", ["in memory", "in a file"])
def test_rows_in_memory_and_in_files_are_committed_in_any_order(uri: str, first: str) -> None:
    works = [appending(1), lambda table: table.append(rows(2), files=OWN_FILES), appending(3), appending(*range(10, 6000))]
    futures = in_line(uri, works if first == "in memory" else [*works[1:], works[0]])
    assert all(future.exception() is None for future in futures)
    table = ty.Table.open(uri)
    assert ids_of(table) == [0, 1, 2, 3, *range(10, 6000)]
    assert table.version <= 3, "at most one version for those of each kind"
    assert {fragment.physical_rows for fragment in table.layout.fragments} == {1, 2, 5990}
    assert table.check(data=True).ok


def test_rows_of_other_columns_are_written_by_their_own_writers(uri: str) -> None:
    works: list[Work] = [appending(1), appended(pa.table({"id": [2]})), appending(3)]
    results = [future.result() for future in in_line(uri, works)]
    assert [results[0].version, results[2].version] == [2, 2]
    assert results[1].version == 3
    table = ty.Table.open(uri)
    assert {row["id"]: row["s"] for row in table.to_arrow().to_pylist()} == {0: "row 0", 1: "row 1", 2: None, 3: "row 3"}


def test_columns_in_another_order_are_not_mixed_up(tmp_path: Path) -> None:
    """They are of one type, so that the rows themselves do not tell."""
    uri = str(tmp_path / "pairs")
    ty.Table.create(uri, pa.table({"a": [0], "b": [100]}))
    tables = [pa.table({"a": [1], "b": [101]}), pa.table({"b": [102], "a": [2]}), pa.table({"a": [3], "b": [103]})]
    for future in in_line(uri, [appended(table) for table in tables]):
        future.result()
    there = {(row["a"], row["b"]) for row in ty.Table.open(uri).to_arrow().to_pylist()}
    assert there == {(number, 100 + number) for number in range(4)}


def _varied(number: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([number, None], pa.int64()),
            "price": pa.array([Decimal(number), None], pa.decimal128(20, 2)),
            "when": pa.array([number, None], pa.timestamp("us", "UTC")),
            "flag": pa.array([None, number % 2 == 0], pa.bool_()),
            "raw": pa.array([bytes([number]), b""], pa.binary()),
            "vector": pa.array([[number, 1.5], None], pa.list_(pa.float32(), 2)),
            "nested": pa.array([[{"a": number, "b": "x"}], None], pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        }
    )


def test_rows_of_all_types_come_through(tmp_path: Path) -> None:
    uri = str(tmp_path / "varied")
    ty.Table.create(uri, _varied(0))
    parts = pa.concat_tables([_varied(4), _varied(5)])
    for future in in_line(uri, [*(appended(_varied(number)) for number in (1, 2, 3)), appended(parts)]):
        future.result()
    table = ty.Table.open(uri)
    assert table.version == 2
    assert [fragment.physical_rows for fragment in table.layout.fragments] == [2, 10]
    assert table.to_arrow().to_pylist() == pa.concat_tables(map(_varied, range(6))).to_pylist()
    assert lance.dataset(uri).to_table().to_pylist() == table.to_arrow().to_pylist()


def test_who_is_alone_writes_before_it_asks_for_the_lead(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to wait for its file; and a table that others come to begins to share files with the second version."""
    real, led = LocalPlace.lead, list[int]()

    def lead(self: LocalPlace) -> bool:
        led.append(len(list((Path(uri) / "data").iterdir())))
        return real(self)

    monkeypatch.setattr(LocalPlace, "lead", lead)
    table = ty.Table.open(uri)
    table.append(rows(1))
    in_company(table).append(rows(2))
    assert led == [2, 2]
    assert ids_of(table) == [0, 1, 2]


def test_dictionaries_are_written_by_their_own_writers(tmp_path: Path) -> None:
    def coded(*words: str) -> pa.Table:
        return pa.table({"w": pa.array(words).dictionary_encode()})

    uri = str(tmp_path / "coded")
    ty.Table.create(uri, coded("a"))
    for future in in_line(uri, [appended(coded("b", "c")), appended(coded("c", "d"))]):
        future.result()
    assert sorted(ty.Table.open(uri).to_arrow()["w"].to_pylist()) == ["a", "b", "c", "c", "d"]


def test_files_of_a_given_size_are_not_shared(uri: str) -> None:
    one_row: Work = lambda table: table.append(rows(table.count_rows()), files=ty.FileLimits(rows=1))  # noqa: E731
    in_line(uri, [one_row, one_row, one_row])
    assert [fragment.physical_rows for fragment in ty.Table.open(uri).layout.fragments] == [1] * 4


def test_a_conflict_leaves_no_rows_behind(uri: str) -> None:
    in_line(uri, [appending(1), appending(2)], before=lambda: lance.write_dataset(rows(50), uri, mode="overwrite"))
    named = {file.path for fragment in ty.Table.open(uri).layout.fragments for file in fragment.files}
    assert {path.name for path in (Path(uri) / "data").iterdir()} - named == {
        file.path for fragment in ty.Table.open(uri, version=1).layout.fragments for file in fragment.files
    }


def test_files_of_a_run_before_are_not_left_behind(uri: str) -> None:
    """A writer that was alone, and has met others when a conflict makes it run again, has a file already."""
    table = ty.Table.open(uri)
    with ThreadPoolExecutor(1) as pool:
        with held(uri):
            future = pool.submit(table.append, rows(1))
            until(lambda: waiting(uri) == 1)
            lance.dataset(uri).drop_columns(["s"])
            lance.dataset(uri).add_columns({"s": "'new'"})
            in_company(table)
        assert future.result(LONG).executions == 2
    versions = [ty.Table.open(uri, version=number) for number in range(1, 5)]
    named = {file.path for version in versions for fragment in version.layout.fragments for file in fragment.files}
    assert {path.name for path in (Path(uri) / "data").iterdir()} == named
    assert versions[-1].to_arrow().to_pylist() == [{"id": 0, "s": "new"}, {"id": 1, "s": "row 1"}]


def test_rows_without_bytes_are_few_all_the_same(tmp_path: Path) -> None:
    """Else a file of 65 writers would have any number of rows, and one writer's rows more than a file has."""
    uri = str(tmp_path / "empty")
    ty.Table.create(uri, pa.table({"n": pa.nulls(1)}))
    table = in_company(ty.Table.open(uri))
    table.append(pa.table({"n": pa.nulls(2**20 + 1)}))
    in_line(uri, [appended(pa.table({"n": pa.nulls(count)})) for count in (2**13, 2**13 + 1, 5)])
    assert sorted(fragment.physical_rows for fragment in ty.Table.open(uri).layout.fragments) == [1, 1, 2**13 + 1, 2**13 + 5, 2**20]


def test_views_are_measured_as_what_is_written(tmp_path: Path) -> None:
    """Many views of one text take a few bytes each."""
    uri, text = str(tmp_path / "views"), b"x" * 30_000
    ty.Table.create(uri, pa.table({"t": ["first"]}))
    view = len(text).to_bytes(4, "little") + text[:4] + bytes(8)
    views = pa.Array.from_buffers(pa.string_view(), 40, [None, pa.py_buffer(40 * view), pa.py_buffer(text)])
    data = pa.table({"t": views})
    assert data.nbytes < 2**15
    in_line(uri, [appended(pa.table({"t": ["a"]})), appended(data), appended(pa.table({"t": ["b"]}))])
    table = ty.Table.open(uri)
    assert [fragment.physical_rows for fragment in table.layout.fragments] == [1, 2, 40]
    assert table.to_arrow()["t"].to_pylist() == ["first", "a", "b", *[text.decode()] * 40]


def test_ctrl_c_while_waiting_leaves_the_queue(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: LocalPlace, seconds: float) -> int | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalPlace, "wait", interrupted)
    with held(uri) as leader:
        with pytest.raises(KeyboardInterrupt):
            ty.Table.open(uri).append(rows(1))
        assert leader.offers(9) == []
    assert ty.Table.open(uri).append(rows(2)).version == 2


@pytest.mark.parametrize("what", ["damaged", "of another name", "files gone", "not new rows", "of a table that is no more"])
def test_an_offer_that_cannot_be_taken_harms_nobody(uri: str, what: str) -> None:
    table = ty.Table.open(uri)
    parent = table.transactions.describe().transaction_id
    there = table.layout.fragments[0].files[0]
    fragment = DataFragment(0, (there,), physical_rows=1)
    gone = replace(fragment, files=(replace(there, path="gone.lance"),))
    offered = {
        "damaged": b"\xff\xff",
        "of another name": Transaction(1, "other", Append((fragment,)), {PARENT: parent}).to_bytes(),
        "files gone": Transaction(1, "offer", Append((gone,)), {PARENT: parent}).to_bytes(),
        "not new rows": Transaction(1, "offer", Delete(), {PARENT: parent}).to_bytes(),
        "of a table that is no more": Transaction(1, "offer", Append((fragment,)), {PARENT: "another"}).to_bytes(),
    }[what]
    with held(uri):
        offer = LocalQueue(uri).place("offer", 0.0)
        assert not offer.lead()
        assert offer.join(offered)
    result = table.append(rows(1))
    assert result.version == 2
    assert ids_of(ty.Table.open(uri)) == [0, 1]
    assert offer.wait(LONG) == 0
    offer.leave()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_whose_files_went_is_sent_away_and_holds_up_nobody(uri: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleanup with a clock of its own took them: members announce nothing, so the leader looks after its own announcement once more."""
    table = ty.Table.open(uri)
    parent = table.transactions.describe().transaction_id
    there = table.layout.fragments[0].files[0]
    lost = Path(uri) / "data/lost.lance"
    lost.hardlink_to(Path(uri) / "data" / there.path)
    places = []
    with held(uri):
        for name, path in (("lost", "lost.lance"), ("good", there.path)):
            places.append(LocalQueue(uri).place(name, 0.0))
            assert not places[-1].lead()
            fragment = DataFragment(0, (replace(there, path=path),), physical_rows=1)
            assert places[-1].join(Transaction(1, name, Append((fragment,)), {PARENT: parent}).to_bytes())
        if when == "before":
            lost.unlink()
    real = Committer.announce

    def announce(self: Committer, *given: Any) -> None:
        real(self, *given)
        lost.unlink(missing_ok=True)

    monkeypatch.setattr(Committer, "announce", announce)
    assert table.append(rows(1)).version == 2
    assert [place.wait(LONG) for place in places] == [0, 2 if when == "before" else 0]
    for place in places:
        place.leave()
    assert lance.dataset(uri).count_rows() == (3 if when == "before" else 2)
