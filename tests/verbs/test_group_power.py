"""A commit that somebody else made for us is acknowledged when it is as safe from a power loss as one of our own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import tiltyard as ty
from tests.support.commits import ids_of, rows
from tests.support.in_line import LONG, held, in_company, until, waiting
from tiltyard.errors import OutcomeUnknown, StorageError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.storage import files, local_queue
from tiltyard.storage.local import LocalStore
from tiltyard.storage.local_queue import LocalPlace, LocalQueue
from tiltyard.transaction import turns


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks for the lead when somebody calls, and not before: so it is known who leads."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    monkeypatch.setattr(LocalQueue, "look_every", LONG)
    monkeypatch.setattr(local_queue, "_FIRST_LOOK", LONG)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    ty.Table.create(uri, rows(0))
    return uri


def _in_turn(uri: str, pool: ThreadPoolExecutor, works: Sequence[Callable[[], ty.CommitResult]]) -> list[Any]:
    """Has all of them wait; when this returns, the first leads."""
    futures = []
    with held(uri):
        for number, work in enumerate(works, 1):
            futures.append(pool.submit(work))
            until(partial(_wait_in_line, uri, number))
    return futures


def _wait_in_line(uri: str, number: int) -> bool:
    return waiting(uri) == number


def _flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths in the order in which they reach the disk; a version that is about to be made has no name yet."""
    flushed: list[str] = []
    real = files.flush

    def flush(descriptor: int) -> None:
        real(descriptor)
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(files, "flush", flush)
    return flushed


@pytest.mark.parametrize("verb", ["append", "delete"])
@pytest.mark.parametrize("leader", ["os", "fsync"])
def test_what_a_leader_promises_less_its_members_see_to(
    uri: str, leader: Literal["os", "fsync"], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ty.Table.open(uri).append(rows(*range(10, 20)))
    leads, member = ty.Table.open(uri, storage=ty.Storage(durability=leader)), ty.Table.open(uri)
    flushed = _flushed(monkeypatch)
    works = [
        partial(table.append, rows(number)) if verb == "append" else partial(table.delete, f"id = {number}")
        for number, table in ((11, leads), (12, member))
    ]
    with ThreadPoolExecutor(2) as pool:
        assert {future.result(LONG).version for future in _in_turn(uri, pool, works)} == {3}
    version = manifest_path(3, Scheme.V2)
    needed = {version, "_versions"}
    if verb == "delete":
        made = {found.deletion_file.path(found.id) for found in member.layout.fragments if found.deletion_file}
        needed |= {"_deletions", *(made if leader == "os" else ())}  # else it was flushed before it had its name
    safe = {re.sub(r"_versions/\.tmp\..*", version, path.removeprefix(f"{uri}/")) for path in flushed}
    assert needed <= safe
    assert ids_of(member) == (sorted([0, *range(10, 20), 11, 12]) if verb == "append" else [0, 10, *range(13, 20)])


@pytest.mark.parametrize("leader", ["os", "fsync"])
def test_rows_that_a_leader_wrote_for_others_are_safe_when_they_are_acknowledged(
    uri: str, leader: Literal["os", "fsync"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member has no file of its own to flush, so it flushes the leader's where that one does not."""
    leads, member = in_company(ty.Table.open(uri, storage=ty.Storage(durability=leader))), in_company(ty.Table.open(uri))
    flushed = _flushed(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        results = _in_turn(uri, pool, [partial(leads.append, rows(1)), partial(member.append, rows(2))])
        assert {future.result(LONG).version for future in results} == {2}
    (file,) = member.layout.fragments[-1].files
    assert {f"{uri}/data/{file.path}", f"{uri}/data"} <= set(flushed)
    if leader == "fsync":
        version = next(place for place, path in enumerate(flushed) if "/_versions/" in path)
        assert flushed.index(f"{uri}/data/{file.path}") < version, "before a version names it"
    assert ids_of(member) == [0, 1, 2]


@pytest.mark.parametrize("company", [0, 1], ids=["rows in files", "rows in memory"])
def test_who_finds_itself_in_a_version_of_a_dead_leader_flushes_it(uri: str, company: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died after it created the name, and before that was safe: whoever acknowledges the rows has to see to it."""
    monkeypatch.setattr(LocalPlace, "answer", lambda *_: None)
    flushed = _flushed(monkeypatch)
    real = LocalPlace.leave

    def leave(self: LocalPlace) -> None:
        if self.transaction_id != "held" and not dead:
            dead.append(self.transaction_id)
            flushed.clear()
        real(self)

    dead = list[str]()
    monkeypatch.setattr(LocalPlace, "leave", leave)
    works = [partial(in_company(ty.Table.open(uri), company).append, rows(number)) for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        assert [future.result(LONG).version for future in _in_turn(uri, pool, works)] == [2, 2]
    made = {f"{uri}/data/{file.path}" for fragment in ty.Table.open(uri).layout.fragments[1:] for file in fragment.files}
    assert {f"{uri}/{manifest_path(2, Scheme.V2)}", f"{uri}/_versions", *made} <= set(flushed)


def test_what_cannot_be_made_safe_is_not_acknowledged(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leads, member = ty.Table.open(uri, storage=ty.Storage(durability="os")), ty.Table.open(uri)
    real = LocalStore.sync

    def sync(self: LocalStore, paths: Any) -> None:
        paths = list(paths)
        if self.durability == "fsync" and any("_versions/" in path for path in paths):
            raise StorageError("Cannot flush.", name="x")
        real(self, paths)

    monkeypatch.setattr(LocalStore, "sync", sync)
    with ThreadPoolExecutor(2) as pool:
        first, second = _in_turn(uri, pool, [partial(leads.append, rows(1)), partial(member.append, rows(2))])
        assert first.result(LONG).version == 2
        assert isinstance(second.exception(LONG), OutcomeUnknown)
    assert ids_of(ty.Table.open(uri)) == [0, 1, 2], "its files are where the version says"
