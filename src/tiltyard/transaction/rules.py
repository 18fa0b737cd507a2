"""The conflict table, as data: what a committing operation does when it meets one that was committed after its read version.

``GRID`` has a row for each operation that is committing and a column for each that was committed, as the specification's table does.
A dot means that they never conflict; any other sign stands for a cell of ``CELLS``: the first of its rules whose condition holds decides,
and where none holds the two are compatible. What a condition asks is in ``conditions.py``; nothing else has a say.

Where two sources differ we follow the specification, unless that could lose, double or misread a row of a table that other writers
share. Then the stricter rule is taken, and ``deviation`` says why. A rebase that the specification does not know is a deviation, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Outcome(Enum):
    """What becomes of the committing operation."""

    COMPATIBLE = "compatible"
    REBASE = "rebase"
    RETRY = "retry"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a cell: if the condition holds, then the outcome."""

    when: str
    then: Outcome
    why: str
    deviation: str = ""
    """Where we decide otherwise than the specification: the reason."""


OPERATIONS: Final = {
    "App": "Append",
    "Del": "Delete",
    "Ovr": "Overwrite",
    "Idx": "CreateIndex",
    "Rew": "Rewrite",
    "Mrg": "Merge",
    "Prj": "Project",
    "Rst": "Restore",
    "Rsv": "ReserveFragments",
    "Cln": "Clone",
    "Upd": "Update",
    "Cfg": "UpdateConfig",
    "Rpl": "DataReplacement",
    "MW": "UpdateMemWalState",
    "Bas": "UpdateBases",
}
UNKNOWN: Final = "Unknown"
"""Stands for any committed operation that this release does not know."""

FREE: Final = "."

GRID: Final = """
                   App  Del  Ovr  Idx  Rew  Mrg  Prj  Rst  Rsv  Cln  Upd  Cfg  Rpl  MW   Bas  ?
Append              .    .    X    .    .    l    n    Xr   .    .    h    pk   .    Xw   .    X?
Delete              .    v    X    .    fm   R    .    Xr   .    .    vu   .    f    Xw   .    X?
Overwrite           .    .    ko   .    .    .    .    .    .    .    .    kp   .    Xo   .    X?
CreateIndex         .    .    X    i    r    m    j    Xr   .    .    p    .    d    Xw   .    X?
Rewrite             .    fm   X    s    g    R    .    Xr   .    .    fm   .    f    .    .    X?
Merge               R    R    X    mm   R    R    Xp   Xr   .    .    R    t    R    Xw   .    X?
Project             n    .    X    .    .    R    Rp   Xr   .    .    n    t    n    Xw   .    X?
Restore             .    .    .    .    .    .    .    .    .    .    .    .    .    Xw   .    X?
ReserveFragments    .    .    X    .    .    .    .    Xr   .    .    .    .    .    .    .    X?
Clone               .    .    .    .    .    .    .    .    .    .    .    .    .    .    .    X?
Update              a    vu   X    .    fm   R    o    Xr   .    .    u    pk   f    w    .    X?
UpdateConfig        pk   .    Xc   .    .    t    .    pk   .    .    pk   c    pk   .    .    X?
DataReplacement     .    e    X    q    f    R    op   Xr   .    .    fu   pk   y    Xw   .    X?
UpdateMemWalState   Xm   Xm   X    w    .    Xm   Xm   Xr   .    Xm   w    .    Xm   w    .    X?
UpdateBases         .    .    .    .    .    .    .    .    .    .    .    .    .    .    b    Xb
"""

_INCOMPATIBLE, _RETRY, _REBASE = Outcome.INCOMPATIBLE, Outcome.RETRY, Outcome.REBASE

