"""Rules of the state machine that change rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import strategies as st
from lance.fragment import write_fragments

import tiltyard as ty
from tests.support.stateful_bench import SEEDS, SMALL, WHICH, Bench, deed, if_columns_changed
from tests.support.stateful_model import (
    FIRST_COLUMNS,
    ID,
    WHERES,
    Bound,
    Plan,
    Value,
    Where,
    World,
    assignment,
    next_number,
    numbered,
    updated,
)
from tiltyard.verbs.engine.data_files import fragment_from_lance
from tiltyard.verbs.engine.row_deletion import matching_rows, strike_out

WHERE = st.builds(Where, st.sampled_from(WHERES), SMALL, SMALL)
Row = Mapping[str, Any]
Errors = tuple[type[ty.TiltyardError], ...]


class RowDeeds(Bench):
    """What is done to rows by us."""

    def _append(
        self, which: int, verb: str, rows: list[dict[str, Any]], call: Callable[[ty.Table, Any], ty.CommitResult], again: bool = True
    ) -> None:
        data = self.arrow(self.base(which), rows)
        ids = {row[self.base(which).key.name] for row in rows}

        def effect(base: World, head: World) -> World:
            return Plan(inserted=numbered(base, rows)).carried(base, head)

        def excuse(base: World, head: World) -> Errors:
            taken = head.keyed and not ids.isdisjoint([*base.ids, *head.ids])
            return (*if_columns_changed(base, head), *((ty.KeyConflict,) if taken else ()))

        self.act(which, verb, "Append", lambda table: call(table, data), effect, excuse, again=again)

    @deed(which=WHICH, seeds=SEEDS, whole=st.booleans(), rows_a_file=st.integers(1, 3))
    def append(self, which: int, seeds: list[int], whole: bool, rows_a_file: int) -> None:
        rows = self.new_rows(self.base(which), seeds, whole=whole)
        self._append(which, "append", rows, lambda table, data: table.append(data, files=ty.FileLimits(rows=rows_a_file)))

    @deed(which=WHICH, seed=SMALL, place=SMALL, stream=st.booleans())
    def append_an_id_that_may_be_taken(self, which: int, seed: int, place: int, stream: bool) -> None:
        """On tables with a key it must not come twice; on others it may."""
        ids = self.lines[self.handles[which].branch].newest.ids or [0]
        rows = self.new_rows(self.base(which), [seed], ids=[ids[place % len(ids)]])
        # A stream cannot be read twice, so what it was written for must not have changed too much.
        self._append(which, "append a taken id", rows, lambda table, data: table.append(data.to_reader() if stream else data), not stream)

    @deed(which=WHICH, seeds=st.lists(SMALL, max_size=3))
    def overwrite(self, which: int, seeds: list[int]) -> None:
        old = World(keyed=self.kind.keyed)
        rows = self.new_rows(old, seeds)

        def effect(base: World, head: World) -> World:
            key, *others = FIRST_COLUMNS
            columns = (key, *(replace(one, number=next_number()) for one in others))
            made = replace(head, columns=columns, rows={}, schema_metadata={}, indices={}, generations=None)
            return made.with_rows({next_number(): values for values in numbered(made, rows)})

        key = ["id"] if self.kind.keyed else None
        self.act(which, "overwrite", "Overwrite", lambda table: table.overwrite(self.arrow(old, rows), primary_key=key), effect)

    @deed(which=WHICH, where=WHERE)
    def delete(self, which: int, where: Where) -> None:
        bound = where.bound(self.base(which))
        self.act(which, "delete", "Delete", lambda table: table.delete(bound.sql), _deleted(bound), if_columns_changed)

    @deed(which=WHICH, where=WHERE, column=SMALL, what=SMALL, second=st.booleans())
    def update(self, which: int, where: Where, column: int, what: int, second: bool) -> None:
        self._update(which, where, column, what, second, "auto")

    @deed(which=WHICH, where=WHERE, column=SMALL, what=SMALL, second=st.booleans())
    def update_rows(self, which: int, where: Where, column: int, what: int, second: bool) -> None:
        self._update(which, where, column, what, second, "rows")

    @deed(which=WHICH, where=WHERE, column=SMALL, what=SMALL, second=st.booleans())
    def update_columns(self, which: int, where: Where, column: int, what: int, second: bool) -> None:
        self._update(which, where, column, what, second, "columns")

    def _update(self, which: int, where: Where, column: int, what: int, second: bool, mode: Literal["auto", "rows", "columns"]) -> None:
        base = self.base(which)
        if not base.free:  # two handles dropped one each of the last two
            return self.delete(which=which, where=where)
        chosen = [base.free[place % len(base.free)] for place in ((column, column + 1) if second else (column,))]
        values = {one.name: assignment(one, what, base) for one in chosen}
        bound = where.bound(base)
        sql = {name: given.sql for name, given in values.items()}

        def effect(base: World, head: World) -> World:
            return updated(base, bound, values).carried(base, head)

        self.act(which, f"update {mode}", "Update", lambda table: table.update(sql, bound.sql, mode), effect, if_columns_changed)
        return None

    @deed(which=WHICH, seeds=SEEDS)
    def append_through_the_low_door(self, which: int, seeds: list[int]) -> None:
        held, _ = self.held(which)
        if not self.can_be_read(held):
            return self.append(which=which, seeds=seeds, whole=True, rows_a_file=2)
        base = self.base(which)
        rows = self.new_rows(base, seeds)
        written = write_fragments(self.arrow(base, rows), held.table.lance, mode="append")
        operation = ty.ops.Append(tuple(map(fragment_from_lance, written)))

        def effect(base: World, head: World) -> World:
            return Plan(inserted=numbered(base, rows)).carried(base, head)

        done = self.act(which, "low door append", "Append", lambda table: table.commit(operation), effect, again=False)
        if done is None:
            self.forget_files(held.branch, (f"data/{file.path}" for one in operation.fragments for file in one.files))
        return None

    @deed(which=WHICH, where=WHERE)
    def delete_through_the_low_door(self, which: int, where: Where) -> None:
        held, _ = self.held(which)
        bound = where.bound(self.base(which))
        if not self.can_be_read(held) or not bound.holding(self.base(which)):
            return self.delete(which=which, where=where)
        place, manifest = held.table._access, held.table._file.manifest
        struck = strike_out(place, manifest, matching_rows(place, manifest, bound.sql))
        operation = ty.ops.Delete(struck.updated, struck.removed, bound.sql)
        done = self.act(which, "low door delete", "Delete", lambda table: table.commit(operation), _deleted(bound), again=False)
        if done is None:
            self.forget_files(held.branch, struck.files())
        return None


def _deleted(bound: Bound) -> Callable[[World, World], World]:
    return lambda base, head: Plan(deleted=frozenset(bound.holding(base))).carried(base, head)


# ---- merge -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clauses:
    """What a merge does, for the builder and for the model.

    Attributes:
        what: what it is called in the count.
        column: a column of numbers, if the table has one beside the id, that conditions compare.
    """

    what: str
    column: str | None

    @property
    def inserting(self) -> bool:
        return self.what not in ("update", "update one", "delete")

    def described(self, merge: ty.MergeBuilder, bound: Bound) -> ty.MergeBuilder:
        greater = f"source.{self.column} > target.{self.column}" if self.column else None
        match self.what:
            case "upsert" | "update":
                merge = merge.when_matched_update_all()
            case "update one":
                merge = merge.when_matched_update([self.column]) if self.column else merge.when_matched_update_all()
            case "newer":
                merge = merge.when_matched_update_all(greater)
            case "delete some":
                merge = merge.when_matched_delete(greater)
                merge = merge.when_matched_update_all() if greater else merge
            case "mirror":
                merge = merge.when_matched_update_all().when_not_matched_by_source_delete()
            case "mirror some":
                merge = merge.when_not_matched_by_source_delete(bound.sql)
            case "fail":
                merge = merge.when_matched_fail()
            case "delete":
                merge = merge.when_matched_delete()
        return merge.when_not_matched_insert_all() if self.inserting else merge

    def matched(self, target: Row, source: Row) -> Row | None:
        """What of the source a row takes that has the same id; None if it goes."""
        a, b = (target[self.column], source.get(self.column)) if self.column else (0, 1)
        greater = a is not None and b is not None and b > a
        match self.what:
            case "upsert" | "update" | "mirror":
                return source
            case "update one":
                return {self.column: source[self.column]} if self.column else source
            case "newer":
                return source if greater else {}
            case "delete some":
                return None if greater else source
            case "delete":
                return None
        return {}

    def plan(self, base: World, source: list[dict[str, Value]], bound: Bound) -> Plan:
        by_id = {row[base.key.name]: row for row in source}
        changed: dict[int, Mapping[int, Value]] = {}
        deleted = set()
        orphans = set(bound.holding(base)) if self.what == "mirror some" else set(base.rows) if self.what == "mirror" else set()
        for number, values in base.rows.items():
            match = by_id.get(values[ID])
            if match is None:
                deleted.update(orphans & {number})
                continue
            taken = self.matched(base.named(values), match)
            if taken is None:
                deleted.add(number)
            elif taken:
                changed[number] = numbered(base, [taken])[0]
        here = set(base.ids)
        new = numbered(base, [row for row in source if row[base.key.name] not in here]) if self.inserting else ()
        return Plan(changed, frozenset(deleted), new)


EVERYWHERE = Where("all")
OLD = st.lists(SMALL, max_size=3)
NEW = st.integers(0, 2)


class MergeDeeds(RowDeeds):
    """Merges, with all their clauses."""

    @deed(which=WHICH, what=st.sampled_from(["upsert", "update", "update one"]), old=OLD, new=NEW, seed=SMALL, whole=st.booleans(),
          again=st.booleans())  # fmt: skip
    def merge(self, which: int, what: str, old: list[int], new: int, seed: int, whole: bool, again: bool) -> None:
        self._merge(which, what, old, new, seed, whole, again)

    @deed(which=WHICH, what=st.sampled_from(["insert", "fail", "newer"]), old=OLD, new=NEW, seed=SMALL, again=st.booleans())
    def merge_what_is_new(self, which: int, what: str, old: list[int], new: int, seed: int, again: bool) -> None:
        self._merge(which, what, old, new, seed, True, again)

    @deed(which=WHICH, what=st.sampled_from(["delete some", "mirror", "mirror some", "delete"]), old=OLD, new=NEW, seed=SMALL, where=WHERE)
    def merge_deleting(self, which: int, what: str, old: list[int], new: int, seed: int, where: Where) -> None:
        self._merge(which, what, old, new, seed, True, False, where)

    def _merge(
        self, which: int, what: str, old: list[int], new: int, seed: int, whole: bool, again: bool, where: Where = EVERYWHERE
    ) -> None:
        """Some ids are there, some are new; where they are used ``again``, the next merge inserts the same ones."""
        base = self.base(which)
        known = sorted(set(base.ids))
        ids = sorted({known[place % len(known)] for place in old} if known and what != "fail" else set())
        ids += list(range(self.next_id, self.next_id + new)) if again else self.fresh_ids(new)
        ids = sorted(set(ids)) or self.fresh_ids(1)
        if what == "fail" and old and known:  # must fail if one is there, and mostly none is
            ids = sorted({*ids, known[old[0] % len(known)]}) if len(old) > 2 else ids
        numbers = [one.name for one in base.numbers[1:]]
        clauses = Clauses(what, numbers[seed % len(numbers)] if numbers else None)
        source = self.new_rows(base, [(seed + place) % 8 for place in range(len(ids))], ids=ids, whole=whole or clauses.column is not None)
        bound = where.bound(base)
        data, on = self.arrow(base, source), None if base.keyed else base.key.name

        def effect(base: World, head: World) -> World:
            assert what != "fail" or set(ids).isdisjoint(base.ids), "a merge that had to fail did not"
            return clauses.plan(base, source, bound).carried(base, head, new_keys=clauses.inserting)

        def excuse(base: World, head: World) -> Errors:
            matched = what == "fail" and not set(ids).isdisjoint([*base.ids, *head.ids])
            return (*if_columns_changed(base, head), *((ty.KeyConflict,) if matched else ()))

        def call(table: ty.Table) -> ty.CommitResult:
            return clauses.described(table.merge(data, on), bound).execute()

        self.act(which, f"merge {what}", "Update", call, effect, excuse)
