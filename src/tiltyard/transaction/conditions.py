"""The conditions that cells of the conflict table name: pure functions of two operations and what else is known.

Each gives what it found where it holds, and None where it does not. ``mine`` is the operation that wants to be committed, ``theirs``
the one that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from tiltyard.transaction import index_conditions as indices
from tiltyard.transaction.context import Context, Found
from tiltyard.transaction.footprint import (
    FRAGMENT_REUSE,
    MEM_WAL,
    config_keys,
    key_fields_described,
    maps_changed,
    progress,
    recolumned_fragments,
    removed_fragments,
    replaced_cells,
    rewrites_columns,
    rewritten_rows,
    touched_fragments,
    written_fields,
)
from tiltyard.transaction.key_filter import may_share_a_key
from tiltyard.transaction.operations import (
    Append,
    DataReplacement,
    Merge,
    Operation,
    Project,
    Rewrite,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMap,
)

Test = Callable[[Operation, Operation, Context], Found | None]

SAMPLE: Final = 5


@dataclass(frozen=True, slots=True)
class Condition:
    """One question about a pair: what it asks, in words, and the function that answers."""

    meaning: str
    holds: Test


def _always(_mine: Operation, _theirs: Operation, _context: Context) -> Found:
    return Found()


def _named(names: Iterable[str]) -> Found | None:
    found = tuple(names)
    return Found(names=found) if found else None


# ---- rows and fragments ----------------------------------------------------------------------------------------------------


def _shared(mine: Operation, theirs: Operation) -> tuple[int, ...]:
    return tuple(sorted(touched_fragments(mine) & touched_fragments(theirs)))


def _overlapping(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    shared = _shared(mine, theirs)
    return Found(fragments=shared) if shared else None


def _followed(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    """A rewrite met deletions. Where columns were rewritten the new values are in neither file, so no row map helps."""
    shared = _shared(mine, theirs)
    if not shared or not (context.stable_row_ids or context.row_map_certain):
        return None
    deleting, base = (theirs, context.their_base) if isinstance(mine, Rewrite) else (mine, context.my_base)
    if recolumned_fragments(deleting, base) & set(shared):
        return None
    return Found(fragments=shared, carry_fragments=shared)


def _whole_fragment_gone(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    gone = removed_fragments(mine) | removed_fragments(theirs)
    found = tuple(number for number in _shared(mine, theirs) if number in gone)
    return Found(fragments=found) if found else None


def _recolumned(mine: Operation, theirs: Operation, context: Context) -> tuple[frozenset[int], frozenset[int]]:
    return recolumned_fragments(mine, context.my_base), recolumned_fragments(theirs, context.their_base)


def _both_recolumned(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    ours, others = _recolumned(mine, theirs, context)
    found = tuple(number for number in _shared(mine, theirs) if number in ours & others)
    return Found(fragments=found) if found else None


def _recolumned_untold(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    ours, others = _recolumned(mine, theirs, context)
    found = tuple(
        number
        for number in _shared(mine, theirs)
        if (number in ours and rewritten_rows(mine, number) is None) or (number in others and rewritten_rows(theirs, number) is None)
    )
    return Found(fragments=found) if found else None


def _rows_of(operation: Operation, fragment: int, recolumned: frozenset[int], given: Mapping[int, BitMap]) -> BitMap | None:
    """Rows of a fragment that a side touches; None where nobody knows them yet."""
    if fragment not in recolumned:
        return given.get(fragment)
    told = rewritten_rows(operation, fragment)
    return None if told is None else told | given.get(fragment, BitMap())


def _meeting_rows(mine: Operation, theirs: Operation, context: Context) -> dict[int, BitMap | None]:
    """For each shared fragment the rows both sides touch; None where the rows of a side are not known."""
    ours, others = _recolumned(mine, theirs, context)
    found: dict[int, BitMap | None] = {}
    for number in _shared(mine, theirs):
        left = _rows_of(mine, number, ours, context.my_rows)
        right = _rows_of(theirs, number, others, context.their_rows)
        found[number] = None if left is None or right is None else left & right
    return found


def _same_rows(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    met = {number: rows for number, rows in _meeting_rows(mine, theirs, context).items() if rows}
    sample = tuple((number, int(row)) for number, rows in met.items() for row in rows[:SAMPLE])
    return Found(fragments=tuple(met), rows=sample[:SAMPLE]) if met else None


def _other_rows(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    met = _meeting_rows(mine, theirs, context)
    undecided = tuple(number for number, rows in met.items() if rows is None)
    return Found(fragments=tuple(met), merge_fragments=tuple(met), undecided_fragments=undecided) if met else None


def _replaced_fragment_gone(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    gone = tuple(sorted(touched_fragments(mine) & removed_fragments(theirs)))
    return Found(fragments=gone) if gone else None


def _same_cells(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, DataReplacement)
    assert isinstance(theirs, DataReplacement)
    shared = sorted(replaced_cells(mine) & replaced_cells(theirs))
    fragments = tuple(dict.fromkeys(fragment for fragment, _ in shared))
    return Found(fragments=fragments, names=tuple(f"field {number} of fragment {at}" for at, number in shared)) if shared else None


def _both_carry_reuse(_mine: Operation, _theirs: Operation, context: Context) -> Found | None:
    return None if context.my_reuse is False or context.their_reuse is False else Found()


# ---- keys ------------------------------------------------------------------------------------------------------------------


def _nothing_to_compare(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    ours = isinstance(mine, Update) and mine.inserted_rows is not None
    others = isinstance(theirs, Update) and theirs.inserted_rows is not None
    return Found() if ours and not others and not context.keys_apart else None


def _may_share_a_key(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    assert isinstance(mine, Update)
    assert isinstance(theirs, Update)
    if mine.inserted_rows is None or theirs.inserted_rows is None or context.keys_apart:
        return None
    answer = may_share_a_key(mine.inserted_rows, theirs.inserted_rows, context.key_types)
    return Found(names=(answer.reason,)) if answer.possible else None


def _past_the_filter(mine: Operation, theirs: Operation, context: Context) -> Found | None:
    """Rows of ours that no filter speaks of, after a merge that inserted keys."""
    assert isinstance(theirs, Update)
    if theirs.inserted_rows is None or not theirs.new_fragments or context.keys_apart:
        return None
    if not may_share_a_key(theirs.inserted_rows, theirs.inserted_rows, context.key_types).possible:
        return None  # what meets not even itself is empty for certain: rows were updated and none inserted
    if isinstance(mine, Append):
        if not mine.fragments:
            return None
        if context.my_keys is None:
            return Found()
        answer = may_share_a_key(context.my_keys, theirs.inserted_rows, context.key_types)
        return Found(names=(answer.reason,)) if answer.possible else None
    assert isinstance(mine, Update)
    if mine.inserted_rows is not None:
        return None
    assigned = frozenset(mine.fields_for_preserving_frag_bitmap)
    key = frozenset(theirs.inserted_rows.field_ids)
    # Rows that were moved with all columns told, and the key not among those assigned, have the keys they had.
    written = set(mine.fields_modified) & key | (((assigned & key) or (set() if assigned else key)) if mine.new_fragments else set())
    return _named(f"field {number}" for number in sorted(written))


def _key_declared(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    """Where a key is declared, all values that it did not see have to be compared by it, whoever came first."""
    update, other = (mine, theirs) if isinstance(mine, UpdateConfig) else (theirs, mine)
    assert isinstance(update, UpdateConfig)
    fields = key_fields_described(update)
    if isinstance(other, Append) and not other.fragments:
        return None
    if isinstance(other, DataReplacement):
        fields &= {number for _, number in replaced_cells(other)}
    if isinstance(other, Update) and not other.new_fragments:
        # Without a list of the fields it rewrote it may have rewritten any.
        fields &= frozenset(other.fields_modified) or (fields if rewrites_columns(other) else frozenset())
    return _named(f"field {number}" for number in sorted(fields))


# ---- the write-ahead log ---------------------------------------------------------------------------------------------------


def _shards(mine: Operation, theirs: Operation, reached: bool) -> Found | None:
    ours, others = progress(mine), progress(theirs)
    return _named(f"shard {shard}" for shard in sorted(ours) if shard in others and (others[shard] >= ours[shard]) is reached)


def _generation_reached(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    return _shards(mine, theirs, True)


def _generation_behind(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    return _shards(mine, theirs, False)


# ---- schema and maps -------------------------------------------------------------------------------------------------------


def _nullability(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    changes = [their for their in (mine, theirs) if isinstance(their, Merge | Project)]
    return None if all(change.preserves_nullability for change in changes) else Found()


def _left_behind(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    """Fields our files hold that a schema no longer has. Where columns are dropped on purpose that is a Project."""
    assert isinstance(mine, Append)
    assert isinstance(theirs, Merge)
    gone = written_fields(mine.fragments) - {field.id for field in theirs.schema}
    return _named(f"field {number}" for number in sorted(gone))


def _written_field_dropped(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(theirs, Project)
    if isinstance(mine, DataReplacement):
        written = {number for _, number in replaced_cells(mine)}
    else:
        assert isinstance(mine, Update)
        written = set(mine.fields_modified)
        if rewrites_columns(mine) and not written:
            # It does not say which fields it rewrote; those its new files hold include them.
            written = set(written_fields(mine.updated_fragments))
    return _named(f"field {number}" for number in sorted(written - {field.id for field in theirs.schema}))


def _same_config_key(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    return _named(sorted(config_keys(mine) & config_keys(theirs)))


def _same_key_of_a_map(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, UpdateConfig)
    assert isinstance(theirs, UpdateConfig)
    ours, others = maps_changed(mine), maps_changed(theirs)
    return _named(f"{name} {key}" for name in ours if name in others for key in _shared_keys(ours[name], others[name]))


def _shared_keys(mine: UpdateMap, theirs: UpdateMap) -> list[str]:
    if mine.replace or theirs.replace:
        return ["as a whole"]
    return sorted({key for key, _ in mine.entries} & {key for key, _ in theirs.entries})


def _describes_columns(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    update = mine if isinstance(mine, UpdateConfig) else theirs
    assert isinstance(update, UpdateConfig)
    return _named(name for name in maps_changed(update) if name not in ("config", "table metadata"))


def _same_base(mine: Operation, theirs: Operation, _context: Context) -> Found | None:
    assert isinstance(mine, UpdateBases)
    assert isinstance(theirs, UpdateBases)
    names = []
    for ours in mine.new_bases:
        for other in theirs.new_bases:
            if ours.id and ours.id == other.id:
                names.append(f"base {ours.id}")
            if ours.name is not None and ours.name == other.name:
                names.append(ours.name)
            if ours.path == other.path:
                names.append(ours.path)
    return _named(dict.fromkeys(names))


CONDITIONS: Final[Mapping[str, Condition]] = {
    "always": Condition("whatever the two did", _always),
    "overlapping fragments": Condition("a fragment that both change, remove, rewrite or replace columns of", _overlapping),
    "overlapping fragments, rows can be followed": Condition(
        "such a fragment, where it is certain to which place the rewrite put each row (stable row ids, or a rewrite that says it kept the "
        "order), and the other side deleted or moved rows without rewriting columns in place",
        _followed,
    ),
    "a shared fragment went as a whole": Condition("a fragment that both change, and that one of them removed", _whole_fragment_gone),
    "both rewrote columns of a shared fragment": Condition("columns of one fragment rewritten in place by both sides", _both_recolumned),
    "columns of a shared fragment were rewritten, in unknown rows": Condition(
        "columns of a fragment that both change were rewritten in place, without a list of the rows that changed", _recolumned_untold
    ),
    "same rows": Condition("a row that both delete, move or rewrite", _same_rows),
    "other rows of the same fragments": Condition(
        "fragments that both change, and no common row; rows that are not known yet are found first", _other_rows
    ),
    "a replaced fragment is gone": Condition("a fragment with columns to replace was removed", _replaced_fragment_gone),
    "same field of the same fragment": Condition("one column of one fragment replaced by both", _same_cells),
    "both carry a fragment reuse entry": Condition("two rewrites that both postpone the remapping of indices", _both_carry_reuse),
    "no key filter to compare with": Condition("ours inserts by key, and theirs does not record which keys it wrote", _nothing_to_compare),
    "the key filters may share a key": Condition("both insert by key, and a key may be in both filters", _may_share_a_key),
    "it may write a key that a merge inserted": Condition(
        "theirs inserted by key; ours writes rows, or the key itself, without a filter that says which keys", _past_the_filter
    ),
    "same shard, that generation was reached": Condition(
        "a shard for which theirs recorded the generation of ours or a later one", _generation_reached
    ),
    "same shard, an earlier generation": Condition("a shard of which theirs recorded an earlier generation than ours", _generation_behind),
    "nullability may have changed": Condition("the Project or Merge of the pair does not promise to preserve nullability", _nullability),
    "it moved a written column to another field": Condition(
        "a field of the files that ours adds is not in the schema any more", _left_behind
    ),
    "a written field was dropped": Condition("a field whose column ours replaces or rewrites in place was dropped", _written_field_dropped),
    "same config key": Condition("a key of the table's config that both set or remove", _same_config_key),
    "same key of the same map": Condition(
        "a key of the config, the table metadata, the schema metadata or one field's metadata that both set or remove, or a map that "
        "both change and one replaces",
        _same_key_of_a_map,
    ),
    "schema or field metadata changed": Condition("the UpdateConfig of the pair changes what is said about columns", _describes_columns),
    "the primary key changed beside new values": Condition(
        "the UpdateConfig of the pair marks fields as the primary key, or replaces all metadata of a field, and the other side adds rows, "
        "restores an older version, or gives those fields other values",
        _key_declared,
    ),
    "same base": Condition("a base with the id, the name or the path of one of ours", _same_base),
    "the write-ahead log is set up": Condition(f"the CreateIndex of the pair installs {MEM_WAL}", indices.mem_wal_set_up),
    "both set up the write-ahead log, differently": Condition(
        f"both install {MEM_WAL}, and not with the same settings", indices.mem_wal_differs
    ),
    "both bring the same singleton index": Condition(f"both install {FRAGMENT_REUSE}, or both {MEM_WAL}", indices.same_singleton),
    "same index name": Condition("both install an index of one name", indices.same_name),
    "an index was dropped or replaced under it": Condition(
        "one side removes what the other replaces, or what it adds a segment to", indices.built_on_what_went
    ),
    "the reuse entry is trimmed, the rewrite carries one": Condition(
        f"the CreateIndex does nothing but shorten {FRAGMENT_REUSE}, and the Rewrite brings an entry of its own",
        indices.trims_what_is_carried,
    ),
    "the reuse entry is changed in another way": Condition(
        f"the CreateIndex changes {FRAGMENT_REUSE} and does not merely shorten it", indices.changes_reuse_otherwise
    ),
    "a new index covers a rewritten fragment": Condition(
        "a new index was built over a fragment that is rewritten, or does not say over which; the rewrite has no fragment reuse entry",
        indices.covers_rewritten,
    ),
    "an n-gram index covers a rewritten fragment": Condition(
        "as before with an n-gram index, and the rewrite has a fragment reuse entry", indices.ngram_covers_rewritten
    ),
    "an index to be dropped was mapped": Condition(
        "the rewrite replaced an index segment that ours drops or replaces", indices.drops_what_was_mapped
    ),
    "a new index covers a rewrite group in part": Condition(
        "the rewrite has a fragment reuse entry, and a new index covers some fragments of a group and not others, or does not say which",
        indices.straddles_a_group,
    ),
    "an indexed column was rewritten, coverage unknown": Condition(
        "columns of a new index were rewritten in place, and it does not say which fragments it covers", indices.rewritten_unknown_coverage
    ),
    "an indexed column was rewritten in place": Condition(
        "columns of a new index were rewritten in place in fragments it covers", indices.rewritten_in_place
    ),
    "an indexed field is gone": Condition("a field of a new index is not in the schema any more", indices.indexed_field_gone),
    "an indexed column was replaced": Condition("columns of a new index were replaced in a fragment it covers", indices.covered_replaced),
    "a replaced column was indexed": Condition(
        "a column that ours replaces belongs to a new index, whatever it covers", indices.replaced_indexed
    ),
}
