"""Two sides that meet on a real table, and the deeds of the matrix by short names."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tests.support import real_ops as do
from tests.support.real_ops import Deed
from tiltyard import ops


@dataclass(frozen=True)
class Real:
    """Two deeds on one version of a table.

    Attributes:
        mine: what comes second.
        theirs: what was committed before it, in this order.
        table: which template.
        again: what ours, refused, comes to when it is worked out anew on the newest version.
        retries: how often a lost race may be run again.
        lost: what can no longer be read when ours is committed.
        leftover: whether ours brings files that are of no use by then.
        in_turn: whether theirs were done one after the other, by pylance, rather than all on the version ours is built on.
    """

    mine: Deed
    theirs: tuple[Deed, ...]
    table: str = "plain"
    again: Deed | None = None
    retries: int = 20
    lost: Literal["", "transaction", "read version"] = ""
    leftover: bool = False
    in_turn: bool = False


def real(mine: Deed, *theirs: Deed, table: str = "plain", **also: Any) -> Real:
    return Real(mine, theirs, table, **also)


def keyed(mine: Deed, *theirs: Deed, **also: Any) -> Real:
    return Real(mine, theirs, "keyed", **also)


def carrying(found: ops.KeyExistenceFilter, key: int = 101) -> Deed:
    """A keyed merge that says of itself something else than it did."""
    facts = (found.field_ids, found.exact, replace(found.bloom, bitmap=b"") if found.bloom else None)
    words = f"says {facts} {zlib.crc32(found.bloom.bitmap if found.bloom else b'')}"
    return do.merges(inserted=[key], words=words, change=lambda operation: replace(operation, inserted_rows=found))


# ---- deeds by short names --------------------------------------------------------------------------------------------------

BARE_DEL, BARE_MOVE = do.deletes({0: [1]}, bare=True), do.moves({0: [1]}, bare=True)
DEL, OTHER_DEL, ELSEWHERE = do.deletes({0: [1]}), do.deletes({0: [2]}), do.deletes({1: [1]})
MOVE, OTHER_MOVE, MOVE_ELSEWHERE = do.moves({0: [1]}), do.moves({0: [2]}), do.moves({1: [1]})
WHOLE, OTHER_WHOLE = do.deletes({0: range(10)}), do.deletes({1: range(10)})
ALL_MOVED = do.moves({0: range(10)})
ADD, KEYS = do.appends(), do.appends(102, 103)
OVER = do.overwrites()
INDEX, PART, FIRST = do.indexes(), do.indexes(at=2), do.indexes(at=1)
REWRITE, REST, EVERYTHING = do.rewrites((0, 1)), do.rewrites((2, 3)), do.rewrites((0, 1, 2, 3), target=40)
LATER, REST_LATER = do.rewrites((0, 1), later=True), do.rewrites((2, 3), later=True)
MERGE, UNPROMISED = do.adds_column(), do.adds_column(promises=False)
DROPS_PRICE, DROPS_NOTE, RENAMES, TIGHTENS = do.drops_column("price"), do.drops_column("note"), do.renames(), do.tightens()
LOG, TRIM = do.sets_up_log(), do.trims_reuse()
PRICE, NOTE_IN_PLACE, PRICE_ELSEWHERE = do.in_place(0, "price"), do.in_place(0, "note"), do.in_place(1, "price")
REPLACE, REPLACE_NOTE, REPLACE_ELSEWHERE = do.replaces("price", 0), do.replaces("note", 0), do.replaces("price", 1)
INSERT, OTHER_INSERT = do.merges(inserted=[100]), do.merges(inserted=[101])
UPSERT, OTHER_UPSERT = do.merges([1]), do.merges([2])
ONLY_UPDATE, ONLY_DELETE = do.merges([1], how="update"), do.merges([1], how="delete")
CONFIG = do.configures({"k": "1"})
NOTHING = Deed("nothing", "Update", build=lambda _: ops.Update())
LOGGED_UNHEARD = replace(do.logs(5), planted=True, words="planted")

USUAL: Final[dict[str, Deed]] = {
    "Append": ADD,
    "Delete": DEL,
    "Overwrite": OVER,
    "CreateIndex": INDEX,
    "Rewrite": REWRITE,
    "Merge": MERGE,
    "Project": DROPS_NOTE,
    "Restore": do.restores(),
    "ReserveFragments": do.reserves(),
    "Clone": do.clones(),
    "Update": MOVE,
    "UpdateConfig": CONFIG,
    "DataReplacement": REPLACE,
    "UpdateMemWalState": do.logs(5),
    "UpdateBases": do.adds_base("s3://a", "x"),
}
"""For pairs that never depend on what was done: as much in each other's way as can be."""
BESIDE_LOG: Final = {**USUAL, "Merge": do.adds_nulls()}
"""pylance adds no computed column to a table with a write-ahead log."""
