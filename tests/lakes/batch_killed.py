"""A writer of a lake that commits with those who wait, in a process that may kill itself while it leads them or is one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from tests.lakes.hot_killed import tell_of_decisions
from tests.support.lakes import numbers
from tiltyard.catalog.batch_offers import BatchOffer
from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.tickets import FileTicket
from tiltyard.lake import Lake
from tiltyard.lakes import lake_batches
from tiltyard.lakes.batch_members import BatchMember
from tiltyard.lakes.finishing import finish
from tiltyard.lakes.hot_tables import HotTables
from tiltyard.lakes.lake_batches import BatchLeader

LEADS: Final = ("leads", "staged", "publish: before", "publish: decided", "publish: after", "named", "told")
"""Where a leader may die."""
MEMBER: Final = ("offered", "told to look", "adopted", "finished")
"""Where a member may."""
POINTS: Final = (*LEADS, *MEMBER)


def deadly(point: str, lake: Lake) -> None:
    """Sees to it that this process dies at a point."""
    leads = False

    def reached(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(owner: Any, name: str, here: str, *, only: Callable[[Any], bool] = lambda _: True) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **more: Any) -> Any:
            result = real(*given, **more)
            if only(result):
                reached(here)
            return result

        setattr(owner, name, call)

    lead = BatchLeader.lead

    def leading(leader: BatchLeader, waiting: Sequence[tuple[str, BatchOffer]]) -> None:
        nonlocal leads
        leads = True
        reached("leads")
        lead(leader, waiting)
        leads = False

    def finishing(*given: Any, named: Callable[[], None] = lambda: None, **more: Any) -> list[Pending]:
        def names() -> None:
            reached("named")
            named()

        return finish(*given, named=names, **more)

    setattr(BatchLeader, "lead", leading)  # noqa: B010 - mypy does not let a method be replaced
    tell_of_decisions(lake, reached, lambda: leads)
    setattr(lake_batches, "finish", finishing)  # noqa: B010
    after(BatchLeader, "_staged", "staged")
    after(FileTicket, "tell", "told")
    after(FileTicket, "leave_offer", "offered")
    after(BatchMember, "is_done", "told to look", only=bool)
    after(BatchMember, "adopt", "adopted")
    after(BatchMember, "finish", "finished")


def work(uri: str, arguments: dict[str, Any], table: str, first: int, point: str, told: Connection, over: Connection) -> None:
    """Writes numbers until ``over`` is closed, and tells each once the transaction that wrote it is acknowledged."""
    always: Callable[[HotTables, Collection[str]], list[str]] = lambda _, tables: list(tables)  # noqa: E731
    setattr(HotTables, "among", always)  # noqa: B010
    with Lake.open(uri, **{"durability": "os", **arguments}) as lake:
        if point:
            deadly(point, lake)
        number = first
        while not over.poll():
            with lake.transaction(message=str(number), idempotency_key=str(number)) as tx:
                tx.batch = True
                tx.table(table).append(numbers(number))
                tx.table("hot").append(numbers(number))
            told.send(number)
            number += 1