_NULLS = Rule(
    "nullability may have changed",
    _RETRY,
    "one side changes the schema without a promise that columns still take the nulls the other one wrote",
    "the specification calls this compatible: values written under one schema could then break the other",
)
_SAME_CONFIG = Rule(
    "same config key",
    _INCOMPATIBLE,
    "both change the same config key",
    "the specification calls this retryable: re-executing would silently undo what the other one set",
)
_WHOLE = Rule("a shared fragment went as a whole", _RETRY, "one side removed a whole fragment in which the other one changed rows")
_UNTOLD = Rule(
    "columns of a shared fragment were rewritten, in unknown rows",
    _RETRY,
    "columns of a fragment both change were rewritten, perhaps in the very rows the other one changed",
    "the specification would rebase: a change to a row that was changed as well would be lost",
)
_ROWS: Final = (
    Rule("same rows", _RETRY, "both changed the same rows"),
    Rule("other rows of the same fragments", _REBASE, "both changed the same fragments but no row twice, so the two are merged"),
)
_TRIMMED = (
    Rule(
        "the reuse entry is trimmed, the rewrite carries one",
        _REBASE,
        "the fragment reuse entry was shortened on one side and added to on the other",
    ),
    Rule(
        "the reuse entry is changed in another way", _INCOMPATIBLE, "the fragment reuse entry was changed in a way that cannot be followed"
    ),
)
_COVERED = Rule(
    "a new index covers a rewritten fragment",
    _RETRY,
    "the index names places of rows that the rewrite moved",
    "with stable row ids the specification calls this compatible: the index would still claim fragments that are gone, "
    "and its rows could be found twice",
)
_MEM_WAL_SET_UP = Rule(
    "the write-ahead log is set up",
    _RETRY,
    "columns changed while the write-ahead log was set up for them",
    "the specification calls this compatible: rows waiting in the log would be of the other schema",
)
_COLUMNS_DESCRIBED = Rule(
    "schema or field metadata changed",
    _RETRY,
    "one side changes metadata of columns, the other one the columns",
    "the specification calls this compatible: a schema that was read before would undo it, and the primary key is part of it",
)
_KEY_DECLARED = Rule(
    "the primary key changed beside new values",
    _RETRY,
    "one side declares which columns are the primary key, the other one wrote rows that were not compared by it",
    "the specification calls this compatible: the table could end with two rows of one key",
)

