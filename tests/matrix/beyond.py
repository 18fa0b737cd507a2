"""What the matrix has no row for: other tables for pairs that never depend, and what we decide beyond it."""

from __future__ import annotations

from typing import Final

from tests.matrix.sides import (
    ADD,
    ALL_MOVED,
    DEL,
    DROPS_PRICE,
    INDEX,
    MOVE,
    OTHER_DEL,
    OVER,
    PART,
    PRICE,
    PRICE_ELSEWHERE,
    REPLACE,
    REST,
    REWRITE,
    TIGHTENS,
    WHOLE,
    Real,
    keyed,
    real,
)
from tests.support import real_ops as do
from tiltyard.conflicts import Outcome

ALSO: Final[dict[tuple[str, str], tuple[Real, ...]]] = {
    ("Project", "CreateIndex"): (real(DROPS_PRICE, INDEX), real(DROPS_PRICE, PART)),
    ("Restore", "CreateIndex"): (real(do.restores(2), do.drops_index("a"), table="indexed"),),
    ("Restore", "Rewrite"): (real(do.restores(2), REWRITE, table="indexed"), real(do.restores(2), REWRITE, table="stable")),
    ("Append", "CreateIndex"): (real(ADD, INDEX, table="stable"),),
    ("Append", "Rewrite"): (real(ADD, REWRITE, table="indexed"), real(ADD, REWRITE, table="stable")),
    ("Append", "Delete"): (real(ADD, DEL, table="stable"), keyed(ADD, DEL)),
    ("Delete", "CreateIndex"): (real(WHOLE, INDEX), real(DEL, INDEX, table="stable")),
    ("Update", "CreateIndex"): (real(MOVE, INDEX, table="stable"), real(PRICE, INDEX), real(PRICE, PART)),
    ("Rewrite", "Project"): (real(REWRITE, DROPS_PRICE, table="indexed", leftover=True), real(REWRITE, DROPS_PRICE, table="stable")),
    ("Overwrite", "CreateIndex"): (real(OVER, do.drops_index("a"), table="indexed"),),
    ("Overwrite", "Rewrite"): (real(OVER, REWRITE, table="stable"),),
}
"""More of them, where tables differ."""

_B, _R, _X, _C = Outcome.REBASE, Outcome.RETRY, Outcome.INCOMPATIBLE, Outcome.COMPATIBLE
KEPT, ALL_KEPT = do.rewrites((0, 1), kept=True), do.rewrites((0, 1, 2, 3), kept=True)
TOLD = do.in_place(0, "price", told=True)
ROW_AND_WHOLE = do.deletes({0: [1], 1: range(10)})

