"""What one version of a stock client costs the server: counted, at the edges of catalog and store. And what is remembered misleads nobody."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    ConcurrentModificationError,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    InvalidTableStateError,
    TableNotFoundError,
)

import tiltyard as ty
from tests.support.lakes import through
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.testing import CountingRecords


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ty.Lake]:
    with ty.Lake.open(tmp_path / "lake") as lake:
        lake.create_table("t", pa.table({"id": [0]}))
        yield lake


def add(namespace: LakeNamespace, number: int, name: str = "t") -> None:
    lance.write_dataset(pa.table({"id": [number]}), namespace_client=namespace, table_id=[name], mode="append")


def directory(lake: ty.Lake, name: str = "t") -> Path:
    return Path(lake.plain_access_of(lake.snapshot().cut.tables[name]).lance_uri)


def stage(lake: ty.Lake, number: int, name: str = "t") -> CreateTableVersionRequest:
    """The next version of a table, staged as stock clients do it, and the request to publish it."""
    at = directory(lake, name)
    copy = at.parent / f"copy-{uuid.uuid4()}"
    shutil.copytree(at, copy)
    made = lance.write_dataset(pa.table({"id": [number]}), str(copy), mode="append").version
    for file in (copy / "data").iterdir():
        shutil.copy(file, at / "data" / file.name)
    (version,) = {file.name for file in (copy / "_versions").iterdir()} - {file.name for file in (at / "_versions").iterdir()}
    staged = at / "_versions" / f"{version}-{uuid.uuid4()}"
    shutil.move(copy / "_versions" / version, staged)
    shutil.rmtree(copy)
    return CreateTableVersionRequest(id=[name], version=made, manifest_path=str(staged).lstrip("/"), naming_scheme="V2")


class Counting(LakeNamespace):
    """Counts what publishing a version asks of the catalog."""

    def __init__(self, lake: ty.Lake) -> None:
        super().__init__(lake)
        self.records = through(lake, CountingRecords)
        self.counts: list[tuple[int, int, int]] = []

    def create_table_version(self, request: Any) -> CreateTableVersionResponse:
        before = self._now()
        answer = super().create_table_version(request)
        self.counts.append(tuple(now - then for now, then in zip(self._now(), before, strict=True)))  # type: ignore[arg-type]
        return answer

    def _now(self) -> tuple[int, int, int]:
        return self.records.gets, self.records.scans, self.records.transacts


def test_a_version_is_one_step_of_the_catalog(lake: ty.Lake) -> None:
    namespace = Counting(lake)
    namespace.settle_by(lambda settlement: None)
    for number in range(1, 5):
        add(namespace, number)
    assert namespace.counts == [(1, 0, 1), *[(0, 0, 1)] * 3]  # looked up once
    lake.catalog.records = namespace.records.inner
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert lake.check().ok


def remembering(lake: ty.Lake) -> LakeNamespace:
    """A namespace that has published a version of ``t``, and a second version of it that is staged."""
    namespace = LakeNamespace(lake)
    add(namespace, 1)
    assert namespace._known.before("t", lake.table("t").version + 1) is not None
    return namespace


def test_a_table_with_another_name_by_now_is_not_written_to(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    lake.rename_table("t", "u")
    with pytest.raises(TableNotFoundError):
        namespace.create_table_version(request)
    assert Path("/" + request.manifest_path).exists()  # it is the client's
    assert sorted(lake.table("u").to_arrow()["id"].to_pylist()) == [0, 1]
    lake.rename_table("u", "t")
    assert namespace.create_table_version(request).version.version == request.version
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_another_table_of_the_name_is_not_written_to(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    lake.drop_table("t")
    with pytest.raises(TableNotFoundError):
        namespace.create_table_version(request)
    lake.create_table("t", pa.table({"id": [5]}))
    with pytest.raises(InvalidTableStateError, match="another directory"):
        namespace.create_table_version(request)
    assert lake.table("t").to_arrow()["id"].to_pylist() == [5]


def test_two_tables_that_changed_names_keep_their_rows_apart(lake: ty.Lake) -> None:
    lake.create_table("u", pa.table({"id": [100]}))
    namespace = remembering(lake)
    add(namespace, 101, "u")
    request = stage(lake, 2)

    def swap(tx: ty.LakeTransaction) -> None:
        tx.rename_table("t", "x")
        tx.rename_table("u", "t")
        tx.rename_table("x", "u")

    lake.run(swap)
    with pytest.raises(InvalidTableStateError, match="another directory"):
        namespace.create_table_version(request)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [100, 101]
    assert sorted(lake.table("u").to_arrow()["id"].to_pylist()) == [0, 1]


def test_whoever_lost_is_told_so_and_wins_with_the_next_number(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    lake.table("t").append(pa.table({"id": [3]}))
    with pytest.raises(ConcurrentModificationError):
        namespace.create_table_version(request)
    add(namespace, 4)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 3, 4]
    assert lake.check().ok


def test_the_same_request_sent_again_finds_its_number_taken(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    request = stage(lake, 2)
    namespace.create_table_version(request)
    with pytest.raises(ConcurrentModificationError):
        namespace.create_table_version(request)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_the_author_is_who_asks_now(lake: ty.Lake) -> None:
    namespace = remembering(lake)
    other = LakeNamespace(lake.signed("ada"))
    other.remember_in(namespace._known)
    other.create_table_version(stage(lake, 2))
    assert lake.history()[0].author == "ada"
