"""One process of the benchmark of peers. It runs in the environment of its peer, so it needs no more than that and pyarrow.

It is told by a line of JSON what to do, says ``ready``, waits for a line, does it, and tells what came of it in a line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

SCHEMA = pa.schema({"id": pa.int64(), "value": pa.int64()})


def rows(first: int, count: int = 1) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "value": ids}, SCHEMA)


class Peer(Protocol):
    """A table of one of the systems that are compared."""

    def create(self, first: pa.Table) -> None: ...

    def open(self) -> None:
        """Looks up the latest version, as a new reader does."""

    def append(self, more: pa.Table) -> None: ...

    def upsert(self, changed: pa.Table) -> None: ...

    def delete(self, number: int) -> None:
        """Deletes the row with this id, of the latest version."""

    def widen(self, files: int) -> None:
        """Has the table consist of so many files more, all alike; made as cheaply as the system allows."""

    def count(self) -> int: ...


class Tiltyard:
    """Ours, flushing no more than the others do."""

    def __init__(self, directory: str, address: str) -> None:
        import tiltyard as ty

        import_module("lance")  # loaded at the first write otherwise, and that would be timed
        self._ty, self._path = ty, directory
        self._table: Any = None

    def create(self, first: pa.Table) -> None:
        self._table = self._ty.Table.create(self._path, first, durability="os")

    def open(self) -> None:
        self._table = self._ty.Table.open(self._path, durability="os")

    def append(self, more: pa.Table) -> None:
        self._table.append(more)

    def upsert(self, changed: pa.Table) -> None:
        self._table.merge(changed, on="id").when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self, number: int) -> None:
        self._table.delete(f"id = {number}")

    def widen(self, files: int) -> None:
        fragment = replace(self._table.layout.fragments[0], id=0)
        self._table.commit(self._ty.ops.Append((fragment,) * files))

    def count(self) -> int:
        return int(self._table.refresh().count_rows())


class Pylance:
    def __init__(self, directory: str, address: str) -> None:
        import lance

        self._lance, self._path = lance, directory

    def create(self, first: pa.Table) -> None:
        self._lance.write_dataset(first, self._path)

    def open(self) -> None:
        self._lance.dataset(self._path)

    def append(self, more: pa.Table) -> None:
        self._lance.write_dataset(more, self._path, mode="append")

    def upsert(self, changed: pa.Table) -> None:
        self._lance.dataset(self._path).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(changed)

    def delete(self, number: int) -> None:
        self._lance.dataset(self._path).delete(f"id = {number}")

    def widen(self, files: int) -> None:
        dataset = self._lance.dataset(self._path)
        fragment = dataset.get_fragments()[0].metadata
        self._lance.LanceDataset.commit(self._path, self._lance.LanceOperation.Append([fragment] * files), read_version=dataset.version)

    def count(self) -> int:
        return int(self._lance.dataset(self._path).count_rows())


class Delta:
    """delta-rs through its Python package."""

    def __init__(self, directory: str, address: str) -> None:
        self._delta, self._path = import_module("deltalake"), directory

    def create(self, first: pa.Table) -> None:
        self._delta.write_deltalake(self._path, first)

    def open(self) -> None:
        self._delta.DeltaTable(self._path)

    def append(self, more: pa.Table) -> None:
        self._delta.write_deltalake(self._path, more, mode="append")

    def upsert(self, changed: pa.Table) -> None:
        merge = self._delta.DeltaTable(self._path).merge(changed, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self, number: int) -> None:
        self._delta.DeltaTable(self._path).delete(f"id = {number}")

    def widen(self, files: int) -> None:
        """Names of files that are not there: a log of additions is all that an append looks at."""
        table = self._delta.DeltaTable(self._path)
        action = import_module("deltalake.transaction").AddAction
        added = [action(f"file-{number}.parquet", 900, {}, 0, True, '{"numRecords": 1}') for number in range(files)]
        table.create_write_transaction(added, "append", table.schema(), [])

    def count(self) -> int:
        return int(self._delta.DeltaTable(self._path).count())


class Iceberg:
    """pyiceberg with a catalog in SQLite or PostgreSQL."""

    def __init__(self, directory: str, address: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        uri = address.replace("postgresql://", "postgresql+psycopg2://") or f"sqlite:///{directory}/catalog.db"
        self._catalog = import_module("pyiceberg.catalog.sql").SqlCatalog("bench", uri=uri, warehouse=f"file://{directory}")
        self._table: Any = None

    def create(self, first: pa.Table) -> None:
        self._catalog.create_namespace_if_not_exists("bench")
        self._table = self._catalog.create_table("bench.events", SCHEMA)
        self._table.append(first)

    def open(self) -> None:
        self._table = self._catalog.load_table("bench.events")

    def append(self, more: pa.Table) -> None:
        self._table.append(more)

    def upsert(self, changed: pa.Table) -> None:
        self._table.upsert(changed, join_cols=["id"])

    def delete(self, number: int) -> None:
        self.open()
        self._table.delete(f"id == {number}")

    def widen(self, files: int) -> None:
        file = next(iter(self._table.scan().plan_files())).file
        with self._table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for _ in range(files):
                append.append_data_file(file)
        self.open()

    def count(self) -> int:
        self.open()
        return int(self._table.scan().count())


class DuckLake:
    """DuckDB's lake with its metadata in SQLite or PostgreSQL. The extensions are files of wheels: nothing is fetched at run time."""

    def __init__(self, directory: str, address: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._connection = import_module("duckdb").connect(config={"allow_unsigned_extensions": "true"})
        for name in ("sqlite_scanner", "postgres_scanner", "ducklake"):
            self._connection.execute(f"LOAD '{_extension(name)}'")
        where = f"postgres:{address}" if address else f"sqlite:{directory}/catalog.db"
        self._connection.execute(f"ATTACH 'ducklake:{where}' AS lake (DATA_PATH '{directory}/data')")

    def create(self, first: pa.Table) -> None:
        self._connection.execute("CREATE TABLE lake.events (id BIGINT, value BIGINT)")
        self.append(first)

    def open(self) -> None:
        self._connection.execute("SELECT * FROM lake.events LIMIT 0")

    def append(self, more: pa.Table) -> None:
        with self._given(more):
            self._connection.execute("INSERT INTO lake.events SELECT * FROM given")

    def upsert(self, changed: pa.Table) -> None:
        with self._given(changed):
            self._connection.execute(
                "MERGE INTO lake.events t USING given s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.value)"
            )

    def delete(self, number: int) -> None:
        self._connection.execute("DELETE FROM lake.events WHERE id = ?", [number])

    def widen(self, files: int) -> None:
        """Copies of one Parquet file, which the lake looks into one by one."""
        copies = Path(self._directory) / "copies"
        copies.mkdir()
        self._connection.execute(f"COPY (SELECT 1::BIGINT AS id, 1::BIGINT AS value) TO '{copies}/0.parquet'")
        first = (copies / "0.parquet").read_bytes()
        for number in range(1, files):
            (copies / f"{number}.parquet").write_bytes(first)
        self._connection.execute(f"CALL ducklake_add_data_files('lake', 'events', '{copies}/*.parquet')")

    def count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM lake.events").fetchall()[0][0])

    def create_pair(self) -> None:
        for name in ("a", "b"):
            self._connection.execute(f"CREATE TABLE lake.{name} (id BIGINT, value BIGINT)")

    def append_to_both(self, more: pa.Table) -> None:
        with self._given(more):
            self._connection.execute("BEGIN")
            try:
                self._connection.execute("INSERT INTO lake.a SELECT * FROM given")
                self._connection.execute("INSERT INTO lake.b SELECT * FROM given")
                self._connection.execute("COMMIT")
            except Exception:
                self._connection.execute("ROLLBACK")
                raise

    def count_both(self) -> tuple[int, int]:
        found = self._connection.execute("SELECT (SELECT count(*) FROM lake.a), (SELECT count(*) FROM lake.b)").fetchall()
        return int(found[0][0]), int(found[0][1])

    @contextmanager
    def _given(self, table: pa.Table) -> Iterator[None]:
        self._connection.register("given", table)
        try:
            yield
        finally:
            self._connection.unregister("given")


class TiltyardLake:
    """Ours, as a lake: only for transactions over two tables, which most others do not have."""

    def __init__(self, directory: str, address: str) -> None:
        import tiltyard as ty

        import_module("lance")
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._lake = ty.Lake.open(address or directory, root=directory if address else None, durability="os")

    def create_pair(self) -> None:
        for name in ("a", "b"):
            self._lake.create_table(name, SCHEMA)

    def append_to_both(self, more: pa.Table) -> None:
        with self._lake.transaction() as transaction:
            for name in ("a", "b"):
                transaction.table(name).append(more)

    def count_both(self) -> tuple[int, int]:
        snapshot = self._lake.snapshot()
        return snapshot.table("a").count_rows(), snapshot.table("b").count_rows()


class Pair(Protocol):
    """Two tables that one transaction can write to."""

    def create_pair(self) -> None: ...

    def append_to_both(self, more: pa.Table) -> None: ...

    def count_both(self) -> tuple[int, int]: ...


def _extension(name: str) -> Path:
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit(f"the wheel of the extension {name} is not installed")
    return next(Path(next(iter(found.submodule_search_locations))).rglob("*.duckdb_extension"))


PEERS: dict[str, Callable[[str, str], Peer]] = {
    "tiltyard": Tiltyard,
    "pylance": Pylance,
    "delta": Delta,
    "iceberg": Iceberg,
    "ducklake": DuckLake,
}
PAIRS: dict[str, Callable[[str, str], Pair]] = {"tiltyard": TiltyardLake, "ducklake": DuckLake}


def _serial(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """Appends one after the other, for so many seconds at most: the seconds of each."""
    peer.create(rows(0))
    taken: list[float] = []
    end = time.perf_counter() + job.get("most_seconds", float("inf"))
    while len(taken) < job["commits"] and time.perf_counter() < end:
        taken.append(_timed(lambda: peer.append(rows(len(taken) + 1))))
    return {"seconds": taken}


def _loop(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    return _for_seconds(job["seconds"], lambda _: peer.append(rows(job["writer"])), peer.open)


def _own(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """The same on a table that nobody else writes to, and how many rows it has then."""
    told = _loop(peer, job)
    peer.open()
    return {**told, "rows": peer.count()}


def _delete(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """Deletes one row after the other, each writer those whose id leaves its number when divided by the number of writers."""
    return _for_seconds(job["seconds"], lambda count: peer.delete(job["writer"] + count * job["writers"]), peer.open)


def _for_seconds(seconds: float, work: Callable[[int], object], after_failure: Callable[[], object]) -> dict[str, Any]:
    """Does work for some seconds: those of each that was acknowledged, and how many were not. Whoever failed opens the table anew."""
    taken: list[float] = []
    failed, error = 0, ""
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        try:
            work(len(taken) + failed)
        except Exception as raised:  # noqa: BLE001 - every system has errors of its own
            failed, error = failed + 1, error or " ".join(f"{type(raised).__name__}: {raised}".split())[:200]
            after_failure()
        else:
            taken.append(time.perf_counter() - begun)
    return {"seconds": taken, "failed": failed, "error": error}


def _wide(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """One more file on very many: medians are the caller's."""
    peer.create(rows(0))
    peer.widen(job["files"])
    peer.append(rows(1))  # whatever is read once is read
    return {"seconds": [_timed(lambda: peer.append(rows(2))) for _ in range(job["times"])]}


def _pairs(pair: Pair, job: dict[str, Any]) -> dict[str, Any]:
    """Transactions over two tables, one after the other."""
    pair.create_pair()
    taken = [_timed(lambda number=number: pair.append_to_both(rows(number))) for number in range(job["commits"])]  # type: ignore[misc]
    assert pair.count_both() == (len(taken), len(taken)), "a row is missing in one of the tables"
    return {"seconds": taken}


def _open(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    return {"seconds": [_timed(peer.open) for _ in range(job["times"])]}


def _upsert(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    there, changed = job["rows"], job["changed"]
    peer.create(rows(0, there))
    taken = _timed(lambda: peer.upsert(rows(there - changed // 2, changed)))
    assert peer.count() == there + changed - changed // 2, "an upsert made too many rows, or too few"
    return {"seconds": [taken]}


def _count(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    return {"rows": peer.count()}


def _create(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    peer.create(rows(0, job.get("rows", 1)))
    return {}


JOBS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "serial": _serial,
    "loop": _loop,
    "own": _own,
    "open": _open,
    "upsert": _upsert,
    "delete": _delete,
    "wide": _wide,
    "pairs": _pairs,
    "count": _count,
    "create": _create,
}
OPENED = {"loop", "count", "open", "delete"}
"""Jobs on a table that is there."""


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    job = json.loads(sys.stdin.readline())
    peer: Any = (PAIRS if job["work"] == "pairs" else PEERS)[job["peer"]](job["directory"], job["address"])
    if job["work"] in OPENED:
        peer.open()
    elif job["work"] == "own":
        peer.create(rows(0))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(JOBS[job["work"]](peer, job)), flush=True)


if __name__ == "__main__":
    main()
