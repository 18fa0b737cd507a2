"""The public names: what is promised is there, what is there is promised, and each says what it is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from types import ModuleType

import pytest

import tiltyard
import tiltyard.testing

SHELVES = (
    "tiltyard",
    "tiltyard.conflicts",
    "tiltyard.distributed",
    "tiltyard.ops",
    "tiltyard.locks",
    "tiltyard.merges",
    "tiltyard.outcomes",
    "tiltyard.metrics",
    "tiltyard.testing",
)


def _exported(module: ModuleType) -> set[str]:
    """Everything a user finds in a module that is neither private nor one of its own submodules."""
    names = {name for name in vars(module) if not name.startswith("_")}
    return {name for name in names if not _is_room(module, name)} - {"annotations"}


def _is_room(module: ModuleType, name: str) -> bool:
    """A submodule that stands there only because it was imported somewhere."""
    found = getattr(module, name)
    return inspect.ismodule(found) and name not in module.__all__


@pytest.mark.parametrize("shelf", SHELVES)
def test_all_is_what_is_exported(shelf: str) -> None:
    module = importlib.import_module(shelf)
    assert set(module.__all__) - {"__version__"} == _exported(module)


@pytest.mark.parametrize("package", ["tiltyard.spark", "tiltyard.pipeline", "tiltyard.testing"])
def test_no_submodule_takes_the_place_of_a_public_name(package: str) -> None:
    """Python sets a submodule as an attribute of its package when it is imported: ``ty.spark.sql`` was the function only until then."""
    module = importlib.import_module(package)
    beneath = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert beneath
    assert beneath & set(module.__all__) == set()


@pytest.mark.parametrize("shelf", SHELVES)
def test_all_is_sorted_and_each_name_stands_once(shelf: str) -> None:
    names = list(importlib.import_module(shelf).__all__)
    assert names == sorted(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("shelf", SHELVES)
def test_every_public_name_says_what_it_is(shelf: str) -> None:
    module = importlib.import_module(shelf)
    assert module.__doc__
    silent = [name for name in module.__all__ if not _is_alias(getattr(module, name)) and not inspect.getdoc(getattr(module, name))]
    # A dataclass without a docstring gets its signature for one, which says nothing.
    silent += [name for name in module.__all__ if (inspect.getdoc(getattr(module, name)) or "").startswith(f"{name}(")]
    assert [name for name in silent if name not in _PLAIN_VALUES] == []


_PLAIN_VALUES = frozenset({"__version__", "DataFile", "BasePath", "WriterVersion", "DataFormat", "IndexFile"})
"""Values whose fields are all there is to say."""


def _is_alias(found: object) -> bool:
    """A name for a type that has no docstring of its own: a union, a callable."""
    return isinstance(found, types.UnionType | types.GenericAlias) or not (
        inspect.isclass(found) or callable(found) or inspect.ismodule(found)
    )


def test_every_method_of_table_says_what_it_does() -> None:
    obvious = {"uri", "version", "schema", "primary_key"}
    members = {name for name in dir(tiltyard.Table) if not name.startswith("_")} - obvious
    assert {name for name in members if not inspect.getdoc(inspect.getattr_static(tiltyard.Table, name))} == set()


def test_the_names_the_design_promises() -> None:
    """Other code relies on these: names are added, never taken away or changed."""
    promised = (
        "create open uri version schema branch refresh count_rows to_arrow scan lance append overwrite delete update merge history tags "
        "branches changes check commit compact cleanup clone restore create_index drop_index add_columns alter_columns drop_columns "
        "update_config update_field_metadata indices maintenance settings distributed transactions layout"
    )
    assert set(promised.split()) <= set(dir(tiltyard.Table))
    operations = (
        "Append Delete Overwrite CreateIndex Rewrite Merge Project Restore ReserveFragments Clone Update UpdateConfig DataReplacement "
        "UpdateMemWalState UpdateBases"
    )
    assert set(operations.split()) <= set(tiltyard.ops.__all__)
    assert {"Table", "TableReader", "Transaction", "CommitResult", "CommitOptions", "FileLimits", "Storage"} <= set(tiltyard.__all__)
    assert {"Committed", "NotCommitted", "Unknown"} <= set(tiltyard.outcomes.__all__)
    assert {"resolve", "Verdict", "Compatible", "Rebase", "Retry", "Incompatible"} <= set(tiltyard.conflicts.__all__)
