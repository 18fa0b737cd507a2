"""Rules of the state machine that change columns and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

import tiltyard as ty
from tests.support.stateful_bench import SMALL, WHICH, Bench, deed, if_columns_changed
from tests.support.stateful_model import KINDS, NUMBERS, Column, Value, World, after, next_number
from tests.support.stateful_rows import RowDeeds

NAMES: Final = tuple(f"c{number}" for number in range(6))
FORMS: Final = ("number", "text", "sql", "nulls", "lookup", "function")
Errors = tuple[type[ty.TiltyardError], ...]


class ColumnDeeds(RowDeeds):
    """What is done to columns by us."""

    def _free_name(self, which: int, number: int) -> str | None:
        """A name that no column has, neither for the handle nor by now; perhaps one that a column had once."""
        _, line = self.held(which)
        taken = {*self.base(which).names, *line.newest.names}
        free = [name for name in NAMES if name not in taken]
        return free[number % len(free)] if free else None

    @deed(which=WHICH, form=st.sampled_from(FORMS), name=SMALL, seed=SMALL)
    def add_columns(self, which: int, form: str, name: int, seed: int) -> None:
        new = self._free_name(which, name)
        if new is None:
            return self.drop_columns(which=which, column=name)
        base = self.base(which)
        key = base.key.name
        column, how, value = _new_column(form, new, seed, base)

        def effect(base: World, head: World) -> World:
            rows = {number: {**values, column.number: column.fitting(value(head.named(values)))} for number, values in head.rows.items()}
            return replace(head.with_rows(rows), columns=(*head.columns, column))

        def excuse(base: World, head: World) -> Errors:
            return (ty.InvalidInput,) if key not in head.names or (form != "nulls" and _has_log(base, head)) else ()

        function = {"read_columns": [key], "backfill": ty.Backfill(schema=pa.schema([column.arrow]))}
        options: dict[str, Any] = {"on": key} if form == "lookup" else function if form == "function" else {}
        self.act(which, f"add_columns {form}", "Merge", lambda table: table.add_columns(how, **options), effect, excuse)
        return None

    @deed(which=WHICH, column=SMALL)
    def drop_columns(self, which: int, column: int) -> None:
        base = self.base(which)
        if len(base.free) < 2:
            return self.add_columns(which=which, form="sql", name=column, seed=column)
        gone = base.free[column % len(base.free)]

        def effect(base: World, head: World) -> World:
            return head.without_column(head.column(gone.name).number)

        self.act(which, "drop_columns", "Project", lambda table: table.drop_columns([gone.name]), effect, if_columns_changed)
        return None

    @deed(which=WHICH, column=SMALL, name=SMALL)
    def rename(self, which: int, column: int, name: int) -> None:
        base, new = self.base(which), self._free_name(which, name)
        if new is None:
            return self.drop_columns(which=which, column=column)
        old = base.columns[column % len(base.columns)].name

        def effect(base: World, head: World) -> World:
            return head.changed_column(replace(head.column(old), name=new))

        self.act(which, "rename", "Project", lambda table: table.alter_columns({"path": old, "name": new}), effect, if_columns_changed)
        return None

    @deed(which=WHICH, column=SMALL, kind=st.sampled_from(NUMBERS))
    def cast(self, which: int, column: int, kind: str) -> None:
        base = self.base(which)
        chosen = [one for one in base.numbers[1:] if one.kind != kind]
        if not chosen:
            return self.nullability(which=which, column=column)
        name = chosen[column % len(chosen)].name

        def effect(base: World, head: World) -> World:
            old = head.column(name)
            new = replace(old, number=next_number(), kind=kind)
            rows = {number: {**values, new.number: new.fitting(values.get(old.number))} for number, values in head.rows.items()}
            columns = tuple(new if one is old else one for one in head.columns)
            return replace(head.without_column(old.number), columns=columns, rows=rows)

        def call(table: ty.Table) -> ty.CommitResult:
            return table.alter_columns({"path": name, "data_type": KINDS[kind]})

        self.act(which, "cast", "Merge", call, effect, _unwritable)
        return None

    @deed(which=WHICH, column=SMALL)
    def nullability(self, which: int, column: int) -> None:
        base = self.base(which)
        if not base.free:
            return self.add_columns(which=which, form="number", name=column, seed=column)
        chosen = base.free[column % len(base.free)]
        name, wanted = chosen.name, not chosen.nullable

        def has_nulls(world: World) -> bool:
            return name in world.names and any(values.get(world.column(name).number) is None for values in world.rows.values())

        def effect(base: World, head: World) -> World:
            assert wanted or not has_nulls(base), "a column with nulls takes none now"
            return head.changed_column(replace(head.column(name), nullable=wanted))

        def excuse(base: World, head: World) -> Errors:
            nulls = not wanted and (has_nulls(base) or has_nulls(head))
            return (ty.InvalidInput,) if nulls else if_columns_changed(base, head)

        call: Callable[[ty.Table], ty.CommitResult] = lambda table: table.alter_columns({"path": name, "nullable": wanted})  # noqa: E731
        self.act(which, "nullability", "Project", call, effect, excuse)
        return None

    @deed(which=WHICH, column=SMALL, what=SMALL)
    def replace_data_by_a_function(self, which: int, column: int, what: int) -> None:
        base = self.base(which)
        if not base.free:
            return self.add_columns(which=which, form="number", name=column, seed=what)
        chosen, key = base.free[column % len(base.free)], base.key.name

        def call(table: ty.Table) -> ty.CommitResult:
            def function(batch: pa.RecordBatch) -> pa.RecordBatch:
                values = [_replaced(chosen, number, what) for number in batch[key].to_pylist()]
                return pa.record_batch([pa.array(values, KINDS[chosen.kind])], names=[chosen.name])

            return table.distributed.replace_data(function, [chosen.name], backfill=ty.Backfill(read_columns=[key]))

        self.act(which, "replace_data function", "DataReplacement", call, _replacing(chosen.name, what), _unwritable)
        return None

    @deed(which=WHICH, column=SMALL, what=SMALL, fragment=SMALL)
    def replace_data_of_a_fragment(self, which: int, column: int, what: int, fragment: int) -> None:
        held, _ = self.held(which)
        base = self.base(which)
        fragments = held.table.lance.get_fragments() if self.can_be_read(held) and base.free and not base.has_double_ids() else []
        if not fragments:
            return self.replace_data_by_a_function(which=which, column=column, what=what)
        chosen, place = base.free[column % len(base.free)], fragments[fragment % len(fragments)]
        ids = place.to_table(columns=[base.key.name]).column(0).to_pylist()
        values = pa.table({chosen.name: pa.array([_replaced(chosen, number, what) for number in ids], KINDS[chosen.kind])})

        def call(table: ty.Table) -> ty.CommitResult:
            return table.distributed.replace_data({place.fragment_id: values})

        effect = _replacing(chosen.name, what, frozenset(ids))
        self.act(which, "replace_data tables", "DataReplacement", call, effect, _unwritable, again=False)
        return None


def _has_log(base: World, head: World) -> bool:
    """Rows that wait in a write-ahead log would have no value in a column that is worked out now."""
    return base.generations is not None or head.generations is not None


def _unwritable(base: World, head: World) -> Errors:
    return (ty.InvalidInput,) if _has_log(base, head) else if_columns_changed(base, head)


def _new_column(form: str, name: str, seed: int, base: World) -> tuple[Column, Any, Callable[[Mapping[str, Any]], Value]]:
    """A column in one of the ways there are; how we are told of it, and its values."""
    key = base.key.name
    match form:
        case "number":
            return Column(next_number(), name, "int64"), {name: seed}, lambda row: seed
        case "text":
            return Column(next_number(), name, "string"), {name: pa.scalar(f"k{seed}")}, lambda row: f"k{seed}"
        case "sql":
            return Column(next_number(), name, "int64"), {name: f"{key} + {seed}"}, lambda row: row[key] + seed
        case "nulls":
            return Column(next_number(), name, "string"), pa.field(name, pa.string()), lambda row: None
        case "lookup":
            known = {number: seed + number for number in base.ids[seed % 3 :: 2]} or {-1: 0}
            table = pa.table({key: pa.array(list(known), pa.int64()), name: pa.array(list(known.values()), pa.int64())})
            return Column(next_number(), name, "int64"), table, lambda row: known.get(row[key])

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({name: pa.array([f"f{number % 4}" for number in batch[key].to_pylist()], pa.string())})

    return Column(next_number(), name, "string"), function, lambda row: f"f{row[key] % 4}"


def _replaced(column: Column, number: int, what: int) -> Value:
    return column.value(1 + (number + what) % 7)


def _replacing(name: str, what: int, ids: frozenset[int] | None = None) -> Callable[[World, World], World]:
    def effect(base: World, head: World) -> World:
        column = base.column(name)
        rows = dict(head.rows)
        for number, values in base.rows.items():
            chosen: Any = values[0]
            if number in rows and (ids is None or chosen in ids):
                rows[number] = {**rows[number], column.number: _replaced(column, chosen, what)}
        return head.with_rows(rows)

    return effect


# ---- settings --------------------------------------------------------------------------------------------------------------

ENTRIES = st.dictionaries(st.sampled_from(["k0", "k1", "k2"]), st.sampled_from(["a", "b", None]), min_size=1, max_size=2)
Entries = dict[str, str | None]


def _sayable(entries: Entries, whole: bool) -> Entries:
    """Where all that is not named goes, nothing is named to go."""
    return {key: value for key, value in entries.items() if value is not None or not whole}


class SettingDeeds(Bench):
    """What a table says of itself."""

    @deed(which=WHICH, what=st.sampled_from(["config", "metadata", "schema_metadata"]), entries=ENTRIES, whole=st.booleans())
    def update_settings(self, which: int, what: str, entries: Entries, whole: bool) -> None:
        entries, verb = _sayable(entries, whole), f"update_{what}"

        def effect(base: World, head: World) -> World:
            changed: Any = {what: after(getattr(head, what), entries, whole)}
            return replace(head, **changed)

        self.act(which, verb, "UpdateConfig", lambda table: getattr(table.settings, verb)(entries, replace=whole), effect)

    @deed(which=WHICH, column=SMALL, entries=ENTRIES, whole=st.booleans())
    def update_field_metadata(self, which: int, column: int, entries: Entries, whole: bool) -> None:
        base = self.base(which)
        place = column % len(base.columns)
        chosen, whole = base.columns[place], whole and place > 0  # the key's column says there that it is the key
        entries = _sayable(entries, whole)

        def effect(base: World, head: World) -> World:
            there = next(one for one in head.columns if one.number == base.column(chosen.name).number)
            return head.changed_column(replace(there, metadata=after(there.metadata, entries, whole)))

        def excuse(base: World, head: World) -> Errors:
            gone = chosen.number not in {one.number for one in head.columns}
            return (ty.IncompatibleConflict, ty.InvalidInput) if gone else if_columns_changed(base, head)

        call: Callable[[ty.Table], ty.CommitResult] = lambda table: table.update_field_metadata(chosen.name, entries, replace=whole)  # noqa: E731
        self.act(which, "update_field_metadata", "UpdateConfig", call, effect, excuse)

    @deed(which=WHICH, number=SMALL)
    def add_bases(self, which: int, number: int) -> None:
        path = str(self.access / f"base{number}")
        name = f"b{number}"

        def effect(base: World, head: World) -> World:
            assert path not in base.bases, "one base was added twice"
            return replace(head, bases=head.bases | {path})

        def excuse(base: World, head: World) -> Errors:
            return (ty.InvalidInput,) if path in base.bases | head.bases else ()

        self.act(which, "add_bases", "UpdateBases", lambda table: table.settings.add_bases({name: path}), effect, excuse)
