"""Random interleavings of transactions, definitions, branches and fast-forwards: no row of one line of history is ever seen on another
except by a fast-forward. And each mistake that branches once had is found when it is made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.branch_walk import Walk
from tests.support.lakes import Site
from tests.support.proving import pick
from tiltyard.catalog import forwarding, publishing
from tiltyard.catalog.lake_values import TableHead
from tiltyard.errors import AlreadyExists
from tiltyard.lakes.branches import fast_forward
from tiltyard.lakes.lake_tables import StagedTable
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.lakes.table_names import shown

STEPS = pick(70, 400)
SEEDS = range(pick(2, 50))
SEARCHED = (6, 14, 5, 3, 7, 9, 1, 2, 0, 4, 8)
"""Seeds of the walks that look for a planted mistake, those that find the most first."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_of_one_line_is_seen_on_another(site: Site, seed: int) -> None:
    walk = Walk(site, seed)
    walk.run(STEPS)
    print("\n".join(walk.log))
    assert walk.counts["forward"] > 2
    assert walk.counts["refused"] > 2
    assert walk.lake.check().problems == ()


# ---- mistakes, made again --------------------------------------------------------------------------------------------------------------


def _numbers_alone(patch: pytest.MonkeyPatch) -> None:
    """The compare-and-swap compares numbers: a branch made again takes what was built on the one before."""
    patch.setattr(publishing, "is_line", lambda found, branch, line: True)
    patch.setattr(publishing, "differs", lambda *_: False)


def _two_steps(patch: pytest.MonkeyPatch) -> None:
    """A fast-forward publishes first and lets the branch begin anew afterwards."""
    whole = forwarding.forward

    def forward(catalog: Any, plan: Any, publication: Any) -> Any:
        done = catalog.publish(publication) if publication is not None else None
        again = whole(catalog, plan, None)
        return done or again

    patch.setattr(fast_forward, "forward", forward)


def _one_name_after_the_other(patch: pytest.MonkeyPatch) -> None:
    def rearrange(self: LakeTransaction, names: Any, dropped: Any, taken_in: Any) -> None:
        heads = {head.id: head for head in self.cut.tables.values()}
        for head in taken_in:
            if self._names.find(head.name, self._by_name) is not None:
                raise AlreadyExists(f"There is a table {head.name}.", name=head.name)
            self._by_name[head.name] = StagedTable(head.id, head.name, location=head.location, taken_in=head)
        for table, name in names.items():
            self.rename_table(shown(heads[table].name), shown(name))
        for table in dropped:
            self.drop_table(shown(heads[table].name))

    patch.setattr(LakeTransaction, "rearrange", rearrange)


def _compared_with_where_it_was_made(patch: pytest.MonkeyPatch) -> None:
    """A branch of a branch is compared with main as if the snapshot of its parent were main's."""

    def root_of(lake: Any, branch: Any) -> dict[str, TableHead]:
        return {head.id: head for head in lake.catalog.cut_at(branch.snapshot, branch.origin).tables.values()}

    patch.setattr(fast_forward, "root_of", root_of)


def _whoever_shows_it_writes_to_it(patch: pytest.MonkeyPatch) -> None:
    """Main takes over every table that a branch shows, also one that the branch's parent goes on writing to."""
    patch.setattr(fast_forward, "_taken_in", lambda head, there, main: replace(head, owner=main.line))


def _kept_by_the_branch(patch: pytest.MonkeyPatch) -> None:
    """The branch goes on as the line it was, with the tables that main has taken over."""
    whole = forwarding.forward
    patch.setattr(fast_forward, "forward", lambda catalog, plan, publication: whole(catalog, replace(plan, fresh=plan.line), publication))


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    _numbers_alone,
    _two_steps,
    _one_name_after_the_other,
    _compared_with_where_it_was_made,
    _whoever_shows_it_writes_to_it,
    _kept_by_the_branch,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_each_mistake_is_found_when_it_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None]) -> None:
    plant(monkeypatch)
    for seed in SEARCHED:
        here = Site("sqlite", str(tmp_path / f"lake{seed}"), tmp_path / f"lake{seed}", {"catalog": "sqlite"})
        try:
            Walk(here, seed).run(STEPS)
        except Exception as error:  # noqa: BLE001 - a row in the wrong place, or an error that nobody should see
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return
        finally:
            here.close()
    pytest.fail(f"{plant.__name__} was not found by {len(SEARCHED)} walks")
