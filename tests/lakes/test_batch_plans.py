"""Who fits into a batch, by the records as they are; and what the decision says about members, whoever planned it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tiltyard.catalog.batch_offers import BatchOffer, OfferedRows
from tiltyard.catalog.lake_values import Change, ExpectedHead, Publication, SnapshotMember, TableHead, VersionStep
from tiltyard.catalog.publishing import MembersError, StaleError, decide, locks
from tiltyard.catalog.records import Body
from tiltyard.catalog.value_codec import head_to_body, idempotency_key, name_key, table_key, tip_key, transaction_key
from tiltyard.lakes.lake_batches import BatchPlan, keys_of, member_of
from tiltyard.transaction.operations import Append
from tiltyard.transaction.transaction import Transaction

NOW = datetime(2026, 11, 19, tzinfo=UTC)
LINE = "line-of-main"


def head(table: str, version: int = 4, **more: Any) -> TableHead:
    facts = {"data_version": version, "transaction": f"made-{table}-{version}", "owner": LINE, "appends_since": 2, **more}
    return TableHead(table, f"name-{table}", f"{table}.lance", version, **facts)


def records(*heads: TableHead, **tip: Any) -> dict[str, Body]:
    found: dict[str, Body] = {tip_key("main"): {"snapshot": 9, "names": 1, "at": NOW.isoformat(), "line": LINE, **tip}}
    for each in heads or (head("a"), head("b"), head("c")):
        found[table_key("main", each.id)] = head_to_body(each)
        found[name_key("main", each.name)] = {"table": each.id}
    return found


def offer(name: str, *tables: str, base: int = 4, rows: bool = True, **more: Any) -> BatchOffer:
    changes = tuple(
        Change(
            table, "write", f"name-{table}", base, base, (VersionStep(base + 1, "path", f"staged/{name}", name, "Append"),),
            base_branch="", base_transaction=f"made-{table}-{base}",
        )
        for table in tables
    )  # fmt: skip
    publication = Publication(name, changes, line=LINE, **{"base": 8, "author": "me", **more})
    brought = OfferedRows("columns", (Transaction(base, f"of-{name}", Append(())),))
    return BatchOffer(publication, dict.fromkeys(tables, brought) if rows else {}, durability="os")


def taken(found: dict[str, Body], *offers: BatchOffer) -> list[str]:
    plan = BatchPlan(offers[0].publication, found)
    return [each.transaction for each in offers if plan.take(each)]


def test_what_is_written_by_one_stays_as_it_is_and_the_rest_is_folded() -> None:
    plan = BatchPlan(offer("one", "a").publication, records())
    for each in (offer("one", "a", "b"), offer("two", "a", "c")):
        assert plan.take(each)
    assert plan.folded == {"a"}
    assert {table: [each.transaction for each in several] for table, several in plan.writers.items()} == {
        "a": ["one", "two"], "b": ["one"], "c": ["two"],
    }  # fmt: skip


def test_each_member_writes_to_a_table_of_the_leader() -> None:
    assert taken(records(), offer("one", "a"), offer("two", "b"), offer("three", "a", "b")) == ["one", "three"]


def test_rows_go_over_rows_and_over_nothing_else() -> None:
    moved = records(head("a", 7), head("b"))
    assert taken(moved, offer("one", "a")) == ["one"]
    assert taken(records(head("a", 7, appends_since=5)), offer("one", "a")) == []
    assert taken(records(head("a", 7, appends_since=-1)), offer("one", "a")) == []
    assert taken(records(head("a", 3)), offer("one", "a")) == []
    assert taken(moved, offer("one", "a", rows=False)) == []
    assert taken(records(), offer("one", "a", rows=False)) == ["one"]
    assert taken(records(), offer("one", "a", rows=False), offer("two", "a")) == ["one"]
    assert taken(records(), offer("one", "a"), offer("two", "a", rows=False)) == ["one"]


def test_a_head_that_is_another_one_is_not_built_on() -> None:
    assert taken(records(head("a", transaction="another")), offer("one", "a", rows=False)) == []
    assert taken(records(head("a", owner="another line")), offer("one", "a")) == []
    assert taken(records(head("a", quarantine="why")), offer("one", "a")) == []
    assert taken(records(head("a", refused=5)), offer("one", "a")) == []
    assert taken(records(head("b")), offer("one", "a")) == []


def test_columns_are_those_of_all() -> None:
    other = offer("two", "a")
    other = replace(other, rows={"a": replace(other.rows["a"], columns="others")})
    assert taken(records(), offer("one", "a"), other) == ["one"]


def test_what_is_decided_is_left_out() -> None:
    several = [offer("one", "a"), offer("two", "a", key="k"), offer("three", "a", key="k")]
    assert taken(records(), *several) == ["one", "two"]
    assert taken({**records(), transaction_key("two"): {"state": "aborted"}}, *several) == ["one", "three"]
    assert taken({**records(), idempotency_key("k"): {"transaction": "x", "snapshot": 3}}, *several) == ["one"]


def test_one_that_stands_in_the_line_twice_is_taken_once() -> None:
    assert taken(records(), offer("one", "a"), offer("two", "a"), offer("two", "a"), offer("one", "a")) == ["one", "two"]


def test_the_branch_and_its_line_are_the_leaders() -> None:
    assert taken(records(), offer("one", "a"), offer("two", "a", branch="dev")) == ["one"]
    assert taken(records(line="another"), offer("one", "a")) == []
    assert taken(records(expired=9), offer("one", "a")) == []
    assert taken(records(protected={"writers": None, "checks": []}), offer("one", "a")) == []
    assert taken({}, offer("one", "a")) == []


def test_reads_hold_and_nobody_before_writes_what_was_read() -> None:
    def reads(level: str, **more: Any) -> BatchOffer:
        read = ExpectedHead("b", "name-b", 4, 4, level)  # type: ignore[arg-type]
        return offer("reads", "a", reads=(read,), isolation="serializable", **more)

    for level in ("rows", "table"):
        assert taken(records(), reads(level)) == ["reads"]
        assert taken(records(head("a"), head("b", 5)), reads(level)) == []
        assert taken(records(), offer("one", "a", "b"), reads(level)) == ["one"]
        assert taken(records(), reads(level), offer("one", "a", "b")) == ["reads", "one"]
    assert taken(records(), offer("one", "a", "b"), reads("name")) == ["one", "reads"]
    assert taken(records(head("a"), head("b", 5, data_version=4)), reads("rows")) == ["reads"]
    assert taken(records(head("a")), reads("name")) == []
    assert taken(records(head("a"), replace(head("b"), name="other")), reads("name")) == []
    assert taken(records(), offer("one", "a", absent=("name-c",))) == []
    assert taken(records(), offer("one", "a", absent=("name-d",))) == ["one"]
    assert taken(records(), offer("one", "a", names=1)) == ["one"]
    assert taken(records(), offer("one", "a", names=0)) == []


def test_a_plan_asks_for_all_that_it_looks_at() -> None:
    read = ExpectedHead("b", "name-b", 4, 4)
    asked = keys_of([offer("one", "a", reads=(read,), absent=("gone",), key="k")])
    assert asked == {
        tip_key("main"), table_key("main", "a"), table_key("main", "b"), name_key("main", "gone"),
        transaction_key("one"), idempotency_key("k"),
    }  # fmt: skip


# ---- the decision --------------------------------------------------------------------------------------------------------------


def batch(*members: SnapshotMember, **more: Any) -> Publication:
    return replace(offer("batch", "a").publication, members=members, **more)


def member(name: str, **more: Any) -> SnapshotMember:
    return SnapshotMember(name, "me", **{"tables": ("a",), "base": 8, **more})


def refused(publication: Publication, found: dict[str, Body]) -> tuple[str, ...]:
    with pytest.raises(MembersError) as raised:
        decide(publication, found, NOW)
    return raised.value.members


def test_a_batch_leaves_a_record_and_the_key_of_each_member() -> None:
    publication = batch(member("one", key="k1"), member("two"))
    writes = decide(publication, records(), NOW)
    exclusive, _ = locks(publication)
    assert set(writes.put) - {"snapshot/main/0000000000000000/00000000000000000010", "pending/a/@00000000000000000005"} <= set(exclusive)
    assert {"transaction/one", "transaction/two", "key/k1"} <= set(exclusive)
    assert writes.put["transaction/one"]["leader"] == writes.put["transaction/two"]["leader"] == "batch"
    assert writes.put["transaction/one"]["key"] == "k1"
    assert writes.put["key/k1"] == {"transaction": "one", "snapshot": 10}
    assert writes.put["transaction/batch"]["members"] == ["one", "two"]
    assert "key" not in writes.put["transaction/batch"]


def test_members_that_were_decided_are_named_and_nothing_is_written() -> None:
    publication = batch(member("one", key="k1"), member("two", key="k2"), member("three", key="k2"))
    assert refused(publication, records()) == ("three",)
    assert refused(batch(member("one"), member("two")), {**records(), "transaction/two": {"state": "aborted"}}) == ("two",)
    used = {**records(), "key/k1": {"transaction": "x", "snapshot": 3}}
    assert refused(batch(member("one", key="k1")), used) == ("one",)


def test_a_batch_names_each_of_its_members_once() -> None:
    assert refused(batch(member("one"), member("two"), member("one")), records()) == ("one",)


def test_a_member_as_old_as_what_has_expired_is_refused() -> None:
    assert refused(batch(member("one"), member("two", base=4), base=8), records(expired=5)) == ("two",)
    assert decide(batch(member("one")), records(expired=5), NOW).result.snapshot == 10
    assert decide(batch(member("two", base=4, tables=()), base=8), records(expired=5), NOW).result.snapshot == 10, "of a single verb"


def test_what_members_read_is_looked_at_under_the_lock() -> None:
    publication = batch(member("one"), reads=(ExpectedHead("b", "name-b", 3, 3),))
    with pytest.raises(StaleError):
        decide(publication, records(), NOW)


def test_a_member_is_noted_as_it_is() -> None:
    known = member_of(offer("one", "a", "b", message="m", properties={"x": "1"}, key="k", isolation="serializable"))
    assert known == SnapshotMember("one", "me", "m", {"x": "1"}, ("a", "b"), "serializable", 8, "k")
