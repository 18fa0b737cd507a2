"""Commits what was planned for one table of the target, as operations that every Lance reader knows, inside the merge's transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import UnsupportedFeature
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields, match_schema
from tiltyard.format.values import TOMBSTONE, BasePath, DataFile, DataFragment, DeletionFile, IndexMetadata
from tiltyard.lakes.merging.place_merge import Three
from tiltyard.lakes.merging.row_identity import PlaceList, wanted_columns
from tiltyard.lakes.merging.row_merge import RowMerge
from tiltyard.lakes.merging.schema_merge import SchemaMerge
from tiltyard.lakes.merging.table_state import PhysicalChange, TableState, roots_of
from tiltyard.options import FileLimits
from tiltyard.transaction.apply.coverage import SYSTEM
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.footprint import coverage
from tiltyard.transaction.operations import Append, CreateIndex, Delete, Merge, Operation, Project, UpdateBases, UpdateConfig
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.changed_rows import Places
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.data_files import write_into
from tiltyard.verbs.engine.row_deletion import Struck, dataset_at, strike_out
from tiltyard.verbs.engine.row_input import conformed
from tiltyard.verbs.engine.staged_access import StagedAccess
from tiltyard.verbs.merge_plan import update_of, with_row_ids

Based = TypeVar("Based", DataFile, DeletionFile, IndexMetadata)

OTHER_COLUMNS: Final = "tiltyard.other-columns"
"""The property of a transaction that gives a field id another name by a merge, where it may be another column: one side was right about
the table as a whole. The operation alone looks like a renaming."""


@dataclass
class MergedTable:
    """One table of the target while it is written to.

    Attributes:
        access: where its staged versions are made.
        file: the latest of them.
        operations, referenced, written: what was done so far, for the report.
    """

    access: StagedAccess
    file: ManifestFile
    scheme: Scheme
    operations: int = 0
    referenced: int = 0
    written: int = 0
    left_out: list[str] = field(default_factory=list)

    @property
    def manifest(self) -> Manifest:
        return self.file.manifest

    def commit(self, operation: Operation, properties: Mapping[str, str] | None = None, **more: Any) -> None:
        made = Transaction(self.manifest.version, self.access.runtime.random.uuid(), operation, dict(properties or {}))
        _, self.file = self.access.committer.commit(made, self.file, self.scheme, RetryPolicy(0), **more)
        self.operations += 1

    def base_ids(self, theirs: TableState, needed: Iterable[int | None]) -> dict[int | None, int | None]:
        """What the places that files of a branch lie in are called here; those that are new become bases first."""
        flags = {base.id: base.is_dataset_root for base in theirs.manifest.base_paths}
        wanted = {theirs.roots[number]: flags.get(number, True) if number is not None else True for number in needed}
        known = set(roots_of(self.access, self.manifest).values())
        new = tuple(BasePath(0, path, is_root, path.rpartition("/")[2][:80]) for path, is_root in wanted.items() if path not in known)
        if new:
            self.commit(UpdateBases(tuple(replace(base, name=self._free_name(base)) for base in new)))
        here = {path: number for number, path in reversed(roots_of(self.access, self.manifest).items())}
        return {number: here[theirs.roots[number]] for number in needed}

    def _free_name(self, base: BasePath) -> str | None:
        """A base may go without a name, but pylance takes two without one for the same."""
        taken = {known.name for known in self.manifest.base_paths}
        return next(name for name in (base.name, *(f"{base.name}-{number}" for number in range(2, 1000))) if name not in taken)


@dataclass(frozen=True)
class TablePlan:
    """What a merge does to the content of one table.

    Attributes:
        three: its states.
        mine, other: what both sides did, by files.
        schema: after the merge.
        settings: to be changed.
        rows: to be moved.
    """

    three: Three
    mine: PhysicalChange
    other: PhysicalChange
    schema: SchemaMerge
    settings: UpdateConfig | None
    rows: RowMerge


def apply_plan(target: MergedTable, plan: TablePlan) -> None:
    """Commits a plan: bases, columns, rows, deletions of what came, settings, indices; each only where there is something to do."""
    theirs = plan.three.theirs
    index_changes = _index_changes(target, plan)
    files = [file for number in _needed(plan) for file in theirs.fragments[number].files]
    used: set[int | None] = {file.base_id for file in files} | {index.base_id for index in index_changes.new_indices}
    bases = target.base_ids(theirs, sorted(used, key=lambda number: -1 if number is None else number))

    def placed(value: Based) -> Based:
        return replace(value, base_id=bases[value.base_id])

    _columns(target, plan, placed)
    _rows(target, plan, placed)
    if plan.settings is not None:
        target.commit(plan.settings)
    if index_changes.new_indices or index_changes.removed_indices:
        target.commit(replace(index_changes, new_indices=tuple(map(placed, index_changes.new_indices))))


def _needed(plan: TablePlan) -> set[int]:
    """Fragments of the branch whose files become part of the target's."""
    with_columns = set(plan.other.kept.values()) if plan.schema.added else set()
    return {*plan.rows.bring, *plan.rows.refile.values(), *with_columns}


