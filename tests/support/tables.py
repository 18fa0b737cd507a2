"""What a table holds, version by version, as stock pylance reads it; and whether we see the same."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import tiltyard as ty

MAX = (1 << 64) - 1

Rows = list[dict[str, Any]]


def open_stock(uri: str, version: int | None = None) -> Any:
    """pylance's dataset. It is untyped for the type checker: what it declares and what it takes differ here and there."""
    return lance.dataset(uri, version=version)


def manifest_path(uri: str, version: int) -> Path:
    """The file of one version, whichever way it is named."""
    directory = Path(uri) / "_versions"
    new = directory / f"{MAX - version:020d}.manifest"
    return new if new.exists() else directory / f"{version}.manifest"


def manifest_message(uri: str, version: int) -> bytes:
    """The serialized manifest inside a version's file."""
    data = manifest_path(uri, version).read_bytes()
    (start,) = struct.unpack("<q", data[-16:-8])
    (length,) = struct.unpack("<I", data[start : start + 4])
    return data[start + 4 : start + 4 + length]


def sorted_rows(table: pa.Table) -> Rows:
    """The rows in an order of their own, for engines that move them."""
    return sorted(table.to_pylist(), key=repr)


@dataclass
class Chronicle:
    """What each version held when pylance first read it. Nothing done later may change that, and we must see the same."""

    uri: str
    branch: str | None = None
    allowed_bases: Sequence[str] = ()
    seen: dict[int, pa.Table] = field(default_factory=dict)
    schemas: dict[int, pa.Schema] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The directory whose versions these are."""
        return f"{self.uri}/tree/{self.branch}" if self.branch else self.uri

    def open(self, version: int | None = None) -> ty.Table:
        return ty.Table.open(self.uri, version=version, branch=self.branch, allowed_bases=self.allowed_bases, durability="os")

    def versions(self) -> list[int]:
        return sorted(entry["version"] for entry in open_stock(self.place).versions())

    def forget(self, version: int) -> None:
        """A version that was cleaned up."""
        del self.seen[version]

    def agrees(self, *, anew: bool = False) -> ty.Table:
        """Opens every version with us; returns our handle on the latest.

        Rows are compared for versions not met before, and with ``anew`` for all. What was met before must at least have the same
        schema and as many rows.
        """
        versions = self.versions()
        table = self.open()
        assert table.layout.versions() == versions
        assert table.version == versions[-1]
        assert set(self.seen) <= set(versions)
        for version in versions:
            if anew or version not in self.seen:
                self._rows(version)
            else:
                ours = self.open(version)
                assert (ours.version, ours.count_rows()) == (version, self.seen[version].num_rows)
                assert ours.schema.equals(self.schemas[version], check_metadata=True)
        return table

    def newest(self) -> ty.Table:
        """As ``agrees``, but looks only at versions not met before."""
        table = self.open()
        for version in table.layout.versions():
            if version not in self.seen:
                self._rows(version)
        return table

    def _rows(self, version: int) -> None:
        stock = open_stock(self.place, version)
        ours = self.open(version)
        assert ours.version == version
        assert ours.schema.equals(stock.schema, check_metadata=True), f"{ours.schema}\n!=\n{stock.schema}"
        rows = stock.to_table()
        assert ours.count_rows() == rows.num_rows
        assert ours.to_arrow().equals(rows)
        assert self.seen.setdefault(version, rows).equals(rows, check_metadata=True)
        assert self.schemas.setdefault(version, stock.schema).equals(stock.schema, check_metadata=True)

    def sound(self, versions: Sequence[int] | None = None) -> None:
        """Neither our check nor pylance's finds anything wrong."""
        report = self.open().check(versions=versions)
        assert list(report.problems) == [], report.problems
        assert report.not_checked == ()
        open_stock(self.place).validate()
