"""What a merge is to do: its clauses, its key, and the operation that comes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tiltyard.errors import InvalidInput
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_ids import encode_row_ids, row_ids_of
from tiltyard.format.values import DataFragment
from tiltyard.options import FileLimits
from tiltyard.transaction.operations import CompactedSsTable, Update, UpdateMode
from tiltyard.verbs.engine.row_deletion import Struck
from tiltyard.verbs.keys.primary_keys import Key, check_comparable, key_of_columns

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
        allow_duplicates: whether the result may have duplicate primary keys.
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


USUAL_FILES: Final = FileLimits()


def merge_on(on: str | Sequence[str] | None, allow_duplicates: bool, files: FileLimits | None = None) -> MergePlan:
    """A plan without clauses yet."""
    names = (on,) if isinstance(on, str) else None if on is None else tuple(on)
    if names is not None and not all(isinstance(name, str) for name in names):
        raise InvalidInput("Columns to merge on are named by text.", argument="on")
    return MergePlan(names, bool(allow_duplicates), files=files or USUAL_FILES)


def merge_key(manifest: Manifest, on: Sequence[str] | None, primary: Key | None) -> Key:
    """The key that rows are matched by, on a table with this primary key.

    Raises:
        InvalidInput: there is no key, or no such column.
        UnsupportedFeature: its values cannot be compared.
    """
    key = primary if on is None else key_of_columns(manifest, on)
    if key is None:
        raise InvalidInput("The table has no primary key to merge on.", argument="on", advice="Name the columns: merge(rows, on=[...]).")
    check_comparable(manifest, key)
    if primary is not None and set(key.fields) == set(primary.fields):
        key = primary  # the filter names columns in this order
    return key


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
