"""Procedures about branches of the lake: merge, rebase, difference, one snapshot brought over or taken back, rules, a clone of the lake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tiltyard.merges import MergeResult
from tiltyard.spark.spark_lake import LakeSpark
from tiltyard.spark.sql_catalog.procedure_types import Parameter, Procedure, Values

MAIN: Final = "main"


def _told(done: MergeResult) -> list[Any]:
    """What every merge tells; the last column is what ``MergeResult.to_dict`` gives, as JSON."""
    return [done.snapshot, len(done.tables), len(done.conflicts), done.up_to_date, json.dumps(done.to_dict(), default=str)]


def _how(values: Values) -> dict[str, Any]:
    return {"message": values["message"], "dry_run": bool(values["dry_run"])}


def _settled(values: Values) -> dict[str, Any]:
    return {"on_conflict": values["on_conflict"] or "fail", **_how(values)}


def _merge(tables: LakeSpark, values: Values) -> list[Any]:
    return _told(tables.lake.branches.merge(values["source"], values["into"] or MAIN, **_settled(values)))


def _rebase(tables: LakeSpark, values: Values) -> list[Any]:
    return _told(tables.lake.branches.rebase(values["branch"], values["onto"], **_settled(values)))


def _cherry_pick(tables: LakeSpark, values: Values) -> list[Any]:
    return _told(tables.lake.branches.cherry_pick(values["source"], values["snapshot"], values["into"] or MAIN, **_settled(values)))


def _revert(tables: LakeSpark, values: Values) -> list[Any]:
    together = bool(values["all_writers"])
    return _told(tables.lake.branches.revert(values["snapshot"], values["branch"] or MAIN, all_writers=together, **_settled(values)))


def _restore(tables: LakeSpark, values: Values) -> list[Any]:
    return _told(tables.lake.branches.restore(values["snapshot"], values["branch"] or MAIN, **_how(values)))


def _diff(tables: LakeSpark, values: Values) -> list[Any]:
    """How many tables and rows differ; the last column has each table, as ``TableDifference.to_dict`` gives it, as JSON."""
    found = tables.lake.diff(values["before"], values["after"]).tables
    rows = [sum(getattr(table, name) for table in found) for name in ("added", "removed", "changed")]
    return [len(found), *rows, json.dumps([table.to_dict() for table in found], default=str)]


def _clone(tables: LakeSpark, values: Values) -> list[Any]:
    made = tables.lake.clone(values["uri"], values["snapshot"], message=values["message"])
    return [values["uri"], len(made.tables)]


def _protect(tables: LakeSpark, values: Values) -> list[Any]:
    writers, checks = (_listed(values[name]) for name in ("writers", "checks"))
    tables.lake.branches.protect(values["branch"], writers=writers, checks=checks or ())
    return [values["branch"], True]


def _unprotect(tables: LakeSpark, values: Values) -> list[Any]:
    tables.lake.branches.unprotect(values["branch"])
    return [values["branch"], False]


def _report_check(tables: LakeSpark, values: Values) -> list[Any]:
    detail = values["detail"] or ""
    done = tables.lake.branches.report_check(
        values["branch"], values["check"], values["passed"], snapshot=values["snapshot"], detail=detail
    )
    return [values["branch"], done.snapshot, done.passed]


def _listed(text: str | None) -> list[str] | None:
    """Names in a list with commas; None where none was given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


_MERGED: Final = "snapshot bigint, tables bigint, conflicts bigint, up_to_date boolean, report string"
_RULE: Final = "branch string, protected boolean"
_HOW: Final = (Parameter("message"), Parameter("dry_run", "boolean"))
_SETTLED: Final = (Parameter("on_conflict"), *_HOW)
_SNAPSHOT: Final = Parameter("snapshot", "bigint", required=True)
_BRANCH: Final = Parameter("branch", required=True)
_SOURCE: Final = Parameter("source", required=True)

BRANCH_PROCEDURES: Final[Mapping[str, Procedure]] = {
    "merge_branch": Procedure("Merges a branch into another.", (_SOURCE, Parameter("into"), *_SETTLED), _MERGED, _merge),
    "rebase_branch": Procedure("Brings a branch up to date with its target.", (_BRANCH, Parameter("onto"), *_SETTLED), _MERGED, _rebase),
    "cherry_pick": Procedure(
        "Applies one snapshot of a branch to another branch.", (_SOURCE, _SNAPSHOT, Parameter("into"), *_SETTLED), _MERGED, _cherry_pick
    ),
    "revert": Procedure(
        "Reverts what one snapshot changed.",
        (_SNAPSHOT, Parameter("branch"), *_SETTLED, Parameter("all_writers", "boolean")),
        _MERGED,
        _revert,
    ),
    "restore_snapshot": Procedure(
        "Gives all tables the content they had at a snapshot.", (_SNAPSHOT, Parameter("branch"), *_HOW), _MERGED, _restore
    ),
    "diff": Procedure(
        "Compares two snapshots of the lake: branches, tags or 'branch@number'.",
        (Parameter("before", required=True), Parameter("after", required=True)),
        "tables bigint, added bigint, removed bigint, changed bigint, report string",
        _diff,
    ),
    "clone_lake": Procedure(
        "Makes a new lake of a snapshot, over the same files.",
        (Parameter("uri", required=True), Parameter("snapshot", "bigint"), Parameter("message")),
        "uri string, tables bigint",
        _clone,
    ),
    "protect_branch": Procedure(
        "Says who may commit to a branch, and after which checks.", (_BRANCH, Parameter("writers"), Parameter("checks")), _RULE, _protect
    ),
    "unprotect_branch": Procedure("Removes the protection of a branch.", (_BRANCH,), _RULE, _unprotect),
    "report_check": Procedure(
        "Records the result of a check of a branch.",
        (
            _BRANCH, Parameter("check", required=True), Parameter("passed", "boolean", required=True), Parameter("snapshot", "bigint"),
            Parameter("detail"),
        ),
        "branch string, snapshot bigint, passed boolean",
        _report_check,
    ),
}  # fmt: skip
