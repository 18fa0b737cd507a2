"""Batches whose commit fails, or ends without an answer: nothing is lost, nothing is doubled, and each append is told the truth."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Literal

import pytest

import tiltyard as ty
from tests.support.commits import copy_of, handle, ids_of, is_version, make_template, noted_runtime, rows
from tiltyard.batching.batch_commit import PATIENCE
from tiltyard.errors import StorageError
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.local import LocalStore
from tiltyard.testing import ManualClock, WrapperStore
from tiltyard.testing.stores import Request, T

SOON = 60


class LosingStore(WrapperStore):
    """Loses the answer to the next creation of a version, and from then on answers nothing until it is repaired."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.lose: Literal["request", "answer", ""] = ""
        self.down = False

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self.lose and is_version(method, path):
            if self.lose == "answer":
                request(self.inner)
            self.lose, self.down = "", True
        if self.down:
            raise StorageError("no answer", maybe_applied=True, transient=True)
        return request(self.inner)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("batching") / "template")


class Bench:
    """A writer whose store can be made to fail, and its clock. The table has rows 0 to 3."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LosingStore(LocalStore(root, durability="os"))
        runtime = noted_runtime()
        assert isinstance(runtime.clock, ManualClock)
        self.clock = runtime.clock
        self.table = handle(root, self.store, runtime=runtime)
        self.writer = self.table.writer(max_delay=1e6)

    def in_doubt(self, lose: Literal["request", "answer"], *ids: int) -> ty.Receipt:
        """An append whose commit ended without an answer, at least once."""
        receipt = self.writer.append(rows(*ids))
        self.store.lose = lose
        with pytest.raises(ty.WriterTimeout):
            self.writer.flush(timeout=0)
        with self.writer._changed:
            assert self.writer._changed.wait_for(lambda: self.writer._commits.in_doubt, SOON)
        return receipt

    def wait(self, receipt: ty.Receipt) -> None:
        """Lets time pass until there is an answer."""
        asked = threading.Event()
        receipt.add_done_callback(lambda _: asked.set())
        begun = time.monotonic()
        while not asked.is_set():
            assert time.monotonic() - begun < SOON, "it asks no more"
            self.clock.advance(0.5)

    def ids(self) -> list[int]:
        return ids_of(ty.Table.open(self.root))


@pytest.fixture
def bench(template: Path, tmp_path: Path) -> Bench:
    return Bench(copy_of(template, tmp_path / "t"))


def test_a_commit_whose_answer_was_lost_is_asked_for_and_not_repeated(bench: Bench) -> None:
    receipt = bench.in_doubt("answer", 10, 11)
    assert not receipt.done()
    bench.store.down = False
    bench.wait(receipt)
    assert receipt.result(0).version == 3
    assert receipt.result(0).rows == {"inserted": 2}
    assert bench.ids() == [0, 1, 2, 3, 10, 11]
    assert bench.writer.append(rows(12)).done() is False
    bench.writer.close()
    assert bench.ids()[-1] == 12
    assert ty.Table.open(bench.root).transactions.outcome(receipt.result(0).transaction_id) == ty.outcomes.Committed(3)


def test_a_request_that_never_arrived_is_settled_by_the_next_commit_and_repeated(bench: Bench) -> None:
    lost = bench.in_doubt("request", 10)
    bench.store.down = False
    after = bench.writer.append(rows(11))
    bench.writer.flush()
    assert (after.result(0).version, lost.result(0).version) == (3, 4)
    bench.writer.close()
    assert bench.ids() == [0, 1, 2, 3, 10, 11], "each row once"


def test_it_stays_unknown_where_no_answer_comes(bench: Bench) -> None:
    receipt = bench.in_doubt("request", 10)
    begun = bench.clock.monotonic()
    bench.wait(receipt)
    error = receipt.exception(0)
    assert isinstance(error, ty.OutcomeUnknown)
    assert bench.clock.monotonic() - begun >= PATIENCE
    bench.store.down = False
    with bench.writer:
        other = bench.writer.append(rows(11))
    assert other.result(0).version == 3, "the next one is not affected"
    assert isinstance(bench.table.transactions.outcome(error.transaction_id, version=error.version), ty.outcomes.NotCommitted)
    assert bench.ids() == [0, 1, 2, 3, 11]


def test_close_waits_for_the_answer(bench: Bench) -> None:
    receipt = bench.in_doubt("answer", 10)
    with pytest.raises(ty.WriterTimeout):
        bench.writer.close(timeout=0)
    bench.store.down = False
    bench.wait(receipt)
    bench.writer.close()
    assert receipt.result(0).version == 3


def test_a_store_that_fails_before_anything_is_sent_fails_all_of_the_batch(bench: Bench) -> None:
    receipts = [bench.writer.append(rows(10)), bench.writer.append(rows(11))]
    bench.store.down = True
    bench.writer.flush()
    errors = [receipt.exception(0) for receipt in receipts]
    assert all(isinstance(error, ty.TiltyardError) and not isinstance(error, ty.OutcomeUnknown) for error in errors), errors
    bench.store.down = False
    with bench.writer:
        bench.writer.append(rows(12))
    assert bench.ids() == [0, 1, 2, 3, 12]


def test_a_version_that_was_cleaned_up_is_no_error(template: Path, tmp_path: Path) -> None:
    root = copy_of(template, tmp_path / "t")
    with ty.Table.open(root).writer(max_delay=1e6) as writer:
        receipt = writer.append(rows(10))
        other = ty.Table.open(root)
        for number in range(20, 24):
            other.append(rows(number))
        other.cleanup(keep_versions=1)
        assert other.versions() == [6]
    assert receipt.result(0).version == 7
    assert ids_of(ty.Table.open(root))[-5:] == [10, 20, 21, 22, 23]


def test_a_table_that_was_replaced_fails_what_came_before_and_takes_what_comes_after(template: Path, tmp_path: Path) -> None:
    root = copy_of(template, tmp_path / "t")
    with ty.Table.open(root).writer(max_delay=1e6) as writer:
        before = writer.append(rows(10))
        ty.Table.open(root).overwrite({"id": [1], "other": [2.5]})
        writer.flush()
        assert isinstance(before.exception(0), ty.IncompatibleConflict)
        after = writer.append({"id": [11], "other": [3.5]})
        writer.flush()
    assert after.result(0).version == 4
    assert ids_of(ty.Table.open(root)) == [1, 11]


def test_another_table_of_that_name_gets_none_of_its_rows(template: Path, tmp_path: Path) -> None:
    root = copy_of(template, tmp_path / "t")
    with ty.Table.open(root).writer(max_delay=1e6) as writer:
        before = writer.append(rows(10))
        shutil.rmtree(root)
        ty.Table.create(root, rows(100))
        writer.flush()
        assert before.exception(0) is not None
    assert ids_of(ty.Table.open(root)) == [100]
