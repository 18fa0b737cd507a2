"""Merges a data frame into a table by key, with all rows in executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

import tiltyard as ty
from tiltyard.distributed import merged_generations
from tiltyard.errors import InvalidInput
from tiltyard.spark.spark_expressions import is_expression

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Kind = Literal["update", "insert", "delete", "fail"]


@dataclass(frozen=True, slots=True)
class SparkClause:
    """What happens to some rows.

    Attributes:
        kind: what is done.
        condition: a condition of Spark over both rows; None for all that are left.
        values: for an update or insert, expressions by column; None for all columns that the source has.
    """

    kind: Kind
    condition: Any = None
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SparkMergePlan:
    """All clauses of a merge, each group in the order in which they apply.

    Attributes:
        on: the columns that rows are matched by; None for the primary key.
        condition: a condition that rows are matched by instead, over both.
        matched: for rows in both.
        source_only: for rows that only the source has.
        target_only: for rows that only the table has.
        source: what conditions call the source.
        target: and the table.
        same: columns that are equal in rows that match, so that taking them from the source changes nothing.
        generations: up to where shards of a write-ahead log are in the table afterwards.
    """

    on: tuple[str, ...] | None = None
    condition: Any = None
    matched: tuple[SparkClause, ...] = ()
    source_only: tuple[SparkClause, ...] = ()
    target_only: tuple[SparkClause, ...] = ()
    allow_duplicates: bool = False
    source: str = "source"
    target: str = "target"
    same: frozenset[str] = frozenset()
    generations: tuple[ty.ops.CompactedSsTable, ...] = ()

    @property
    def clauses(self) -> tuple[SparkClause, ...]:
        return (*self.matched, *self.source_only, *self.target_only)

    def added(self, group: Literal["matched", "source_only", "target_only"], clause: SparkClause) -> SparkMergePlan:
        known: tuple[SparkClause, ...] = getattr(self, group)
        if known and known[-1].condition is None:
            raise InvalidInput(
                f"No row is left for {clause.kind}: the clause before it, {known[-1].kind}, takes all of them.",
                argument="where",
                advice="Give the earlier clause a condition, or put it last.",
            )
        if group == "matched":
            return replace(self, matched=(*known, clause))
        return replace(self, source_only=(*known, clause)) if group == "source_only" else replace(self, target_only=(*known, clause))

    def is_plain(self) -> bool:
        """Whether no expression of Spark is in it, so that anybody can do it the same way."""
        bare = all(clause.condition is None and (clause.values is None or clause.kind == "delete") for clause in self.clauses)
        return bare and self.condition is None and all(clause.kind != "update" for clause in self.target_only)

    def is_upsert(self) -> bool:
        """Whether each row of the source is written as it is, whatever the table has."""
        updates = [clause.kind for clause in self.matched] == ["update"]
        inserts = [clause.kind for clause in self.source_only] == ["insert"]
        return self.is_plain() and updates and inserts and not self.target_only


_GIVEN: Final = "An expression is text of Spark SQL, or a Column."


@dataclass(frozen=True, slots=True)
class SparkMerge:
    """A merge that is being described. Each clause returns a new one; ``execute`` runs it.

    Of several clauses for the same rows, the first whose condition holds decides. Conditions and values are Spark's own: SQL as text, over
    ``source.`` and ``target.`` columns, or a ``Column``.
    """

    _source: DataFrame
    _run: Callable[[DataFrame, SparkMergePlan, Mapping[str, Any]], ty.CommitResult]
    _plan: SparkMergePlan

    def when_matched_update_all(self, where: str | Column | None = None) -> SparkMerge:
        """Rows in both take all columns that the source has."""
        return self._with("matched", SparkClause("update", _condition(where)))

    def when_matched_update(self, values: Mapping[str, str | Column] | Sequence[str], where: str | Column | None = None) -> SparkMerge:
        """Matched rows take new values, by column; a list of names takes the source's values."""
        return self._with("matched", SparkClause("update", _condition(where), self._values(values)))

    def when_matched_delete(self, where: str | Column | None = None) -> SparkMerge:
        """Rows in both are deleted."""
        return self._with("matched", SparkClause("delete", _condition(where)))

    def when_matched_fail(self) -> SparkMerge:
        """If a row is in both, nothing is done at all and a ``KeyConflict`` is raised."""
        return self._with("matched", SparkClause("fail"))

    def when_not_matched_insert_all(self, where: str | Column | None = None) -> SparkMerge:
        """Rows that only the source has are inserted."""
        return self._with("source_only", SparkClause("insert", _condition(where)))

    def when_not_matched_insert(self, values: Mapping[str, str | Column] | Sequence[str], where: str | Column | None = None) -> SparkMerge:
        """Rows that only the source has are inserted with these values; other columns are null."""
        return self._with("source_only", SparkClause("insert", _condition(where), self._values(values)))

    def when_not_matched_by_source_delete(self, where: str | Column | None = None) -> SparkMerge:
        """Rows that only the table has are deleted."""
        return self._with("target_only", SparkClause("delete", _condition(where)))

    def when_not_matched_by_source_update(self, values: Mapping[str, str | Column], where: str | Column | None = None) -> SparkMerge:
        """Rows that only the table has take new values, by column."""
        if not isinstance(values, Mapping):
            raise InvalidInput(
                "values must map columns to expressions: these rows have no source row to take values from.", argument="values"
            )
        return self._with("target_only", SparkClause("update", _condition(where), self._values(values)))

    def mark_generations_merged(self, generations: Mapping[str | UUID, int]) -> SparkMerge:
        """Records in the same commit up to which generation shards are merged; see ``MergeBuilder``."""
        return replace(self, _plan=replace(self._plan, generations=(*self._plan.generations, *merged_generations(generations))))

    def execute(self, *, message: str | None = None, commit: ty.CommitOptions | None = None) -> ty.CommitResult:
        """Executes the merge: rows are matched and written in executors, then one commit is made.

        Args:
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it; ``rows`` counts ``inserted``, ``updated`` and ``deleted``. If nothing was to be done, nothing is committed.

        Raises:
            InvalidInput: the source does not fit the table.
            KeyConflict: the source has two rows of one key; a row matched that must not; others inserted our keys, again and again.
            RetryableConflict: others changed the same rows, again and again.
            ExpectedVersionMismatch: the source reads this table, and others committed to it since: read it again. As for ``overwrite``.
        """
        if not self._plan.clauses:
            raise InvalidInput("The merge has no clause.", argument="merge", advice="Add when_matched_... or when_not_matched_... first.")
        return self._run(self._source, self._plan, {"message": message, "commit": commit})

    def _with(self, group: Literal["matched", "source_only", "target_only"], clause: SparkClause) -> SparkMerge:
        return replace(self, _plan=self._plan.added(group, clause))

    def _values(self, values: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
        if isinstance(values, Mapping):
            found = dict(values)
        else:
            names = [values] if isinstance(values, str) else list(values)
            found = {name: f"{self._plan.source}.`{str(name).replace('`', '``')}`" for name in names}
        if not found or not all(isinstance(name, str) for name in found):
            raise InvalidInput("Columns are named by text, at least one.", argument="values")
        for value in found.values():
            if not is_expression(value):
                raise InvalidInput(_GIVEN, argument="values")
        return found


def _condition(given: Any) -> Any:
    if given is None or is_expression(given):
        return given
    raise InvalidInput(_GIVEN, argument="where")


def merge_plan(on: str | Sequence[str] | None, *, allow_duplicates: bool) -> SparkMergePlan:
    """A plan without clauses yet."""
    names = (on,) if isinstance(on, str) else None if on is None else tuple(on)
    if names is not None and (not names or not all(isinstance(name, str) for name in names)):
        raise InvalidInput("Columns to merge on are named by text, at least one.", argument="on")
    return SparkMergePlan(names, allow_duplicates=bool(allow_duplicates))
