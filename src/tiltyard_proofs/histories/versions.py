"""The order of appends under each key, as the reads tell it, and what can be wrong with it without looking at other keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiltyard_proofs.histories.observed import Observed, brief
from tiltyard_proofs.histories.records import Element, Elements
from tiltyard_proofs.histories.report import Anomaly, Finding


@dataclass(frozen=True, slots=True)
class Versions:
    """One key.

    Attributes:
        chain: the committed appends that were read, in order: element and transaction.
        reads: for each transaction whose read fits, how much of the chain it saw.
        unread: committed appends that no read shows; they come after the chain, in whatever order.
    """

    key: str
    chain: tuple[tuple[Element, int], ...]
    reads: dict[int, int]
    unread: tuple[tuple[Element, int], ...]


def versions_of(observed: Observed, *, realtime: bool) -> tuple[list[Versions], list[Finding]]:
    """All keys, and what was found on the way."""
    bases: dict[str, dict[int, Elements]] = {key: {} for key in observed.writers}
    for number, views in enumerate(observed.views):
        for key, view in views.items():
            if view.base is not None:
                bases.setdefault(key, {})[number] = view.base
    found: list[Finding] = []
    versions: list[Versions] = []
    for key in sorted(bases):
        versions.append(_Key(observed, key, bases[key], found).versions(realtime))
    return versions, found


@dataclass(slots=True)
class _Key:
    observed: Observed
    key: str
    bases: dict[int, Elements]
    found: list[Finding]

    def versions(self, realtime: bool) -> Versions:
        self._foreign_elements()
        self._duplicates()
        order = self._order()
        writers = self.observed.writers.get(self.key, {})
        chain: list[tuple[Element, int]] = []
        seen_after = [0]  # how much of the chain a read of this length has seen
        for element in order:
            writer = writers.get(element)
            if writer is not None:
                chain.append((element, writer))
            seen_after.append(len(chain))
        reads = {number: seen_after[len(base)] for number, base in self.bases.items() if order[: len(base)] == base}
        self._incompatible(order)
        self._order_of_appends(chain)
        self._intermediate(chain, reads)
        in_order = set(order)
        unread = {element: writer for element, writer in writers.items() if writer is not None and element not in in_order}
        for element in self._lost(unread, realtime):
            unread.pop(element, None)
        return Versions(self.key, tuple(chain), reads, tuple(unread.items()))

    def _name(self, number: int) -> str:
        return self.observed.committed[number].name

    def _add(self, anomaly: Anomaly, message: str, *transactions: str) -> None:
        self.found.append(Finding(anomaly, message, tuple(transactions), self.key))

    def _foreign_elements(self) -> None:
        """Elements of failed transactions, and of none. Whoever reads later sees them too, so each element is told once."""
        writers = self.observed.writers.get(self.key, {})
        wrong = {element for element in set().union(*self.bases.values()) if writers.get(element) is None}
        for element in sorted(wrong, key=repr):
            readers = [number for number, base in self.bases.items() if element in base]
            who = self._name(readers[0]) + (f" and {len(readers) - 1} others" if len(readers) > 1 else "")
            author = self.observed.authors.get((self.key, element))
            if author is None:
                self._add(Anomaly.UNWRITTEN, f"{who} read {element!r} under {self.key!r}, which nobody appended", self._name(readers[0]))
            else:
                message = f"{who} read {element!r} under {self.key!r}, which {author.name} appended and {author.name} failed"
                self._add(Anomaly.ABORTED_READ, message, author.name, self._name(readers[0]))

    def _duplicates(self) -> None:
        """Tells each doubled element once and goes on with its first place."""
        told: set[Element] = set()
        for number, base in self.bases.items():
            if len(set(base)) == len(base):
                continue
            seen: set[Element] = set()
            twice = [element for element in base if element in seen or seen.add(element)]  # type: ignore[func-returns-value]
            for element in twice:
                if element not in told:
                    told.add(element)
                    self._add(Anomaly.DUPLICATE, f"{self._name(number)} read {element!r} twice under {self.key!r}", self._name(number))
            self.bases[number] = tuple(dict.fromkeys(base))

    def _order(self) -> Elements:
        """The longest read; among equals the final one, which is what remained."""
        committed = self.observed.committed
        return max(
            ((len(base), committed[number].final, -number, base) for number, base in self.bases.items()),
            key=lambda each: each[:3],
            default=(0, False, 0, ()),
        )[3]

    def _incompatible(self, order: Elements) -> None:
        odd = [number for number, base in self.bases.items() if order[: len(base)] != base]
        if not odd:
            return
        longest = next(number for number, base in self.bases.items() if base == order)
        base = self.bases[odd[0]]
        at = next(place for place, (ours, theirs) in enumerate(zip(base, order, strict=False)) if ours != theirs)
        more = f"; so do {len(odd) - 1} more reads" if len(odd) > 1 else ""
        message = (
            f"{self._name(odd[0])} and {self._name(longest)} read {self.key!r} with {base[at]!r} and {order[at]!r} "
            f"after {brief(base[:at])}, which contradict each other{more}"
        )
        self._add(Anomaly.INCOMPATIBLE_ORDER, message, self._name(odd[0]), self._name(longest))

    def _order_of_appends(self, chain: list[tuple[Element, int]]) -> None:
        """One transaction's own appends must lie in the order in which it made them."""
        places: dict[int, list[Element]] = {}
        for element, writer in chain:
            places.setdefault(writer, []).append(element)
        for writer, read in places.items():
            if len(read) < 2:
                continue
            shown = set(read)
            made = [element for element in self.observed.views[writer][self.key].own if element in shown]
            if made != read:
                message = f"{self._name(writer)} appended {brief(tuple(made))} to {self.key!r}, but they are read as {brief(tuple(read))}"
                self._add(Anomaly.INCOMPATIBLE_ORDER, message, self._name(writer))

    def _intermediate(self, chain: list[tuple[Element, int]], reads: dict[int, int]) -> None:
        for number, seen in reads.items():
            if seen == 0 or chain[seen - 1][1] == number:
                continue
            element, writer = chain[seen - 1]
            last = self.observed.views[writer][self.key].own[-1]
            if last != element and (last, writer) not in chain[:seen]:
                message = f"{self._name(number)} read {self.key!r} up to {element!r} of {self._name(writer)}, which went on to {last!r}"
                self._add(Anomaly.INTERMEDIATE_READ, message, self._name(writer), self._name(number))

    def _lost(self, unread: dict[Element, int], realtime: bool) -> Iterator[Element]:
        """Appends that the final read lacks; with time to go by, also those that a later read lacks and no read has."""
        committed = self.observed.committed
        lost: set[Element] = set()
        finals = [number for number in self.bases if committed[number].final]
        for number in finals:
            have = set(self.bases[number])
            for element, writer in self.observed.writers.get(self.key, {}).items():
                if writer is not None and not committed[writer].final and element not in have and element not in lost:
                    lost.add(element)
                    self._add_lost(element, writer, number, "final read", never=element in unread)
        last = max(self.bases, key=lambda number: committed[number].began, default=None)
        for element, writer in unread.items():
            ended = committed[writer].ended
            timed = realtime and last is not None and committed[writer].outcome == "ok" and ended is not None
            if timed and last is not None and ended is not None and element not in lost and ended < committed[last].began:
                lost.add(element)
                self._add_lost(element, writer, last, "later read", never=True)
        yield from lost

    def _add_lost(self, element: Element, writer: int, reader: int, read: str, *, never: bool) -> None:
        sure = "was acknowledged" if self.observed.committed[writer].outcome == "ok" else "committed, as another of its appends was read"
        seen = " and no other read has it" if never else " though another read had it"
        message = (
            f"{self._name(writer)} appended {element!r} to {self.key!r} and {sure}; but the {read} {self._name(reader)} lacks it{seen}"
        )
        self._add(Anomaly.LOST_APPEND, message, self._name(writer), self._name(reader))
