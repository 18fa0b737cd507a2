"""The batching writer on real tables, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.arrow_types import STORABLE
from tests.support.commits import copy_of, handle, ids_of, make_template, noted_runtime, rows
from tests.support.samples import table_of
from tiltyard.handles.batches import HandleTarget
from tiltyard.interfaces import Runtime
from tiltyard.testing import ManualClock

SOON = 60
"""Seconds of the real clock after which a test has hung."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("batching") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    """A table with rows 0 to 3, at version 2."""
    return copy_of(template, tmp_path / "t")


@pytest.fixture
def runtime() -> Runtime:
    return noted_runtime()


@pytest.fixture
def clock(runtime: Runtime) -> ManualClock:
    assert isinstance(runtime.clock, ManualClock)
    return runtime.clock


@pytest.fixture
def table(root: Path, runtime: Runtime) -> ty.Table:
    return handle(root, runtime=runtime)


@pytest.fixture
def keyed(tmp_path: Path, runtime: Runtime) -> ty.Table:
    """A table with the keys 0 to 3, at version 1."""
    ty.Table.create(tmp_path / "keyed", rows(0, 1, 2, 3), primary_key=["id"], durability="os")
    return handle(tmp_path / "keyed", runtime=runtime)


def results(receipts: list[ty.Receipt]) -> list[int]:
    return [receipt.result(SOON).version for receipt in receipts]


class Gate:
    """Holds the writer's thread before each commit until the test lets it go."""

    def __init__(self, writer: ty.BatchWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Semaphore(0), threading.Semaphore(0)
        commit = writer._commits.commit

        def held(batch: Any) -> Any:
            self.reached.release()
            assert self.open.acquire(timeout=SOON)
            return commit(batch)

        writer._commits = _Forwarding(writer._commits, held)  # type: ignore[assignment]

    def wait(self) -> None:
        assert self.reached.acquire(timeout=SOON)


class _Forwarding:
    def __init__(self, inner: Any, commit: Callable[[Any], Any]) -> None:
        self._inner, self.commit = inner, commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# ---- when it commits ---------------------------------------------------------------------------------------------------------------


def test_rows_are_committed_together_when_the_oldest_have_waited_long_enough(table: ty.Table, clock: ManualClock, root: Path) -> None:
    with table.writer(max_delay=2.0) as writer:
        first = writer.append(rows(10))
        clock.advance(1.5)
        second = writer.append(rows(11, 12))
        assert not first.done()
        assert ty.Table.open(root).version == 2, "nothing is committed before"
        clock.advance(0.5)
        assert results([first, second]) == [3, 3]
        assert (first.result().rows, second.result().rows) == ({"inserted": 1}, {"inserted": 2}), "each is told of its own"
        assert first.result().transaction_id == second.result().transaction_id
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, 10, 11, 12]
    assert ids_of(table) == ids_of(ty.Table.open(root)), "the handle moves along"


def test_enough_rows_do_not_wait(table: ty.Table) -> None:
    with table.writer(max_delay=1e6, max_rows=3) as writer:
        receipts = [writer.append(rows(number)) for number in (10, 11, 12)]
        assert results(receipts) == [3, 3, 3]


def test_a_file_has_no_more_rows_than_asked_for(table: ty.Table) -> None:
    with table.writer(max_delay=1e6, max_rows=2) as writer:
        assert writer.append(rows(*range(10, 15))).result(SOON).version == 3
    assert [fragment.physical_rows for fragment in table._file.manifest.fragments][2:] == [2, 2, 1]


def test_nothing_is_delayed_where_no_delay_is_allowed(table: ty.Table) -> None:
    with table.writer(max_delay=0) as writer:
        assert writer.append(rows(10)).result(SOON).version == 3


def test_flush_waits_for_what_came_before(table: ty.Table, root: Path) -> None:
    with table.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(number)) for number in (10, 11)]
        writer.flush()
        assert all(receipt.done() for receipt in receipts)
        assert ids_of(ty.Table.open(root))[-2:] == [10, 11]
        writer.flush()
        assert ty.Table.open(root).version == 3, "a flush of nothing makes no version"


def test_close_commits_what_waits_and_takes_no_more(table: ty.Table) -> None:
    writer = table.writer(max_delay=1e6)
    receipt = writer.append(rows(10))
    writer.close()
    assert receipt.result(0).version == 3
    with pytest.raises(ty.InvalidInput, match="closed"):
        writer.append(rows(11))
    writer.close()
    assert not writer._thread.is_alive()


