"""Protected branches: who may write, what must be checked before a merge, on every way into the branch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.lakes import InterposedRecords, Site, foreign_append, ids, numbers, stock, through, uri_of
from tests.support.lost_catalogs import lose_catalog, rebuild, restore
from tiltyard.errors import InvalidInput, NotFound, ProtectedBranch
from tiltyard.lake import Lake
from tiltyard.merges import BranchProtection

Way = Callable[[Lake], object]


def transaction(lake: Lake) -> None:
    with lake.transaction() as tx:
        tx.table("a").append(numbers(9))
        tx.table("b").append(numbers(9))


WAYS: dict[str, Way] = {
    "append": lambda lake: lake.table("a").append(numbers(9)),
    "delete": lambda lake: lake.table("a").delete("id = 1"),
    "transaction": transaction,
    "create": lambda lake: lake.create_table("new", numbers(1)),
    "drop": lambda lake: lake.drop_table("a"),
    "rename": lambda lake: lake.rename_table("a", "c"),
    "cherry-pick": lambda lake: lake.branches.cherry_pick("side", lake.on_branch("side").snapshot().id),
    "revert": lambda lake: lake.branches.revert(lake.snapshot().id),
    "restore": lambda lake: lake.branches.restore(1),
    "merge": lambda lake: lake.branches.merge("side"),
    "fast-forward": lambda lake: lake.branches.fast_forward("side"),
}


def prepared(site: Site) -> tuple[Lake, Lake]:
    """The same lake as two authors see it, with a branch that has something to bring."""
    ada = site.open(author="ada")
    with ada.transaction() as tx:
        for name in "ab":
            tx.create_table(name, numbers(1))
    ada.table("b").append(numbers(2))
    ada.branches.create("side")
    ada.on_branch("side").table("a").append(numbers(5))
    return ada, site.open(author="bob")


def test_only_writers_get_into_a_protected_branch(site: Site) -> None:
    ada, bob = prepared(site)
    rule = ada.branches.protect("main", writers=["ada", "carl"])
    assert (rule, bob.branches.protection("main")) == (BranchProtection(("ada", "carl")),) * 2
    before = ada.snapshot().id
    for name, way in WAYS.items():
        with pytest.raises(ProtectedBranch) as caught:
            way(bob)
        assert (caught.value.branch, caught.value.author, caught.value.writers) == ("main", "bob", ("ada", "carl")), name
        assert (bob.snapshot().id, ids(bob.table("a"))) == (before, [1]), name
    for change in (lambda: bob.branches.unprotect("main"), lambda: bob.branches.protect("main", checks=["x"])):
        with pytest.raises(ProtectedBranch):
            change()
    bob.on_branch("side").table("b").append(numbers(6))  # other branches are free
    bob.branches.merge("main", into="side")
    for name in ("append", "transaction", "merge", "revert"):
        WAYS[name](ada)
    assert ids(ada.table("b")) == [1, 2, 9]
    ada.branches.unprotect("main")
    WAYS["append"](bob)
    assert ada.branches.protection("main") is None
    assert ada.check().problems == ()


def test_a_branch_with_checks_changes_by_merges_of_what_passed(site: Site) -> None:
    ada, bob = prepared(site)
    ada.branches.protect("main", checks=["nightly", "rows"])
    for name, way in WAYS.items():
        with pytest.raises(ProtectedBranch) as caught:
            way(ada)
        assert caught.value.checks == ("nightly", "rows"), name
    ada.table("b").maintenance.compact()  # rows stay as they are
    side = ada.on_branch("side")
    for check in ("nightly", "rows"):
        bob.branches.report_check("side", check, passed=True, detail="fine")
    assert [(check.name, check.passed, check.author) for check in ada.branches.checks("side")] == [
        ("nightly", True, "bob"), ("rows", True, "bob")
    ]  # fmt: skip
    side.table("a").append(numbers(6))  # unchecked again
    with pytest.raises(ProtectedBranch, match="nightly, rows"):
        ada.branches.merge("side")
    checked = side.snapshot().id
    ada.branches.report_check("side", "nightly", passed=True, snapshot=checked)
    ada.branches.report_check("side", "rows", passed=False, snapshot=checked)
    with pytest.raises(ProtectedBranch) as caught:
        ada.branches.merge("side")
    assert caught.value.checks == ("rows",)
    ada.branches.report_check("side", "rows", passed=True, snapshot=checked)
    ada.branches.merge("side")
    assert ids(ada.table("a")) == [1, 5, 6]
    assert ada.check().problems == ()


def test_a_check_that_fails_while_the_merge_is_at_work(site: Site) -> None:
    ada, bob = prepared(site)
    ada.branches.protect("main", checks=["rows"])
    ada.branches.report_check("side", "rows", passed=True)
    through(bob, lambda inner: InterposedRecords(inner, lambda: ada.branches.report_check("side", "rows", passed=False)))
    with pytest.raises(ProtectedBranch):
        bob.branches.merge("side")
    ada.branches.report_check("side", "rows", passed=True)
    other = site.open(author="bob")
    through(other, lambda inner: InterposedRecords(inner, lambda: ada.branches.protect("main", writers=["ada"])))
    with pytest.raises(ProtectedBranch):
        other.branches.merge("side")
    assert ids(ada.table("a")) == [1]


def test_a_fast_forward_of_what_passed_and_into_a_protected_branch(site: Site) -> None:
    ada, bob = prepared(site)
    ada.branches.protect("main", checks=["rows"])
    ada.branches.report_check("side", "rows", passed=True)
    ada.branches.protect("side", writers=["ada"])
    with pytest.raises(ProtectedBranch) as caught:
        bob.branches.fast_forward("side")
    assert caught.value.branch == "side", "it would get what main has"
    ada.branches.fast_forward("side")
    assert ids(bob.table("a")) == [1, 5]
    assert ada.branches.protection("side") == BranchProtection(("ada",)), "the rule goes on with the branch"
    assert ada.branches.checks("side") == [], "the line that was checked has ended"
    ada.branches.protect("side", checks=["rows"])
    with pytest.raises(ProtectedBranch):
        ada.branches.fast_forward("side")


def test_a_rule_ends_with_its_branch(site: Site) -> None:
    ada, bob = prepared(site)
    ada.branches.protect("side", writers=["ada"])
    ada.branches.report_check("side", "rows", passed=True)
    for lake in (ada, bob):
        with pytest.raises(ProtectedBranch, match="protected"):
            lake.branches.delete("side")
    ada.branches.unprotect("side")
    bob.branches.delete("side")
    bob.branches.create("side")
    assert (bob.branches.protection("side"), bob.branches.checks("side")) == (None, [])
    bob.on_branch("side").table("a").append(numbers(7))


def test_foreign_writers_are_noted_not_prevented(site: Site) -> None:
    """They do not ask the catalog: their versions are there. What follows them is held to the rule."""
    ada, bob = prepared(site)
    ada.branches.protect("main", writers=["ada"], checks=["rows"])
    foreign_append(uri_of(ada, "a"), 88)
    with pytest.raises(ProtectedBranch):
        bob.table("a").append(numbers(9))
    ada.table("a").maintenance.compact()
    assert ids(ada.table("a")) == sorted(stock(ada, "a").to_table()["id"].to_pylist()) == [1, 88]
    assert any(step.message.startswith("adopted from") for step in ada.history(limit=3))
    assert ada.check().problems == ()


def test_a_backup_has_the_rule_and_what_came_since_is_noted_all_the_same(site: Site, tmp_path: Path) -> None:
    ada, bob = prepared(site)
    ada.branches.protect("main", writers=["ada"])
    ada.backup(tmp_path / "backup")
    ada.branches.unprotect("main")
    bob.table("a").append(numbers(9))
    ada.branches.protect("main", writers=["ada", "eve"])
    rules = site.directory / "_tiltyard" / "lake" / "rules"
    lose_catalog(site)
    for rule in (BranchProtection(("ada", "eve")), BranchProtection(("ada",))):
        restore(site, tmp_path / "backup", replace=True)
        bob = site.open(author="bob")
        assert (bob.branches.protection("main"), ids(bob.table("a"))) == (rule, [1, 9])
        with pytest.raises(ProtectedBranch):
            bob.table("a").append(numbers(10))
        shutil.rmtree(rules, ignore_errors=True)  # then the backup is all there is


@pytest.mark.parametrize("journal", ["as it was written", "written again by a cleanup"])
def test_a_rebuilt_catalog_protects_what_was_protected(site: Site, journal: str) -> None:
    ada, _ = prepared(site)
    ada.branches.protect("main", writers=["ada"], checks=["rows"])
    ada.branches.protect("side", writers=["ada"])
    ada.branches.report_check("side", "rows", passed=True)
    ada.branches.fast_forward("side")  # it has another id from now on, and keeps its rule
    for name in ("free", "again"):
        ada.branches.create(name)
        ada.branches.protect(name, writers=["ada"])
        ada.branches.unprotect(name)
    ada.branches.protect("again", checks=["rows"])
    rules = {name: ada.branches.protection(name) for name in ("main", "side", "free", "again")}
    if journal != "as it was written":
        shutil.rmtree(site.directory / "_tiltyard" / "lake" / "rules")
        ada.cleanup()
    lose_catalog(site)
    assert rebuild(site).complete
    bob = site.open(author="bob")
    assert {name: bob.branches.protection(name) for name in rules} == rules
    for lake in (bob, bob.on_branch("side")):
        with pytest.raises(ProtectedBranch):
            lake.table("a").append(numbers(10))


def test_a_branch_made_again_does_not_get_the_rule_of_the_one_before(site: Site) -> None:
    ada, _ = prepared(site)
    ada.branches.protect("side", writers=["ada"])
    entry = site.directory / "_tiltyard" / "lake" / "rules" / "side.json"
    kept = entry.read_bytes()
    ada.branches.unprotect("side")
    ada.branches.delete("side")
    ada.branches.create("side")
    entry.write_bytes(kept)  # as if nothing had been written since
    lose_catalog(site)
    rebuild(site)
    assert site.open(author="bob").branches.protection("side") is None


def test_a_rule_outlives_cleanups_and_many_commits(site: Site) -> None:
    ada, bob = prepared(site)
    ada.branches.protect("main", writers=["ada"])
    ada.cleanup(keep_snapshots=1, grace=timedelta(0))
    ada.table("a").append(numbers(3))
    with pytest.raises(ProtectedBranch):
        bob.table("a").append(numbers(4))
    for _ in range(70):  # over a bucket of snapshots
        ada.table("a").append(numbers(4))
    assert bob.branches.protection("main") == BranchProtection(("ada",))


def test_rules_that_make_no_sense(site: Site) -> None:
    ada, _ = prepared(site)
    rules: list[Any] = [{}, {"writers": []}, {"writers": "ada"}, {"checks": "rows"}, {"checks": ["no such/name"]}, {"writers": ["a\0"]}]
    for rule in rules:
        with pytest.raises(InvalidInput):
            ada.branches.protect("main", **rule)
    for ask in (ada.branches.protection, ada.branches.unprotect, ada.branches.checks):
        for name in ("nope", "", 7):
            with pytest.raises(NotFound):
                ask(name)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        ada.branches.report_check("side", "rows", passed=True, snapshot=99)
    with pytest.raises(NotFound):
        ada.branches.report_check("nope", "rows", passed=True)
    ada.branches.unprotect("main")
