"""Statements that read the table they write to: what they replace must be what they read.

Spark resolves a table when it analyzes a statement. Rows that somebody adds or changes between that and the commit would be replaced by
rows that do not know of them. So such a statement reads the version that it stands on when it is executed, in a transaction that is
executed again if anybody else commits to the table meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tiltyard.errors import ConflictError
from tiltyard.spark.read.read_pins import pinned_at
from tiltyard.spark.sql_catalog.catalog_tables import target_of
from tiltyard.spark.statements.sql_plans import as_list, kind_of
from tiltyard.spark.target import Address


@dataclass(frozen=True, slots=True)
class SelfReads:
    """Where a plan reads the table that it writes to.

    Attributes:
        marks: of scans that can be told which version they read.
        cached: versions that a cache of Spark holds rows of, which cannot.
    """

    marks: tuple[str, ...] = ()
    cached: tuple[int, ...] = ()

    @classmethod
    def of(cls, request: Mapping[str, Any], name: str, query: Any) -> SelfReads:
        """Those at the table's latest version: a statement that names another one means just that."""
        asked = replace(target_of(request), table=name).to_options().items()
        found = [(facts, cached) for facts, cached in _facts(query, cached=False) if facts["latest"] and asked <= facts["options"].items()]
        marks = dict.fromkeys(facts["id"] for facts, cached in found if not cached)
        return cls(tuple(marks), tuple(Address.from_json(facts["address"]).version for facts, cached in found if cached))

    def beside(self, mark: str) -> SelfReads:
        """These and the scan of the rows that are changed."""
        return replace(self, marks=tuple(dict.fromkeys((mark, *self.marks))))

    def __bool__(self) -> bool:
        return bool(self.marks or self.cached)

    @contextmanager
    def pinned(self, address: Address) -> Iterator[None]:
        """Has them read one version.

        Raises:
            ConflictError: a cache holds rows of another one.
        """
        if other := [version for version in self.cached if version != address.version]:
            raise ConflictError(
                f"The statement reads cached rows of version {other[0]}, and version {address.version} is the latest one now.",
                operation="Overwrite",
                read_version=other[0],
                advice="Uncache the table and run the statement again.",
            )
        with ExitStack() as pins:
            for mark in self.marks:
                pins.enter_context(pinned_at(mark, address))
            yield


def _facts(plan: Any, *, cached: bool) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """What each scan of a table of ours in a plan reads, and whether a cache holds its rows."""
    kind = kind_of(plan)
    if kind == "DataSourceV2ScanRelation" and _is_ours(plan.scan(), "LakeScan"):
        yield json.loads(str(plan.scan().facts())), cached
    elif kind == "DataSourceV2Relation" and _is_ours(plan.table(), "LakeTable"):
        yield json.loads(str(plan.table().facts(plan.options()))), cached
    elif kind == "InMemoryRelation":
        yield from _facts(plan.cacheBuilder().logicalPlan(), cached=True)
    for inner in _inside(plan):
        yield from _facts(inner, cached=cached)


def _inside(plan: Any) -> Sequence[Any]:
    return [*as_list(plan.children()), *as_list(plan.subqueries())]


def _is_ours(given: Any, name: str) -> bool:
    return str(given.getClass().getName()).startswith(f"tiltyard.{name}")