def test_a_stock_reader_and_writer_go_on_beside_it(table: ty.Table, root: Path) -> None:
    with table.writer(max_delay=1e6) as writer:
        for number in range(10, 13):
            receipt = writer.append(rows(number))
            lance.write_dataset(rows(number + 100), str(root), mode="append")
            writer.flush()
            assert receipt.result(0).version == lance.dataset(str(root)).version
    found = lance.dataset(str(root)).to_table(columns=["id"])["id"].to_pylist()
    assert sorted(found) == [0, 1, 2, 3, 10, 11, 12, 110, 111, 112]
    assert ty.Table.open(root).check().ok


def test_many_threads(root: Path) -> None:
    threads, each = 8, 25
    table = ty.Table.open(root, durability="os")
    with table.writer(max_delay=0.002, max_rows=40) as writer, ThreadPoolExecutor(threads) as pool:

        def write(thread: int) -> list[int]:
            receipts = [writer.append(rows(1000 * (thread + 1) + number)) for number in range(each)]
            return results(receipts)

        versions = list(pool.map(write, range(threads)))
    assert all(made == sorted(made) for made in versions), "appends of one thread are committed in their order"
    wanted = [1000 * (thread + 1) + number for thread in range(threads) for number in range(each)]
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, *wanted]
    assert len(ty.Table.open(root).versions()) < threads * each, "they were committed together"


# ---- rows --------------------------------------------------------------------------------------------------------------------------


def test_rows_are_copied(table: ty.Table) -> None:
    values = np.array([10, 11], np.int64)
    large = pa.table({"id": pa.array(range(100_000)), "s": [f"row {number}" for number in range(100_000)]})
    with table.writer(max_delay=1e6) as writer:
        writer.append(pa.table({"id": pa.array(values), "s": ["a", "b"]}))
        writer.append(large.slice(50, 1))
        assert writer.buffered_bytes < 10_000, "a slice does not hold the whole"
        values[:] = 99
        del large
        gc.collect()
    assert ids_of(table)[-3:] == [10, 11, 50]


@pytest.mark.parametrize("form", ["dicts", "columns", "batch", "stream", "pandas"])
def test_all_forms_of_rows(table: ty.Table, form: str) -> None:
    whole = rows(10, 11)
    given: Any = {
        "dicts": whole.to_pylist(),
        "columns": whole.to_pydict(),
        "batch": whole.to_batches()[0],
        "stream": whole.to_reader(),
        "pandas": whole.to_pandas(),
    }[form]
    with table.writer() as writer:
        writer.append(given)
    assert ids_of(table)[-2:] == [10, 11]


def test_rows_that_do_not_fit_are_refused_at_once(table: ty.Table) -> None:
    with table.writer(max_delay=1e6) as writer:
        good = writer.append(rows(10))
        for bad in ({"id": ["text"]}, {"id": [1], "more": [1]}):
            with pytest.raises(ty.InvalidInput):
                writer.append(bad)
        writer.flush()
        assert good.result(0).version == 3


def test_appends_with_fewer_columns_are_committed_too(table: ty.Table) -> None:
    with table.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(10)), writer.append({"id": [11]}), writer.append(rows(12))]
        writer.flush()
        assert results(receipts) == [3, 4, 5], "other columns, another file"
    assert table.to_arrow(filter="id = 11").to_pylist() == [{"id": 11, "s": None}]


def test_columns_that_others_add_can_be_written(table: ty.Table, root: Path) -> None:
    with table.writer(max_delay=1e6) as writer:
        before = writer.append(rows(10))
        ty.Table.open(root).add_columns({"n": "id * 2"})
        after = writer.append({"id": [11], "s": ["x"], "n": [7]})
        writer.flush()
        assert results([before, after]) == [4, 5]
    assert table.to_arrow(["id", "n"], filter="id > 9").to_pylist() == [{"id": 10, "n": None}, {"id": 11, "n": 7}]


def test_columns_that_others_change_are_the_error_of_those_who_bring_the_old_ones(table: ty.Table, root: Path) -> None:
    with table.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(10)), writer.append(rows(11)), writer.append({"id": [12]})]
        ty.Table.open(root).alter_columns({"path": "s", "data_type": pa.large_string()})
        writer.flush()
        errors = [receipt.exception(0) for receipt in receipts]
        assert [type(error) for error in errors] == [ty.InvalidInput, ty.InvalidInput, type(None)]
        assert errors[0] is not errors[1], "each has an error of its own"
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, 12]


# ---- keys --------------------------------------------------------------------------------------------------------------------------


