"""Worked examples for the conflict table: small deeds on one small table, met two by two until every rule of a pair has shown itself.

The table has fragments 0 to 3 of a hundred rows, and columns ``id`` (field 0, the primary key), ``price`` (1) and ``note`` (2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from pyroaring import BitMap

from tiltyard.errors import InvalidInput, Winner
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_to_pb
from tiltyard.format.keys import PRIMARY_KEY
from tiltyard.format.values import BasePath, DataFile, DataFragment, DeletionFile, Field, IndexMetadata
from tiltyard.transaction import operations as ops
from tiltyard.transaction.conditions import CONDITIONS
from tiltyard.transaction.context import Context
from tiltyard.transaction.footprint import FRAGMENT_REUSE, MEM_WAL
from tiltyard.transaction.key_filter import bloom_of
from tiltyard.transaction.resolve import Verdict, resolve, rules_for
from tiltyard.transaction.rules import OPERATIONS, RULES, SIGNS, UNKNOWN, Rule
from tiltyard.transaction.transaction import Transaction

READ_VERSION: Final = 6
KEY_TYPES: Final = ("int64",)


@dataclass(frozen=True, slots=True)
class Deed:
    """An operation on the table of the examples, what it does in words, and what its transaction does not say."""

    words: str
    operation: ops.Operation
    rows: Mapping[int, BitMap] = field(default_factory=dict)
    reuse: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """Two concurrent operations, and the verdict."""

    mine: str
    theirs: str
    known: str
    """What had to be known beyond the two; empty for nothing."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ExplainedRule:
    """A rule with what its condition asks and an example in which it decides."""

    rule: Rule
    meaning: str
    example: Example


@dataclass(frozen=True, slots=True)
class PairExplanation:
    """A pair of operations: its sign in the grid, its rules in order, and an example without conflict."""

    committing: str
    committed: str
    sign: str
    rules: tuple[ExplainedRule, ...]
    otherwise: Example | None


def explain(committing: str, committed: str) -> PairExplanation:
    """The rules of a pair of operations, by name, with worked examples.

    Names are taken in any case, with or without dashes, or as in the grid; ``Unknown`` is an operation this release does not know.

    Raises:
        InvalidInput: there is no such operation.

    Examples:
        >>> import tiltyard as ty
        >>> [explained.rule.then.value for explained in ty.conflicts.explain("Append", "Overwrite").rules]
        ['incompatible']
    """
    mine, theirs = _named(committing, "committing"), _named(committed, "committed")
    found = _examples(mine, theirs)
    rules = tuple(ExplainedRule(rule, CONDITIONS[rule.when].meaning, found[rule.when]) for rule in rules_for(mine, theirs))
    return PairExplanation(mine, theirs, SIGNS[mine][theirs], rules, found.get(""))


def _named(text: str, side: str) -> str:
    names = {name.lower(): name for name in RULES} | {short.lower(): name for short, name in OPERATIONS.items()}
    if side == "committed":
        names |= {UNKNOWN.lower(): UNKNOWN, "?": UNKNOWN}
    wanted = text.replace("-", "").replace("_", "").lower()
    if wanted not in names:
        raise InvalidInput(f"There is no operation {text[:40]!r}.", argument=side, advice=f"Use one of {', '.join(RULES)}.")
    return names[wanted]


@cache
def _examples(mine: str, theirs: str) -> dict[str, Example]:
    """The first example for each condition that decides, and under "" one that is compatible."""
    found: dict[str, Example] = {}
    for certain in (False, True):
        for ours in DEEDS[mine]:
            for other in DEEDS[theirs]:
                verdict = _met(ours, other, certain)
                when = verdict.rule.when if verdict.rule else ""
                found.setdefault(when, Example(ours.words, other.words, "where each row was put" if certain else "", verdict))
    return found


def _met(ours: Deed, other: Deed, certain: bool) -> Verdict:
    context = Context(
        Winner(READ_VERSION + 1, "other", other.operation.name),
        my_rows=ours.rows,
        their_rows=other.rows,
        key_types=KEY_TYPES,
        row_map_certain=certain,
        my_reuse=ours.reuse,
        their_reuse=other.reuse,
    )
    return resolve(Transaction(READ_VERSION, "ours", ours.operation), other.operation, context=context)


# ---- the deeds -------------------------------------------------------------------------------------------------------------

_SHARD: Final = "00000000-0000-0000-0000-000000000007"
_OTHER_SHARD: Final = "00000000-0000-0000-0000-000000000008"
_FILES: Final = (DataFile("a.lance", (0, 1, 2), (0, 1, 2)),)
_ID, _PRICE, _NOTE = Field("id", 0, -1, "int64", False), Field("price", 1, -1, "double"), Field("note", 2, -1, "string")
_SCHEMA: Final = (_ID, _PRICE, _NOTE)


