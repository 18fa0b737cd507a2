"""Each kind of anomaly, planted once into a large history that is clean otherwise, is found and called by its name."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.proofs.histories.executors import execute, transaction, with_planted
from tiltyard_proofs.histories import Anomaly, Append, EdgeKind, Elements, History, Isolation, Read, Transaction, check

SEED = 20_250_607


@dataclass(frozen=True)
class Plant:
    """What is planted, and what the checker must say of it: the anomaly, the transactions it names, the edges of its cycle."""

    transactions: list[Transaction]
    final: dict[str, Elements]
    anomaly: Anomaly
    named: set[str]
    edges: list[str] = field(default_factory=list)
    isolation: Isolation = "snapshot"
    realtime: bool = False
    sessions: bool = False


def t(process: str, *ops: Append | Read, began: int = 1, ended: int = 5) -> Transaction:
    return transaction(process, began, ended, *ops)


X1, X2, Y1, Y2 = Append("x", 1), Append("x", 2), Append("y", 1), Append("y", 2)


def x(*elements: int) -> Read:
    return Read("x", elements)


def y(*elements: int) -> Read:
    return Read("y", elements)


PLANTS = {
    "dirty write": Plant([t("a", X1, Y1), t("b", X2, Y2)], {"x": (1, 2), "y": (2, 1)}, Anomaly.DIRTY_WRITE, {"a/0", "b/0"}, ["ww", "ww"]),
    "aborted read": Plant([transaction("a", 1, 5, X1, outcome="failed"), t("b", x(1))], {"x": ()}, Anomaly.ABORTED_READ, {"a/0", "b/0"}),
    "intermediate read": Plant([t("a", X1, X2), t("b", x(1))], {"x": (1, 2)}, Anomaly.INTERMEDIATE_READ, {"a/0", "b/0"}),
    "circular information": Plant(
        [t("a", X1, y(1)), t("b", Y1, x(1))], {"x": (1,), "y": (1,)}, Anomaly.CIRCULAR_INFORMATION, {"a/0", "b/0"}, ["wr", "wr"]
    ),
    "circular information through an order of writes": Plant(
        [t("a", X1, y(1)), t("b", X2, Y1)], {"x": (1, 2), "y": (1,)}, Anomaly.CIRCULAR_INFORMATION, {"a/0", "b/0"}, ["wr", "ww"]
    ),
    "read skew": Plant([t("a", X1, Y1), t("b", x(1), y())], {"x": (1,), "y": (1,)}, Anomaly.READ_SKEW, {"a/0", "b/0"}, ["rw", "wr"]),
    "read skew over three transactions": Plant(
        [t("a", X1), t("b", x(1), Y1), t("c", x(), y(1))],
        {"x": (1,), "y": (1,)},
        Anomaly.READ_SKEW,
        {"a/0", "b/0", "c/0"},
        ["rw", "wr", "wr"],
    ),
    "lost update": Plant([t("a", x(), X1), t("b", x(), X2)], {"x": (1, 2)}, Anomaly.LOST_UPDATE, {"a/0", "b/0"}, ["rw", "ww"]),
    "update over a blind append": Plant([t("a", x(), X1), t("b", X2)], {"x": (2, 1)}, Anomaly.LOST_UPDATE, {"a/0", "b/0"}, ["rw", "ww"]),
    "no snapshots": Plant(
        [t("a", X1), t("b", x(1), y()), t("c", Y1), t("d", y(1), x())],
        {"x": (1,), "y": (1,)},
        Anomaly.NONADJACENT,
        {"a/0", "b/0", "c/0", "d/0"},
        ["rw", "wr", "rw", "wr"],
    ),
    "write skew": Plant(
        [t("a", x(), Y1), t("b", y(), X1)], {"x": (1,), "y": (1,)}, Anomaly.WRITE_SKEW, {"a/0", "b/0"}, ["rw", "rw"], "serializable"
    ),
    "duplicate": Plant([t("a", X1)], {"x": (1, 1)}, Anomaly.DUPLICATE, {"final/0"}),
    "duplicate of one's own": Plant([t("a", X1, x(1, 1))], {"x": (1,)}, Anomaly.DUPLICATE, {"a/0"}),
    "lost append": Plant([t("a", X1), t("b", X2)], {"x": (2,)}, Anomaly.LOST_APPEND, {"a/0", "final/0"}),
    "lost after it was read": Plant([t("a", X1), t("b", x(1))], {"x": ()}, Anomaly.LOST_APPEND, {"a/0", "final/0"}),
    "half of a transaction of unknown outcome": Plant(
        [transaction("a", 1, None, X1, Y1, outcome="unknown"), t("b", x(1))], {"x": (1,), "y": ()}, Anomaly.LOST_APPEND, {"a/0", "final/0"}
    ),
    "lost append without a final read": Plant(
        [t("a", X1), t("b", x(), began=6, ended=8)], {}, Anomaly.LOST_APPEND, {"a/0", "b/0"}, realtime=True
    ),
    "own append not seen": Plant([t("a", X1, x())], {"x": (1,)}, Anomaly.INTERNAL, {"a/0"}),
    "unrepeatable read": Plant([t("a", x(), x(1)), t("b", X1)], {"x": (1,)}, Anomaly.INTERNAL, {"a/0"}),
    "reads that contradict": Plant([t("a", X1), t("b", X2), t("c", x(2))], {"x": (1, 2)}, Anomaly.INCOMPATIBLE_ORDER, {"c/0", "final/0"}),
    "appends turned round": Plant([t("a", X1, X2)], {"x": (2, 1)}, Anomaly.INCOMPATIBLE_ORDER, {"a/0"}),
    "own future": Plant([t("a", x(1), X1)], {"x": (1,)}, Anomaly.FUTURE_READ, {"a/0"}),
    "future": Plant(
        [t("a", x(1), began=1, ended=2), t("b", X1, began=3, ended=4)],
        {"x": (1,)},
        Anomaly.FUTURE_READ,
        {"a/0", "b/0"},
        ["realtime", "wr"],
        realtime=True,
    ),
    "unwritten": Plant([t("a", x(7))], {"x": ()}, Anomaly.UNWRITTEN, {"a/0"}),
    "stale read": Plant(
        [t("a", X1, began=1, ended=2), t("b", x(), began=3, ended=4)],
        {"x": (1,)},
        Anomaly.STALE_READ,
        {"a/0", "b/0"},
        ["realtime", "rw"],
        realtime=True,
    ),
    "stale read in one process": Plant(
        [t("a", X1, began=1, ended=2), Transaction("a", 1, 3, 4, (x(),), "ok")],
        {"x": (1,)},
        Anomaly.STALE_READ,
        {"a/0", "a/1"},
        ["process", "rw"],
        sessions=True,
    ),
    "appends against time": Plant(
        [t("a", X1, began=1, ended=2), t("b", X2, began=3, ended=4)],
        {"x": (2, 1)},
        Anomaly.WRITE_ORDER,
        {"a/0", "b/0"},
        ["realtime", "ww"],
        realtime=True,
    ),
    "write skew against time": Plant(
        [t("a", x(), began=4, ended=5), t("b", X1, y(), began=1, ended=5), t("c", Y1, began=1, ended=2)],
        {"x": (1,), "y": (1,)},
        Anomaly.STRICT_SKEW,
        {"a/0", "b/0", "c/0"},
        ["realtime", "rw", "rw"],
        "serializable",
        realtime=True,
    ),
}


def test_every_kind_is_planted() -> None:
    assert {plant.anomaly for plant in PLANTS.values()} == set(Anomaly)


@pytest.fixture(scope="module")
def serial() -> History:
    print("seed", SEED)
    return execute(SEED, 1_200, "serial")


@pytest.fixture(scope="module")
def snapshots() -> History:
    print("seed", SEED)
    return execute(SEED, 1_200, "snapshot")


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_found_and_named(plant: Plant, serial: History, snapshots: History) -> None:
    for clean in [serial] if plant.isolation == "serializable" else [serial, snapshots]:
        history = with_planted(clean, plant.transactions, plant.final)
        report = check(history, plant.isolation, realtime=plant.realtime, sessions=plant.sessions)
        assert report.anomalies == {plant.anomaly}, report
        (finding,) = report.findings
        assert set(finding.transactions) == plant.named, finding
        assert sorted(edge.kind for edge in finding.cycle) == sorted(plant.edges), finding
        for edge, following in zip(finding.cycle, [*finding.cycle[1:], *finding.cycle[:1]], strict=True):
            assert edge.target == following.source, finding
            assert edge.source in edge.words, edge
            assert edge.target in edge.words, edge
        assert all(name in str(finding) for name in plant.named), finding


@pytest.mark.parametrize("plant", [p for p in PLANTS.values() if p.realtime or p.sessions], ids=lambda p: str(p.anomaly))
def test_what_needs_the_order_in_time_is_not_found_without(plant: Plant, serial: History) -> None:
    assert check(with_planted(serial, plant.transactions, plant.final), plant.isolation).ok


@pytest.mark.parametrize("name", ["write skew", "write skew against time"])
def test_write_skew_is_but_a_note_under_snapshot(name: str, serial: History) -> None:
    plant = PLANTS[name]
    report = check(with_planted(serial, plant.transactions, plant.final), "snapshot", realtime=plant.realtime)
    assert report.ok
    assert [note.anomaly for note in report.notes] == [plant.anomaly]


def test_lost_update_whose_append_vanished(serial: History) -> None:
    report = check(with_planted(serial, [t("a", x(), X1), t("b", x(), X2)], {"x": (2,)}))
    assert report.anomalies == {Anomaly.LOST_UPDATE, Anomaly.LOST_APPEND}


def test_lost_update_that_nobody_read(serial: History) -> None:
    report = check(with_planted(serial, [t("a", x(), X1), t("b", x(), X2)], {}))
    assert report.anomalies == {Anomaly.LOST_UPDATE}
    assert [edge.kind for edge in report.findings[0].cycle] == [EdgeKind.RW, EdgeKind.RW]


def test_all_at_once(snapshots: History) -> None:
    """Plants with keys of their own are all found in one history, whatever surrounds them."""
    history = snapshots
    expected = set()
    for number, plant in enumerate(plant for plant in PLANTS.values() if not (plant.realtime or plant.sessions)):
        moved = [_renamed(each, number) for each in plant.transactions]
        history = with_planted(history, moved, {f"{key}{number}": elements for key, elements in plant.final.items()})
        expected.add(plant.anomaly)
    assert check(history, "serializable").anomalies == expected | {Anomaly.WRITE_SKEW}


def _renamed(each: Transaction, number: int) -> Transaction:
    ops = tuple(
        Append(f"{op.key}{number}", op.element) if isinstance(op, Append) else Read(f"{op.key}{number}", op.elements)
        for op in each.ops
        if isinstance(op, Append | Read)
    )
    return Transaction(f"{each.process}-{number}", each.index, each.began, each.ended, ops, each.outcome)