def test_a_duplicate_key_is_the_error_of_who_brings_it(keyed: ty.Table) -> None:
    with keyed.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(*ids)) for ids in ([10, 11], [3], [12], [11], [13, 2], [14], [14])]
        writer.flush()
        failed = [place for place, receipt in enumerate(receipts) if receipt.exception(0) is not None]
        assert failed == [1, 3, 4, 6], "of two that bring one key the first has it"
        samples = [receipts[place].exception(0).sample for place in failed]  # type: ignore[union-attr]
        assert samples == [("id 3",), ("id 11",), ("id 2",), ("id 14",)], "each is told of its own keys"
    assert ids_of(keyed) == [0, 1, 2, 3, 10, 11, 12, 14]
    assert keyed.check().ok


def test_who_only_repeats_a_key_of_one_that_failed_is_committed(keyed: ty.Table) -> None:
    with keyed.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(10, 3)), writer.append(rows(10))]
        writer.flush()
        assert [receipt.failed for receipt in receipts] == [True, False]
        assert receipts[0].exception(0) is not None
    assert ids_of(keyed) == [0, 1, 2, 3, 10]


def test_all_of_many_are_there_already(keyed: ty.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that repeats everything costs one search, not one for each append."""
    searches = []
    culprits = HandleTarget.culprits

    def counted(target: HandleTarget, parts: Sequence[pa.Table]) -> dict[int, ty.KeyConflict | None]:
        searches.append(len(parts))
        return culprits(target, parts)

    monkeypatch.setattr(HandleTarget, "culprits", counted)
    with keyed.writer(max_delay=1e6) as writer:
        receipts = [writer.append(rows(number % 4)) for number in range(50)]
        writer.flush()
        assert all(isinstance(receipt.exception(0), ty.KeyConflict) for receipt in receipts)
    assert searches == [50]
    assert keyed.version == 1


def test_a_key_twice_in_one_append_is_refused_at_once(keyed: ty.Table) -> None:
    with keyed.writer() as writer, pytest.raises(ty.KeyConflict, match="duplicate key"):
        writer.append(rows(10, 10))
    assert keyed.version == 1


def test_duplicates_are_let_in_where_they_are_allowed(keyed: ty.Table) -> None:
    with keyed.writer(on_duplicate="allow") as writer:
        writer.append(rows(3))
    assert ids_of(keyed) == [0, 1, 2, 3, 3]


# ---- back-pressure -----------------------------------------------------------------------------------------------------------------


def test_an_append_waits_for_room(table: ty.Table, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = table.writer(max_delay=1e6, max_bytes=1, buffer_bytes=1)
    gate = Gate(writer, monkeypatch)
    first = writer.append(rows(10))
    gate.wait()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(writer.append, rows(11))
        with writer._changed:
            assert writer._changed.wait_for(lambda: writer._buffer._line, SOON)
        assert not second.done()
        gate.open.release(2)
        assert second.result(SOON).result(SOON).version == 4
    assert first.result(0).version == 3
    writer.close()


def test_it_does_not_wait_longer_than_asked(table: ty.Table, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = table.writer(max_delay=1e6, max_bytes=1, buffer_bytes=1)
    gate = Gate(writer, monkeypatch)
    writer.append(rows(10))
    gate.wait()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(writer.append, rows(11), timeout=5.0)
        with writer._changed:
            assert writer._changed.wait_for(lambda: writer._buffer._line, SOON)
        clock.advance(5.0)
        error = late.exception(SOON)
    assert isinstance(error, ty.WriterTimeout)
    assert isinstance(error, TimeoutError)
    assert (error.seconds, error.appends, error.bytes) == (5.0, 1, writer.buffered_bytes)
    assert error.retryable
    assert not writer._buffer._line, "it left the line"
    with pytest.raises(ty.WriterTimeout):
        writer.flush(timeout=0)
    gate.open.release(2)
    writer.flush()
    assert writer.append(rows(11), timeout=0).result(SOON).version == 4
    writer.close()
    assert ids_of(table)[-2:] == [10, 11]


def test_who_waits_for_room_does_not_wait_for_the_delay(table: ty.Table) -> None:
    with table.writer(max_delay=1e6, max_bytes=10_000, buffer_bytes=1_000) as writer:
        receipts = [writer.append(rows(number)) for number in range(10, 20)]
        assert receipts[0].result(SOON).version == 3
    assert ids_of(table)[-10:] == list(range(10, 20))


def test_a_callback_is_not_left_waiting_for_its_own_thread(table: ty.Table) -> None:
    writer = table.writer(max_delay=1e6, max_bytes=1, buffer_bytes=1)
    seen: list[BaseException] = []

    def again(_: object) -> None:
        for call in (lambda: writer.append(rows(12)), writer.flush, writer.close):
            try:
                call()
            except ty.TiltyardError as error:
                seen.append(error)

    receipt = writer.append(rows(10))
    receipt.add_done_callback(again)
    writer.flush()
    writer.close()
    assert [type(error) for error in seen] in ([ty.WriterTimeout, ty.InvalidInput, ty.InvalidInput], [ty.InvalidInput] * 2)


# ---- errors nobody asked for, and the end ------------------------------------------------------------------------------------------


def test_an_error_that_nobody_asked_for_is_raised_at_the_end(keyed: ty.Table) -> None:
    writer = keyed.writer(max_delay=1e6)
    for number in (3, 2, 10):
        writer.append(rows(number))
    with pytest.raises(ty.KeyConflict) as caught:
        writer.close()
    assert caught.value.__notes__ == ["1 more appends failed, and their receipts were not asked for."]
    assert ids_of(keyed) == [0, 1, 2, 3, 10], "the others are there"


def test_an_error_that_was_asked_for_is_not_raised_again(keyed: ty.Table) -> None:
    with keyed.writer(max_delay=0) as writer:
        with pytest.raises(ty.KeyConflict):
            writer.append(rows(3)).result(SOON)
        assert writer.append(rows(2)).exception(SOON) is not None


def test_the_error_of_the_block_is_not_hidden(keyed: ty.Table) -> None:
    def fail() -> None:
        with keyed.writer(max_delay=1e6) as writer:
            writer.append(rows(3))
            writer.append(rows(10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert "already has these keys" in caught.value.__notes__[0]
    assert ids_of(keyed)[-1] == 10, "what was taken is committed all the same"


def test_a_receipt_cannot_be_cancelled(table: ty.Table) -> None:
    with table.writer(max_delay=1e6) as writer:
        receipt = writer.append(rows(10))
        assert not receipt.cancel()
    assert receipt.result(0).version == 3


def test_a_receipt_can_be_awaited(table: ty.Table) -> None:
    async def write(writer: ty.BatchWriter) -> int:
        result: ty.CommitResult = await asyncio.wrap_future(writer.append(rows(10)))
        return result.version

    with table.writer(max_delay=0) as writer:
        assert asyncio.run(write(writer)) == 3


def test_one_idempotency_key_is_not_for_many_commits(table: ty.Table) -> None:
    with pytest.raises(ty.InvalidInput, match="idempotency"):
        table.writer(commit=ty.CommitOptions(ty.distributed.once("me", 1)))


def test_commit_options_reach_the_history(table: ty.Table) -> None:
    with table.writer(commit=ty.CommitOptions({"job": "ingest"})) as writer:
        writer.append(rows(10))
    assert table.history(1)[0].properties["job"] == "ingest"


def test_a_broken_thread_leaves_nobody_waiting(table: ty.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    writer = table.writer(max_delay=1e6)

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(writer._commits), "ask", lambda _: fail())
    receipts = [writer.append(rows(10)), writer.append({"id": [11]})]
    writer._buffer.want_all()
    with pytest.raises(RuntimeError, match="a bug"):
        writer.close()
    assert [str(receipt.exception(0)) for receipt in receipts[1:]] == ["a bug"]
    assert len(raised) == 1


def test_a_transaction_has_no_writer() -> None:
    assert not hasattr(ty.TransactionTable, "writer")
    assert not hasattr(ty.LakeReader, "writer")


def _or_refused(write: Callable[[], ty.Table]) -> ty.Table | str:
    try:
        return write()
    except (ty.InvalidInput, ty.UnsupportedFeature) as refused:
        return str(refused)


@pytest.mark.parametrize("name", sorted(STORABLE))
def test_every_type_goes_through_it_as_it_does_without(tmp_path: Path, name: str) -> None:
    """Rows are copied and joined on the way: what the table holds is what plain appends leave."""
    parts = [table_of(pa.schema({"c": STORABLE[name]}), 7, start) for start in (0, 7)]

    def plain() -> ty.Table:
        table = ty.Table.create(tmp_path / "plain", parts[0].schema, durability="os")
        for part in parts:
            table.append(part)
        return table

    def through_a_writer() -> ty.Table:
        table = ty.Table.create(tmp_path / "t", parts[0].schema, durability="os")
        with table.writer(max_delay=60) as writer:
            for part in parts:
                writer.append(part)
        return table

    expected, table = (_or_refused(write) for write in (plain, through_a_writer))
    if isinstance(expected, str) or isinstance(table, str):
        assert str(expected).replace("/plain", "/t") == table, "what cannot be stored is refused in the same words"
        return
    assert table.version == 2
    assert table.to_arrow().combine_chunks().equals(expected.to_arrow().combine_chunks())
