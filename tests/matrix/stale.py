"""Verbs of stale handles beside winners: what each does to a table, and to a model of its rows.

The table has two fragments of four rows, ids 0 to 7. Its first four rows were appended with all values; rows 0 and 2 were deleted in the
version that stale handles are at, so that a restore to the version before it revives them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pyarrow.compute as pc

import tiltyard as ty

READ_VERSION: Final = 4
REVIVING: Final = 3
"""The version before the deletion."""

Row = dict[str, Any]
PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"


class RefusedError(Exception):
    """The model's sign that a verb makes no sense on a state."""


@dataclass(frozen=True)
class State:
    """Rows by id, in the table's columns, and its config."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    kinds: Mapping[str, str]
    config: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = False
    indices: frozenset[str] = frozenset()
    past: State | None = None
    """What a restore goes back to."""

    def with_rows(self, rows: Sequence[Row]) -> State:
        return replace(self, rows=tuple(rows))

    def need(self, *columns: str) -> None:
        if missing := [name for name in columns if name not in self.columns]:
            raise RefusedError(f"no column {missing[0]}")

    def check_key(self) -> State:
        ids = [row["id"] for row in self.rows]
        if self.keyed and len(set(ids)) < len(ids):
            raise RefusedError("a duplicate key")
        return self

    def seen(self) -> tuple[object, ...]:
        """What is compared: columns with types, rows in the order of their ids, config."""
        rows = sorted((tuple((name, row[name]) for name in self.columns) for row in self.rows), key=repr)
        kinds = [(name, self.kinds[name]) for name in self.columns]
        return (kinds, rows, dict(self.config))


@dataclass(frozen=True)
class Deed:
    """A change: by the real engine, and in the model."""

    name: str
    real: Callable[[ty.Table], object]
    model: Callable[[State], State]
    of_its_rows: bool = False
    """Whether it is a change of the rows that were read, so that rows which came since stay as they are."""
    late: Callable[[State], State] | None = None
    """What it amounts to on a table that has lost columns which it writes; a fresh handle cannot say that."""


@dataclass(frozen=True)
class Setting:
    """What kind of table it is."""

    stable: bool
    keyed: bool

    def __str__(self) -> str:
        return f"{'stable' if self.stable else 'plain'}-{'keyed' if self.keyed else 'keyless'}"


SETTINGS: Final = tuple(Setting(stable, keyed) for stable in (False, True) for keyed in (False, True))
KINDS: Final = {"id": "int64", "a": "int32", "b": "string"}


def rows_of(*ids: int, factor: int = 10) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("a", pa.int32()), pa.field("b", pa.string())])
    return pa.table({"id": list(ids), "a": [factor * number for number in ids], "b": [f"b{number}" for number in ids]}, schema)


def _row(number: int, factor: int = 10) -> Row:
    return {"id": number, "a": factor * number, "b": f"b{number}"}


def make(root: Path, setting: Setting) -> State:
    """Makes the table; gives the state of the version that stale handles read."""
    key = ["id"] if setting.keyed else None
    table = ty.Table.create(root, rows_of(0, 1, 2, 3), primary_key=key, stable_row_ids=setting.stable, durability="os")
    table.append(rows_of(4, 5, 6, 7))
    table.update_config({"color": "red"})
    assert table.version == REVIVING
    columns = tuple(KINDS)
    past = State(columns, tuple(_row(number) for number in range(8)), KINDS, {"color": "red"}, setting.keyed)
    table.delete("id IN (0, 2)")
    assert table.version == READ_VERSION
    return replace(past.with_rows([row for row in past.rows if row["id"] not in (0, 2)]), past=past)


# ---- deeds -----------------------------------------------------------------------------------------------------------------


def _append(*ids: int, fitted: bool = False, narrower: bool = False) -> Callable[[State], State]:
    """Adds rows of the types the table began with; where they are fitted to what it has now, of any; ``narrower`` to fewer columns."""

    def model(state: State) -> State:
        if not narrower:
            state.need("b")
        if not fitted and state.kinds["a"] != KINDS["a"]:
            raise RefusedError("a has another type")
        new = [{name: _row(number).get(name) for name in state.columns} for number in ids]
        return state.with_rows([*state.rows, *new]).check_key()

    return model


def _delete(*ids: int) -> Callable[[State], State]:
    return lambda state: state.with_rows([row for row in state.rows if row["id"] not in ids])


def _delete_where(column: str, value: object) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need(column)
        return state.with_rows([row for row in state.rows if row[column] != value])

    return model


def _set(column: str, value: Callable[[Row], Any], *ids: int) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need(column)
        return state.with_rows([{**row, column: value(row)} if not ids or row["id"] in ids else row for row in state.rows])

    return model


def _overwrite(*ids: int, factor: int) -> Callable[[State], State]:
    def model(state: State) -> State:
        new = [_row(number, factor) for number in ids]
        return replace(state, columns=tuple(KINDS), kinds=KINDS, rows=tuple(new), indices=frozenset()).check_key()

    return model


def _add(name: str, kind: str, value: Callable[[Row], Any]) -> Callable[[State], State]:
    """Adds a column; without a kind, of that of column a."""

    def model(state: State) -> State:
        state.need("a")
        if name in state.columns:
            raise RefusedError(f"{name} is there")
        rows = tuple({**row, name: value(row)} for row in state.rows)
        return replace(state, columns=(*state.columns, name), kinds={**state.kinds, name: kind or state.kinds["a"]}, rows=rows)

    return model


def _drop(name: str) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need(name)
        return replace(state, columns=tuple(one for one in state.columns if one != name))

    return model


def _cast(name: str, kind: str) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need(name)
        return replace(state, kinds={**state.kinds, name: kind}, indices=frozenset() if state.kinds[name] != kind else state.indices)

    return model


def _rename(old: str, new: str) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need(old)
        columns = tuple(new if one == old else one for one in state.columns)
        rows = tuple({new if name == old else name: value for name, value in row.items()} for row in state.rows)
        return replace(state, columns=columns, rows=rows, kinds={new if name == old else name: kind for name, kind in state.kinds.items()})

    return model


def _config(key: str, value: str) -> Callable[[State], State]:
    return lambda state: replace(state, config={**state.config, key: value})


def _merge(*ids: int) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need("b")
        if state.kinds["a"] != KINDS["a"]:
            raise RefusedError("a has another type")
        given = {number: _row(number, 9) for number in ids}
        there = {row["id"] for row in state.rows}
        if len(there) < len(state.rows):
            raise RefusedError("a duplicate key")
        rows = [{**row, **given.get(row["id"], {})} for row in state.rows]
        new = [{name: row.get(name) for name in state.columns} for number, row in given.items() if number not in there]
        return state.with_rows([*rows, *new])

    return model


def _restore(state: State) -> State:
    assert state.past is not None
    return replace(state.past, past=state.past)


def _same(state: State) -> State:
    return state


def _index(column: str, name: str) -> Callable[[State], State]:
    def model(state: State) -> State:
        state.need(column)
        if name in state.indices:
            raise RefusedError(f"index {name} is there")
        return replace(state, indices=state.indices | {name})

    return model


def _doubled(name: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({name: pc.multiply(batch["id"], pa.scalar(2, pa.int64())).cast(pa.int32())})

    return work


def _pieces(table: ty.Table) -> object:
    task = table.distributed.write_task()
    return table.distributed.append([task.write(rows_of(22, 23))])


def _merging(table: ty.Table, *ids: int) -> object:
    merge = table.merge(rows_of(*ids, factor=9), on=["id"])
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _lance(table: ty.Table) -> lance.LanceDataset:
    return lance.dataset(table.uri)


CAST: Final = {"path": "a", "data_type": pa.int64()}

VERBS: Final = (
    Deed("append", lambda t: t.append(rows_of(20, 21)), _append(20, 21), late=_append(20, 21, narrower=True)),
    Deed("append pieces", _pieces, _append(22, 23), late=_append(22, 23, narrower=True)),
    Deed("delete", lambda t: t.delete("id = 3"), _delete(3)),
    Deed("delete by value", lambda t: t.delete("a = 50"), _delete_where("a", 50)),
    Deed("update", lambda t: t.update({"a": "7"}, where="id IN (1, 5)"), _set("a", lambda _: 7, 1, 5)),
    Deed("merge", lambda t: _merging(t, 3, 24), _merge(3, 24)),
    Deed("overwrite", lambda t: t.overwrite(rows_of(3, 60, factor=4)), _overwrite(3, 60, factor=4)),
    Deed("restore", lambda t: t.restore(REVIVING), _restore),
    Deed("compact", lambda t: t.compact(), _same),
    Deed("add by sql", lambda t: t.add_columns({"c": "a + 1"}), _add("c", "", lambda row: row["a"] + 1)),
    Deed(
        "add by function", lambda t: t.add_columns(_doubled("d"), read_columns=["id", "a"]), _add("d", "int32", lambda row: 2 * row["id"])
    ),
    Deed("add nulls", lambda t: t.add_columns(pa.field("n", pa.int8())), _add("n", "int8", lambda _: None)),
    Deed("drop", lambda t: t.drop_columns(["b"]), _drop("b")),
    Deed("cast", lambda t: t.alter_columns(CAST), _cast("a", "int64")),
    Deed("rename", lambda t: t.alter_columns({"path": "b", "name": "bb"}), _rename("b", "bb")),
    Deed(
        "replace data",
        lambda t: t.distributed.replace_data(_doubled("a"), ["a"], backfill=ty.Backfill(read_columns=["id"])),
        _set("a", lambda row: 2 * row["id"]),
        True,
    ),
    Deed("config", lambda t: t.update_config({"size": "9"}), _config("size", "9")),
    Deed("index", lambda t: t.create_index("a", "BTREE", "mine"), _index("a", "mine")),
)
"""What a stale handle does."""

WINNERS: Final = (
    Deed("append", lambda t: t.append(rows_of(30, 31)), _append(30, 31)),
    Deed("delete", lambda t: t.delete("id IN (1, 6)"), _delete(1, 6)),
    Deed("update", lambda t: t.update({"a": "id * 100"}, where="id IN (3, 5)"), _set("a", lambda row: row["id"] * 100, 3, 5)),
    Deed("merge", lambda t: _merging(t, 5, 24, 32), _merge(5, 24, 32)),
    Deed("overwrite", lambda t: t.overwrite(rows_of(*range(1, 9), factor=10)), _overwrite(*range(1, 9), factor=10)),
    Deed("restore", lambda t: t.restore(REVIVING), _restore),
    Deed("compact", lambda t: t.compact(), _same),
    Deed("add", lambda t: t.add_columns({"w": "a + 2"}), _add("w", "", lambda row: row["a"] + 2)),
    Deed("drop", lambda t: t.drop_columns(["b"]), _drop("b")),
    Deed("cast", lambda t: t.alter_columns(CAST), _cast("a", "int64")),
    Deed(
        "replace data",
        lambda t: t.distributed.replace_data(_doubled("a"), ["a"], backfill=ty.Backfill(read_columns=["id"])),
        _set("a", lambda row: 2 * row["id"]),
    ),
    Deed("config", lambda t: t.update_config({"theirs": "1"}), _config("theirs", "1")),
    Deed("index", lambda t: t.create_index("a", "BTREE", "theirs"), _index("a", "theirs")),
    Deed("pylance append", lambda t: lance.write_dataset(_fit(t, rows_of(40, 41)), t.uri, mode="append"), _append(40, 41, fitted=True)),
    Deed("pylance delete", lambda t: _lance(t).delete("id IN (4, 7)"), _delete(4, 7)),
    Deed(
        "pylance overwrite", lambda t: lance.write_dataset(rows_of(3, 5, factor=10), t.uri, mode="overwrite"), _overwrite(3, 5, factor=10)
    ),
    Deed("pylance compact", lambda t: _lance(t).optimize.compact_files(), _same),
)
"""What others committed since."""


def _fit(table: ty.Table, rows: pa.Table) -> pa.Table:
    """Rows under the columns the table has now: pylance takes no others."""
    schema = table.refresh().schema
    if "b" not in schema.names:
        raise ty.InvalidInput("The table has no column b.", argument="b")
    columns = [rows[one.name].cast(one.type) if one.name in rows.column_names else pa.nulls(len(rows), one.type) for one in schema]
    return pa.table(columns, schema=schema)


# ---- running ---------------------------------------------------------------------------------------------------------------


class Bench:
    """Tables with winners on them, each made once."""

    def __init__(self, root: Path, setting: Setting) -> None:
        self.setting = setting
        self._root = root
        self._made: dict[tuple[str, ...], tuple[Path, State] | None] = {}
        self._count = 0

    def after(self, winners: Sequence[Deed]) -> tuple[Path, State] | None:
        """The table after winners, which must not be changed, and its state; None where the model refuses one of them."""
        key = tuple(deed.name for deed in winners)
        if key not in self._made:
            self._made[key] = self._make(winners)
        return self._made[key]

    def _make(self, winners: Sequence[Deed]) -> tuple[Path, State] | None:
        root = self._fresh_root()
        if not winners:
            return root, make(root, self.setting)
        before = self.after(winners[:-1])
        if before is None:
            return None
        try:
            state = winners[-1].model(before[1])
        except RefusedError:
            return None
        shutil.copytree(before[0], root)
        winners[-1].real(ty.Table.open(root, durability="os"))
        return root, state

    def copy(self, path: Path) -> Path:
        root = self._fresh_root()
        shutil.copytree(path, root)
        return root

    def _fresh_root(self) -> Path:
        self._count += 1
        return self._root / f"{self._count}"


def facts_of(root: Path, keyed: bool) -> State:
    """What a table says, to us and to stock pylance alike, after a check of its files."""
    table = ty.Table.open(root, durability="os")
    report = table.check()
    assert report.ok, report
    found = table.to_arrow()
    assert lance.dataset(str(root)).to_table().sort_by("id").equals(found.sort_by("id")), "pylance reads other rows"
    if "a" in found.column_names:  # an index answers as the rows do
        values = found["a"].drop_null().unique().to_pylist()
        for value in values[:3]:
            by_index = sorted(table.to_arrow(filter=f"a = {value}")["id"].to_pylist())
            assert by_index == sorted(found.filter(pc.equal(found["a"], value))["id"].to_pylist()), f"a = {value} finds other rows"
    kinds = {one.name: str(one.type) for one in found.schema}
    return State(tuple(found.column_names), tuple(found.to_pylist()), kinds, table.settings.config, keyed)


def run(deed: Deed, table: ty.Table) -> ty.TiltyardError | None:
    """Runs a verb; gives the typed error it ended in."""
    try:
        deed.real(table)
    except ty.TiltyardError as error:
        return error
    return None


def expected(deed: Deed, state: State) -> State | None:
    try:
        return deed.model(state)
    except RefusedError:
        return None


def in_turn(state: State, deeds: Sequence[Deed]) -> State | None:
    for deed in deeds:
        after = expected(deed, state)
        if after is None:
            return None
        state = after
    return state