CELLS: Final[Mapping[str, tuple[Rule, ...]]] = {
    # ---- whatever the two did
    "X": (Rule("always", _INCOMPATIBLE, "the table this was meant for was replaced"),),
    "Xr": (Rule("always", _INCOMPATIBLE, "the table was restored to an older version"),),
    "Xw": (Rule("always", _INCOMPATIBLE, "the state of the write-ahead log changed under it"),),
    "Xo": (
        Rule(
            "always",
            _INCOMPATIBLE,
            "the state of the write-ahead log changed under it",
            "the specification calls this retryable: rows were compacted into the table that re-executing would replace unseen",
        ),
    ),
    "Xm": (Rule("always", _INCOMPATIBLE, "the table changed under the state of the write-ahead log that was to be recorded"),),
    "Xp": (Rule("always", _INCOMPATIBLE, "columns were dropped, renamed or retyped that the new schema still has as they were"),),
    "Xc": (Rule("always", _INCOMPATIBLE, "the table these settings were meant for was replaced"),),
    "X?": (Rule("always", _INCOMPATIBLE, "its operation is unknown to this release, so what it changed is not known"),),
    "Xb": (
        Rule(
            "always",
            _INCOMPATIBLE,
            "its operation is unknown to this release, so what it changed is not known",
            "the specification is silent and stock writers let this one pass: an unknown operation may have added the same base",
        ),
    ),
    "R": (Rule("always", _RETRY, "a Merge brings the complete list of fragments and columns, without what the other one did"),),
    "Rp": (Rule("always", _RETRY, "both replace the schema"),),
    # ---- rows and fragments
    "f": (Rule("overlapping fragments", _RETRY, "both changed the same fragments"),),
    "fu": (Rule("overlapping fragments", _RETRY, "rows or columns of a fragment changed whose column is to be replaced"),),
    "fm": (
        Rule(
            "overlapping fragments, rows can be followed",
            _REBASE,
            "rows were deleted while they were moved, and it is certain where they are, so the deletions are applied there",
            "the specification has this re-executed: nothing is lost, since only a row map that is certain is followed",
        ),
        Rule("overlapping fragments", _RETRY, "one side rewrote fragments in which the other one changed rows"),
    ),
    "v": (_WHOLE, *_ROWS),
    "vu": (_WHOLE, _UNTOLD, *_ROWS),
    "g": (
        Rule("overlapping fragments", _RETRY, "both rewrote the same fragments"),
        Rule("both carry a fragment reuse entry", _RETRY, "both postponed the remapping of indices, which only one entry can record"),
    ),
    "e": (
        Rule(
            "a replaced fragment is gone",
            _INCOMPATIBLE,
            "a fragment whose column was to be replaced has no rows any more",
            "the specification calls this compatible: the new values would belong to no fragment",
        ),
    ),
    "y": (Rule("same field of the same fragment", _RETRY, "both replaced one column of the same fragment"),),
    # ---- keys
    "h": (
        Rule(
            "it may write a key that a merge inserted",
            _RETRY,
            "a merge inserted keys, and one of ours may be among them",
            "the specification calls this compatible: the table could end with two rows of one key",
        ),
    ),
    "a": (Rule("no key filter to compare with", _RETRY, "rows were written without recording their keys, and ours may be among them"),),
    "u": (
        Rule(
            "same shard, that generation was reached",
            _INCOMPATIBLE,
            "the write-ahead log's rows of that generation are in the table already",
            "the specification is silent: the same rows would be compacted into the table twice",
        ),
        Rule("no key filter to compare with", _RETRY, "rows were written without recording their keys, and ours may be among them"),
        Rule("the key filters may share a key", _RETRY, "their key filter does not rule out our keys"),
        Rule(
            "it may write a key that a merge inserted",
            _RETRY,
            "a merge inserted keys, and ours may write one of them",
            "the specification goes by rows alone: the table could end with two rows of one key",
        ),
        _WHOLE,
        Rule(
            "both rewrote columns of a shared fragment",
            _RETRY,
            "both rewrote columns of one fragment, and each new file holds old values for the other's rows",
            "the specification would rebase: the later file would undo what the earlier one changed",
        ),
        _UNTOLD,
        *_ROWS,
    ),
    # ---- indices
    "i": (
        Rule(
            "both set up the write-ahead log, differently",
            _RETRY,
            "both set up the write-ahead log, and not in the same way",
            "the specification would merge them: one of the two settings would be lost",
        ),
        Rule("both bring the same singleton index", _REBASE, "both wrote an index of which there can be only one, so the two are merged"),
        Rule(
            "same index name",
            _RETRY,
            "both created an index of the same name",
            "the specification lets the later one win: beside the earlier one it would answer for the same rows twice",
        ),
        Rule(
            "an index was dropped or replaced under it",
            _RETRY,
            "one side dropped or replaced an index on which the other one built",
            "the specification calls this compatible: an index would come back, or stay, against what the other one did",
        ),
    ),
    "r": (
        *_TRIMMED,
        _COVERED,
        Rule(
            "an n-gram index covers a rewritten fragment",
            _RETRY,
            "an n-gram index cannot be translated to where the rewrite put its rows",
            "the specification calls this compatible: the index would miss rows",
        ),
        Rule(
            "an index to be dropped was mapped",
            _REBASE,
            "the index to be dropped got another id when it was mapped to where the rewrite put its rows, so that one is dropped",
            "the specification calls this compatible: nothing would be dropped, and a new index in its place would exist beside it",
        ),
    ),
    "s": (
        *_TRIMMED,
        _COVERED,
        Rule(
            "a new index covers a rewrite group in part",
            _RETRY,
            "an index covers only part of the fragments that are to become one",
            "the specification calls this compatible: the new fragment would count as indexed with rows that are not",
        ),
    ),
    "p": (
        Rule(
            "an indexed column was rewritten, coverage unknown",
            _RETRY,
            "values changed under an index that does not say what it covers",
            "the specification calls this compatible: the index would answer with old values",
        ),
        Rule(
            "an indexed column was rewritten in place",
            _REBASE,
            "values changed under the index in some fragments, which are taken out of its coverage",
            "the specification calls this compatible: the index would answer with old values",
        ),
    ),
    "m": (
        _MEM_WAL_SET_UP,
        Rule(
            "an indexed field is gone",
            _RETRY,
            "the column of the index was given another field",
            "the specification calls this compatible: the index would stay on a field that is gone, or that comes to mean another column",
        ),
    ),
    "mm": (_MEM_WAL_SET_UP,),
    "j": (
        Rule(
            "an indexed field is gone",
            _INCOMPATIBLE,
            "the column of the index was dropped",
            "the specification calls this compatible: the index would stay on a field that is gone, or that comes to mean another column",
        ),
    ),
    "d": (Rule("an indexed column was replaced", _RETRY, "values that the index was built over were replaced"),),
    "q": (Rule("a replaced column was indexed", _RETRY, "an index was built over the values that are to be replaced"),),
    # ---- schema, settings, the write-ahead log, bases
    "n": (_NULLS,),
    "l": (
        _NULLS,
        Rule(
            "it moved a written column to another field",
            _RETRY,
            "a cast gave a column a new field, in which the written values would read as null",
            "the specification calls this compatible: the values of the written rows would be lost",
        ),
    ),
    "o": (
        _NULLS,
        Rule(
            "a written field was dropped",
            _RETRY,
            "a column that was rewritten in place was dropped",
            "the specification calls this compatible: its values could come to be read as another column",
        ),
    ),
    "op": (
        _NULLS,
        Rule(
            "a written field was dropped",
            _INCOMPATIBLE,
            "the column that was to be replaced was dropped",
            "the specification calls this compatible: its values could come to be read as another column",
        ),
    ),
    "ko": (_SAME_CONFIG, Rule("always", _RETRY, "both replace the whole table")),
    "kp": (_SAME_CONFIG, _KEY_DECLARED),
    "pk": (_KEY_DECLARED,),
    "c": (Rule("same key of the same map", _INCOMPATIBLE, "both change the same setting"),),
    "t": (_COLUMNS_DESCRIBED,),
    "w": (
        Rule(
            "same shard, that generation was reached",
            _INCOMPATIBLE,
            "the write-ahead log's rows of that generation are in the table already",
            "the specification lets it pass or is silent: the same rows would be compacted into the table twice",
        ),
        Rule(
            "same shard, an earlier generation",
            _RETRY,
            "the write-ahead log of the same shard progressed meanwhile",
            "the specification lets it pass or is silent: progress would be recorded that was not checked against it",
        ),
    ),
    "b": (Rule("same base", _INCOMPATIBLE, "both add a base with the same id, name or path"),),
}

ABOUT_KEYS: Final = frozenset(
    {"no key filter to compare with", "the key filters may share a key", "it may write a key that a merge inserted"}
)
"""Conditions under which two rows of one key are at stake."""


BY_ROWS: Final = frozenset({_WHOLE, *_ROWS})
"""Rules that ask which rows went, and nothing else."""


def _read_grid(grid: str) -> dict[str, dict[str, str]]:
    """The sign of every pair, by full names."""
    head, *rows = [line.split() for line in grid.strip().splitlines()]
    columns = [OPERATIONS.get(name, UNKNOWN) for name in head]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


SIGNS: Final[Mapping[str, Mapping[str, str]]] = _read_grid(GRID)

RULES: Final[Mapping[str, Mapping[str, tuple[Rule, ...]]]] = {
    mine: {theirs: () if sign == FREE else CELLS[sign] for theirs, sign in row.items()} for mine, row in SIGNS.items()
}
"""Committing operation, committed operation (or ``UNKNOWN``): the rules of the pair in order, none for a pair that never touches."""
