"""Table: a handle on one table, pinned at one version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from tiltyard.catalog.commit_store import decided_outside
from tiltyard.errors import InvalidInput
from tiltyard.format.names import Scheme
from tiltyard.handles.cleaning import Cleaning
from tiltyard.handles.cloning import CloneVerb
from tiltyard.handles.columns import ColumnVerbs
from tiltyard.handles.history import History, Uri
from tiltyard.handles.indices import IndexVerbs
from tiltyard.handles.parts import PartVerbs
from tiltyard.handles.pieces import PieceVerbs
from tiltyard.handles.reading import Reading
from tiltyard.handles.rows import RowVerbs
from tiltyard.handles.settings import SettingVerbs
from tiltyard.handles.upkeep import Upkeep
from tiltyard.interfaces import CommitHandler
from tiltyard.storage import Durability
from tiltyard.verbs.distributed.commit_files import create_from_pieces
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask
from tiltyard.verbs.engine.access import Place, Verify, open_place
from tiltyard.verbs.engine.arguments import version_number
from tiltyard.verbs.engine.data_files import FileLimits, properties_with_message
from tiltyard.verbs.engine.isolated import ReadLimits
from tiltyard.verbs.table_history import parse_moment, version_at
from tiltyard.verbs.table_refs import Branches, Tags
from tiltyard.verbs.write import NewTable, OnDuplicate, Writing, create_table

MAIN = "main"
"""What the line of history is called that is no branch."""


class Table(Reading, RowVerbs, PieceVerbs, PartVerbs, ColumnVerbs, SettingVerbs, IndexVerbs, Upkeep, CloneVerb, Cleaning, History):
    """A table at one version. Reading never changes; verbs commit and move the handle to the version they made.

    Threads may share a handle. Each verb then commits for itself, as it would from a handle of its own, and the handle ends at the newest
    version any of them made; it never goes back. So between two calls of one thread another may move it: a thread that must see one
    version throughout opens its own.

    Example:
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
        manifest_naming: Literal["v1", "v2"] = "v2",
        data_format: str = "2.2",
        config: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability = "fsync",
        handler: str | CommitHandler | None = None,
        commit_store: str | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        on_duplicate: OnDuplicate = "error",
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> Table:
        """Makes a new table.

        Args:
            uri: a directory, ``s3://``, ``gs://`` or ``az://``.
            data_or_schema: rows (Arrow, a data frame, dicts), or a ``pyarrow.Schema`` for an empty table.
            primary_key: columns that identify a row, in this order; they are stored as not null.
            stable_row_ids: rows keep their id when they are moved.
            manifest_naming: ``"v1"`` only for readers that know nothing else.
            data_format: version of the data files.
            config: table config to begin with.
            storage_options: as for pylance: keys, endpoint, region.
            durability: ``"fsync"`` survives power loss, ``"os"`` leaves it to the operating system.
            handler: how a version is created: ``"conditional-put"``, ``"rename"``, ``"lock"`` or a handler of your own.
            commit_store: a database that decides instead, ``sqlite:///file`` or ``postgresql://...``; all who write must name the same.
            message: a sentence for the history.
            properties: more for the history, as text.
            on_duplicate: what to do, with a primary key, about keys that come twice; ``"allow"`` looks for none.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            AlreadyExists: there is a table.
            InvalidInput: the rows or the key cannot be stored.
            KeyConflict: a key comes twice; nothing was made.
        """
        if manifest_naming not in ("v1", "v2"):
            raise InvalidInput(f"manifest_naming is 'v1' or 'v2', not {manifest_naming!r}.", argument="manifest_naming")
        place = open_place(uri, storage_options=storage_options, durability=durability, handler=handler)
        place = decided_outside(place, commit_store, handler)
        new = NewTable(primary_key, stable_row_ids, Scheme(manifest_naming), data_format, dict(config or {}))
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        return cls._create(place, data_or_schema, new, properties_with_message(properties, message), limits, on_duplicate)

    @classmethod
    def _create(
        cls,
        place: Place,
        data: Any,
        new: NewTable,
        properties: Mapping[str, str],
        limits: FileLimits,
        on_duplicate: OnDuplicate = "error",
    ) -> Table:
        _, file = create_table(place, data, new, properties, Writing(limits, on_duplicate))
        return cls(place, file, new.scheme)

    @classmethod
    def create_from_pieces(
        cls,
        task: WriteTask,
        pieces: Iterable[Piece | None],
        *,
        handler: str | CommitHandler | None = None,
        commit_store: str | None = None,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Makes a new table of pieces that other processes wrote. If it fails their files stay.

        Args:
            task: made by ``tiltyard.distributed.new_table``, which says where, and what the table is like.
            pieces: what ``task.write`` returned; none for an empty table.
            handler: how a version is created.
            commit_store: a database that decides instead; all who write must name the same.
            on_duplicate: what to do, with a primary key, about keys that come twice.
            leftovers: as for ``append_pieces``.
            message: a sentence for the history.
            properties: more for the history, as text.

        Raises:
            AlreadyExists: there is a table.
            KeyConflict: a key comes twice; nothing was made.
        """
        Writing(on_duplicate=on_duplicate)
        place = open_place(task.uri, storage_options=task.storage_options, durability=task.durability, handler=handler)
        place = decided_outside(place, commit_store, handler)
        described = properties_with_message(properties, message)
        _, file = create_from_pieces(place, task, pieces, on_duplicate, described, leftovers=leftovers)
        return cls(place, file, task.new.scheme if task.new is not None else Scheme.V2)

    @classmethod
    def open(
        cls,
        uri: Uri,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: datetime | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability = "fsync",
        handler: str | CommitHandler | None = None,
        commit_store: str | None = None,
        allowed_bases: Sequence[Uri] = (),
        verify: Verify | None = None,
        isolate: bool | ReadLimits = False,
    ) -> Table:
        """Opens a table at its latest version, or at a version, tag, branch or time.

        Args:
            uri: where it is.
            version: a version number.
            tag: the version a tag names.
            branch: a branch, at its latest version or the given one.
            timestamp: the version the table had then; a moment or ISO 8601 text.
            storage_options: as for pylance: keys, endpoint, region.
            durability: ``"fsync"`` survives power loss, ``"os"`` leaves it to the operating system.
            handler: how a version is created.
            commit_store: the database that decides who has a version, if the table has one.
            allowed_bases: places outside the table that its files may lie in, as those of a shallow clone do; ``"*"`` for anywhere.
            verify: ``"read"`` compares every file of a version with its digest before rows of it are handed out, each file once. The first
                read of a version then takes as long as reading all its files. Files that others wrote have no digest and pass.
            isolate: whether rows are decoded in a child process with a memory limit, for tables that others made: bytes that would end
                this process end in ``CorruptTable``. ``ReadLimits`` sets the bounds. Each read takes the time to start a process.

        Raises:
            NotFound: there is no such table, version, tag or branch.
            CorruptTable: its files are not what they must be.
            UnsupportedFeature: it needs a newer reader.
        """
        place = open_place(
            uri, storage_options=storage_options, durability=durability, handler=handler, allowed_bases=allowed_bases, verify=verify,
            isolate=isolate,
        )  # fmt: skip
        place = decided_outside(place, commit_store, handler)
        return cls._open(place, version=version, tag=tag, branch=branch, timestamp=timestamp)

    @classmethod
    def _open(
        cls,
        main: Place,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: datetime | str | None = None,
    ) -> Table:
        if sum(given is not None for given in (version, tag, timestamp)) > 1:
            raise InvalidInput("Give one of version, tag and timestamp.", argument="version")
        if version is not None:
            version_number(version)
        if tag is not None:
            if branch is not None:
                raise InvalidInput("A tag names its branch itself.", argument="branch", advice="Leave branch out.")
            found = Tags(main)[tag]
            version, branch = found.version, found.branch
        elif branch == MAIN:
            branch = None
        elif branch is not None and branch not in Branches(main):
            Branches(main)[branch]
        place = main.on_branch(branch)
        if timestamp is not None:
            version, scheme = version_at(place, parse_moment(timestamp))
        else:
            latest, scheme = place.head()
            version = latest if version is None else version
        return cls(place, place.load(version, scheme, lazily=True), scheme, main)
