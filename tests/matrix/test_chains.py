"""More than two: deeds drawn by chance, all built on one version, offered one after the other.

Whatever the rules decide, a deed that goes through does what it means and one that is refused does nothing; nothing that was committed
before is lost or doubled on the way.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from tests.matrix.beyond import KEPT, ROW_AND_WHOLE, TOLD
from tests.matrix.sides import (
    ALL_MOVED,
    CONFIG,
    DEL,
    DROPS_NOTE,
    EVERYTHING,
    INDEX,
    LATER,
    MOVE,
    NOTE_IN_PLACE,
    OTHER_DEL,
    OTHER_INSERT,
    OTHER_MOVE,
    PART,
    PRICE,
    RENAMES,
    REPLACE,
    REPLACE_NOTE,
    REST,
    REWRITE,
    WHOLE,
)
from tests.support import real_ops as do
from tests.support.proving import pick
from tests.support.real_checks import assert_indices_answer, assert_world, open_ours
from tests.support.real_ops import Deed
from tests.support.real_runs import by_us
from tests.support.real_tables import MINE, THEIRS, Workshop
from tests.support.tables import open_stock

ROWS: Final = (
    DEL,
    OTHER_DEL,
    WHOLE,
    ROW_AND_WHOLE,
    do.deletes({0: [1, 9], 1: [0]}),
    do.deletes({0: range(5)}),
    do.deletes({0: range(5, 10)}),
    do.deletes({1: [5], 3: [2]}),
    MOVE,
    OTHER_MOVE,
    ALL_MOVED,
    do.moves({0: [3], 2: [4]}),
    do.moves({0: [4]}, "note"),
    OTHER_INSERT,
    do.merges([6, 25], [100]),
    do.merges([7], how="update"),
    do.merges([8], how="delete"),
    PRICE,
    NOTE_IN_PLACE,
    TOLD,
    do.in_place(1, "note", 6, told=True),
    REWRITE,
    REST,
    EVERYTHING,
    KEPT,
    do.rewrites((0, 1), (2, 3), kept=True),
)
OTHERS: Final = (
    do.appends(300),
    REPLACE,
    REPLACE_NOTE,
    LATER,
    do.adds_nulls(),
    DROPS_NOTE,
    RENAMES,
    INDEX,
    PART,
    do.indexes("bm", "note", kind="BITMAP"),
    CONFIG,
    do.notes_field("price", {"k": "1"}),
    do.reserves(),
    do.restores(2),
    do.adds_base("s3://a", "x"),
)
BY_TABLE: Final[dict[str, tuple[Deed, ...]]] = {
    "plain": (*ROWS, *ROWS, *OTHERS),
    "stable": (*ROWS, *ROWS, *(deed for deed in OTHERS if deed is not LATER)),  # pylance does not postpone the mapping there
    "covered": (*ROWS, *ROWS, *OTHERS, do.indexes("a", anew=True), do.drops_index("a")),
    "keyed": (*ROWS, *ROWS, *OTHERS),
}
"""Rows twice as often as anything else."""
CHAINS: Final = pick(40, 120)


@pytest.mark.parametrize("seed", range(CHAINS))
def test_chain(seed: int, workshop: Workshop, tmp_path: Path) -> None:
    chance, table = random.Random(seed), tmp_path / "t"
    name = chance.choice(list(BY_TABLE))
    template = workshop.copy(name, table)
    world, trail = template.past[template.version], []
    for number, deed in enumerate(chance.choices(BY_TABLE[name], k=chance.choice([3, 4, 5]))):
        # Compactions take fragment ids that were set aside, and there are two sets of these.
        side = (MINE, THEIRS)[number % 2] if deed.operation == "Rewrite" else f"writer {number}"
        came = by_us(table, deed, workshop.captured(name, deed, side), template.version)
        trail.append(f"{deed}: {came.word}")
        assert came.word != "error", (trail, came.said)
        if came.word == "committed":
            world = deed.effect(world, template.past)
    print(f"seed {seed}, table {name}", *trail, sep="\n")
    assert_world(table, world)
    assert_indices_answer(table)
    assert list(open_ours(table).check().problems) == []
    open_stock(str(table)).validate()
