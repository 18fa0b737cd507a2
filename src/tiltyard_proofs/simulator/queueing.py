"""The queues of a process and of a machine as actors see them: what they do there is a step; who waits is not chosen until somebody calls.

Threads of a process share what they know, and who leaves hands over the lead. Processes share nothing but the note that the last leader
left, and the lead is for whoever looks first; beside the real locks and sockets that is all in which ``LocalQueue`` differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiltyard.interfaces import NOT_TAKEN, Offer
from tiltyard.storage.thread_queue import ThreadPlace, ThreadQueue
from tiltyard_proofs.simulator.stepping import QUEUE, Actor, Call, Step, Turns


@dataclass(frozen=True, slots=True)
class ActorQueue:
    """The queue of several actors, for one of them."""

    queue: ThreadQueue
    turns: Turns
    actor: Actor

    @property
    def slowness(self) -> float:
        return 1.0

    @property
    def shared(self) -> dict[str, Any]:
        return self.queue.shared

    def place(self, transaction_id: str, since: float) -> SteppedPlace:
        return SteppedPlace(self, transaction_id, since)


class MachineQueue(ThreadQueue):
    """What processes of a machine have in common before one table."""

    def __init__(self) -> None:
        super().__init__()
        self.note = b""


@dataclass(frozen=True, slots=True)
class ProcessQueue:
    """The same for one of several processes."""

    queue: MachineQueue
    turns: Turns
    actor: Actor

    def place(self, transaction_id: str, since: float) -> ProcessPlace:
        return ProcessPlace(self, transaction_id, since)


class SteppedPlace(ThreadPlace):
    """One commit before the table."""

    def __init__(self, mine: ActorQueue | ProcessQueue, transaction_id: str, since: float) -> None:
        super().__init__(mine.queue, transaction_id, since)
        self._turns = mine.turns
        self._actor = mine.actor

    def _step(self, what: str) -> None:
        self._turns.stop(self._actor, Call(QUEUE, ""))
        self._turns.trace.append(Step(self._actor.number, QUEUE, what, "ok"))

    def lead(self) -> bool:
        self._step("lead")
        return super().lead()

    def leave(self) -> None:
        if not self._actor.dead and not self._turns.cut_short:
            self._step("leave")
        super().leave()

    def join(self, data: bytes) -> bool:
        self._step("join")
        return super().join(data)

    def offers(self, most: int) -> list[Offer]:
        self._step("offers")
        return super().offers(most)

    def answer(self, transaction_id: str, version: int = NOT_TAKEN) -> None:
        self._step(f"answer {version}")
        super().answer(transaction_id, version)

    def _now(self) -> float:
        return self._actor.time.elapsed

    def _pause(self, seconds: float) -> bool:
        self._actor.blocked = lambda: not self._called.is_set()
        try:
            self._turns.stop(self._actor, Call(QUEUE, ""))
        finally:
            self._actor.blocked = None
        called = self._called.is_set()
        self._turns.trace.append(Step(self._actor.number, QUEUE, "wait", "called" if called else "time is up"))
        if not called:
            self._actor.time.elapsed += max(seconds, 0.0)
        return called


class ProcessPlace(SteppedPlace):
    """One commit of a process before the table."""

    def __init__(self, mine: ProcessQueue, transaction_id: str, since: float) -> None:
        super().__init__(mine, transaction_id, since)
        self._machine = mine.queue

    def leave(self) -> None:
        """Gives up the lead or the wait, and wakes those who wait: the first of them who looks leads."""
        if not self._actor.dead and not self._turns.cut_short:
            self._step("leave")
        with self.queue.lock:
            if self in self.queue.waiting:
                self.queue.waiting.remove(self)
            if self.queue.leader is self:
                self.queue.leader = None
                for other in self.queue.waiting:
                    other._called.set()

    def tell(self, data: bytes) -> None:
        self._step("tell")
        self._machine.note = data

    def told(self) -> bytes:
        self._step("told")
        return self._machine.note
