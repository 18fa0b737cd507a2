"""Limits of the public API: how many parameters a verb takes, how many members a table has, and that no option list is hidden."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

import tiltyard as ty
from tiltyard.merges import LakeDiff
from tiltyard.pipeline import Pipeline
from tiltyard.spark import LakeSpark, SparkMerge, SparkReader, SparkTable, TransactionSpark

MOST: Final = 6
"""Parameters that a verb takes."""
MOST_TO_MAKE: Final = 8
"""Parameters of what creates or opens a table or a lake: beside what is made, these say where."""
EXCEPTIONS: Final = {"Lake.open": 9}
"""Three of them are shorthands for members of ``Storage``; a token is what everybody who uses a server types."""
MAKING: Final = {"create", "open", "create_table", "new_table"}
MEMBERS: Final = 34
"""Members of a table, beside the shorthands."""
SHORTHANDS: Final = (
    "check", "cleanup", "compact", "config", "create_index", "drop_index", "list_indices", "scan_task", "update_config",
    "update_field_metadata", "versions",
)  # fmt: skip
"""Members that only repeat one of a sub-object, for code that calls them as members. No others are to come."""

HANDLES: Final = (
    ty.Table, ty.TableReader, ty.TableWriter, ty.LakeTable, ty.LakeReader, ty.TransactionTable, ty.Lake, ty.LakeSnapshot,
    ty.LakeTransaction, ty.MergeBuilder, ty.BatchWriter, ty.ShardedTable, ty.ShardedTransactionTable, ty.ShardedReader,
    SparkReader, SparkTable, SparkMerge, LakeSpark, TransactionSpark, ty.RemoteLake, ty.RemoteTransaction, LakeDiff, Pipeline,
)  # fmt: skip
SHELVES: Final = ("tiltyard", "tiltyard.conflicts", "tiltyard.distributed", "tiltyard.outcomes", "tiltyard.ops", "tiltyard.locks",
                  "tiltyard.metrics", "tiltyard.merges", "tiltyard.telemetry", "tiltyard.spark")  # fmt: skip


def _sub_objects() -> Iterator[type]:
    for handle in (ty.TableReader, ty.TableWriter, ty.Table, ty.Lake):
        for name in ("layout", "settings", "indices", "maintenance", "distributed", "transactions", "tags", "branches"):
            found = inspect.getattr_static(handle, name, None)
            getter = getattr(found, "fget", None) or getattr(found, "func", None)
            if getter is not None:
                yield inspect.get_annotations(getter, eval_str=True)["return"]


def _callables(kind: type) -> Iterator[tuple[str, Any]]:
    for name, found in inspect.getmembers(kind, callable):
        if not name.startswith("_"):
            yield f"{kind.__name__}.{name}", found


def _public() -> list[tuple[str, Any]]:
    kinds = dict.fromkeys([*HANDLES, *_sub_objects()])
    found = [pair for kind in kinds for pair in _callables(kind)]
    for shelf in SHELVES:
        module = importlib.import_module(shelf)
        found += [(f"{shelf}.{name}", getattr(module, name)) for name in module.__all__ if inspect.isfunction(getattr(module, name))]
    return found


PUBLIC: Final = _public()


def test_there_are_some() -> None:
    names = {name for name, _ in PUBLIC}
    assert {
        "Table.append",
        "TableIndices.create",
        "TableMaintenance.cleanup",
        "SparkTable.merge",
        "tiltyard.distributed.once",
        "LakeBranches.merge",
    } <= names
    assert len(names) > 150


@pytest.mark.parametrize(("name", "found"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_a_verb_takes_few_parameters_and_says_which(name: str, found: Any) -> None:
    parameters = [one for one in inspect.signature(found).parameters.values() if one.name != "self"]
    assert not [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD], "no options that nobody can look up"
    verb = name.rpartition(".")[2]
    most = EXCEPTIONS.get(name, MOST_TO_MAKE if verb in MAKING else MOST)
    assert len(parameters) <= most, [one.name for one in parameters]


@pytest.mark.parametrize("old", ["max_retries", "retries", "properties", "max_rows_per_file", "max_bytes_per_file", "from_version"])
def test_no_verb_of_a_table_writes_an_option_list_out(old: str) -> None:
    verbs = [(name, found) for name, found in PUBLIC if name != "Lake.transaction"]
    assert [name for name, found in verbs if old in inspect.signature(found).parameters] == []


def test_a_table_has_few_members() -> None:
    names = {name for name in dir(ty.Table) if not name.startswith("_")}
    assert names >= {*SHORTHANDS}
    assert len(names - {*SHORTHANDS}) <= MEMBERS, sorted(names)


@pytest.mark.parametrize("name", SHORTHANDS)
def test_a_shorthand_says_what_it_stands_for(name: str) -> None:
    if name == "check":  # which readers have, and no ``maintenance``
        return
    group, _, verb = (inspect.getdoc(getattr(ty.Table, name)) or "").removeprefix("Shorthand for ``t.").rstrip("`.").partition(".")
    kind = inspect.get_annotations(inspect.getattr_static(ty.Table, group).fget, eval_str=True)["return"]
    assert hasattr(kind, verb)


def test_handles_that_cannot_do_it_do_not_have_the_verb() -> None:
    assert issubclass(ty.Table, ty.TableReader)
    assert issubclass(ty.LakeTable, ty.TableWriter)
    verbs = {"append", "overwrite", "delete", "update", "merge", "commit", "compact", "restore", "create_index", "maintenance", "cleanup"}
    readers: list[type] = [ty.TableReader, ty.LakeReader]
    of_a_lake: list[type] = [ty.LakeTable, ty.TransactionTable, ty.LakeReader]
    assert [kind for kind in readers if verbs & set(dir(kind))] == []
    assert [kind for kind in of_a_lake if {"create", "open", "cleanup"} & set(dir(kind))] == []
    assert not {"clone", "tags", "branches"} & set(dir(ty.TransactionTable))


def test_no_two_public_classes_have_one_name() -> None:
    kinds = set()
    for shelf in (*SHELVES, "tiltyard.errors"):
        module = importlib.import_module(shelf)
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        kinds |= {kind for name in names if inspect.isclass(kind := getattr(module, name)) and kind.__module__.startswith("tiltyard")}
    counts = Counter(kind.__name__ for kind in kinds)
    assert [name for name, count in counts.items() if count > 1] == []
