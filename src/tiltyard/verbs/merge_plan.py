"""What a merge is to do, put together clause by clause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

from tiltyard.errors import InvalidInput
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_ids import encode_row_ids, row_ids_of
from tiltyard.format.values import DataFragment
from tiltyard.options import CommitOptions, FileLimits
from tiltyard.transaction.operations import CompactedSsTable, Update, UpdateMode
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.arguments import sql_where
from tiltyard.verbs.engine.reexecution import ReexecutionPolicy, commit_terms
from tiltyard.verbs.engine.row_deletion import Struck
from tiltyard.verbs.indices.mem_wal import compacted
from tiltyard.verbs.keys.primary_keys import Key, check_comparable, key_of_columns, primary_key_of

Group = Literal["matched", "inserts", "orphans"]


@dataclass(frozen=True, slots=True)
class Clause:
    """What happens to some rows, as far as no earlier clause was about them.

    Attributes:
        action: what is done.
        condition: a SQL condition; None for all of them.
        columns: for an update or insert, the columns that get a value; None for all that the source has.
        values: expressions for those; none where they are taken from the source as they are.
    """

    action: Literal["update", "delete", "fail", "insert"]
    condition: str | None = None
    columns: tuple[str, ...] | None = None
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """All clauses of a merge.

    Attributes:
        on: the columns that rows are matched by; None for the primary key.
        allow_duplicates: whether rows may come to be that have one primary key.
        matched: for rows in both, in the order in which they apply; conditions and values are over ``source.`` and ``target.`` columns.
        inserts: for rows that only the source has, over ``source.`` columns.
        orphans: for rows that only the table has, over its columns.
        generations: up to where shards of a write-ahead log are in the table afterwards.
        files: how new rows are cut into files, and to which base these go.
    """

    on: tuple[str, ...] | None = None
    allow_duplicates: bool = False
    matched: tuple[Clause, ...] = ()
    inserts: tuple[Clause, ...] = ()
    orphans: tuple[Clause, ...] = ()
    generations: tuple[CompactedSsTable, ...] = ()
    files: FileLimits = field(default_factory=FileLimits)

    def with_clause(self, group: Group, clause: Clause) -> MergePlan:
        known: tuple[Clause, ...] = getattr(self, group)
        if known and known[-1].condition is None:
            raise InvalidInput(
                f"No row is left for {clause.action}: the clause before it, {known[-1].action}, takes all that match.",
                argument="where",
                advice="Give the earlier clause a condition, or put it last.",
            )
        if group == "matched":
            return replace(self, matched=(*known, clause))
        return replace(self, inserts=(*known, clause)) if group == "inserts" else replace(self, orphans=(*known, clause))

    @property
    def clauses(self) -> tuple[Clause, ...]:
        return (*self.matched, *self.inserts, *self.orphans)


Run = Callable[[MergePlan, Mapping[str, str], ReexecutionPolicy], CommitResult]


@dataclass(frozen=True, slots=True)
class MergeBuilder:
    """A merge that is being described. Each clause gives a new one; ``execute`` does it.

    Of several clauses for the same rows, the first whose condition holds decides. Conditions and values are SQL over both rows:
    ``"source.changed > target.changed"``. The source has columns of the table only.

    Examples:
        >>> import tempfile, tiltyard as ty
        >>> stock = ty.Table.create(tempfile.mkdtemp() + "/stock", {"item": ["a", "b"], "count": [5, 7]}, primary_key=["item"])
        >>> merge = stock.merge({"item": ["a", "c"], "count": [1, 2]}).when_matched_update({"count": "target.count + source.count"})
        >>> merge = merge.when_not_matched_insert({"count": "source.count * 10"})
        >>> _ = merge.when_not_matched_by_source_update({"count": "0"}).execute()
        >>> sorted(stock.to_arrow().to_pylist(), key=lambda row: row["item"])
        [{'item': 'a', 'count': 6}, {'item': 'b', 'count': 0}, {'item': 'c', 'count': 20}]
    """

    _run: Run
    _plan: MergePlan

    def when_matched_update_all(self, where: str | None = None) -> MergeBuilder:
        """Rows in both take all columns that the source has."""
        return self._with("matched", Clause("update", _given(where)))

    def when_matched_update(self, values: Mapping[str, str] | Sequence[str], where: str | None = None) -> MergeBuilder:
        """Rows in both take new values, by column; a list of names takes the source's values."""
        return self._with("matched", Clause("update", _given(where), *_assigned(values)))

    def when_matched_delete(self, where: str | None = None) -> MergeBuilder:
        """Rows in both are deleted."""
        return self._with("matched", Clause("delete", _given(where)))

    def when_matched_fail(self) -> MergeBuilder:
        """If a row is in both, nothing is done at all and a ``KeyConflict`` is raised."""
        return self._with("matched", Clause("fail"))

    def when_not_matched_insert_all(self, where: str | None = None) -> MergeBuilder:
        """Inserts rows that only the source has.

        Args:
            where: a condition over ``source.`` columns.
        """
        return self._with("inserts", Clause("insert", _given(where)))

    def when_not_matched_insert(self, values: Mapping[str, str] | Sequence[str], where: str | None = None) -> MergeBuilder:
        """Inserts rows that only the source has, with these values; other columns are null.

        Args:
            values: SQL over ``source.`` columns, by column; a list of names takes the source's values. The columns that rows are matched
                by are always the source's.
            where: a condition over ``source.`` columns.
        """
        return self._with("inserts", Clause("insert", _given(where), *_assigned(values)))

    def when_not_matched_by_source_delete(self, where: str | None = None) -> MergeBuilder:
        """Rows that only the table has are deleted. ``where`` is over the table's columns, by their names."""
        return self._with("orphans", Clause("delete", _given(where)))

    def when_not_matched_by_source_update(self, values: Mapping[str, str], where: str | None = None) -> MergeBuilder:
        """Rows that only the table has take new values, by column.

        Values and ``where`` are over the table's columns, by their names.
        """
        if not isinstance(values, Mapping):
            raise InvalidInput("Values are expressions by column: there is no source to take them from.", argument="values")
        return self._with("orphans", Clause("update", _given(where), *_assigned(values)))

    def mark_generations_merged(self, generations: Mapping[str | UUID, int]) -> MergeBuilder:
        """Records in the same commit up to which generation shards of a write-ahead log are merged.

        So of two who merge one generation only one comes through, and after a crash it is known what is still to be merged. Where the
        source changes no row, the progress is committed by itself.

        Args:
            generations: a generation for each shard, by its uuid; higher than the one recorded, or ``execute`` raises an
                ``IncompatibleConflict``. ``t.indices.mem_wal.generations`` says what is recorded.
        """
        return replace(self, _plan=replace(self._plan, generations=(*self._plan.generations, *compacted(generations))))

    def execute(self, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Does it.

        Args:
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it; ``rows`` counts ``inserted``, ``updated`` and ``deleted``. If nothing was to be done, nothing is committed.

        Raises:
            InvalidInput: the source does not fit the table, or a clause cannot be understood.
            KeyConflict: the source has two rows of one key; a row matched that must not; others inserted our keys, again and again.
            RetryableConflict: others changed the same rows, again and again.
            IncompatibleConflict: the table was replaced meanwhile, or a generation to be marked is merged already.
        """
        if not self._plan.clauses:
            raise InvalidInput("The merge has no clause.", argument="merge", advice="Add when_matched_... or when_not_matched_... first.")
        return self._run(self._plan, *commit_terms(commit, message))

    def _with(self, group: Group, clause: Clause) -> MergeBuilder:
        return replace(self, _plan=self._plan.with_clause(group, clause))


def merge_on(on: str | Sequence[str] | None, allow_duplicates: bool, files: FileLimits | None = None) -> MergePlan:
    """A plan without clauses yet."""
    names = (on,) if isinstance(on, str) else None if on is None else tuple(on)
    if names is not None and not all(isinstance(name, str) for name in names):
        raise InvalidInput("Columns to merge on are named by text.", argument="on")
    return MergePlan(names, bool(allow_duplicates), files=files or FileLimits())


def _given(condition: str | None) -> str | None:
    return None if condition is None else sql_where(condition)


def _assigned(values: Mapping[str, str] | Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The columns that get a value, and the expressions for them."""
    names = (values,) if isinstance(values, str) else tuple(values)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidInput("Columns are named by text, at least one.", argument="values")
    if not isinstance(values, Mapping):
        return names, {}
    if not all(isinstance(value, str) for value in values.values()):
        raise InvalidInput('A value is a SQL expression as text, such as "source.x + 1".', argument="values")
    return names, dict(values)


def merge_key(manifest: Manifest, on: Sequence[str] | None) -> tuple[Key, Key | None]:
    """The key that rows are matched by, and the table's primary key.

    Raises:
        InvalidInput: there is no key, or no such column.
        UnsupportedFeature: its values cannot be compared.
    """
    primary = primary_key_of(manifest)
    key = primary if on is None else key_of_columns(manifest, on)
    if key is None:
        raise InvalidInput("The table has no primary key to merge on.", argument="on", advice="Name the columns: merge(rows, on=[...]).")
    check_comparable(manifest, key)
    if primary is not None and set(key.fields) == set(primary.fields):
        key = primary  # the filter names columns in this order
    return key, primary


def refuse_second_key(names: Sequence[str], primary: Key, *, inserting: bool, updated: Collection[str]) -> None:
    """Rows that come, or get another key, past the primary key: nobody would notice two of one key."""
    if inserting or not primary_free(primary, updated):
        raise InvalidInput(
            f"Merging on {', '.join(names) or 'a condition'} could leave two rows of one primary key ({', '.join(primary.names)}).",
            argument="on",
            advice="Merge on the primary key, or pass allow_duplicates=True.",
        )


def primary_free(primary: Key, updated: Collection[str]) -> bool:
    return not set(updated).intersection(primary.columns)


def update_of(manifest: Manifest, struck: Struck, fragments: tuple[DataFragment, ...], assigned: Collection[str] | None) -> Update:
    """Rows that moved to new fragments, or are new there.

    Args:
        manifest: the version it was worked out on.
        struck: what is left of the fragments they came from.
        fragments: the new ones.
        assigned: columns that may have other values than before; None for all.
    """
    top = (field for field in manifest.fields if field.parent_id < 0)
    return Update(
        removed_fragment_ids=struck.removed,
        updated_fragments=struck.updated,
        new_fragments=fragments,
        fields_for_preserving_frag_bitmap=tuple(field.id for field in top if assigned is None or field.name in assigned),
        update_mode=UpdateMode.REWRITE_ROWS,
    )


def with_row_ids(fragments: tuple[DataFragment, ...], ids: Any) -> tuple[DataFragment, ...]:
    """Ids of rows that moved; they come first, and what comes after them gets ids at the commit."""
    made, begin = [], 0
    for fragment in fragments:
        part = ids[begin : begin + fragment.physical_rows]
        made.append(replace(fragment, row_ids=encode_row_ids(row_ids_of(part))) if len(part) else fragment)
        begin += fragment.physical_rows
    return tuple(made)
