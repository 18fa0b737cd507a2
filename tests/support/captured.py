"""Real operations that are not committed: done with pylance on a copy of a table, taken from the copy's history, files and all.

An operation captured this way names data, deletion and index files that exist, and can be offered to any other copy of the same table.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.tables import MAX, manifest_path, open_stock
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.format.values import IndexMetadata, WriterVersion
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.apply.next_manifest import Stamp, apply
from tiltyard.transaction.footprint import FRAGMENT_REUSE
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.operations import Operation, Rewrite, UpdateConfig
from tiltyard.transaction.transaction import Transaction

CONTENT: Final = ("data", "_deletions", "_indices")
"""Where the files lie that operations name."""

_WRITER: Final = WriterVersion("planted", "1")


@dataclass(frozen=True, slots=True)
class Captured:
    """An operation that nobody has committed to the table it is for: what it is, and where the files it brings along lie."""

    operation: Operation
    root: Path
    files: tuple[str, ...]
    reuse: IndexMetadata | None = None
    """What a rewrite brings along so that indices can follow later; its transaction has no place for it."""

    def deliver(self, table: Path) -> None:
        """Puts the files where a commit of the operation expects them."""
        for name in self.files:
            (table / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, table / name)


def committed(table: Path, version: int) -> CreatedVersion:
    """What one version of a table says, and the transaction that made it."""
    return VersionLog(LocalStore(table)).committed(version, Scheme.V2)


def head(table: Path) -> int:
    found = VersionLog(LocalStore(table)).head()
    assert found is not None
    return found[0]


def content(table: Path) -> set[str]:
    """The files operations can name, below the table's root."""
    return {str(path.relative_to(table)) for part in CONTENT for path in (table / part).rglob("*") if path.is_file()}


def cut_back(table: Path, version: int) -> None:
    """Forgets all versions after one, as if they had never been."""
    for later in range(version + 1, head(table) + 1):
        manifest_path(str(table), later).unlink()
    (table / "_latest.manifest").unlink(missing_ok=True)


def capture(source: Path, scratch: Path, act: Callable[[Any], object], *, at: int | None = None) -> Captured:
    """What ``act`` commits to a table, done to a copy of it.

    Args:
        source: the table; it stays as it is.
        scratch: where the copy shall be, which the captured files then stay in.
        act: gets pylance's handle. The last commit it makes counts.
        at: do it on this version instead of the latest.
    """
    shutil.copytree(source, scratch)
    if at is not None:
        cut_back(scratch, at)
    before, version = content(scratch), head(scratch)
    act(open_stock(str(scratch)))
    made = committed(scratch, head(scratch))
    assert made.manifest.version > version, "nothing was committed"
    operation, reuse = made.transaction.operation, None
    if isinstance(operation, Rewrite):
        known = {one.uuid for one in _indices(committed(scratch, made.manifest.version - 1))}
        reuse = next((one for one in _indices(made) if one.name == FRAGMENT_REUSE and one.uuid not in known), None)
    return Captured(operation, scratch, tuple(sorted(content(scratch) - before)), reuse)


def _indices(version: CreatedVersion) -> tuple[IndexMetadata, ...]:
    return decode_indices(version.manifest, "") if version.manifest.index_section else ()


def plant(table: Path, operation: Operation, *, uuid: str, effect: Operation | None = None) -> int:
    """Writes the next version by hand, past every commit loop: for history that no verb writes.

    Args:
        table: the table.
        operation: what the version's transaction shall say.
        uuid: the transaction's id.
        effect: what shall really happen to the table; by default nothing but the step to the next version.
    """
    latest = committed(table, head(table))
    transaction = Transaction(latest.manifest.version, uuid, operation)
    manifest = _next(latest.manifest, transaction, effect)
    data, _ = encode_manifest_file(manifest, transaction.to_bytes())
    (table / "_transactions").mkdir(exist_ok=True)
    (table / "_transactions" / transaction.file_name).write_bytes(transaction.to_bytes())
    path = table / "_versions" / f"{MAX - manifest.version:020d}.manifest"
    with path.open("xb") as file:
        file.write(data)
    return manifest.version


def _next(base: Manifest, transaction: Transaction, effect: Operation | None) -> Manifest:
    return apply(effect or UpdateConfig(), base, Stamp(base.timestamp_ns + 1, _WRITER, transaction.file_name))
