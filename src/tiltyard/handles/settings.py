"""Verbs that change what a table says of itself, and the one that goes back to an older version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.transaction.operations import UpdateConfig
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy
from tiltyard.verbs.restore import restore_version, version_of
from tiltyard.verbs.table_settings import add_bases, changes, new_bases, update_field, update_settings

Settings = Mapping[str, str | None]


class SettingVerbs(Handle):
    """What a handle does beside rows and columns."""

    def update_config(
        self,
        values: Settings,
        *,
        replace: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Changes the table's config, which readers and writers heed.

        Args:
            values: texts by key; None removes a key.
            replace: whether keys that are not named go.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            IncompatibleConflict: somebody else changed the same key meanwhile.
        """
        operation = UpdateConfig(config_updates=changes(values, replace, "values"))
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: update_settings(*self._data(), self._scheme, operation, described, policy))

    def update_metadata(
        self,
        values: Settings,
        *,
        replace: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Changes the table's metadata.

        Args:
            values: texts by key; None removes a key.
            replace: whether keys that are not named go.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            IncompatibleConflict: somebody else changed the same key meanwhile.
        """
        operation = UpdateConfig(table_metadata_updates=changes(values, replace, "values"))
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: update_settings(*self._data(), self._scheme, operation, described, policy))

    def update_schema_metadata(
        self,
        values: Settings,
        *,
        replace: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Changes the metadata of the schema.

        Args:
            values: texts by key; None removes a key.
            replace: whether keys that are not named go.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            IncompatibleConflict: somebody else changed the same key meanwhile.
        """
        operation = UpdateConfig(schema_metadata_updates=changes(values, replace, "values"))
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: update_settings(*self._data(), self._scheme, operation, described, policy))

    def update_field_metadata(
        self,
        path: str,
        values: Settings,
        *,
        replace: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Changes the metadata of a column.

        Args:
            path: the column; ``"s.x"`` is a member of a struct.
            values: texts by key; None removes a key.
            replace: whether keys that are not named go.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: there is no such column, or a key says how it is stored or that it is part of the primary key.
        """
        update = changes(values, replace, "values")
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: update_field(*self._data(), self._scheme, path, update, described, policy))

    def add_bases(
        self,
        bases: Iterable[str] | Mapping[str, str],
        *,
        is_dataset_root: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Adds places outside the table's directory where files of it may lie.

        Args:
            bases: paths or URIs, or paths by name. This handle must have been opened with ``allowed_bases`` that hold them.
            is_dataset_root: whether files lie in ``data/`` there, as in a table, or directly.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: a place is not allowed, or known already.
        """
        new = new_bases(bases, is_dataset_root)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: add_bases(*self._data(), self._scheme, new, described, policy))

    def restore(
        self,
        version: int | str,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Makes a new version with the content of an older one. What came between stays in the history.

        Args:
            version: its number, or a tag.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            NotFound: there is no such version or tag.
        """
        number = version_of(self._place, self._main, version)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: restore_version(*self._data(), self._scheme, number, described, policy))
