"""What a lake does for its catalog: getting it back after it was lost."""

from __future__ import annotations

import os
from typing import Literal, cast

from tiltyard.catalog.server_link import is_server
from tiltyard.errors import InvalidInput
from tiltyard.lakes.opening import lake_storage, somebody
from tiltyard.lakes.recovery.restoring import LakeRecoveryReport, Make, RestoreTarget, rebuild_lake, restore_lake
from tiltyard.options import RecoveryOptions, Storage

Uri = str | os.PathLike[str]
CatalogKind = Literal["sqlite", "manifest"]


class Recoverable:
    """A lake, as far as its catalog can be lost."""

    @classmethod
    def restore(
        cls,
        uri: Uri,
        backup: Uri,
        *,
        root: Uri | None = None,
        catalog: CatalogKind | None = None,
        storage: Storage | None = None,
        options: RecoveryOptions | None = None,
    ) -> LakeRecoveryReport:
        """Restores a lake's catalog from a backup, and adopts what was committed to its tables since.

        Whatever a table has beyond the backup becomes snapshots again, whole transactions only. The new catalog appears in one step; it
        may be of another kind than the old one. Transactions that are open against the old one are refused. Stop cleanups first.

        Args:
            uri: where the catalog goes, as for ``open``.
            backup: a file that ``Lake.backup`` wrote.
            root: where the tables live; where the backup says they do by default.
            catalog: as for ``open``.
            storage: as for ``open``; with ``allowed_bases``, the places outside of it that a clone's tables name files in.
            options: whether an existing catalog may be replaced, the author, and a function to report progress to.

        Raises:
            CorruptTable: the backup is truncated or changed. Nothing was changed.
            AlreadyExists: there is a catalog, and ``replace`` is false.
            OwnershipError: the root, or the catalog, belongs to another lake.
        """
        how = options or RecoveryOptions()
        return restore_lake(_target(uri, root, catalog, storage, how), backup, cast("Make", cls), how.progress or _quiet)

    @classmethod
    def rebuild(
        cls, uri: Uri, *, root: Uri | None = None, catalog: CatalogKind | None = None, storage: Storage | None = None,
        options: RecoveryOptions | None = None,
    ) -> LakeRecoveryReport:  # fmt: skip
        """Makes a new catalog for a lake from what its files say; for when there is no backup.

        Tables that carry the marks of this lake are registered with their names, snapshots, tags and branches as far as these are known;
        all else below the root is listed and not changed. A snapshot keeps its number where that is certain.

        Arguments are those of ``restore``; without ``root`` the tables live beside the catalog.

        Raises:
            OwnershipError: no lake has claimed the root, or the catalog belongs to another lake.
            AlreadyExists: there is a catalog, and ``replace`` is false.
        """
        how = options or RecoveryOptions()
        return rebuild_lake(_target(uri, root, catalog, storage, how), cast("Make", cls), how.progress or _quiet)


def _target(uri: Uri, root: Uri | None, catalog: CatalogKind | None, storage: Storage | None, how: RecoveryOptions) -> RestoreTarget:
    if not isinstance(how, RecoveryOptions):
        raise InvalidInput(f"options is a ty.RecoveryOptions, not a {type(how).__name__}.", argument="options")
    if is_server(uri):
        raise InvalidInput(
            "A catalog cannot be recovered through its own server.", argument="uri",
            advice="Stop the server, and pass the address of the catalog itself.",
        )  # fmt: skip
    return RestoreTarget(uri, root, catalog, lake_storage(storage, recovering=True), how.author or somebody(), bool(how.replace))


def _quiet(done: int, total: int) -> None:
    """For whoever does not want to know how far it is."""
