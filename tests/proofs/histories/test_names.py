"""Names as keys: anomalies of names, planted into histories that are clean otherwise, are found and called by their name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tiltyard.errors import InvalidInput
from tiltyard_proofs.histories import (
    Anomaly,
    AnyOp,
    Append,
    Define,
    History,
    Isolation,
    Listing,
    Look,
    NameStep,
    Outcome,
    Read,
    Transaction,
    check,
    dump,
    load,
)


def t(process: str, base: int | None, *ops: AnyOp, outcome: Outcome = "ok", began: int = 1, index: int = 0) -> Transaction:
    return Transaction(process, index, began, None if outcome == "unknown" else began + 1, ops, outcome, base=base)


def step(snapshot: int, transaction: str, **names: str | None) -> NameStep:
    return NameStep(snapshot, transaction, names)


X, Y = Define("x", "x1"), Define("y", "y1")


@dataclass(frozen=True)
class Plant:
    """Transactions, what the catalog's history says of them, and what the checker must say."""

    transactions: Sequence[Transaction]
    steps: Sequence[NameStep]
    anomaly: Anomaly
    named: set[str]
    isolation: Isolation = "serializable"
    final: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def history(self) -> History:
        ops = tuple(Read(key, elements) for key, elements in self.final.items())
        return History((*self.transactions, Transaction("final", 0, 100, 101, ops, "ok", final=True)))