# ---- columns ---------------------------------------------------------------------------------------------------------------------


def _columns(target: MergedTable, plan: TablePlan, placed: Callable[[DataFile], DataFile]) -> None:
    fields = plan.schema.fields
    refiled = plan.rows.refile
    theirs = plan.three.theirs
    counterparts = {plan.mine.kept[number]: there for number, there in plan.other.kept.items() if number in plan.mine.kept}
    changed: dict[int, DataFragment] = {}
    all_theirs = frozenset(field.id for field in theirs.manifest.fields)
    for fragment in target.manifest.fragments:
        there = counterparts.get(fragment.id)
        taken = all_theirs if fragment.id in refiled else plan.schema.added
        if taken:
            other = () if there is None else theirs.fragments[there].files
            files = _combined(_without(fragment.files, plan.schema.added), other, taken, placed)
            if files != fragment.files:
                changed[fragment.id] = replace(fragment, files=files)
                target.referenced += sum(file.size for file in files if file not in fragment.files)
    names = {field.id: field.name for field in target.manifest.fields}
    properties = {OTHER_COLUMNS: "true"} if any(names.get(field.id, field.name) != field.name for field in fields) else {}
    if changed or plan.schema.added:
        nullable = all(field.nullable for field in fields if field.id in plan.schema.added)
        known = {field.id for field in fields}
        every = (changed.get(fragment.id, fragment) for fragment in target.manifest.fragments)
        fragments = tuple(replace(fragment, files=_with_columns(fragment.files, known)) for fragment in every)
        target.commit(Merge(fragments, fields, preserves_nullability=nullable), properties)
    elif fields != target.manifest.fields:
        target.commit(Project(fields, preserves_nullability=False), properties)


def _without(files: Iterable[DataFile], fields: Collection[int]) -> tuple[DataFile, ...]:
    """Files without some fields: a column that one side dropped may have had the id of one that the other side added."""
    left = [replace(file, fields=tuple(TOMBSTONE if number in fields else number for number in file.fields)) for file in files]
    return tuple(file for file in left if any(number != TOMBSTONE for number in file.fields))


def _with_columns(files: tuple[DataFile, ...], known: Collection[int]) -> tuple[DataFile, ...]:
    """Files that hold a column of the schema, or row ids and versions; readers refuse others."""
    return tuple(file for file in files if any(number in known or number < TOMBSTONE for number in file.fields))


