"""Tables of the systems that are compared. This runs in the environment of a peer, so it needs no more than that and pyarrow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

SCHEMA = pa.schema({"id": pa.int64(), "value": pa.int64()})


@dataclass(frozen=True)
class Place:
    """Where a table is.

    Attributes:
        directory: of the table; or its URI in an object store.
        address: of the database with the catalog; empty where there is none.
        store: how the object store is reached: its endpoint, key and secret; nothing for a directory.
    """

    directory: str
    address: str = ""
    store: dict[str, str] | None = None

    def made(self) -> Path:
        """A directory of this machine for a catalog and data, or for the catalog alone."""
        directory = Path(self.directory)
        if self.store is None:
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    def options(self) -> dict[str, str]:
        """Of the object store, as pylance, delta-rs and we take them."""
        if self.store is None:
            return {}
        return {
            "aws_endpoint": self.store["endpoint"],
            "aws_access_key_id": self.store["key"],
            "aws_secret_access_key": self.store["secret"],
            "aws_region": "us-east-1",
            "allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }


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

    def __init__(self, place: Place) -> None:
        import tiltyard as ty

        import_module("lance")  # loaded at the first write otherwise, and that would be timed
        self._ty, self._path = ty, place.directory
        self._storage = ty.Storage(options=place.options()) if place.store else ty.Storage(durability="os")
        self._table: Any = None

    def create(self, first: pa.Table) -> None:
        self._table = self._ty.Table.create(self._path, first, storage=self._storage)

    def open(self) -> None:
        self._table = self._ty.Table.open(self._path, storage=self._storage)

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
    def __init__(self, place: Place) -> None:
        import lance

        self._lance, self._path, self._options = lance, place.directory, place.options()
        self._opened: Any = self._path
        """In an object store, where opening takes requests, the handle that the last append left."""

    def create(self, first: pa.Table) -> None:
        self._lance.write_dataset(first, self._path, storage_options=self._options)

    def open(self) -> None:
        found = self._lance.dataset(self._path, storage_options=self._options)
        if self._options:
            self._opened = found

    def append(self, more: pa.Table) -> None:
        written = self._lance.write_dataset(more, self._opened, mode="append", storage_options=self._options)
        if self._options:
            self._opened = written

    def upsert(self, changed: pa.Table) -> None:
        self._lance.dataset(self._path).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(changed)

    def delete(self, number: int) -> None:
        self._lance.dataset(self._path).delete(f"id = {number}")

    def widen(self, files: int) -> None:
        dataset = self._lance.dataset(self._path)
        fragment = dataset.get_fragments()[0].metadata
        self._lance.LanceDataset.commit(self._path, self._lance.LanceOperation.Append([fragment] * files), read_version=dataset.version)

    def count(self) -> int:
        return int(self._lance.dataset(self._path, storage_options=self._options).count_rows())


class Delta:
    """delta-rs through its Python package."""

    def __init__(self, place: Place) -> None:
        self._delta, self._path = import_module("deltalake"), place.directory
        self._options = {**place.options(), "aws_conditional_put": "etag"} if place.store else None

    def create(self, first: pa.Table) -> None:
        self._delta.write_deltalake(self._path, first, storage_options=self._options)

    def open(self) -> None:
        self._delta.DeltaTable(self._path, storage_options=self._options)

    def append(self, more: pa.Table) -> None:
        self._delta.write_deltalake(self._path, more, mode="append", storage_options=self._options)

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
        return int(self._delta.DeltaTable(self._path, storage_options=self._options).count())


class Iceberg:
    """pyiceberg with a catalog in SQLite or PostgreSQL."""

    def __init__(self, place: Place) -> None:
        directory = place.made()
        uri = place.address.replace("postgresql://", "postgresql+psycopg2://") or f"sqlite:///{directory}/catalog.db"
        warehouse = place.directory if place.store else f"file://{directory}"
        given: dict[str, str] = {}
        if place.store:
            named = {"endpoint": "endpoint", "access-key-id": "key", "secret-access-key": "secret"}
            given = {f"s3.{name}": place.store[ours] for name, ours in named.items()}
        self._catalog = import_module("pyiceberg.catalog.sql").SqlCatalog("bench", uri=uri, warehouse=warehouse, **given)
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

    def __init__(self, place: Place) -> None:
        self._directory = place.made()
        self._connection = import_module("duckdb").connect(config={"allow_unsigned_extensions": "true"})
        for name in ("sqlite_scanner", "postgres_scanner", "ducklake", *(["httpfs"] if place.store else [])):
            self._connection.execute(f"LOAD '{_extension(name)}'")
        if place.store:
            self._connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{place.store['key']}', SECRET '{place.store['secret']}', REGION 'us-east-1', "
                f"ENDPOINT '{place.store['endpoint'].removeprefix('http://')}', USE_SSL false, URL_STYLE 'path')"
            )
        where = f"postgres:{place.address}" if place.address else f"sqlite:{self._directory}/catalog.db"
        self._connection.execute(f"ATTACH 'ducklake:{where}' AS lake (DATA_PATH '{place.directory}/data')")

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
        copies = self._directory / "copies"
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

    def __init__(self, place: Place) -> None:
        import tiltyard as ty

        import_module("lance")
        directory = str(place.made())
        self._lake = ty.Lake.open(place.address or directory, root=directory if place.address else None, durability="os")

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


PEERS: dict[str, Callable[[Place], Peer]] = {
    "tiltyard": Tiltyard,
    "pylance": Pylance,
    "delta": Delta,
    "iceberg": Iceberg,
    "ducklake": DuckLake,
}
PAIRS: dict[str, Callable[[Place], Pair]] = {"tiltyard": TiltyardLake, "ducklake": DuckLake}
