"""From an address to the records there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tiltyard.catalog.records import Records
from tiltyard.interfaces import Runtime
from tiltyard.storage.local import Durability

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def open_records(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    runtime: Runtime | None = None,
    durability: Durability = "fsync",
) -> Records:
    """The records at an address, made there if there are none yet.

    ``sqlite:///`` and a path (all that follows is the path, as it is); ``postgresql://...``; or a lake's root, a directory or ``s3://``
    and the like, for records in a table ``__manifest`` there.
    """
    # Imported here: nobody should wait for a database he does not use.
    text = os.fspath(url)
    if text.startswith(_SQLITE):
        from tiltyard.catalog.sql_records import SqlRecords
        from tiltyard.catalog.sqlite import Sqlite

        return SqlRecords(Sqlite(text.removeprefix(_SQLITE), durability=durability), runtime=runtime)
    if text.startswith(_POSTGRES):
        from tiltyard.catalog.postgres import Postgres
        from tiltyard.catalog.sql_records import SqlRecords

        return SqlRecords(Postgres(text, durability=durability), runtime=runtime)
    from tiltyard.catalog.manifest_records import ManifestRecords

    return ManifestRecords(text, storage_options=storage_options, durability=durability, runtime=runtime)