def _fragment(number: int, deleted: int = 0) -> DataFragment:
    return DataFragment(number, _FILES, 100, DeletionFile(True, READ_VERSION, number, deleted) if deleted else None)


_NEW: Final = (_fragment(0),)
"""New fragments have no id yet."""


def _index(
    name: str, fields: tuple[int, ...], covers: tuple[int, ...] | None, kind: str = "BTree", details: bytes = b"", id: int = 1
) -> IndexMetadata:
    bitmap = None if covers is None else bytes(BitMap(covers).serialize())
    return IndexMetadata(f"{id:032x}", fields, name, READ_VERSION, bitmap, (f"/lance.table.{kind}IndexDetails", details))


def _log(generation: int, indexes: tuple[str, ...] = ()) -> IndexMetadata:
    table = pb.CompactedSsTable(shard_id=uuid_to_pb(_SHARD), generation=generation)
    details = pb.MemWalIndexDetails(num_shards=1, compacted_sstables=[table], maintained_indexes=indexes)
    return _index(MEM_WAL, (), None, "MemWal", details.SerializeToString(), 8)


def _delete(row: int, number: int = 0) -> Deed:
    return Deed(f"deletes row {row} of fragment {number}", ops.Delete((_fragment(number, 1),)), {number: BitMap([row])})


def _move(row: int) -> Deed:
    operation = ops.Update((), (_fragment(0, 1),), _NEW, fields_for_preserving_frag_bitmap=(1,))
    return Deed(f"updates price in row {row} of fragment 0, which moves it", operation, {0: BitMap([row])})


def _in_place(words: str, *rows: int) -> Deed:
    changed = DataFragment(0, (DataFile("a.lance", (0, -2, 2), (0, 1, 2)), DataFile("b.lance", (1,), (0,))), 100)
    told = {0: bytes(BitMap(rows).serialize())} if rows else {}
    mode = ops.UpdateMode.REWRITE_COLUMNS
    return Deed(words, ops.Update((), (changed,), fields_modified=(1,), update_mode=mode, updated_fragment_offsets=told))


def _merge(key: int) -> Deed:
    keys = ops.KeyExistenceFilter((0,), bloom=bloom_of([key.to_bytes(8, "little")]))
    return Deed(
        f"merges in a new row with id {key}", ops.Update((), (), _NEW, fields_for_preserving_frag_bitmap=(0, 1, 2), inserted_rows=keys)
    )


def _progress(generation: int, shard: str = _SHARD) -> tuple[ops.CompactedSsTable, ...]:
    return (ops.CompactedSsTable(shard, generation),)


def _rewrite(words: str, *old: int, reuse: bool = False, maps: tuple[ops.RewrittenIndex, ...] = ()) -> Deed:
    group = ops.RewriteGroup(tuple(_fragment(number) for number in old), (DataFragment(10 + old[0], _FILES, 200),))
    return Deed(words, ops.Rewrite((group,), maps), reuse=reuse)


def _replace(number: int, name: str) -> Deed:
    return Deed(f"replaces {name} in fragment 0", ops.DataReplacement((ops.Replacement(0, DataFile("c.lance", (number,), (0,))),)))


_PRICE_INDEX: Final = _index("price_idx", (1,), (0, 1))
_REUSE_ENTRY: Final = _index(FRAGMENT_REUSE, (), (11,), "FragmentReuse", id=9)

