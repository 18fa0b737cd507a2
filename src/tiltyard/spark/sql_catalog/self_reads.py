"""Statements that read the table they write to: what they replace must be what they read.

Spark resolves a table when it analyzes a statement. Rows that somebody adds or changes between that and the commit would be replaced by
rows that do not know of them. So such a statement reads the version that it stands on when it is executed, in a transaction that is
executed again if anybody else commits to the table meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tiltyard as ty
from tiltyard.errors import ConflictError
from tiltyard.spark.read.read_pins import pinned_at
from tiltyard.spark.sharded_spark import shard_addresses, whole_of
from tiltyard.spark.sql_catalog.catalog_tables import target_of
from tiltyard.spark.target import Address
from tiltyard.spark.write.replaced_reads import refuse_former_shards, scans_in, unknown_version


@dataclass(frozen=True, slots=True)
class SelfReads:
    """Where a plan reads the table that it writes to.

    Attributes:
        marks: of scans that can be told which version they read.
        cached: versions that a cache of Spark holds rows of, which cannot; of a sharded table those of all shards.
        fixed: versions that data frames of ``format("tiltyard")`` were made at; None where one follows its table.
    """

    marks: tuple[str, ...] = ()
    cached: tuple[Address, ...] = ()
    fixed: tuple[Address | None, ...] = ()

    @classmethod
    def of(cls, request: Mapping[str, Any], name: str, query: Any) -> SelfReads:
        """Those at the table's latest version: a statement that names another one means just that."""
        asked = replace(target_of(request), table=name).to_options().items()
        scans = [scan for scan in scans_in(query) if scan.by_name and scan.facts["latest"] and asked <= scan.facts["options"].items()]
        marks = dict.fromkeys(scan.facts["id"] for scan in scans if not scan.cached)
        return cls(tuple(marks), tuple(address for scan in scans if scan.cached for address in scan.addresses()))

    def and_fixed(self, query: Any, table: Callable[[], ty.TableReader]) -> SelfReads:
        """These and the scans of the table, or of its shards, that no catalog knows of.

        Raises:
            ConflictError: it is not known which version one of them reads.
            ExpectedVersionMismatch: one of them reads shards that the table has no more.
        """
        scans = [scan for scan in scans_in(query) if not scan.by_name and scan.is_latest]
        if not scans:
            return self
        handle = table()
        places = {address.uri for address in shard_addresses(handle)}
        refuse_former_shards(scans, whole_of(handle), places)
        found: list[Address | None] = []
        for scan in scans:
            for uri in scan.uris():
                if uri in places:
                    found.append(scan.address(uri))
                    if found[-1] is None and not scan.follows:
                        raise unknown_version(uri)
        return replace(self, fixed=tuple(found))

    def beside(self, mark: str) -> SelfReads:
        """These and the scan of the rows that are changed."""
        return replace(self, marks=tuple(dict.fromkeys((mark, *self.marks))))

    def __bool__(self) -> bool:
        return bool(self.marks or self.cached or self.fixed)

    @contextmanager
    def pinned(self, addresses: Sequence[Address]) -> Iterator[None]:
        """Has them read one version, of a sharded table one of each shard.

        Raises:
            ConflictError: a cache holds rows of another one.
        """
        latest = {address.uri: address.version for address in addresses}
        for read in self.cached:
            if read.version != (now := latest.get(read.uri)):
                since = "and the table was resharded since" if now is None else f"and version {now} is the latest one now"
                raise ConflictError(
                    f"The statement reads cached rows of version {read.version}, {since}.",
                    operation="Overwrite",
                    read_version=read.version,
                    advice="Uncache the table and run the statement again.",
                )
        for made in self.fixed:
            if made is not None and made.version != (now := latest.get(made.uri)):
                since = "which was resharded since" if now is None else f"and version {now} is the latest"
                raise ConflictError(
                    f"The data frame was made at version {made.version} of the table it replaces, {since}.",
                    operation="Overwrite",
                    read_version=made.version,
                    advice="Nothing was changed. Read the table again, and write again.",
                )
        with ExitStack() as pins:
            for mark in self.marks:
                pins.enter_context(pinned_at(mark, addresses))
            yield