def _combined(
    mine: tuple[DataFile, ...], theirs: Iterable[DataFile], taken: frozenset[int], placed: Callable[[DataFile], DataFile]
) -> tuple[DataFile, ...]:
    """The files of a fragment, with some fields read from those of another state of it."""
    theirs = tuple(theirs)
    other = {number for file in theirs for number in file.fields if number in taken}
    files = []
    for file in mine:  # without all that is taken: what the other state has no values for is null
        left = tuple(TOMBSTONE if number in taken else number for number in file.fields)
        if left == file.fields or any(number != TOMBSTONE for number in left):
            files.append(replace(file, fields=left))
    for file in map(placed, theirs):
        left = tuple(number if number in other else TOMBSTONE for number in file.fields)
        if not other.intersection(file.fields):
            continue
        same = next((place for place, known in enumerate(files) if (known.path, known.base_id) == (file.path, file.base_id)), None)
        if same is None:
            files.append(replace(file, fields=left))
        else:  # both have the file, each reads some of its columns
            both = tuple(a if a != TOMBSTONE else b for a, b in zip(files[same].fields, left, strict=True))
            files[same] = replace(files[same], fields=both)
    if any(file.major < 2 and TOMBSTONE in file.fields for file in files):
        raise UnsupportedFeature(
            "Data files of the first Lance format (0.1) cannot be divided by columns, which this merge needs.",
            feature="columns of the oldest format",
            writing=True,
        )
    return tuple(files)


# ---- rows ------------------------------------------------------------------------------------------------------------------------


def _rows(target: MergedTable, plan: TablePlan, placed: Callable[[DataFile], DataFile]) -> None:
    rows, theirs = plan.rows, plan.three.theirs
    known = {field.id for field in theirs.manifest.fields} & {field.id for field in plan.schema.fields}
    brought = {
        number: DataFragment(0, tuple(map(placed, _without(fragment.files, dead))), fragment.physical_rows)
        for number in sorted(rows.bring)
        for fragment in (theirs.fragments[number],)
        for dead in ({field for file in fragment.files for field in file.fields if field >= 0} - known,)
    }
    copied = copy_rows(target, theirs, rows.copy, rows.ids)
    new = (*copied, *brought.values())
    struck = strike_out(target.access, target.manifest, rows.strike) if rows.strike else Struck((), ())
    target.referenced += sum(file.size for fragment in brought.values() for file in fragment.files)
    target.written += sum(file.size for fragment in copied for file in fragment.files)
    if rows.strike and new:
        target.commit(update_of(target.manifest, struck, new, None), rows=struck.rows)
    elif new:
        target.commit(Append(new))
    elif rows.strike:
        target.commit(Delete(struck.updated, struck.removed, "merge"), rows=struck.rows)
    _hide(target, {file: rows.bring[number] for number, fragment in brought.items() for file in fragment.files[:1]})


def _hide(target: MergedTable, hidden: Mapping[DataFile, BitMap]) -> None:
    """Deletes rows of fragments that came, which could not bring their deletions along."""
    wanted = {(file.path, file.base_id): rows for file, rows in hidden.items() if rows}
    if not wanted:
        return
    places: Places = {}
    for fragment in target.manifest.fragments:
        rows = next((wanted[home] for file in fragment.files if (home := (file.path, file.base_id)) in wanted), None)
        if rows is not None:
            places[fragment.id] = rows
    struck = strike_out(target.access, target.manifest, places)
    target.commit(Delete(struck.updated, struck.removed, "merge"), rows=struck.rows)


