"""What a user does with stock pylance and lancedb, step by step, against any server of the REST namespace. Results can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import lancedb
import pyarrow as pa
from lance.namespace import RestNamespace


def rest_namespace(url: str, **properties: str) -> Any:
    """pylance's own client of the protocol."""
    return RestNamespace(uri=url, **properties)  # type: ignore[no-untyped-call]


def rows_of(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().to_pylist() if hasattr(table, "to_arrow") else table.to_table().to_pylist()
    return sorted(found, key=lambda row: tuple(map(str, row.values())))


class LancedbSteps:
    """A table of lancedb's, from its creation to its end."""

    def __init__(self, url: str, **properties: str) -> None:
        self.db = lancedb.connect_namespace("rest", {"uri": url, **properties})
        self.table: Any = None

    def steps(self) -> list[tuple[str, Callable[[], Any]]]:
        return [
            ("no table yet", lambda: self.db.open_table("people")),
            ("create", self._create),
            ("create twice", lambda: self.db.create_table("people", [{"id": 1, "name": "x"}])),
            ("read", lambda: rows_of(self.table)),
            ("add", lambda: self.table.add([{"id": 3, "name": "c"}]).version),
            ("update", lambda: self.table.update(where="id = 1", values={"name": "z"}).rows_updated),
            ("delete", lambda: self.table.delete("id = 2").version),
            ("merge", self._merge),
            ("read again", lambda: rows_of(self.db.open_table("people"))),
            ("versions", lambda: [entry["version"] for entry in self.table.list_versions()]),
            ("tag", lambda: self.table.tags.create("first", 1)),
            ("tags", lambda: {name: tag["version"] for name, tag in self.table.tags.list().items()}),
            ("of the tag", lambda: self._at("first")),
            ("index", lambda: self.table.create_index("id", config=lancedb.index.BTree())),
            ("indices", lambda: [(index.name, list(index.columns)) for index in self.table.list_indices()]),
            ("add a column", lambda: self.table.add_columns({"twice": "id * 2"}).version),
            ("overwrite", lambda: rows_of(self.db.create_table("people", [{"id": 9}], mode="overwrite"))),
            ("names", lambda: list(self.db.list_tables().tables)),
            ("drop", lambda: self.db.drop_table("people")),
            ("drop twice", lambda: self.db.drop_table("people")),
        ]

    def _create(self) -> int:
        self.table = self.db.create_table("people", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        return int(self.table.version)

    def _merge(self) -> tuple[int, int]:
        done = (
            self.table.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute([{"id": 3, "name": "C"}, {"id": 4, "name": "d"}])
        )
        return done.num_updated_rows, done.num_inserted_rows

    def _at(self, tag: str) -> list[dict[str, Any]]:
        opened = self.db.open_table("people")
        opened.checkout(tag)
        return rows_of(opened)


class PylanceSteps:
    """The same with pylance: a dataset, its versions and branches."""

    def __init__(self, url: str, **properties: str) -> None:
        self.namespace = rest_namespace(url, **properties)

    def write(self, values: list[int], mode: str) -> int:
        written = lance.write_dataset(pa.table({"id": values}), namespace_client=self.namespace, table_id=["numbers"], mode=mode)
        return int(written.version)

    def dataset(self, **more: Any) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.namespace, table_id=["numbers"], **more)

    def steps(self) -> list[tuple[str, Callable[[], Any]]]:
        return [
            ("create", lambda: self.write([1, 2], "create")),
            ("create twice", lambda: self.write([1, 2], "create")),
            ("append", lambda: self.write([3], "append")),
            ("read", lambda: rows_of(self.dataset())),
            ("an older version", lambda: rows_of(self.dataset().checkout_version(1))),
            ("delete", lambda: self.dataset().delete("id = 1")["num_deleted_rows"]),
            ("index", self._index),
            ("tag", lambda: self.dataset().tags.create("t", 2)),
            ("of the tag", lambda: rows_of(self.dataset(version="t"))),
            ("branch", self._branch),
            ("branches", lambda: sorted(self.dataset().branches.list())),
            ("overwrite", lambda: self.write([7], "overwrite")),
            ("read at last", lambda: rows_of(self.dataset())),
        ]

    def _index(self) -> None:
        self.dataset().create_scalar_index("id", "BTREE")

    def _branch(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        side = self.dataset().create_branch("side")
        side.insert(pa.table({"id": [50]}))
        return rows_of(side), rows_of(self.dataset())


def results_of(steps: list[tuple[str, Callable[[], Any]]]) -> dict[str, Any]:
    """What each step returned, or the kind of what it raised."""
    found: dict[str, Any] = {}
    for name, step in steps:
        try:
            found[name] = step()
        except Exception as error:  # noqa: BLE001 - errors of lance_namespace have no closer kind in common
            found[name] = type(error).__name__
    return found
