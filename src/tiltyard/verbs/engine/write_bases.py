"""Writing into a base: a place outside the table's directory, or beside its usual files, that a version may name files in.

Only data files go there. Manifests, transactions and deletion files stay with the table, so that one directory decides what the table is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from tiltyard.errors import InvalidInput, StorageError, TiltyardError
from tiltyard.format.digests import file_key
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.interfaces import ObjectStore
from tiltyard.options import FileLimits
from tiltyard.transaction.new_files import at_once, digest_of
from tiltyard.verbs.engine.access import TableAccess


@dataclass(frozen=True, slots=True)
class WriteBase:
    """A base that new data files are put into."""

    access: TableAccess
    base: BasePath

    @property
    def reference(self) -> str:
        """What pylance finds it by."""
        return self.base.name or self.base.path

    def uri_of(self, name: str) -> str:
        return f"{self.base.path.rstrip('/')}/{self._inside(name)}"

    def _inside(self, name: str) -> str:
        return f"data/{name}" if self.base.is_dataset_root else name

    def placed(self, fragments: Iterable[DataFragment]) -> tuple[DataFragment, ...]:
        """The same fragments, once it is certain that their files are in the base, for good.

        A commit makes the files durable that lie in the table's directory; these do not.
        """
        made = tuple(
            replace(fragment, files=tuple(replace(file, base_id=self.base.id) for file in fragment.files)) for fragment in fragments
        )
        try:
            store, paths = self.access.open_base(self.base), self._paths(made)
            store.sync(paths)
            self._note_digests(store, paths)
        except TiltyardError:
            self.remove(made)
            raise
        return made

    def _note_digests(self, store: ObjectStore, paths: list[str]) -> None:
        """Here, where the files can be reached: a commit looks only into the table's own directory."""
        for path, found in at_once(lambda path: (path, digest_of(store, path)), paths):
            inside = path if self.base.is_dataset_root else f"data/{path}"
            self.access.digests.remember({file_key(inside, self.base.id): found})

    def remove(self, fragments: Iterable[DataFragment]) -> None:
        """Deletes what was just written, after a failure that leaves no doubt. What cannot be deleted stays: no cleanup looks there."""
        store = self.access.open_base(self.base)
        for path in self._paths(fragments):
            with suppress(StorageError):
                store.delete(path)

    def _paths(self, fragments: Iterable[DataFragment]) -> list[str]:
        return [self._inside(file.path) for fragment in fragments for file in fragment.files if file.base_id == self.base.id]


def find_base(access: TableAccess, manifest: Manifest, base: str | int | None) -> WriteBase | None:
    """The base of a version that a caller means, by its name, id or path; None for none.

    Raises:
        InvalidInput: the version has no such base.
    """
    if base is None:
        return None
    for path in manifest.base_paths:
        known = (path.name, path.path) if isinstance(base, str) else (path.id,) if type(base) is int else ()
        if base in known:
            return WriteBase(access, path)
    there = ", ".join(path.name or str(path.id) for path in manifest.base_paths)
    advice = f"It has {there}." if there else "Add one with t.settings.add_bases first."
    raise InvalidInput(f"Version {manifest.version} has no base {base!r}.", argument="base", advice=advice[:150])


def without_base(files: FileLimits | None) -> FileLimits:
    """Limits for a verb whose files always go to the table's own directory.

    Raises:
        InvalidInput: they name a base.
    """
    if files is not None and files.base is not None:
        raise InvalidInput("The files of this verb go to the table's own directory.", argument="files", advice="Leave base out.")
    return files or FileLimits()