def copy_rows(target: MergedTable, theirs: TableState, places: Places, ids: Mapping[int, int]) -> tuple[DataFragment, ...]:
    """Writes rows of a branch again, those first that keep their ids."""
    if not places:
        return ()
    if any(has_blobs(field) for field in arrow_from_fields(theirs.manifest.fields, {})):
        raise UnsupportedFeature(
            f"This merge would have to rewrite rows of {theirs.name}, and tables with blob columns do not allow it.",
            feature="merge of blobs", writing=True,
            advice="Nothing was changed. Write these rows to the target branch yourself.",
        )  # fmt: skip
    columns = wanted_columns(theirs, {field.id: field.name for field in target.manifest.fields})
    if columns is None:
        raise UnsupportedFeature(
            f"This merge would have to rewrite rows of {theirs.name}, where a list holds structs whose members were changed.",
            feature="merge of changed members in lists", writing=True,
            advice="Nothing was changed. Write these rows to the target branch yourself.",
        )  # fmt: skip
    parts = [part for number in places for part in theirs.side.read({number: places[number]}, list(columns.names))]
    rows = columns.of(pa.concat_tables(parts))
    moved: list[int] = []
    order: list[int] = []
    if theirs.side.stable:
        found = [number for part in places for number in theirs.side.ids(part, places[part]).tolist()]
        first = [place for place, number in enumerate(found) if number in ids]
        order = [*first, *(place for place, number in enumerate(found) if number not in ids)]
        moved = [ids[found[place]] for place in first]
        rows = rows.take(pa.array(order, pa.int64()))
    return with_row_ids(_written(target, rows.combine_chunks()), _numbers(moved)) if moved else _written(target, rows.combine_chunks())


def _numbers(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, np.uint64)


def _written(target: MergedTable, rows: pa.Table) -> tuple[DataFragment, ...]:
    manifest = target.manifest
    match = match_schema(manifest.fields, rows.schema)
    version = manifest.data_format.version if manifest.data_format else ""
    ordered = rows.select(list(match.schema.names))
    given = conformed(ordered, match.schema, match.check_not_null)
    return write_into(target.access, given, match.fields, version, lambda: dataset_at(target.access, manifest), FileLimits())


# ---- indices ---------------------------------------------------------------------------------------------------------------------


def _index_changes(target: MergedTable, plan: TablePlan) -> CreateIndex:
    """Indices that the branch made or dropped, as far as they say the same of the target's rows; the others are left out."""
    three = plan.three
    was, mine, other = (_by_name(state.manifest) for state in (three.base, three.ours, three.theirs))
    stale = {plan.mine.kept[number] for number in plan.mine.refiled if number in plan.mine.kept}
    shared = three.theirs.found_in(three.ours).items()
    same = {there for there, here in shared if there == here and here not in stale and not _shows_more(plan, there, here)}
    fields = {field.id for field in plan.schema.fields}
    new: list[IndexMetadata] = []
    removed: list[IndexMetadata] = []
    for name in {**was, **other}:
        before, after, here = ({index.uuid: index for index in side.get(name, ())} for side in (was, other, mine))
        if before.keys() == after.keys() or here.keys() == after.keys():
            continue
        fresh = [index for uuid, index in after.items() if uuid not in before]
        usable = all(_fits(index, same, fields, three) for index in fresh)
        if here.keys() != before.keys() or not usable:
            target.left_out.append(name)
            continue
        new += fresh
        removed += [here[uuid] for uuid in before if uuid not in after]
    return CreateIndex(tuple(new), tuple(removed))


def _shows_more(plan: TablePlan, there: int, here: int) -> bool:
    """Whether a fragment shows rows after the merge that are deleted on the branch, as after a restore: its indices do not have them."""
    struck = plan.rows.strike.get(here, BitMap())
    return bool(plan.three.ours.live(here) - struck - plan.three.theirs.live(there))


def _by_name(manifest: Manifest) -> dict[str, list[IndexMetadata]]:
    found: dict[str, list[IndexMetadata]] = {}
    for index in decode_indices(manifest, f"version {manifest.version}"):
        if index.name not in SYSTEM:
            found.setdefault(index.name, []).append(index)
    return found


def _fits(index: IndexMetadata, same: set[int], fields: set[int], three: Three) -> bool:
    """Whether all fragments that an index covers have the same number and rows on the target."""
    covers = coverage(index)
    ids = three.same_ids or not three.theirs.side.stable
    return covers is not None and ids and set(covers) <= same and fields.issuperset(index.fields)


def rows_in(places: Places) -> int:
    """How many rows are at places."""
    return len(PlaceList(places))
