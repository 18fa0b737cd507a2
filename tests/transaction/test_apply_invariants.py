"""Whatever is done to a table, in whatever order: what must always hold of its manifest holds, and the file can be read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from tests.support.manifests import BITMAP, BTREE, STAMP, created, data_file, index, row_ids, table, updated
from tiltyard import ops
from tiltyard.format.fields import next_field_id
from tiltyard.format.flags import Feature, check_consistent
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file
from tiltyard.format.roaring import decode_roaring, encode_roaring
from tiltyard.format.row_ids import RowVersions, concat_row_versions, decode_row_versions, encode_row_ids, encode_row_versions, row_ids_of
from tiltyard.format.values import BasePath, DataFile, DataFragment, DeletionFile, Field
from tiltyard.transaction.apply.next_manifest import apply, clone

ROWS = 4
"""Rows of a new fragment at most: few, so that deletions empty some."""


class Table(RuleBasedStateMachine):
    """A table, with a model of its rows beside it: fragment id -> the live offsets in it, and row id -> version of creation."""

    manifest: Manifest
    stable: bool
    live: dict[int, set[int]]
    origin: dict[int, int]
    history: list[tuple[Manifest, dict[int, set[int]], dict[int, int]]]
    names: int

    @initialize(stable=st.booleans())
    def create(self, stable: bool) -> None:
        self.stable = stable
        self.names = 0
        self.manifest = table([], stable=stable, version=1, max_fragment_id=None, next_row_id=0)
        self.live, self.origin, self.history = {}, {}, []
        self.remember()

    # ---- helpers -----------------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        self.history.append((self.manifest, {one: set(rows) for one, rows in self.live.items()}, dict(self.origin)))

    def commit(self, operation: ops.Operation, **more: Any) -> Manifest:
        before = self.manifest
        self.manifest = apply(operation, before, STAMP, **more)
        assert self.manifest.version == before.version + 1
        assert (self.manifest.max_fragment_id or -1) >= (before.max_fragment_id or -1)
        assert self.manifest.next_row_id >= before.next_row_id
        return before

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def columns(self) -> tuple[int, ...]:
        parents = {one.parent_id for one in self.manifest.fields}
        return tuple(one.id for one in self.manifest.fields if one.id not in parents)

    def file(self, fields: tuple[int, ...]) -> DataFile:
        return data_file(self.name(), fields)

    def fresh(self, rows: int) -> DataFragment:
        return DataFragment(0, (self.file(self.columns()),), rows)

    def fragment(self, number: int) -> DataFragment:
        return next(one for one in self.manifest.fragments if one.id == number)

    def with_live(self, number: int, rows: set[int]) -> DataFragment:
        one = self.fragment(number)
        hidden = one.physical_rows - len(rows)
        return replace(one, deletion_file=DeletionFile(False, self.manifest.version, self.names, hidden) if hidden else None)

    def appeared(self, before: Manifest) -> list[DataFragment]:
        known = set(before.fragments.ids())
        return [one for one in self.manifest.fragments if one.id not in known]

    def take(self, data: st.DataObject) -> dict[int, set[int]]:
        """Some live rows."""
        chosen = {}
        for number, rows in sorted(self.live.items()):
            if some := data.draw(st.sets(st.sampled_from(sorted(rows)))):
                chosen[number] = some
        return chosen

    def left(self, taken: dict[int, set[int]]) -> tuple[tuple[DataFragment, ...], tuple[int, ...]]:
        """Fragments with fewer rows, and those with none; the model follows."""
        fewer, none = [], []
        for number, rows in taken.items():
            self.live[number] -= rows
            if self.live[number]:
                fewer.append(self.with_live(number, self.live[number]))
            else:
                none.append(number)
                del self.live[number]
        return tuple(fewer), tuple(none)

    # ---- rows --------------------------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, ROWS), max_size=3))
    def append(self, sizes: list[int]) -> None:
        before = self.commit(ops.Append(tuple(self.fresh(size) for size in sizes)))
        assert self.manifest.fragments.extension_of(before.fragments) is not None
        for one in self.appeared(before):
            self.live[one.id] = set(range(one.physical_rows))
            if self.stable:
                self.origin.update(dict.fromkeys(row_ids(one), self.manifest.version))
        self.remember()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.commit(ops.Delete(*self.left(self.take(data))))
        self.remember()

    @rule(data=st.data(), inserted=st.integers(0, 3))
    def update(self, data: st.DataObject, inserted: int) -> None:
        taken = self.take(data)
        ids = [row_ids(self.fragment(number))[row] for number, rows in taken.items() for row in sorted(rows)] if self.stable else []
        rows = sum(map(len, taken.values())) + inserted
        new = [replace(self.fresh(rows), row_ids=encode_row_ids(row_ids_of(ids)) if ids else None)] if rows else []
        fewer, none = self.left(taken)
        modified = tuple(data.draw(st.sets(st.sampled_from(self.columns()))))
        before = self.commit(ops.Update(none, fewer, tuple(new), fields_for_preserving_frag_bitmap=modified))
        for one in self.appeared(before):
            self.live[one.id] = set(range(rows))
            if self.stable:
                assert row_ids(one)[: len(ids)] == ids
                assert updated(one) == [self.manifest.version] * rows
                self.origin.update(dict.fromkeys(row_ids(one)[len(ids) :], self.manifest.version))
        self.remember()

    # ---- columns -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def rewrite_column(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        column = data.draw(st.sampled_from(self.columns()))
        old = self.fragment(number)
        files = [replace(file, fields=tuple(-2 if one == column else one for one in file.fields)) for file in old.files]
        rows = data.draw(st.sets(st.integers(0, old.physical_rows - 1)))
        update = ops.Update(
            updated_fragments=(replace(old, files=(*files, self.file((column,)))),),
            fields_modified=(column,),
            update_mode=ops.UpdateMode.REWRITE_COLUMNS,
            updated_fragment_offsets={number: encode_roaring(BitMap(rows))},
        )
        self.commit(update)
        if self.stable:
            assert {row for row, version in enumerate(updated(self.fragment(number))) if version == self.manifest.version} == rows
        self.check_uncovered(number, column)
        self.remember()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def replace_data(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        column = data.draw(st.sampled_from(self.columns()))
        self.commit(ops.DataReplacement((ops.Replacement(number, self.file((column,))),)))
        self.check_uncovered(number, column)
        self.remember()

    def check_uncovered(self, number: int, column: int) -> None:
        for one in decode_indices(self.manifest, ""):
            if column in one.fields and one.fragment_bitmap is not None:
                assert number not in decode_roaring(one.fragment_bitmap, "")

    @rule(everywhere=st.booleans())
    def add_column(self, everywhere: bool) -> None:
        field = Field(self.name(), next_field_id(self.manifest.fields, self.manifest.fragments), -1, "int64")
        parts = tuple(replace(one, files=(*one.files, self.file((field.id,)))) if everywhere else one for one in self.manifest.fragments)
        self.commit(ops.Merge(parts, (*self.manifest.fields, field)))
        self.remember()

    @precondition(lambda self: len(self.manifest.fields) > 2)
    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([one.id for one in self.manifest.fields if one.parent_id == -1]))
        kept = tuple(one for one in self.manifest.fields if number not in (one.id, one.parent_id))
        if kept:
            self.commit(ops.Project(kept))
            self.remember()

    # ---- maintenance -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        chosen = sorted(data.draw(st.sets(st.sampled_from(sorted(self.live)), min_size=1)))
        if data.draw(st.booleans()):
            self.commit(ops.ReserveFragments(1))
            number = self.manifest.max_fragment_id or 0
        else:
            number = 0
        old = [self.fragment(one) for one in chosen]
        rows = [(one, row) for one in old for row in sorted(self.live[one.id])]
        new = replace(self.fresh(len(rows)), id=number)
        if self.stable:
            new = replace(
                new,
                row_ids=encode_row_ids(row_ids_of([row_ids(one)[row] for one, row in rows])),
                created_at=encode_row_versions(self.versions(rows, "created_at")),
                updated_at=encode_row_versions(self.versions(rows, "updated_at")),
            )
        before = self.commit(ops.Rewrite((ops.RewriteGroup(tuple(old), (new,)),)))
        for one in chosen:
            del self.live[one]
        (made,) = self.appeared(before)
        self.live[made.id] = set(range(len(rows)))
        self.remember()

    @staticmethod
    def versions(rows: list[tuple[DataFragment, int]], member: str) -> RowVersions:
        parts = []
        for one, row in rows:
            parts.append(decode_row_versions(getattr(one, member), physical_rows=one.physical_rows, source="").select([row]))
        return concat_row_versions(parts)

    @rule(data=st.data(), kind=st.sampled_from([BTREE, BITMAP]), name=st.sampled_from("ab"))
    def create_index(self, data: st.DataObject, kind: str, name: str) -> None:
        self.names += 1
        column = data.draw(st.sampled_from(self.columns()))
        covered = data.draw(st.sets(st.sampled_from(sorted(self.live)))) if self.live else set()
        there = decode_indices(self.manifest, "")
        old = [one for one in there if one.name == name and (one.fields != (column,) or data.draw(st.booleans()))]
        self.commit(ops.CreateIndex((index(name, [column], covered, uuid=self.names, kind=kind),), tuple(old)))
        self.remember()

    @rule(key=st.sampled_from("abc"), value=st.sampled_from([None, "1"]))
    def update_config(self, key: str, value: str | None) -> None:
        self.commit(ops.UpdateConfig(ops.UpdateMap(((key, value),))))
        self.remember()

    @rule()
    def add_base(self) -> None:
        self.commit(ops.UpdateBases((BasePath(0, f"/{self.name()}"),)))
        self.remember()

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        manifest, live, origin = data.draw(st.sampled_from(self.history))
        self.commit(ops.Restore(manifest.version), restored=manifest)
        self.live, self.origin = {one: set(rows) for one, rows in live.items()}, dict(origin)
        self.remember()

    @rule(shallow=st.booleans())
    def clone(self, shallow: bool) -> None:
        made = clone(ops.Clone(shallow, None, self.manifest.version, "/source"), self.manifest, STAMP)
        assert made.fragments.ids() == self.manifest.fragments.ids()
        known = {one.id for one in made.base_paths} if shallow else {None}
        assert {file.base_id for one in made.fragments for file in one.files} <= known

    # ---- what always holds -------------------------------------------------------------------------------------------------

    @invariant()
    def ids_ascend_below_the_mark(self) -> None:
        ids = self.manifest.fragments.ids()
        assert ids == sorted(set(ids))
        assert not ids or ids[-1] <= (self.manifest.max_fragment_id or 0)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        assert {one.id: one.live_rows for one in self.manifest.fragments} == {one: len(rows) for one, rows in self.live.items()}
        assert self.manifest.fragments.live_rows() == sum(map(len, self.live.values()))

    @invariant()
    def row_ids_are_unique_and_know_their_origin(self) -> None:
        if not self.stable:
            assert all(one.row_ids is None for one in self.manifest.fragments)
            return
        seen: set[int] = set()
        for one in self.manifest.fragments:
            ids, origins, changes = row_ids(one), created(one), updated(one)
            assert len(ids) == len(origins) == len(changes) == one.physical_rows
            for row in self.live[one.id]:
                assert ids[row] not in seen
                assert ids[row] < self.manifest.next_row_id
                assert origins[row] == self.origin[ids[row]] <= changes[row] <= self.manifest.version
                seen.add(ids[row])

    @invariant()
    def each_column_stands_once(self) -> None:
        for one in self.manifest.fragments:
            columns = [number for file in one.files for number in file.fields if number >= 0]
            assert len(columns) == len(set(columns))
            assert all(any(number != -2 for number in file.fields) for file in one.files)

    @invariant()
    def indices_are_on_columns_there_are(self) -> None:
        known = {one.id for one in self.manifest.fields}
        indices = decode_indices(self.manifest, "")
        assert all(known.issuperset(one.fields) for one in indices)
        assert len({one.uuid for one in indices}) == len(indices)

    @invariant()
    def flags_say_what_there_is(self) -> None:
        reader, writer = self.manifest.reader_flags, self.manifest.writer_flags
        check_consistent(reader, writer, max_allocated_field_id=None, source="")
        assert bool(reader & Feature.DELETION_FILES) == any(one.deletion_file for one in self.manifest.fragments)
        assert bool(reader & Feature.BASE_PATHS) == bool(self.manifest.base_paths)
        assert bool(writer & Feature.TABLE_CONFIG) == bool(self.manifest.config)
        assert bool(reader & Feature.STABLE_ROW_IDS) == self.stable

    @invariant()
    def it_can_be_read_back(self) -> None:
        data, _ = encode_manifest_file(self.manifest, b"")
        again = decode_manifest_file(data, source="v", version=self.manifest.version).manifest
        assert again == self.manifest


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
