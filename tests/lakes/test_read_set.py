"""What counts as a read: every public member of a transaction and of its tables is noted, or stands on a short list with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.lakes import Site, ids, numbers
from tiltyard.catalog.lake_values import ReadLevel
from tiltyard.distributed import RowPlan
from tiltyard.errors import ExpectedVersionMismatch, InvalidInput, NotFound, TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.lake_tables import TransactionTable
from tiltyard.lakes.lake_transaction import LakeTransaction

Use = Callable[[TransactionTable], Any]


def members(kind: type) -> set[str]:
    """All that a caller may use of a class, with the protocols by which other libraries read it."""
    return {name for name in dir(kind) if not name.startswith("_") or name.startswith(("__arrow", "__len", "__iter", "__getitem"))}


SHELVES = ("distributed", "indices", "layout", "maintenance", "settings", "transactions")
"""Members that only group others."""


def table_members() -> set[str]:
    """All that a caller may use of a table inside a transaction, by way of its sub-objects, too."""
    kinds = {shelf: get_type_hints(getattr(TransactionTable, shelf).fget)["return"] for shelf in SHELVES}
    return members(TransactionTable) - {*SHELVES} | {f"{shelf}.{name}" for shelf, kind in kinds.items() for name in members(kind)}


def refused(*_: Any) -> Any:
    raise ty.InvalidInput("no")


def written(table: TransactionTable, **more: Any) -> Any:
    return table.distributed.write_task(**more).write(numbers(8))


ROWS: dict[str, Use] = {
    "add_columns": lambda t: t.add_columns({"y": "id + 1"}),
    "alter_columns": lambda t: t.alter_columns({"path": "id", "name": "key"}),
    "distributed.change_rows": lambda t: t.distributed.change_rows(refused, RowPlan("delete")),
    "distributed.add_columns": lambda t: t.distributed.add_columns(pa.schema([("y", pa.int64())]), refused),
    "settings.config": lambda t: t.settings.config,
    "config": lambda t: t.config,
    "scan_task": lambda t: t.scan_task(),
    "count_rows": lambda t: t.count_rows(),
    "delete": lambda t: t.delete("id = 1"),
    "drop_columns": lambda t: t.drop_columns(["id"]),
    "layout.field_ids": lambda t: t.layout.field_ids,
    "merge": lambda t: t.merge(numbers(1), on="id").when_not_matched_insert_all().execute(),
    "settings.metadata": lambda t: t.settings.metadata,
    "primary_key": lambda t: t.primary_key,
    "distributed.replace_data": lambda t: t.distributed.replace_data(lambda batch: batch, ["id"]),
    "__arrow_c_stream__": lambda t: t.__arrow_c_stream__(),
    "__arrow_c_schema__": lambda t: t.__arrow_c_schema__(),
    "scan": lambda t: t.scan(),
    "distributed.scan_task": lambda t: t.distributed.scan_task(),
    "schema": lambda t: t.schema,
    "to_arrow": lambda t: t.to_arrow(),
    "update": lambda t: t.update({"id": "id + 1"}),
    "update_config": lambda t: t.update_config({"k": "v"}),
    "settings.update_config": lambda t: t.settings.update_config({"k": "v"}),
    "settings.update_field_metadata": lambda t: t.settings.update_field_metadata("id", {"k": "v"}),
    "update_field_metadata": lambda t: t.update_field_metadata("id", {"k": "v"}),
    "settings.update_metadata": lambda t: t.settings.update_metadata({"k": "v"}),
    "settings.update_schema_metadata": lambda t: t.settings.update_schema_metadata({"k": "v"}),
    "distributed.write_task": lambda t: t.distributed.write_task(),
}
"""They tell of rows, schema or settings, or what they write depends on these. Some fail here, which tells of more."""

TABLE: dict[str, Use] = {
    "settings.add_bases": lambda t: t.settings.add_bases(["/nowhere"]),
    "layout.bases": lambda t: t.layout.bases,
    "branch": lambda t: t.branch,
    "changes": lambda t: t.changes(1),
    "check": lambda t: t.check(),
    "commit": lambda t: t.commit("nothing"),  # type: ignore[arg-type]
    "compact": lambda t: t.compact(),
    "maintenance.compact": lambda t: t.maintenance.compact(),
    "maintenance.optimize": lambda t: t.maintenance.optimize("id > 0", cluster_by=["id"]),
    "maintenance.check": lambda t: t.maintenance.check(),
    "indices.create": lambda t: t.indices.create("id", "BTREE", name="other"),
    "indices.drop": lambda t: t.indices.drop("id_idx"),
    "distributed.compact": lambda t: t.distributed.compact(refused),
    "distributed.optimize": lambda t: t.distributed.optimize(refused, cluster_by=["id"]),
    "create_index": lambda t: t.create_index("id", "BTREE", name="other"),
    "layout.data_format": lambda t: t.layout.data_format,
    "transactions.describe": lambda t: t.transactions.describe(),
    "distributed.discard": lambda t: t.distributed.discard([]),
    "drop_index": lambda t: t.drop_index("id_idx"),
    "indices.extend": lambda t: t.indices.extend("id_idx"),
    "transactions.failed": lambda t: t.transactions.failed(),
    "layout.features": lambda t: t.layout.features,
    "layout.statistics": lambda t: t.layout.statistics(),
    "maintenance.analyze": lambda t: t.maintenance.analyze(),
    "layout.fragments": lambda t: t.layout.fragments,
    "history": lambda t: t.history(),
    "indices.segments": lambda t: t.indices.segments,
    "lance": lambda t: t.lance,
    "layout.latest_version": lambda t: t.layout.latest_version(),
    "indices.list": lambda t: t.indices.list(),
    "list_indices": lambda t: t.list_indices(),
    "versions": lambda t: t.versions(),
    "indices.mem_wal": lambda t: t.indices.mem_wal.generations,
    "indices.optimize": lambda t: t.indices.optimize(),
    "transactions.outcome": lambda t: t.transactions.outcome("00000000-0000-0000-0000-000000000000"),
    "refresh": lambda t: t.refresh(),
    "restore": lambda t: t.restore(1),
    "version": lambda t: t.version,
    "layout.version_id": lambda t: t.layout.version_id(),
    "layout.versions": lambda t: t.layout.versions(),
    "transactions.explain": lambda t: t.transactions.explain("00000000-0000-0000-0000-000000000000"),
}
"""They tell of more than that: of indices, fragments, versions, history."""

BLIND: dict[str, tuple[Use, str]] = {
    "append": (
        lambda t: t.append(numbers(7)),
        "what it writes is the same whatever is there; carried over others, keys are compared again",
    ),
    "overwrite": (lambda t: t.overwrite(numbers(7)), "what it writes is the same whatever is there; it is never carried over a change"),
    "uri": (lambda t: t.uri, "never changes for a table, and which table it is was read with the name"),
    "name": (lambda t: t.name, "what the caller asked for"),
}
PIECES = {"distributed.append", "distributed.overwrite"}
"""As ``append`` and ``overwrite``; the task that pieces are written by tells the schema, so that it is a read."""


@pytest.fixture(scope="module")
def indexed_lake(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Lake.open(tmp_path_factory.mktemp("reads") / "lake", durability="os") as lake:
        table = lake.create_table("a", numbers(1))
        table.append(numbers(2))
        table.create_index("id", "BTREE")
        lake.create_table("b", numbers(1))
        yield lake


def level_after(lake: Lake, use: Use) -> ReadLevel:
    tx = lake.transaction(isolation="serializable")
    table = tx.table("a")
    try:
        use(table)
    except TiltyardError:
        pass  # what it was told then is told by the error
    level = tx._scope.reads.level(lake.catalog.cut().tables["a"].id)
    tx.rollback()
    return level


def test_every_member_of_a_table_is_known() -> None:
    """A new member belongs into one of these lists; without a thought it is noted as reading everything."""
    assert table_members() == {*ROWS, *TABLE, *BLIND, *PIECES}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_it_is_a_read_of_rows(indexed_lake: Lake, name: str) -> None:
    fails = name in ("distributed.change_rows", "distributed.add_columns", "drop_columns")
    assert level_after(indexed_lake, ROWS[name]) == ("table" if fails else "rows")


@pytest.mark.parametrize("name", sorted(TABLE))
def test_it_is_a_read_of_the_table(indexed_lake: Lake, name: str) -> None:
    assert level_after(indexed_lake, TABLE[name]) == "table"


@pytest.mark.parametrize("name", sorted(BLIND))
def test_it_reads_nothing_but_the_name(indexed_lake: Lake, name: str) -> None:
    use, reason = BLIND[name]
    assert level_after(indexed_lake, use) == "name", reason


@pytest.mark.parametrize(
    ("use", "level"),
    [
        (lambda t: t.append(numbers(1).slice(1)), "name"),
        (lambda t: t.delete("id = 99"), "rows"),
        (lambda t: t.append(pa.table({"x": [1]})), "table"),
        (lambda t: t.append(batches_that_read(t)), "rows"),
        (lambda t: t.to_arrow(options={"with_row_id": True}), "table"),
        (lambda t: t.to_arrow(["id", "_rowaddr"]), "table"),
        (lambda t: t.count_rows("_rowid = 1"), "table"),
        (lambda t: t.to_arrow(limit=1), "table"),
        (lambda t: t.to_arrow(["id"], "id = 1"), "rows"),
        (lambda t: t.distributed.append([written(t)]), "rows"),
        (lambda t: t.distributed.overwrite(t.distributed.write_task(overwrite=True, schema=numbers(1).schema), []), "rows"),
    ],
    ids=[
        "an append of nothing, a version like others", "a delete that commits nothing", "a refused append",
        "an append that reads on the way", "row ids", "row addresses", "a filter by row id", "some rows", "a plain filter", "pieces",
        "pieces that overwrite",
    ],
)  # fmt: skip
def test_how_closely_it_looked(indexed_lake: Lake, use: Use, level: ReadLevel) -> None:
    assert level_after(indexed_lake, use) == level


def batches_that_read(table: TransactionTable) -> pa.RecordBatchReader:
    """Rows that are made from the table itself while they are being appended to it."""
    return pa.RecordBatchReader.from_batches(numbers(1).schema, (numbers(table.count_rows()).to_batches()[0] for _ in range(1)))


# ---- the transaction itself ---------------------------------------------------------------------------------------------------------

Noted = tuple[dict[str, ReadLevel], tuple[str, ...], bool]
"""Tables by name and how closely they were looked at, absent names, and whether all names were listed."""


def noted(lake: Lake, tx: LakeTransaction) -> Noted:
    heads = lake.catalog.cut().tables
    levels: dict[str, ReadLevel] = {name: level for name, head in heads.items() if (level := tx._scope.reads.level(head.id)) != "nothing"}
    return levels, tx._scope.reads.absent, tx._scope.reads.names is not None


def missing(tx: LakeTransaction) -> None:
    with pytest.raises(NotFound):
        tx.table("nothing")


OF_A_TRANSACTION: dict[str, tuple[Callable[[LakeTransaction], Any], Noted]] = {
    "table": (lambda tx: tx.table("a"), ({"a": "name"}, (), False)),
    "tables": (lambda tx: tx.tables(), ({}, (), True)),
    "create_table": (lambda tx: tx.create_table("c", numbers(1)), ({}, ("c",), False)),
    "create_table_from_pieces": (lambda tx: pieces_of_c(tx), ({}, ("c",), False)),
    "drop_table": (lambda tx: tx.drop_table("a"), ({"a": "name"}, (), False)),
    "rename_table": (lambda tx: tx.rename_table("a", "c"), ({"a": "name"}, ("c",), False)),
    "cut": (lambda tx: tx.cut, ({"a": "table", "b": "table"}, (), True)),
    "staged": (lambda tx: tx.staged("a"), ({"a": "table"}, (), False)),
    "staged_physical": (lambda tx: tx.staged_physical("a"), ({"a": "table"}, (), False)),
}
SAYS_NOTHING = {
    "base": "the number of its snapshot: where it stands, as a clock would say, not what is there",
    "batch": "whether others may commit it; what it read is compared all the same",
    "commit": "the end of it: what it read is compared there",
    "in_doubt": "of itself",
    "namespace": "refused in a serializable transaction: what stock clients read through it stock clients do not report it",
    "publish_through": "has a fast-forward decide",
    "rearrange": "for a fast-forward, which has read the cut; it returns nothing",
    "rollback": "the end of it",
    "spark": "makes a view whose every use goes through table and tables",
}


def pieces_of_c(tx: LakeTransaction) -> None:
    task = tx._lake.new_table_task("c", numbers(1).schema)
    tx.create_table_from_pieces("c", task, [task.write(numbers(1))])


def test_every_member_of_a_transaction_is_known() -> None:
    assert members(LakeTransaction) == {*OF_A_TRANSACTION, *SAYS_NOTHING}


def test_stock_clients_have_no_part_in_a_serializable_transaction(indexed_lake: Lake) -> None:
    with indexed_lake.transaction(isolation="serializable") as tx, pytest.raises(InvalidInput, match="stock clients do not report it"):
        _ = tx.namespace


@pytest.mark.parametrize("name", sorted(OF_A_TRANSACTION))
def test_names_are_noted(indexed_lake: Lake, name: str) -> None:
    use, expected = OF_A_TRANSACTION[name]
    tx = indexed_lake.transaction(isolation="serializable")
    use(tx)
    assert noted(indexed_lake, tx) == expected
    tx.rollback()


def test_a_refused_creation_and_an_absent_table_are_reads(indexed_lake: Lake) -> None:
    tx = indexed_lake.transaction(isolation="serializable")
    missing(tx)
    with pytest.raises(ty.AlreadyExists):
        tx.create_table("a", numbers(1))
    with pytest.raises(ty.AlreadyExists):
        tx.rename_table("a", "b")
    assert noted(indexed_lake, tx) == ({"a": "name", "b": "name"}, ("nothing",), False)


# ---- what breaks a read --------------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[LakeTransaction], Any]] = {
    "name": lambda tx: tx.table("a"),
    "rows": lambda tx: tx.table("a").to_arrow(),
    "table": lambda tx: tx.table("a").indices.list(),
    "absent": missing,
    "list": lambda tx: tx.tables(),
}
CHANGES: dict[str, tuple[Callable[[Lake], Any], set[str]]] = {
    "rows": (lambda lake: lake.table("a").append(numbers(2)), {"rows", "table"}),
    "config": (lambda lake: lake.table("a").update_config({"color": "red"}), {"rows", "table"}),
    "index": (lambda lake: lake.table("a").create_index("id", "BTREE"), {"table"}),
    "dropped": (lambda lake: lake.drop_table("a"), {"name", "rows", "table", "list"}),
    "renamed": (lambda lake: lake.rename_table("a", "c"), {"name", "rows", "table", "list"}),
    "renamed to the absent name": (lambda lake: lake.rename_table("a", "nothing"), {"name", "rows", "table", "absent", "list"}),
    "made": (lambda lake: lake.create_table("nothing", numbers(1)), {"absent", "list"}),
    "another made": (lambda lake: lake.create_table("c", numbers(1)), {"list"}),
    "registered": (lambda lake: registered(lake), {"absent", "list"}),
    "replaced": (lambda lake: replaced(lake), {"name", "rows", "table", "list"}),
    "made and dropped": (lambda lake: made_and_dropped(lake), {"list"}),
    "another's rows": (lambda lake: lake.table("other").append(numbers(2)), set()),
}


def registered(lake: Lake) -> None:
    where = str(lake._where.root) + "-elsewhere.lance"
    ty.Table.create(where, numbers(1))
    lake.register_table("nothing", where)


def replaced(lake: Lake) -> None:
    with lake.transaction() as tx:
        tx.drop_table("a")
        tx.create_table("a", numbers(1))


def made_and_dropped(lake: Lake) -> None:
    lake.create_table("nothing", numbers(1))
    lake.drop_table("nothing")


@pytest.mark.parametrize("change", CHANGES)
def test_what_breaks_a_read(site: Site, lake: Lake, change: str) -> None:
    """One transaction for each way to read, all open while somebody else makes one change; each writes to a table of its own."""
    for name in (*READS, "other"):
        lake.create_table(f"to_{name}" if name in READS else name, numbers(0))
    open_ones = {}
    for name, read in READS.items():
        tx = open_ones[name] = lake.transaction(isolation="serializable")
        read(tx)
        tx.table(f"to_{name}").append(numbers(1))
    plain = lake.transaction()
    for read in READS.values():
        read(plain)
    plain.table("b").append(numbers(9))
    make, broken = CHANGES[change]
    make(site.open())
    failed = {}
    for name, tx in open_ones.items():
        try:
            tx.commit()
        except ExpectedVersionMismatch as error:
            failed[name] = error
    assert set(failed) == broken
    for told in failed.values():
        assert told.retryable
        assert told.cause in ("read", "name")
        assert len(str(told)) < 300
    plain.commit()
    assert ids(lake.table("b")) == [1, 9], "a snapshot transaction counts on nothing that it read"


def test_the_error_names_the_name(lake: Lake) -> None:
    tx = lake.transaction(isolation="serializable")
    missing(tx)
    tx.table("b").append(numbers(2))
    lake.create_table("nothing", numbers(1))
    with pytest.raises(ExpectedVersionMismatch, match="A table nothing was created") as caught:
        tx.commit()
    assert (caught.value.table, caught.value.cause) == ("nothing", "name")
    assert [by["operation"] for by in caught.value.by] == ["create"]
    tx = lake.transaction(isolation="serializable")
    tx.tables()
    tx.table("b").append(numbers(2))
    lake.rename_table("nothing", "something")
    with pytest.raises(ExpectedVersionMismatch, match="Tables were made, dropped or renamed"):
        tx.commit()
    tx = lake.transaction(isolation="serializable")
    tx.table("something").append(numbers(2))
    lake.rename_table("something", "else")
    with pytest.raises(ExpectedVersionMismatch, match="something was renamed to else"):
        tx.commit()


def test_run_looks_again(site: Site, lake: Lake) -> None:
    """Of two that make what they do not find, the second finds it."""
    runs: list[str] = []

    def work(tx: LakeTransaction) -> None:
        try:
            tx.table("c")
            runs.append("found")
        except NotFound:
            runs.append("made")
            tx.create_table("c", numbers(1))
            if len(runs) == 1:
                site.open().create_table("c", numbers(5))

    lake.run(work, isolation="serializable")
    assert runs == ["made", "found"]
    assert ids(lake.table("c")) == [5]


def test_what_was_renamed_is_not_dropped_under_its_old_name(lake: Lake) -> None:
    """Two change what one name stands for: that is a conflict under every isolation."""
    tx = lake.transaction()
    tx.drop_table("a")
    lake.rename_table("a", "c")
    with pytest.raises(ExpectedVersionMismatch):
        tx.commit()
    assert lake.tables() == ["b", "c"]
