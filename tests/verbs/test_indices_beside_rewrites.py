"""An index that is built while fragments are rewritten under it: what translates its places must stay for as long as it needs it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.operations import Rewrite
from tiltyard.verbs.indices import build_index, optimize_indices

LONG = 60.0


def _rows(first: int, count: int) -> pa.Table:
    numbers = list(range(first, first + count))
    return pa.table({"id": numbers, "amount": [number * 7 % 1000 for number in numbers]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, _rows(0, 50))
    table.create_index("amount", "BTREE")
    for first in (50, 60, 70, 80):
        table.append(_rows(first, 10))
    table.indices.optimize(merge=True)
    table.append(_rows(90, 10))
    return uri


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> dict[str, threading.Event]:
    """Has an index be built on the very version that a rewrite is put on, and committed after it."""
    events = {"rewrite waits": threading.Event(), "built": threading.Event(), "rewritten": threading.Event()}
    commit, build = Committer.commit, build_index.build_segment

    def committed(self: Committer, transaction: Any, *more: Any, **named: Any) -> Any:
        if not isinstance(transaction.operation, Rewrite):
            return commit(self, transaction, *more, **named)
        events["rewrite waits"].set()
        assert events["built"].wait(LONG)
        done = commit(self, transaction, *more, **named)
        events["rewritten"].set()
        return done

    def built(*given: Any, **named: Any) -> Any:
        made = build(*given, **named)
        events["built"].set()
        assert events["rewritten"].wait(LONG)
        return made

    monkeypatch.setattr(Committer, "commit", committed)
    monkeypatch.setattr(optimize_indices, "build_segment", built)
    return events


@pytest.mark.parametrize("retrain", [False, True], ids=["one segment more", "made again"])
def test_an_index_of_the_version_that_was_rewritten_finds_every_row(uri: str, meeting: dict[str, threading.Event], retrain: bool) -> None:
    """Both stand on one version, so the numbers of versions alone do not tell that the index is behind."""
    with ThreadPoolExecutor(1) as pool:
        compaction = pool.submit(ty.Table.open(uri).compact)
        assert meeting["rewrite waits"].wait(LONG)
        indexing = ty.Table.open(uri)
        result = indexing.indices.optimize(retrain=retrain)
        rewritten = compaction.result(LONG)
    assert Rewrite.name in [winner.operation for winner in result.rebased_over] or result.version > rewritten.version
    stock = lance.dataset(uri)
    for amount in range(0, 1000, 7):
        found, plain = (
            sorted(stock.to_table(filter=f"amount = {amount}", use_scalar_index=use)["id"].to_pylist()) for use in (True, False)
        )
        assert found == plain, amount
    assert ty.Table.open(uri).check().problems == ()
    again = ty.Table.open(uri)
    again.indices.optimize()
    assert [index.missing for index in again.indices.list()] == [()]
    assert again.check().problems == ()
