"""A handle whose rows another writer committed is at that version without having read it. Whatever it does next must not show."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

import tiltyard as ty
from tests.support.commits import ids_of, rows
from tests.support.in_line import LONG, in_line
from tiltyard.errors import HistoryUnavailable
from tiltyard.storage.local_queue import LocalQueue
from tiltyard.transaction import turns
from tiltyard.transaction.log import VersionLog


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait do so until they are told: else one might lead after all, and read the version by itself."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    monkeypatch.setattr(LocalQueue, "look_every", LONG)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    ty.Table.create(uri, rows(0), stable_row_ids=True)
    return uri


def member(uri: str, number: int = 2) -> ty.Table:
    """A handle that somebody else has just committed for."""
    handles: list[ty.Table] = []

    def append(table: ty.Table, row: int) -> None:
        table.append(rows(row))
        handles.append(table)

    before = ty.Table.open(uri).version
    for future in in_line(uri, [partial(append, row=row) for row in range(1, number + 1)]):
        future.result()
    found = next(handle for handle in handles if handle._known[1].partial)
    assert found.version == before + 1
    return found


READS: dict[str, Callable[[ty.Table], Any]] = {
    "rows": lambda table: sorted(table.to_arrow()["id"].to_pylist()),
    "count": lambda table: table.count_rows(),
    "schema": lambda table: table.schema,
    "history": lambda table: [entry.version for entry in table.history()],
    "fragments": lambda table: len(table.layout.fragments),
    "config": lambda table: dict(table.settings.config),
    "stream": lambda table: ty.Table.open(table.uri).schema == table.schema,
    "indices": lambda table: table.indices.list(),
    "branch": lambda table: table.branch,
}


@pytest.mark.parametrize("read", READS)
def test_what_is_read_is_what_a_new_handle_reads(uri: str, read: str) -> None:
    table = member(uri)
    assert READS[read](table) == READS[read](ty.Table.open(uri))


def test_nothing_is_read_until_somebody_asks(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = member(uri)
    loaded: list[int] = []
    load = VersionLog.load

    def counted(self: VersionLog, version: int, *given: Any, **named: Any) -> Any:
        loaded.append(version)
        return load(self, version, *given, **named)

    monkeypatch.setattr(VersionLog, "load", counted)
    assert (table.version, repr(table)) == (2, f"Table({uri!r}, version=2)")
    assert loaded == []
    assert table.count_rows() == 3
    assert loaded == [2]
    assert table.count_rows() == 3
    assert loaded == [2], "once"


VERBS: dict[str, tuple[Callable[[ty.Table], Any], list[int]]] = {
    "append": (lambda table: table.append(rows(9)), [0, 1, 2, 9]),
    "overwrite": (lambda table: table.overwrite(rows(9)), [9]),
    "delete": (lambda table: table.delete("id = 1"), [0, 2]),
    "update": (lambda table: table.update({"id": "id + 10"}, where="id = 2"), [0, 1, 12]),
    "merge": (lambda table: table.merge(rows(2, 9), on="id").when_not_matched_insert_all().execute(), [0, 1, 2, 9]),
    "compact": (lambda table: table.compact(), [0, 1, 2]),
    "index": (lambda table: table.create_index("id", "BTREE"), [0, 1, 2]),
    "restore": (lambda table: table.restore(1), [0]),
    "settings": (lambda table: table.settings.update_config({"a": "b"}), [0, 1, 2]),
    "tag": (lambda table: table.tags.create("x"), [0, 1, 2]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_goes_on_from_the_version_the_handle_is_at(uri: str, verb: str) -> None:
    table = member(uri)
    work, expected = VERBS[verb]
    result = work(table)
    assert ids_of(ty.Table.open(uri)) == ids_of(table) == expected
    if isinstance(result, ty.CommitResult) and verb != "compact":  # which commits twice
        assert (result.read_version, result.executions, result.rebased_over) == (2, 1, ())
    assert lance.dataset(uri).count_rows() == len(expected)
    assert ty.Table.open(uri).check(data=True).ok


def test_an_index_made_in_between_is_no_hindrance(uri: str) -> None:
    futures = in_line(
        uri,
        [lambda table: table.append(rows(1)), lambda table: table.append(rows(2))],
        before=lambda: lance.dataset(uri).create_scalar_index("id", "BTREE"),
    )
    assert {future.result().version for future in futures} == {3}
    assert ids_of(ty.Table.open(uri)) == [0, 1, 2]


def test_a_version_that_was_cleaned_up_is_missed_in_words(uri: str) -> None:
    table = member(uri)
    other = ty.Table.open(uri)
    other.append(rows(9))
    other.maintenance.cleanup(keep_versions=1)
    with pytest.raises(HistoryUnavailable, match="was cleaned up"):
        table.count_rows()
    with pytest.raises(HistoryUnavailable):
        table.append(rows(10))
    assert ids_of(table.refresh()) == [0, 1, 2, 9]
    table.append(rows(11))
    assert ids_of(table) == [0, 1, 2, 9, 11]


def test_the_version_of_another_table_under_the_same_name_is_not_taken_for_it(uri: str) -> None:
    table = member(uri)
    shutil.rmtree(uri)
    ty.Table.create(uri, rows(70)).append(rows(71))
    with pytest.raises(HistoryUnavailable):
        table.to_arrow()
    with pytest.raises(HistoryUnavailable):
        table.append(rows(10))
    assert ids_of(ty.Table.open(uri)) == [70, 71]
    assert ids_of(table.refresh()) == [70, 71]


def test_a_base_added_by_others_can_be_written_to(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "base"
    base.mkdir()
    storage = ty.Storage(allowed_bases=(str(base),))
    handles: list[ty.Table] = []

    def append(table: ty.Table, row: int) -> None:
        table.append(rows(row))
        handles.append(table)

    def add() -> None:
        monkeypatch.setattr(turns, "PATIENCE", 0.0)  # the test has the lead, and this one is to pass
        ty.Table.open(uri, storage=storage).settings.add_bases({"cold": str(base)})
        monkeypatch.setattr(turns, "PATIENCE", LONG)

    works = [lambda _, row=row: append(ty.Table.open(uri, storage=storage), row) for row in (1, 2)]
    for future in in_line(uri, works, before=add):
        future.result()
    for handle in handles:
        handle.append(rows(handle.version * 10), files=ty.FileLimits(base="cold"))
    assert len(ids_of(ty.Table.open(uri, storage=storage))) == 5
