"""Table: a handle on one table at one version. ``TableReader`` reads, ``TableWriter`` has the verbs, ``Table`` is opened by a URI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tiltyard.catalog.commit_store import decided_outside
from tiltyard.errors import InvalidInput
from tiltyard.handles.batches import WriterVerb
from tiltyard.handles.cloning import CloneVerb
from tiltyard.handles.columns import ColumnVerbs
from tiltyard.handles.history import CommitVerb, History, Uri
from tiltyard.handles.indices import IndexReader, IndexVerbs
from tiltyard.handles.parts import PartVerbs
from tiltyard.handles.pieces import PieceReader
from tiltyard.handles.row_reading import Reading
from tiltyard.handles.rows import RowVerbs
from tiltyard.handles.settings import SettingsReader, SettingVerbs, TableLayout
from tiltyard.handles.upkeep import Cleaning, UpkeepVerbs
from tiltyard.options import Durability, Storage, TableOptions, storage_of
from tiltyard.verbs.distributed.scan_tasks import ScanTask
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.engine.arguments import version_number
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.indices.index_list import IndexInfo
from tiltyard.verbs.table_history import parse_moment, version_at
from tiltyard.verbs.table_refs import Branches, Tags
from tiltyard.verbs.write import NewTable, Writing, create_table

MAIN = "main"
"""The name of the main line of history."""


class TableReader(Reading, History):
    """A table at one version, to read: rows, history, layout. It has no verb that changes anything."""

    @property
    def layout(self) -> TableLayout:
        """How it is stored: versions, fragments, file format, bases."""
        return TableLayout(self)

    @property
    def indices(self) -> IndexReader:
        """Its indices."""
        return IndexReader(self)

    @property
    def settings(self) -> SettingsReader:
        """Its config and metadata."""
        return SettingsReader(self)

    @property
    def distributed(self) -> PieceReader:
        """Tasks for other processes."""
        return PieceReader(self)

    @property
    def config(self) -> Mapping[str, str]:
        """Shorthand for ``t.settings.config``."""
        return self.settings.config

    def versions(self) -> list[int]:
        """Shorthand for ``t.layout.versions``."""
        return self.layout.versions()

    def list_indices(self) -> tuple[IndexInfo, ...]:
        """Shorthand for ``t.indices.list``."""
        return self.indices.list()

    def scan_task(self) -> ScanTask:
        """Shorthand for ``t.distributed.scan_task``."""
        return self.distributed.scan_task()


class TableWriter(RowVerbs, PartVerbs, ColumnVerbs, SettingVerbs, IndexVerbs, UpkeepVerbs, CommitVerb, TableReader):
    """A table with its verbs, however it was opened: by its URI, from a lake, or inside a transaction.

    Reads see one version; a verb commits and moves the handle to the version it made.

    Threads may share a handle. Each verb then commits for itself, as it would from a handle of its own, and the handle ends at the latest
    version any of them made; it never goes back. So between two calls of one thread another may move it: a thread that must see one
    version throughout opens its own.
    """


class Table(Cleaning, CloneVerb, WriterVerb, TableWriter):
    """A table by its URI. Reads see one version; a verb commits and moves the handle to its version.

    Examples:
        >>> import tempfile, pyarrow as pa, tiltyard as ty
        >>> table = ty.Table.create(tempfile.mkdtemp() + "/readings", pa.table({"id": [1, 2]}))
        >>> table.append(pa.table({"id": [3]})).version
        2
        >>> table.count_rows()
        3
    """

    @classmethod
    def create(
        cls,
        uri: Uri,
        data_or_schema: Any,
        *,
        primary_key: Sequence[str] | None = None,
        stable_row_ids: bool = False,
        options: TableOptions | None = None,
        storage: Storage | None = None,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
    ) -> Table:
        """Makes a new table.

        Args:
            uri: a directory, ``s3://``, ``gs://`` or ``az://``.
            data_or_schema: rows (Arrow, a data frame, dicts), or a ``pyarrow.Schema`` for an empty table.
            primary_key: columns that identify a row, in this order; they are stored as not null.
            stable_row_ids: rows keep their id when they are moved.
            options: what else is decided now: config, file format, the message of the first version.
            storage: how the store is reached, and who decides about versions.
            storage_options: shorthand for ``Storage(options=...)``.
            durability: shorthand for ``Storage(durability=...)``.

        Raises:
            AlreadyExists: there is a table.
            InvalidInput: the rows or the key cannot be stored.
            KeyConflict: a duplicate key; nothing was made.
        """
        there = storage_of(storage, storage_options, durability)
        access = decided_outside(open_access(uri, there), there.commit_store)
        return cls._create(access, data_or_schema, primary_key, stable_row_ids=stable_row_ids, options=options)

    @classmethod
    def _create(
        cls,
        access: TableAccess,
        data: Any,
        primary_key: Sequence[str] | None = None,
        *,
        stable_row_ids: bool = False,
        options: TableOptions | None = None,
    ) -> Table:
        how = options or TableOptions()
        new = NewTable.of(primary_key, stable_row_ids, how)
        described = properties_with_message(how.properties, how.message)
        _, file = create_table(access, data, new, described, Writing(how.files, how.on_duplicate))
        return cls(access, file, new.scheme)

    @classmethod
    def open(
        cls,
        uri: Uri,
        version: int | str | None = None,
        *,
        branch: str | None = None,
        timestamp: datetime | str | None = None,
        storage: Storage | None = None,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
        allowed_bases: Sequence[Uri] = (),
    ) -> Table:
        """Opens a table at its latest version, or at a version, tag, branch or time.

        Args:
            uri: where it is.
            version: a version number, or a tag.
            branch: a branch, at its latest version or the given one.
            timestamp: the version the table had then; a ``datetime`` or ISO 8601 text.
            storage: how the store is reached, who decides about versions, and how much is trusted.
            storage_options: shorthand for ``Storage(options=...)``.
            durability: shorthand for ``Storage(durability=...)``.
            allowed_bases: shorthand for ``Storage(allowed_bases=...)``.

        Raises:
            NotFound: there is no such table, version, tag or branch.
            CorruptTable: its files are not what they must be.
            UnsupportedFeature: it needs a newer reader.
        """
        there = storage_of(storage, storage_options, durability, allowed_bases)
        access = decided_outside(open_access(uri, there), there.commit_store)
        return cls._open(access, version, branch=branch, timestamp=timestamp)

    @classmethod
    def _open(
        cls,
        main: TableAccess,
        version: int | str | None = None,
        *,
        branch: str | None = None,
        timestamp: datetime | str | None = None,
    ) -> Table:
        if version is not None and timestamp is not None:
            raise InvalidInput("Give one of version and timestamp.", argument="version")
        if isinstance(version, str):
            if branch is not None:
                raise InvalidInput("A tag names its branch itself.", argument="branch", advice="Leave branch out.")
            found = Tags(main)[version]
            version, branch = found.version, found.branch
        elif version is not None:
            version_number(version)
        if branch == MAIN:
            branch = None
        elif branch is not None and branch not in Branches(main):
            Branches(main)[branch]
        access = main.on_branch(branch)
        if timestamp is not None:
            version, scheme = version_at(access, parse_moment(timestamp))
        else:
            latest, scheme = access.head()
            version = latest if version is None else version
        return cls(access, access.load(version, scheme, lazily=True), scheme, main)