PLANTS = {
    "write skew by two absent names": Plant(
        [t("a", 0, Look("y", None), X), t("b", 0, Look("x", None), Y)], [step(1, "a/0", x="x1"), step(2, "b/0", y="y1")],
        Anomaly.WRITE_SKEW, {"a/0", "b/0"},
    ),
    "write skew by two lists": Plant(
        [t("a", 0, Listing(()), X), t("b", 0, Listing(()), Y)], [step(1, "a/0", x="x1"), step(2, "b/0", y="y1")],
        Anomaly.WRITE_SKEW, {"a/0", "b/0"},
    ),
    "write skew by a name and rows": Plant(
        [t("a", 0, Look("x", None), Append("rows", 1)), t("b", 0, Read("rows", ()), X)],
        [step(1, "b/0", x="x1"), step(2, "a/0")],
        Anomaly.WRITE_SKEW, {"a/0", "b/0"}, final={"rows": (1,)},
    ),
    "write skew by a name that is renamed away": Plant(
        [t("s", 0, X), t("a", 1, Look("x", "x1"), Append("rows", 1)), t("b", 1, Read("rows", ()), Define("x", None), Define("z", "x1"))],
        [step(1, "s/0", x="x1"), step(2, "b/0", x=None, z="x1"), step(3, "a/0")],
        Anomaly.WRITE_SKEW, {"a/0", "b/0"}, final={"rows": (1,)},
    ),
    "read skew: half of a transaction's names": Plant(
        [t("a", 0, X, Y), t("b", 0, Look("x", "x1"), Look("y", None))], [step(1, "a/0", x="x1", y="y1")],
        Anomaly.READ_SKEW, {"a/0", "b/0"}, "snapshot",
    ),
    "read skew: a list that lacks half of them": Plant(
        [t("a", 0, X, Y), t("b", 1, Listing(("x",)))], [step(1, "a/0", x="x1", y="y1")], Anomaly.READ_SKEW, {"a/0", "b/0"}, "snapshot",
    ),
    "a name of a failed transaction": Plant(
        [t("a", 0, X, outcome="failed"), t("b", 0, Look("x", "x1"))], [], Anomaly.ABORTED_READ, {"a/0", "b/0"}, "snapshot",
    ),
    "a list with a name of a failed transaction": Plant(
        [t("a", 0, X, outcome="failed"), t("b", 0, Listing(("x",)))], [], Anomaly.ABORTED_READ, {"a/0", "b/0"}, "snapshot",
    ),
    "a table that nobody made": Plant([t("b", 0, Look("x", "x9"))], [], Anomaly.UNWRITTEN, {"b/0"}, "snapshot"),
    "a name given away twice": Plant(
        [t("a", 0, Look("x", None), X), t("b", 0, Look("x", None), Define("x", "x2"))],
        [step(1, "a/0", x="x1"), step(2, "b/0", x="x2")],
        Anomaly.LOST_UPDATE, {"a/0", "b/0"}, "snapshot",
    ),
    "an acknowledged creation that is not there": Plant([t("a", 0, X)], [], Anomaly.LOST_APPEND, {"a/0", "names/0"}, "snapshot"),
    "own change not seen": Plant([t("a", 0, X, Look("x", None))], [step(1, "a/0", x="x1")], Anomaly.INTERNAL, {"a/0"}, "snapshot"),
    "own change not listed": Plant([t("a", 0, X, Listing(()))], [step(1, "a/0", x="x1")], Anomaly.INTERNAL, {"a/0"}, "snapshot"),
    "a change that nobody asked for": Plant(
        [t("a", 0, X)], [step(1, "a/0", x="x1", y="x1")], Anomaly.INTERNAL, {"a/0"}, "snapshot",
    ),
    "a drop that met another table": Plant(
        [t("s", 0, X), t("a", 1, Define("x", None), Define("z", "x1")), t("b", 1, Look("x", "x1"), Define("x", None))],
        [step(1, "s/0", x="x1"), step(2, "a/0", x=None, z="x1"), step(3, "b/0", z=None)],
        Anomaly.INTERNAL, {"b/0"}, "snapshot",
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_planted_anomalies_are_found(plant: Plant) -> None:
    report = check(plant.history(), plant.isolation, names=plant.steps)
    found = [finding for finding in report.findings if finding.anomaly is plant.anomaly]
    assert found, str(report)
    assert any(set(finding.transactions) == plant.named for finding in found), str(report)


@pytest.mark.parametrize("name", ["write skew by two absent names", "write skew by two lists"])
def test_snapshot_isolation_allows_skews_of_names(name: str) -> None:
    report = check(PLANTS[name].history(), "snapshot", names=PLANTS[name].steps)
    assert report.ok, str(report)
    assert [note.anomaly for note in report.notes] == [Anomaly.WRITE_SKEW]


def test_a_clean_history() -> None:
    """Made, listed, renamed, taken away and made again, one after the other, half of it by a process whose outcome nobody knows."""
    transactions = [
        t("a", 0, Listing(()), X, Look("x", "x1"), Listing(("x",)), began=1),
        t("b", 1, Listing(("x",)), Define("x", None), Define("y", "x1"), began=2),
        t("c", None, outcome="unknown", began=3),
        t("a", 3, Look("x", None), Look("y", None), Listing(()), Define("x", "x2"), began=4, index=1),
        t("b", 4, Look("x", "x2"), Append("rows", 1), began=5, index=1),
    ]
    steps = [step(1, "a/0", x="x1"), step(2, "b/0", x=None, y="x1"), step(3, "c/0", y=None), step(4, "a/1", x="x2"), step(5, "b/1")]
    for isolation in ("snapshot", "serializable"):
        report = check(History(tuple(transactions)), isolation, names=steps)
        assert report.ok, str(report)
        assert not report.notes
        assert report.transactions == 5


def test_a_name_that_came_back_is_no_change() -> None:
    """What was read holds where the transaction was committed, whatever there was in between: a serial order explains it."""
    transactions = [
        t("a", 0, Look("x", None), Append("rows", 2)),
        t("b", 0, X, Append("rows", 1), began=2),
        t("c", 1, Define("x", None), began=3),
    ]
    steps = [step(1, "b/0", x="x1"), step(2, "c/0", x=None), step(3, "a/0")]
    final = Transaction("final", 0, 100, 101, (Read("rows", (1, 2)),), "ok", final=True)
    assert check(History((*transactions, final)), "serializable", names=steps).ok
    later = History((t("a", 0, Look("x", None), Append("rows", 2)), *transactions[1:2], final))
    assert not check(later, "serializable", names=[steps[0], step(2, "a/0")]).ok


def test_a_name_that_came_back_is_another_one_to_who_takes_it_under_snapshots() -> None:
    """The first committer wins: who looked before others used the name, and takes it after them, passed them over."""
    transactions = (t("a", 0, Look("x", None), Define("x", "x2")), t("b", 0, X, began=2), t("c", 1, Define("x", None), began=3))
    steps = [step(1, "b/0", x="x1"), step(2, "c/0", x=None), step(3, "a/0", x="x2")]
    report = check(History(transactions), "snapshot", names=steps)
    assert [finding.anomaly for finding in report.findings] == [Anomaly.LOST_UPDATE], str(report)
    assert check(History(transactions), "serializable", names=steps).ok


def test_names_come_through_lines() -> None:
    history = PLANTS["write skew by two lists"].history()
    assert load(dump(history)) == history


def test_an_order_of_names_is_needed() -> None:
    with pytest.raises(InvalidInput, match="in which order"):
        check(History((t("a", 0, X),)))
    with pytest.raises(InvalidInput, match="two snapshots"):
        check(History((t("a", 0, X),)), names=[step(1, "a/0", x="x1"), step(2, "a/0", x=None)])
