"""What a table says of itself: ``t.settings`` has config, metadata and bases, ``t.layout`` how it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tiltyard.format.flags import describe as describe_flags
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.handles.base import Handle, shorthand
from tiltyard.options import CommitOptions
from tiltyard.transaction.operations import UpdateConfig
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.reexecution import commit_terms
from tiltyard.verbs.statistics.analyze import TableStatistics, table_statistics
from tiltyard.verbs.table_settings import add_bases, changes, new_bases, update_field, update_settings

Values = Mapping[str, str | None]


class SettingsReader:
    """Config and metadata of a version."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    @property
    def config(self) -> Mapping[str, str]:
        """The table's config, which readers and writers follow."""
        return dict(self._table._data()[1].manifest.config)

    @property
    def metadata(self) -> Mapping[str, str]:
        """Table metadata: free text for each key."""
        return dict(self._table._data()[1].manifest.table_metadata)


class TableSettings(SettingsReader):
    """Config, metadata and bases, with the verbs that change them."""

    def update_config(
        self, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the table's config, which readers and writers follow.

        Args:
            values: text for each key; None removes a key.
            replace: whether keys that are not named are removed.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            IncompatibleConflict: a foreign writer changed the same key meanwhile.
        """
        return self._update(UpdateConfig(config_updates=changes(values, replace, "values")), message, commit)

    def update_metadata(
        self, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the table's metadata; arguments and errors are those of ``update_config``."""
        return self._update(UpdateConfig(table_metadata_updates=changes(values, replace, "values")), message, commit)

    def update_schema_metadata(
        self, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the metadata of the schema; arguments and errors are those of ``update_config``."""
        return self._update(UpdateConfig(schema_metadata_updates=changes(values, replace, "values")), message, commit)

    def _update(self, operation: UpdateConfig, message: str | None, commit: CommitOptions | None) -> CommitResult:
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._data, update_settings, operation, described, policy)

    def update_field_metadata(
        self, path: str, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the metadata of a column.

        Args:
            path: the column; ``"s.x"`` is a member of a struct.
            values: text for each key; None removes a key.
            replace: whether keys that are not named are removed.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            InvalidInput: there is no such column, or a key says how it is stored or that it is part of the primary key.
        """
        update = changes(values, replace, "values")
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._data, update_field, path, update, described, policy)

    def add_bases(
        self,
        bases: Iterable[str] | Mapping[str, str],
        *,
        is_dataset_root: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Adds places outside the table's directory where its files may be; ``t.layout.bases`` lists them.

        Args:
            bases: paths or URIs, or paths by name. The handle must have been opened with ``allowed_bases`` that hold them.
            is_dataset_root: whether files are in ``data/`` there, as in a table, or directly.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            InvalidInput: a place is not allowed, or known already.
        """
        new = new_bases(bases, is_dataset_root)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._data, add_bases, new, described, policy)


class SettingVerbs(Handle):
    """The settings of a handle that writes, and shorthands for the most used of them."""

    @property
    def settings(self) -> TableSettings:
        """Config, metadata and bases."""
        return TableSettings(self)

    update_config = shorthand("settings", TableSettings.update_config)
    update_field_metadata = shorthand("settings", TableSettings.update_field_metadata)


class TableLayout:
    """How the version of a handle is stored."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    @property
    def fragments(self) -> Sequence[DataFragment]:
        """The fragments, each with its data files and its deletions."""
        return self._table._file.manifest.fragments

    @property
    def field_ids(self) -> Mapping[str, int]:
        """Ids of the top-level columns. A renamed column keeps its id; one of another type gets a new one."""
        return {field.name: field.id for field in self._table._data()[1].manifest.fields if field.parent_id < 0}

    @property
    def data_format(self) -> str:
        """Version of the data files, such as ``"2.2"``."""
        stated = self._table._file.manifest.data_format
        return stated.version if stated else ""

    @property
    def features(self) -> str:
        """The feature flags that readers and writers of this version must know, in words."""
        manifest = self._table._file.manifest
        return describe_flags(manifest.reader_flags | manifest.writer_flags)

    @property
    def bases(self) -> tuple[BasePath, ...]:
        """Places outside the table's own directory where its files may be."""
        return self._table._file.manifest.base_paths

    def statistics(self, columns: Sequence[str] | None = None) -> TableStatistics:
        """What is known of columns without reading them: bounds, nulls, distinct values.

        ``t.maintenance.analyze`` adds what is missing.

        Args:
            columns: which; all that statistics are kept of without.

        Raises:
            InvalidInput: there is no such column, or statistics are not kept of its type.
        """
        return table_statistics(self._table._access, self._table._file.manifest, columns)

    def version_id(self) -> str:
        """Identifies this version.

        A version of the same number has another id if the table was removed and created again.
        """
        manifest = self._table._file.manifest
        return f"{manifest.transaction_file}@{manifest.timestamp_ns}"

    def versions(self) -> list[int]:
        """The versions that can still be opened, ascending."""
        return [name.version for name in self._table._access.log.versions()]

    def latest_version(self) -> int:
        """The latest version there is, whatever the handle is at."""
        return self._table._access.head()[0]