DEEDS: Final[Mapping[str, tuple[Deed, ...]]] = {
    "Append": (Deed("adds rows", ops.Append(_NEW)),),
    "Delete": (_delete(7), _delete(9), _delete(7, 3), Deed("deletes all rows of fragment 0", ops.Delete((), (0,)))),
    "Overwrite": (
        Deed("replaces all rows", ops.Overwrite(_NEW, _SCHEMA)),
        Deed("replaces all rows and sets config color", ops.Overwrite(_NEW, _SCHEMA, config_upsert_values={"color": "red"})),
    ),
    "CreateIndex": (
        Deed("indexes price over fragments 0 and 1, as price_idx", ops.CreateIndex((_PRICE_INDEX,))),
        Deed("indexes price over fragment 0, as cheap_idx", ops.CreateIndex((_index("cheap_idx", (1,), (0,), id=2),))),
        Deed("indexes note over fragment 3, as note_idx", ops.CreateIndex((_index("note_idx", (2,), (3,), id=3),))),
        Deed("builds an n-gram index over note in fragments 0 and 1", ops.CreateIndex((_index("gram_idx", (2,), (0, 1), "NGram", id=4),))),
        Deed("indexes price without telling over which fragments", ops.CreateIndex((_index("dark_idx", (1,), None, id=5),))),
        Deed("drops price_idx", ops.CreateIndex((), (_PRICE_INDEX,))),
        Deed("sets up the write-ahead log at generation 5", ops.CreateIndex((_log(5),))),
        Deed("sets up the write-ahead log at generation 6", ops.CreateIndex((_log(6),))),
        Deed("sets up the write-ahead log to maintain price_idx", ops.CreateIndex((_log(5, ("price_idx",)),))),
        Deed("shortens the fragment reuse entry", ops.CreateIndex((_REUSE_ENTRY,), (_REUSE_ENTRY,))),
        Deed("drops the fragment reuse entry", ops.CreateIndex((), (_REUSE_ENTRY,))),
    ),
    "Rewrite": (
        _rewrite("compacts fragments 0 and 1", 0, 1),
        _rewrite("compacts fragments 0 and 1 and postpones the remapping of indices", 0, 1, reuse=True),
        _rewrite("compacts fragments 2 and 3 and postpones the remapping of indices", 2, 3, reuse=True),
        _rewrite("compacts fragments 0 and 1 and maps price_idx", 0, 1, maps=(ops.RewrittenIndex(_PRICE_INDEX.uuid, f"{7:032x}"),)),
    ),
    "Merge": (
        Deed("adds a column that takes nulls", ops.Merge(_NEW, (*_SCHEMA, Field("x", 3, -1, "int32")), preserves_nullability=True)),
        Deed("adds a column that takes none", ops.Merge(_NEW, (*_SCHEMA, Field("x", 3, -1, "int32", False)))),
        Deed("casts price", ops.Merge(_NEW, (_ID, Field("price", 3, -1, "float"), _NOTE), preserves_nullability=True)),
    ),
    "Project": (
        Deed("drops price", ops.Project((_ID, _NOTE), preserves_nullability=True)),
        Deed("lets note take no nulls any more", ops.Project((_ID, _PRICE, Field("note", 2, -1, "string", False)))),
        Deed("renames note", ops.Project((_ID, _PRICE, Field("remark", 2, -1, "string")), preserves_nullability=True)),
    ),
    "Restore": (Deed("goes back to version 2", ops.Restore(2)),),
    "ReserveFragments": (Deed("reserves 3 fragment ids", ops.ReserveFragments(3)),),
    "Clone": (Deed("makes the table from another one", ops.Clone(True, None, 1, "elsewhere")),),
    "Update": (
        _move(7),
        _move(9),
        Deed(
            "updates price in all rows of fragment 0, which moves them", ops.Update((0,), (), _NEW, fields_for_preserving_frag_bitmap=(1,))
        ),
        _in_place("rewrites price in fragment 0 in place"),
        _in_place("rewrites price in row 7 of fragment 0 in place", 7),
        _merge(1),
        _merge(2),
        Deed("sets id in a row of fragment 1", ops.Update((), (_fragment(1, 1),), _NEW, fields_for_preserving_frag_bitmap=(0,))),
        Deed("compacts generation 5 of the write-ahead log", ops.Update((), (), _NEW, compacted_sstables=_progress(5))),
        Deed("compacts generation 6 of the write-ahead log", ops.Update((), (), _NEW, compacted_sstables=_progress(6))),
    ),
    "UpdateConfig": (
        Deed("sets config color", ops.UpdateConfig(ops.UpdateMap((("color", "blue"),)))),
        Deed("sets config size", ops.UpdateConfig(ops.UpdateMap((("size", "9"),)))),
        Deed("declares id the primary key", ops.UpdateConfig(field_metadata_updates={0: ops.UpdateMap(((PRIMARY_KEY, "true"),))})),
        Deed("sets metadata of column price", ops.UpdateConfig(field_metadata_updates={1: ops.UpdateMap((("unit", "EUR"),))})),
    ),
    "DataReplacement": (_replace(1, "price"), _replace(2, "note"), _replace(0, "id")),
    "UpdateMemWalState": (
        Deed("records generation 5 of the write-ahead log", ops.UpdateMemWalState(_progress(5))),
        Deed("records generation 6 of the write-ahead log", ops.UpdateMemWalState(_progress(6))),
        Deed("records generation 2 of another shard of it", ops.UpdateMemWalState(_progress(2, _OTHER_SHARD))),
    ),
    "UpdateBases": (
        Deed("adds the base archive", ops.UpdateBases((BasePath(0, "s3://archive", name="archive"),))),
        Deed("adds the base attic", ops.UpdateBases((BasePath(0, "s3://attic", name="attic"),))),
    ),
    UNKNOWN: (Deed("does something this release does not know", ops.UnknownOperation(116)),),
}
