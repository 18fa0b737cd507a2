"""How a table is stored: its versions, fragments and file format, as ``t.layout`` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiltyard.format.flags import describe as describe_flags
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.handles.base import Handle


class TableLayout:
    """What lies in the store, as the version of a handle has it."""

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
        """Places beside the table's own directory where files of it may lie."""
        return self._table._file.manifest.base_paths

    def versions(self) -> list[int]:
        """The versions that can still be opened, ascending."""
        return [name.version for name in self._table._access.log.versions()]

    def latest_version(self) -> int:
        """The latest version there is, whatever the handle is at."""
        return self._table._access.head()[0]
