"""Statements that read the table they write to: what they replace must be what they read.

Spark resolves a table when it analyzes a statement. Rows that somebody adds or changes between that and the commit would be replaced by
rows that do not know of them. So such a statement reads the version that it stands on when it is executed, in a transaction that is
executed again if anybody else commits to the table meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tiltyard.errors import ConflictError
from tiltyard.spark.read.read_pins import pinned_at
from tiltyard.spark.sql_catalog.catalog_tables import target_of
from tiltyard.spark.target import Address
from tiltyard.spark.write.replaced_reads import scans_in, unknown_version


@dataclass(frozen=True, slots=True)
class SelfReads:
    """Where a plan reads the table that it writes to.

    Attributes:
        marks: of scans that can be told which version they read.
        cached: versions that a cache of Spark holds rows of, which cannot.
        fixed: versions that data frames of ``format("tiltyard")`` were made at; None where one follows its table.
    """

    marks: tuple[str, ...] = ()
    cached: tuple[int, ...] = ()
    fixed: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, request: Mapping[str, Any], name: str, query: Any) -> SelfReads:
        """Those at the table's latest version: a statement that names another one means just that."""
        asked = replace(target_of(request), table=name).to_options().items()
        scans = [scan for scan in scans_in(query) if scan.by_name and scan.facts["latest"] and asked <= scan.facts["options"].items()]
        marks = dict.fromkeys(scan.facts["id"] for scan in scans if not scan.cached)
        return cls(tuple(marks), tuple(Address.from_json(scan.facts["address"]).version for scan in scans if scan.cached))

    def and_fixed(self, query: Any, uri: str) -> SelfReads:
        """These and the scans of the table at that place that no catalog knows of.

        Raises:
            ConflictError: it is not known which version one of them reads.
        """
        scans = [scan for scan in scans_in(query) if not scan.by_name and scan.is_latest and scan.uri() == uri]
        found = [scan.address() for scan in scans]
        if any(address is None and not scan.follows for scan, address in zip(scans, found, strict=True)):
            raise unknown_version(uri)
        return replace(self, fixed=tuple(None if address is None else address.version for address in found))

    def beside(self, mark: str) -> SelfReads:
        """These and the scan of the rows that are changed."""
        return replace(self, marks=tuple(dict.fromkeys((mark, *self.marks))))

    def __bool__(self) -> bool:
        return bool(self.marks or self.cached or self.fixed)

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
        if older := [version for version in self.fixed if version not in (None, address.version)]:
            raise ConflictError(
                f"The data frame was made at version {older[0]} of the table it replaces, and version {address.version} is the latest.",
                operation="Overwrite",
                read_version=older[0],
                advice="Nothing was changed. Read the table again, and write again.",
            )
        with ExitStack() as pins:
            for mark in self.marks:
                pins.enter_context(pinned_at(mark, address))
            yield
