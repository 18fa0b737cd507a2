"""Table: a handle on one table, pinned at one version."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tiltyard.errors import InvalidInput, NotFound, OutcomeUnknown, UnsupportedFeature
from tiltyard.format.flags import describe as describe_flags
from tiltyard.format.keys import primary_key
from tiltyard.format.manifest import decode_indices
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.interfaces import CommitHandler
from tiltyard.storage import Durability
from tiltyard.transaction.commit import CommitResult
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.arguments import chosen_columns, retry_policy, sql_condition
from tiltyard.verbs.check import CheckReport, check_table
from tiltyard.verbs.data import FileLimits, properties_with_message
from tiltyard.verbs.deletions import check_deletions
from tiltyard.verbs.history import HistoryEntry, describe, history, parse_moment, version_at
from tiltyard.verbs.lance import lance_errors, open_dataset, translated
from tiltyard.verbs.low_door import as_transaction, commit_transaction
from tiltyard.verbs.names import migrate_names
from tiltyard.verbs.outcome import Outcome, outcome_of
from tiltyard.verbs.place import Place, open_place
from tiltyard.verbs.refs import Branches, Tags
from tiltyard.verbs.rerun import RerunPolicy
from tiltyard.verbs.write import Appending, NewTable, append_rows, create_table, overwrite_rows

if TYPE_CHECKING:
    from lance import LanceDataset

Uri = str | os.PathLike[str]

MAIN = "main"
"""What the line of history is called that is no branch."""


class Table:
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

    def __init__(self, place: Place, file: ManifestFile, scheme: Scheme, main: Place | None = None) -> None:
        self._place = place
        self._main = main or place
        self._file = file
        self._scheme = scheme
        self._moving = threading.Lock()
        self._lance: tuple[ManifestFile, LanceDataset] | None = None
        self._appending: Appending | None = None
        self._in_doubt: dict[str, int] = {}

    # ---- opening -----------------------------------------------------------------------------------------------------------

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
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
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
            message: a sentence for the history.
            properties: more for the history, as text.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            AlreadyExists: there is a table.
            InvalidInput: the rows or the key cannot be stored.
        """
        if manifest_naming not in ("v1", "v2"):
            raise InvalidInput(f"manifest_naming is 'v1' or 'v2', not {manifest_naming!r}.", argument="manifest_naming")
        place = open_place(uri, storage_options=storage_options, durability=durability, handler=handler)
        new = NewTable(primary_key, stable_row_ids, Scheme(manifest_naming), data_format, dict(config or {}))
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        return cls._create(place, data_or_schema, new, properties_with_message(properties, message), limits)

    @classmethod
    def _create(cls, place: Place, data: Any, new: NewTable, properties: Mapping[str, str], limits: FileLimits) -> Table:
        _, file = create_table(place, data, new, properties, limits)
        return cls(place, file, new.scheme)

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
        allowed_bases: Sequence[Uri] = (),
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
            allowed_bases: places outside the table that its files may lie in, as those of a shallow clone do; ``"*"`` for anywhere.

        Raises:
            NotFound: there is no such table, version, tag or branch.
            CorruptTable: its files are not what they must be.
            UnsupportedFeature: it needs a newer reader.
        """
        place = open_place(uri, storage_options=storage_options, durability=durability, handler=handler, allowed_bases=allowed_bases)
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

    # ---- what it is --------------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return self._main.uri

    @property
    def version(self) -> int:
        return self._file.manifest.version

    @property
    def branch(self) -> str | None:
        """The branch this handle is on; None on main."""
        return self._place.branch

    @property
    def schema(self) -> pa.Schema:
        manifest = self._file.manifest
        return arrow_from_fields(manifest.fields, manifest.schema_metadata)

    @property
    def primary_key(self) -> tuple[str, ...]:
        return primary_key(self._file.manifest.fields)

    @property
    def fragments(self) -> Sequence[DataFragment]:
        return self._file.manifest.fragments

    @property
    def config(self) -> Mapping[str, str]:
        return dict(self._file.manifest.config)

    @property
    def metadata(self) -> Mapping[str, str]:
        """Table metadata: free text by key."""
        return dict(self._file.manifest.table_metadata)

    @property
    def data_format(self) -> str:
        """Version of the table's data files, such as ``"2.2"``."""
        stated = self._file.manifest.data_format
        return stated.version if stated else ""

    @property
    def features(self) -> str:
        """The feature flags that readers and writers of this version must know, in words."""
        manifest = self._file.manifest
        return describe_flags(manifest.reader_flags | manifest.writer_flags)

    @property
    def indices(self) -> tuple[IndexMetadata, ...]:
        """The index segments of this version."""
        return decode_indices(self._file.manifest, f"version {self.version}")

    @cached_property
    def tags(self) -> Tags:
        return Tags(self._main)

    @cached_property
    def branches(self) -> Branches:
        return Branches(self._main)

    def __repr__(self) -> str:
        branch = f", branch={self.branch!r}" if self.branch else ""
        return f"Table({self._main.store.uri!r}, version={self.version}{branch})"

    def latest_version(self) -> int:
        """The newest version there is, whatever this handle is at."""
        return self._place.head()[0]

    def refresh(self) -> Table:
        """Moves this handle to the newest version; of another table, where this one was dropped and made again."""
        version, scheme = self._place.head()
        newest, mine = self._place.load(version, scheme), self._file
        if version > mine.manifest.version:
            self._move(newest, scheme)
        elif not self._is_there(mine, scheme):
            self._replace(newest, scheme)
        return self

    def _is_there(self, file: ManifestFile, scheme: Scheme) -> bool:
        """Whether a version is still the one we know. Its number does not tell: a table that is made again counts from 1 as well."""
        try:
            there = self._place.log.load(file.manifest.version, scheme)
        except NotFound:
            return False
        return there.message.joined() == file.message.joined()

    def _move(self, file: ManifestFile, scheme: Scheme | None = None) -> None:
        """Forward only: of two commits at a time the earlier may come to its end last."""
        with self._moving:
            if file.manifest.version > self._file.manifest.version:
                self._file = file
            self._scheme = scheme or self._scheme

    def _replace(self, file: ManifestFile, scheme: Scheme) -> None:
        with self._moving:
            self._file, self._scheme = file, scheme
            self._lance = self._appending = None

    # ---- reading -----------------------------------------------------------------------------------------------------------

    @property
    def lance(self) -> LanceDataset:
        """pylance's own dataset at this version: vector search, SQL, everything that reads."""
        file, opened = self._file, self._lance
        if opened is None or opened[0] is not file:
            check_deletions(self._place, file.manifest)
            opened = self._lance = (file, open_dataset(self._place, file.manifest.version))
        return opened[1]

    def count_rows(self, filter: str | None = None) -> int:
        """How many rows there are; without a filter this reads no data."""
        if filter is None:
            return self._file.manifest.fragments.live_rows()
        condition = sql_condition(filter)
        with lance_errors(self._place, "count rows"):
            return int(self.lance.count_rows(condition))

    def to_arrow(self, columns: Sequence[str] | Mapping[str, str] | None = None, filter: str | None = None, **scan: Any) -> pa.Table:
        """The rows as an Arrow table.

        Args:
            columns: names (or one name), or name to SQL expression.
            filter: a SQL condition.
            scan: anything else pylance's scanner takes, such as ``limit`` or ``with_row_id``.
        """
        chosen, condition = chosen_columns(columns), sql_condition(filter)
        with lance_errors(self._place, "read rows"):
            return self.lance.to_table(columns=chosen, filter=condition, **scan)

    def scan(
        self, columns: Sequence[str] | Mapping[str, str] | None = None, filter: str | None = None, **scan: Any
    ) -> pa.RecordBatchReader:
        """The rows as a stream of batches."""
        chosen, condition = chosen_columns(columns), sql_condition(filter)
        with lance_errors(self._place, "read rows"):
            reader = self.lance.scanner(columns=chosen, filter=condition, **scan).to_reader()
        return translated(self._place, reader)

    # ---- writing -----------------------------------------------------------------------------------------------------------

    def append(
        self,
        data: Any,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> CommitResult:
        """Adds rows. Columns are matched by name; nullable ones may be missing.

        Args:
            data: rows: Arrow, a data frame, dicts, a stream.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            InvalidInput: the rows do not fit the table; nothing was written.
            RetryableConflict: the columns changed meanwhile, again and again.
            IncompatibleConflict: the table was replaced or set back meanwhile.
            ContentionError, HistoryUnavailable, OutcomeUnknown: see ``tiltyard.errors``.
        """
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        read = self._file
        return self._commit(lambda: append_rows(self._place, read, self._scheme, data, self._appender, described, limits, policy))

    def overwrite(
        self,
        data: Any,
        *,
        primary_key: Sequence[str] | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> CommitResult:
        """Replaces all rows, and the schema by that of the new rows. Older versions stay readable.

        Args:
            data: rows, or a schema for an empty table.
            primary_key: another key than before; ``[]`` for none.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often the rows of somebody else who replaced the table meanwhile are replaced in turn; 0 to be told instead.
            deadline: seconds after which neither is begun again.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            RetryableConflict: somebody else replaced the table meanwhile, again and again.
        """
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: overwrite_rows(self._place, self._file, self._scheme, data, primary_key, described, limits, policy))

    def commit(
        self,
        operation: Operation | Transaction,
        *,
        read_version: int | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
    ) -> CommitResult:
        """The low door: commits an operation whose files are written already.

        Args:
            operation: an operation, or a whole transaction of any Lance writer.
            read_version: the version it was built on; by default this handle's.
            properties: what the history shall say of it.
            max_retries: how often a lost race for a version is run again.
        """
        policy = retry_policy(max_retries)
        read, scheme = self._file, self._scheme
        transaction = as_transaction(operation, read_version, properties, self._place, read)
        return self._commit(lambda: commit_transaction(self._place, read, scheme, transaction, policy))

    def _commit(self, work: Any) -> CommitResult:
        try:
            result, file = work()
        except OutcomeUnknown as error:
            self._in_doubt[error.transaction_id] = error.version
            raise
        self._move(self._place.trusted(file))
        assert isinstance(result, CommitResult)
        return result

    def _appender(self, read: ManifestFile) -> Appending:
        found, fields = self._appending, read.manifest.fields
        if found is None or found.fields != fields:
            found = self._appending = Appending(fields)
        return found

    # ---- history and health ------------------------------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """The versions that can still be opened, ascending."""
        return [name.version for name in self._place.log.versions()]

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """What happened, newest first."""
        return list(history(self._place, limit))

    def describe(self, version: int | None = None) -> HistoryEntry:
        """The history entry of one version; by default this handle's."""
        if version is not None and version != self.version:
            self._place.load(version, self._scheme)
        return describe(self._place.log, self.version if version is None else version, self._scheme)

    def outcome(self, transaction_id: str, *, version: int | None = None) -> Outcome:
        """What became of a transaction that ended in ``OutcomeUnknown``.

        Args:
            transaction_id: the id in the error.
            version: the version in the error; this handle remembers it for its own commits.

        Returns:
            ``Committed(version)``, ``NotCommitted(reason)`` or ``Unknown(reason)``.
        """
        return outcome_of(self._place, transaction_id, self._in_doubt.get(transaction_id) if version is None else version)

    @staticmethod
    def outcome_at(
        uri: Uri, transaction_id: str, *, version: int | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> Outcome:
        """What became of a transaction, where there may be no table: that of a ``create`` which ended in ``OutcomeUnknown``.

        Args:
            uri: where the table is, or was to be.
            transaction_id: the id in the error.
            version: the version in the error.
            storage_options: as for pylance: keys, endpoint, region.
        """
        return outcome_of(open_place(uri, storage_options=storage_options), transaction_id, version)

    def check(self, *, versions: Iterable[int] | None = None) -> CheckReport:
        """Checks every promise a table's files can keep or break; reads metadata of all versions, and keys of this one.

        Args:
            versions: which ones; all by default.
        """
        return check_table(self._place, versions)

    def migrate_manifest_names(self) -> int:
        """Renames manifests from V1 to V2 names. Only while nobody else uses the table. Returns how many were renamed."""
        if self.branch is not None:
            raise UnsupportedFeature("Names are migrated from the main branch.", feature="migration", writing=True)
        count = migrate_names(self._place)
        self._move(self._file, Scheme.V2)
        self._lance = None  # pylance knows the version by its old name
        return count

    @staticmethod
    def resume_migration(uri: Uri, *, storage_options: Mapping[str, Any] | None = None, durability: Durability = "fsync") -> int:
        """Ends a migration of manifest names that was interrupted and left a table that does not open. Returns how many it renamed."""
        return migrate_names(open_place(uri, storage_options=storage_options, durability=durability))
