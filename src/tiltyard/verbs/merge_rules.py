"""What holds for every merge, wherever its rows are worked out: its key, what it must not do to it, the operation it ends in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tiltyard.errors import InvalidInput
from tiltyard.format.manifest import Manifest
from tiltyard.format.rowids import encode_row_ids, row_ids_of
from tiltyard.format.values import DataFragment
from tiltyard.transaction.operations import Update, UpdateMode
from tiltyard.verbs.keys import Key, check_comparable, key_of_columns, primary_key_of
from tiltyard.verbs.struck import Struck


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
    top = (one for one in manifest.fields if one.parent_id < 0)
    return Update(
        removed_fragment_ids=struck.removed,
        updated_fragments=struck.updated,
        new_fragments=fragments,
        fields_for_preserving_frag_bitmap=tuple(one.id for one in top if assigned is None or one.name in assigned),
        update_mode=UpdateMode.REWRITE_ROWS,
    )


def with_row_ids(fragments: tuple[DataFragment, ...], ids: Any) -> tuple[DataFragment, ...]:
    """Ids of rows that moved; they come first, and what comes after them gets ids at the commit."""
    made, begin = [], 0
    for one in fragments:
        part = ids[begin : begin + one.physical_rows]
        made.append(replace(one, row_ids=encode_row_ids(row_ids_of(part))) if len(part) else one)
        begin += one.physical_rows
    return tuple(made)
