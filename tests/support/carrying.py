"""A table of metadata alone, on which operations meet: what the commit loop does between two calls to the store, without the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap

from tests.support.manifests import STAMP, part, table
from tiltyard import ops
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import SeededRandomness
from tiltyard.transaction.apply.next_manifest import apply
from tiltyard.transaction.deletion_vectors import DeletionVectors
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.rebaser import Rebaser
from tiltyard.transaction.resolve import Verdict
from tiltyard.transaction.row_map import KEPT, ROW_ORDER
from tiltyard.transaction.transaction import Transaction

IN_ORDER = {ROW_ORDER: KEPT}


@dataclass
class Ground:
    """Versions of a table from 7 on, as ``tests.support.manifests.table`` makes it, and the deletion files they name."""

    base: Manifest = field(default_factory=table)
    store: MemoryStore = field(default_factory=MemoryStore)
    commits: list[CreatedVersion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.vectors = DeletionVectors(self.store, SeededRandomness(1))

    @property
    def head(self) -> Manifest:
        return self.commits[-1].manifest if self.commits else self.base

    def fragment(self, number: int) -> DataFragment:
        return next(one for one in self.head.fragments if one.id == number)

    def deleted(self, manifest: Manifest | None = None) -> dict[int, list[int]]:
        """Deleted offsets by fragment, of fragments that have any."""
        several = ((one.id, sorted(self.vectors.of(one))) for one in (manifest or self.head).fragments)
        return {number: rows for number, rows in several if rows}

    def without(self, fragment: DataFragment, rows: Iterable[int]) -> DataFragment:
        """The fragment with these rows deleted as well, in a file of its own."""
        deleted = self.vectors.of(fragment) | BitMap(rows)
        return replace(fragment, deletion_file=self.vectors.write(fragment, deleted, self.head.version))

    def delete(self, rows: Mapping[int, Iterable[int]], gone: Iterable[int] = ()) -> ops.Delete:
        """A bare delete built on the head."""
        return ops.Delete(tuple(self.without(self.fragment(number), several) for number, several in rows.items()), tuple(gone))

    def commit(self, operation: ops.Operation, properties: Mapping[str, str] | None = None, **beside: Any) -> CreatedVersion:
        """The next version, as whoever commits alone makes it."""
        transaction = Transaction(self.head.version, f"theirs-{self.head.version}", operation, dict(properties or {}))
        _, file = encode_manifest_file(apply(operation, self.head, STAMP, **beside), transaction.to_bytes())
        self.commits.append(CreatedVersion(file, transaction))
        return self.commits[-1]

    def rebaser(
        self, operation: ops.Operation, properties: Mapping[str, str] | None = None, *, reuse: IndexMetadata | None = None
    ) -> Rebaser:
        """Ours, built on the head as it is now."""
        transaction = Transaction(self.head.version, "ours", operation, dict(properties or {}))
        vectors = DeletionVectors(self.store, SeededRandomness(2))
        return Rebaser(transaction, self.head, vectors, reuse=reuse)

    def meet(self, rebaser: Rebaser, last: int = 1) -> Verdict:
        """Takes ours over the last of the commits, or over the last few; gives the last verdict."""
        for place in range(len(self.commits) - last, len(self.commits)):
            before = self.commits[place - 1].manifest if place else self.base
            verdict = rebaser.meet(self.commits[place], before)
        return verdict

    def land(self, rebaser: Rebaser) -> Manifest:
        """Ours on the head, committed."""
        stored = rebaser.settled(self.head)
        _, file = encode_manifest_file(apply(stored.operation, self.head, STAMP, reuse=rebaser.reuse), stored.to_bytes())
        self.commits.append(CreatedVersion(file, stored))
        return self.head


def compaction(old: Iterable[DataFragment], *new: DataFragment, **more: Any) -> ops.Rewrite:
    """A rewrite of one group."""
    return ops.Rewrite((ops.RewriteGroup(tuple(old), tuple(new)),), **more)


def packed(number: int, rows: int, **more: Any) -> DataFragment:
    """A new fragment of a compaction."""
    return part(number, rows, name=f"packed{number}", **more)
