"""What counts as committed, and what a report says."""

from __future__ import annotations

import json

from tests.proofs.histories.executors import transaction
from tiltyard_proofs.histories import Anomaly, Append, History, Read, Transaction, check


def final(**lists: tuple[int, ...]) -> Transaction:
    return Transaction("final", 0, 1_000, 1_001, tuple(Read(key, elements) for key, elements in lists.items()), "ok", final=True)


def unknown(process: str, *ops: Append | Read) -> Transaction:
    return transaction(process, 1, None, *ops, outcome="unknown")


def test_nothing_is_nothing_wrong() -> None:
    assert check(History(()), "serializable", realtime=True, sessions=True).ok


def test_an_unknown_outcome_may_go_either_way() -> None:
    maybe = unknown("a", Append("x", 1))
    assert check(History((maybe, final(x=()))), "serializable", realtime=True).committed == 1
    assert check(History((maybe, final(x=(1,)))), "serializable", realtime=True).committed == 2


def test_an_unknown_outcome_that_an_unknown_outcome_saw() -> None:
    """a was seen by b, and b by the final read, so both committed; c was seen by nobody who did."""
    parts = unknown("a", Append("x", 1), Append("y", 1)), unknown("b", Read("x", (1,)), Append("z", 1)), unknown("c", Append("z", 2))
    report = check(History((*parts, final(y=(1,), z=(1,)))), "serializable")
    assert report.ok, report
    assert report.committed == 3
    assert check(History((*parts, final(y=(), z=(1,))))).anomalies == {Anomaly.LOST_APPEND}
    assert check(History((*parts, final(y=(), z=())))).ok


def test_what_failed_transactions_read_does_not_matter() -> None:
    failed = transaction("a", 1, 2, Read("x", (7,)), Append("x", 1), Read("x", ()), outcome="failed")
    assert check(History((failed, final(x=()))), "serializable").ok


def test_reads_whose_answers_are_not_known_say_nothing() -> None:
    assert check(History((transaction("a", 1, 2, Read("x"), Append("x", 1)), final(x=(1,)))), "serializable").ok


def test_unknown_may_take_effect_after_its_process_went_on() -> None:
    late = Transaction("a", 0, 1, 2, (Append("x", 1),), "unknown")
    after = Transaction("a", 1, 3, 4, (Read("x", ()),), "ok")
    assert check(History((late, after, final(x=(1,)))), "serializable", realtime=True, sessions=True).ok


def test_appends_that_nobody_read_come_after_those_that_were() -> None:
    """b saw x without a's append and a saw y without b's: in no serial order, even if no read shows a's append."""
    a = transaction("a", 1, 9, Read("y", ()), Append("x", 2))
    b = transaction("b", 1, 9, Read("x", (1,)), Append("y", 1))
    parts = transaction("c", 1, 9, Append("x", 1)), a, b
    assert check(History(parts), "serializable").anomalies == {Anomaly.WRITE_SKEW}


def test_an_append_that_nobody_read_follows_the_last_that_was() -> None:
    """b's append to x came after a's, yet a saw what b appended to y; and the reader saw a, but not b."""
    a = transaction("a", 1, 9, Append("x", 1), Read("y", (1,)))
    b = transaction("b", 1, 9, Append("x", 2), Append("y", 1))
    reader = transaction("c", 1, 9, Read("x", (1,)))
    assert check(History((a, b, reader))).anomalies == {Anomaly.CIRCULAR_INFORMATION, Anomaly.READ_SKEW}


def test_an_append_that_nobody_could_have_read_is_not_lost() -> None:
    """With no final read, and the only read under way while the append was."""
    parts = transaction("a", 1, 5, Append("x", 1)), transaction("b", 5, 9, Read("x", ()))
    assert check(History(parts), "serializable", realtime=True).ok


def test_a_lost_update_does_not_hide_a_read_skew_between_the_same_two() -> None:
    early = transaction("a", 1, 9, Append("x", 1), Append("y", 1))
    late = transaction("b", 1, 9, Read("x", ()), Read("y", ()), Append("x", 2))
    assert check(History((early, late, final(x=(1, 2), y=(1,))))).anomalies == {Anomaly.LOST_UPDATE, Anomaly.READ_SKEW}


def test_many_findings_of_a_kind_are_counted_not_listed() -> None:
    parts = [transaction(f"p{number}", number * 10, number * 10 + 1, Append("x", number)) for number in range(40)]
    report = check(History((*parts, final(x=()))))
    assert len(report.findings) == 10
    assert report.omitted == ((Anomaly.LOST_APPEND, 30),)
    assert "and 30 more of lost-append" in str(report)


def test_a_hundred_read_skews_are_counted_too() -> None:
    parts: list[Transaction] = []
    for number in range(100):
        x, y = f"x{number}", f"y{number}"
        parts.append(transaction(f"w{number}", 1, 9, Append(x, 1), Append(y, 1)))
        parts.append(transaction(f"r{number}", 1, 9, Read(x, (1,)), Read(y, ())))
    report = check(History(tuple(parts)))
    assert len(report.findings) + dict(report.omitted)[Anomaly.READ_SKEW] == 100


def test_one_tangle_of_read_skews_is_counted_too() -> None:
    """All in one component, more than are put into words."""
    writer = transaction("w", 1, 9, Append("x", 1), *(Append(f"y{number}", 1) for number in range(100)))
    readers = [transaction(f"r{number}", 1, 9, Read("x", (1,)), Read(f"y{number}", ())) for number in range(100)]
    report = check(History((writer, *readers)))
    assert report.anomalies == {Anomaly.READ_SKEW}
    assert len(report.findings) + dict(report.omitted)[Anomaly.READ_SKEW] == 100


def test_a_report_in_words_and_as_json() -> None:
    a, b = (transaction(name, 1, 9, Read("x", ()), Append("x", element)) for name, element in (("a", 1), ("b", 2)))
    report = check(History((a, b, final(x=(1, 2)))))
    assert str(report).splitlines() == [
        "snapshot is broken, 1 findings: 3 transactions, 3 committed",
        "lost-update: b/0 read 'x' and appended 2 to it, but a/0 had appended 1 in between",
        "  rw: b/0 read 'x' without 1, which a/0 appended",
        "  ww: a/0 appended 1 to 'x', and b/0 appended 2 after it",
    ]
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["ok"] is False
    assert plain["findings"][0]["transactions"] == ["b/0", "a/0"]
    assert [edge["kind"] for edge in plain["findings"][0]["cycle"]] == ["rw", "ww"]
