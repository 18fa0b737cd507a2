"""Rules of the state machine about a table's shape: compaction, indices, the state of a write-ahead log; and pylance's verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import lance
from hypothesis import strategies as st

import tiltyard as ty
from tests.support.stateful_bench import SEEDS, SMALL, WHICH, Bench, deed, if_columns_changed
from tests.support.stateful_model import Plan, Where, World, assignment, numbered, updated
from tests.support.stateful_rows import WHERE, Clauses

SHARDS: Final = tuple(str(UUID(int=number)) for number in (1, 2))
Errors = tuple[type[ty.TiltyardError], ...]


class UpkeepDeeds(Bench):
    """What changes no row."""

    @deed(which=WHICH, size=st.sampled_from([2, 5, 1000]), deletions=st.sampled_from([0.1, 0.5, None]))
    def compact(self, which: int, size: int, deletions: float | None) -> None:
        self.act(which, "compact", "Rewrite", lambda table: table.compact(target_rows=size, deletions=deletions), several=True)

    @deed(which=WHICH, column=SMALL, kind=st.sampled_from(["BTREE", "BITMAP"]), number=st.integers(0, 1), again=st.booleans())
    def create_index(self, which: int, column: int, kind: str, number: int, again: bool) -> None:
        base = self.base(which)
        chosen, name = base.columns[column % len(base.columns)], f"i{number}"

        def effect(base: World, head: World) -> World:
            assert again or name not in head.indices, "an index was put in the place of another unasked"
            there = [one for one in head.columns if one.number == chosen.number] or [head.column(chosen.name)]
            return replace(head, indices={**head.indices, name: there[0].number})

        def excuse(base: World, head: World) -> Errors:
            taken = not again and name in {**base.indices, **head.indices}
            of_nothing = kind == "BITMAP" and not (base.rows and head.rows)
            excused = (ty.InvalidInput,) if of_nothing else if_columns_changed(base, head)
            return (*excused, ty.AlreadyExists) if taken else excused

        def call(table: ty.Table) -> ty.CommitResult:
            return table.create_index(chosen.name, kind, name, replace=again)

        self.act(which, f"create_index {kind}", "CreateIndex", call, effect, excuse, several=True)

    def _index(self, which: int, number: int) -> str | None:
        names = sorted(self.base(which).indices)
        return names[number % len(names)] if names else None

    @deed(which=WHICH, number=SMALL, merge=st.booleans())
    def optimize_indices(self, which: int, number: int, merge: bool) -> None:
        if self._index(which, number) is None:
            return self.create_index(which=which, column=number, kind="BTREE", number=number % 2, again=merge)
        self.act(which, "optimize_indices", "CreateIndex", lambda table: table.indices.optimize(merge=merge), several=True)
        return None

    @deed(which=WHICH, number=SMALL, retrain=st.booleans())
    def extend_index(self, which: int, number: int, retrain: bool) -> None:
        name = self._index(which, number)
        if name is None:
            return self.create_index(which=which, column=number, kind="BITMAP", number=number % 2, again=retrain)
        call: Callable[[ty.Table], ty.CommitResult] = lambda table: table.indices.extend(name, retrain=retrain)  # noqa: E731
        self.act(which, "extend_index", "CreateIndex", call, excuse=_index_gone, several=True)
        return None

    @deed(which=WHICH, number=SMALL)
    def drop_index(self, which: int, number: int) -> None:
        name = self._index(which, number)
        if name is None:
            return self.create_index(which=which, column=number, kind="BTREE", number=number % 2, again=True)

        def effect(base: World, head: World) -> World:
            return replace(head, indices={one: column for one, column in head.indices.items() if one != name})

        self.act(which, "drop_index", "CreateIndex", lambda table: table.drop_index(name), effect, _index_gone)
        return None

    @deed(which=WHICH, shard=st.integers(0, 1), ahead=st.integers(-1, 2))
    def mem_wal(self, which: int, shard: int, ahead: int) -> None:
        base, name = self.base(which), SHARDS[shard]
        if base.generations is None:

            def begun(base: World, head: World) -> World:
                return replace(head, generations=head.generations or {})

            def there(base: World, head: World) -> Errors:
                return (ty.AlreadyExists,) if head.generations is not None else ()

            self.act(which, "mem_wal initialize", "CreateIndex", lambda table: table.indices.mem_wal.initialize(), begun, there)
            return
        generation = max(base.generations.get(name, 0) + ahead, 0)

        def effect(base: World, head: World) -> World:
            assert (head.generations or {}).get(name, -1) < generation, "the state of the log went back"
            return replace(head, generations={**(head.generations or {}), name: generation})

        def excuse(base: World, head: World) -> Errors:
            stale = any(world.generations is None or world.generations.get(name, -1) >= generation for world in (base, head))
            return (ty.IncompatibleConflict,) if stale else ()

        self.act(
            which,
            "mem_wal mark_merged",
            "UpdateMemWalState",
            lambda table: table.indices.mem_wal.mark_merged(name, generation),
            effect,
            excuse,
        )


def _index_gone(base: World, head: World) -> Errors:
    return (ty.NotFound,) if set(base.indices) - set(head.indices) else ()


# ---- pylance in between ----------------------------------------------------------------------------------------------------


class StockDeeds(Bench):
    """Verbs of stock pylance, on the newest version of main."""

    @deed()
    def another_row(self) -> None:
        """Hypothesis takes the rule with the fewest arguments more often than others. So this is one after which all handles are stale."""
        self.stock_append(seeds=[self.main.head % 8])

    @deed(seeds=SEEDS)
    def stock_append(self, seeds: list[int]) -> None:
        rows = self.new_rows(self.main.newest, seeds)
        data = self.arrow(self.main.newest, rows)

        def effect(base: World, head: World) -> World:
            return Plan(inserted=numbered(base, rows)).carried(base, head)

        self.stock("pylance append", lambda dataset: lance.write_dataset(data, dataset, mode="append", max_rows_per_file=2), effect)

    @deed(where=WHERE)
    def stock_delete(self, where: Where) -> None:
        bound = where.bound(self.main.newest)

        def effect(base: World, head: World) -> World:
            return Plan(deleted=frozenset(bound.holding(base))).carried(base, head)

        self.stock("pylance delete", lambda dataset: dataset.delete(bound.sql), effect)

    @deed(where=WHERE, column=SMALL, what=SMALL)
    def stock_update(self, where: Where, column: int, what: int) -> None:
        head = self.main.newest
        if not head.free:
            return self.stock_delete(where=where)
        chosen, bound = head.free[column % len(head.free)], where.bound(head)
        given = assignment(chosen, what, head)

        def effect(base: World, head: World) -> World:
            return updated(base, bound, {chosen.name: given}).carried(base, head)

        self.stock("pylance update", lambda dataset: dataset.update({chosen.name: given.sql}, bound.sql), effect)
        return None

    @deed(
        old=st.lists(SMALL, max_size=2), new=st.integers(0, 2), seed=SMALL, what=st.sampled_from(["upsert", "insert", "update", "mirror"])
    )
    def stock_merge(self, old: list[int], new: int, seed: int, what: str) -> None:
        head = self.main.newest
        if head.has_double_ids():
            return self.stock_append(seeds=[seed])
        known = sorted(head.ids)
        ids = sorted({known[place % len(known)] for place in old} if known else set()) + self.fresh_ids(new)
        ids = ids or self.fresh_ids(1)
        source = self.new_rows(head, [(seed + place) % 8 for place in range(len(ids))], ids=ids)
        clauses, bound = Clauses(what, None), Where("all").bound(head)

        def call(dataset: Any) -> None:
            builder = dataset.merge_insert(head.key.name)
            if what in ("upsert", "update", "mirror"):
                builder = builder.when_matched_update_all()
            if what in ("upsert", "insert", "mirror"):
                builder = builder.when_not_matched_insert_all()
            if what == "mirror":
                builder = builder.when_not_matched_by_source_delete()
            builder.execute(self.arrow(head, source))

        def effect(base: World, head: World) -> World:
            return clauses.plan(base, source, bound).carried(base, head, new_keys=clauses.inserting)

        self.stock("pylance merge", call, effect)
        return None

    @deed(size=st.sampled_from([2, 5, 1000]), indices=st.booleans())
    def stock_compact(self, size: int, indices: bool) -> None:
        self.stock("pylance compact", lambda dataset: dataset.optimize.compact_files(target_rows_per_fragment=size), several=True)
        if indices:
            self.stock("pylance optimize indices", lambda dataset: dataset.optimize.optimize_indices(), several=True)

    @deed(name=SMALL)
    def stock_add_columns(self, name: int) -> None:
        head = self.main.newest
        new = f"p{name % 2}"
        if new in head.names and len(head.free) > 1:
            number = head.column(new).number
            self.stock("pylance drop columns", lambda dataset: dataset.drop_columns([new]), lambda base, head: head.without_column(number))
            return None
        column = replace(head.columns[-1], number=-100 - self.main.head, name=new, kind="int64", nullable=True, metadata={})

        def effect(base: World, head: World) -> World:
            rows = {number: {**values, column.number: values[0]} for number, values in head.rows.items()}
            return replace(head.with_rows(rows), columns=(*head.columns, column))

        if new in head.names or head.generations is not None:  # beside a log pylance adds no columns that it has to work out
            return self.stock_append(seeds=[name])
        self.stock("pylance add columns", lambda dataset: dataset.add_columns({new: f"nullif({head.key.name}, -1)"}), effect)
        return None