BEYOND: Final[dict[str, tuple[Real, Outcome]]] = {
    # Deletions and rewrites, both orders, where it is certain where the rows are.
    "deletions follow a rewrite": (real(ROW_AND_WHOLE, REWRITE, table="stable"), _B),
    "deletions follow a rewrite that kept the order": (real(ROW_AND_WHOLE, KEPT), _B),
    "deletions follow, some rows were gone before": (real(do.deletes({0: [1, 9], 1: [0]}), ALL_KEPT, table="holes"), _B),
    "deletions follow into an indexed fragment": (real(do.deletes({0: [1, 9], 1: [0]}), KEPT, table="covered"), _B),
    "every row follows": (real(do.deletes({0: range(10), 1: range(10)}), REWRITE, table="stable"), _B),
    "every row follows, order kept": (real(do.deletes({0: range(10), 1: range(10)}), KEPT), _B),
    "moved rows follow a rewrite": (real(do.moves({0: [1, 9], 1: [0]}), REWRITE, table="stable"), _B),
    "moved rows follow a rewrite that kept the order": (real(do.moves({0: [1, 9], 1: [0]}), KEPT), _B),
    "a merge follows a rewrite": (real(do.merges([1, 19], [100]), REWRITE, table="stable"), _B),
    "a keyed merge follows a rewrite": (keyed(do.merges([1, 19], [100]), KEPT), _B),
    "rows of two groups follow": (real(do.deletes({0: [1], 3: [2]}), do.rewrites((0, 1), (2, 3)), table="stable"), _B),
    "a rewrite takes deletions along": (real(REWRITE, ROW_AND_WHOLE, table="stable"), _B),
    "a rewrite that kept the order takes deletions along": (real(KEPT, ROW_AND_WHOLE), _B),
    "a rewrite takes deletions along, some rows were gone before": (real(ALL_KEPT, do.deletes({0: [1, 9], 1: [0]}), table="holes"), _B),
    "a rewrite of indexed fragments takes deletions along": (real(KEPT, do.deletes({0: [1, 9], 1: [0]}), table="covered"), _B),
    "a rewrite takes every deletion along": (real(KEPT, do.deletes({0: range(10), 1: range(10)}), leftover=True), _B),
    "a rewrite takes every deletion along, stable row ids": (
        real(REWRITE, do.deletes({0: range(10), 1: range(10)}), table="stable", leftover=True),
        _B,
    ),
    "a rewrite takes moved rows along": (real(REWRITE, do.moves({0: [1, 9], 1: [0]}), table="stable"), _B),
    "a rewrite that kept the order takes moved rows along": (real(KEPT, do.moves({0: [1, 9], 1: [0]})), _B),
    "a rewrite takes two commits along": (real(REWRITE, DEL, do.deletes({0: [3], 1: [1]}), table="stable"), _B),
    "a rewrite that kept the order takes two commits along": (real(KEPT, DEL, do.moves({0: [3], 1: [1]})), _B),
    "deletions over deletions and a rewrite": (real(DEL, OTHER_DEL, do.rewrites((0, 1, 2, 3)), table="stable", in_turn=True), _B),
    "deletions over a rewrite and another": (
        real(DEL, REWRITE, do.rewrites((2, 3, 44), target=40), table="stable", in_turn=True),
        _B,
    ),
    "the same row, then a rewrite": (real(DEL, DEL, do.rewrites((0, 1, 2, 3)), table="stable", in_turn=True), _R),
    "a rewrite, then the same row": (real(DEL, REWRITE, DEL, table="stable", in_turn=True), _R),
    "a rewrite, then another row": (real(DEL, REWRITE, OTHER_DEL, table="stable", in_turn=True), _B),
    "a rewrite leaves other fragments alone": (real(REWRITE, do.moves({2: [1]}), table="stable"), _C),
    "new values of a column follow nowhere": (real(PRICE, REWRITE, table="stable"), _R),
    "a rewrite of old values": (real(KEPT, PRICE), _R),
    "a rewrite of replaced values": (real(KEPT, REPLACE), _R),
    # Columns rewritten in place, with the rows told.
    "we rewrite other rows than they moved": (real(TOLD, MOVE), _B),
    "we rewrite the row they moved": (real(TOLD, do.moves({0: [5]})), _R),
    "we rewrite other rows than they deleted": (real(TOLD, DEL), _B),
    "we rewrite other rows than they deleted, stable row ids": (real(TOLD, DEL, table="stable"), _B),
    "we rewrite other rows than they deleted, some gone before": (real(TOLD, DEL, table="holes"), _B),
    "we rewrite an indexed column": (real(TOLD, DEL, table="covered"), _B),
    "we delete other rows than they rewrote": (real(DEL, TOLD), _B),
    "we move other rows than they rewrote": (real(MOVE, TOLD), _B),
    "we delete the row they rewrote": (real(do.deletes({0: [5]}), TOLD), _R),
    "both rewrite, other rows": (real(TOLD, do.in_place(0, "price", 6, told=True)), _R),
    # Whole fragments, several fragments.
    "they moved away the fragment we delete from": (real(DEL, ALL_MOVED), _R),
    "they moved away the fragment we move from": (real(MOVE, ALL_MOVED), _R),
    "two fragments, other rows": (real(do.deletes({0: [1], 1: [1]}), do.deletes({0: [2], 1: [2]})), _B),
    "two fragments, the same row of one": (real(do.deletes({0: [1], 1: [1]}), do.deletes({0: [2], 1: [1]})), _R),
    "three writers": (real(MOVE, OTHER_DEL, do.moves({0: [3]}), do.deletes({0: range(4, 10)}), table="stable"), _B),
    "all but one row, and then that one": (real(do.deletes({0: [9]}), do.deletes({0: range(5)}), do.moves({0: range(5, 9)})), _B),
    # Indices.
    "we drop what they extended": (real(do.drops_index("a"), do.extends_index("a"), table="indexed"), _R),
    "an indexed column cast": (real(INDEX, do.casts_price()), _R),
    "we drop an index that was mapped twice": (
        real(do.drops_index("a"), REWRITE, do.rewrites((2, 3, 44), target=40), table="covered", in_turn=True),
        _B,
    ),
    "we replace an index that was mapped": (real(do.indexes("a", anew=True), REWRITE, table="covered"), _R),
    "both map one index, which then covers less": (real(REST, REWRITE, table="covered", leftover=True), _C),
    "an index, and a rewrite elsewhere that has others to map": (real(PART, REST, table="covered"), _C),
    "rows moved under an index": (real(MOVE, do.indexes("a", anew=True), table="covered"), _C),
    "a column rewritten in part of what an index covers": (real(PART, PRICE_ELSEWHERE), _B),
    # Schema.
    "an appended column cast": (real(ADD, do.casts_price()), _R),
    "a column takes no nulls any more, another was replaced": (real(TIGHTENS, REPLACE), _R),
}
"""What the matrix has no row for, with what we decide."""
