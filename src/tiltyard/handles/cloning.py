"""The verb that makes another table of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.handles.history import Uri
from tiltyard.interfaces import CommitHandler
from tiltyard.storage import Durability
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.clone import Cloning, Progress, clone_table
from tiltyard.verbs.engine.access import open_place
from tiltyard.verbs.engine.data_files import properties_with_message


class CloneVerb(Handle):
    """What a handle does for another table."""

    def clone(
        self,
        target_uri: Uri,
        shallow: bool = True,
        version: int | None = None,
        *,
        tag: str | None = None,
        progress: Progress | None = None,
        workers: int = 8,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
        handler: str | CommitHandler | None = None,
    ) -> CommitResult:
        """Makes a new table with the content of a version. Its first version has the number of that one.

        A shallow clone is made at once and refers to the files here: open it with ``allowed_bases=[t.uri]``, and keep the version it is
        made of, best by a tag. A deep one has all files for itself; it is seen when all are there, and one that was interrupted goes on
        where it stopped when it is made again.

        Args:
            target_uri: where to make it.
            shallow: whether to refer to files instead of copying them.
            version: the version to clone; by default this handle's.
            tag: or the one a tag names.
            progress: called with how many of how many bytes are copied.
            workers: how many files are copied at a time.
            message: a sentence for the history of the new table.
            properties: more for it, as text.
            storage_options: for the target; by default those of this table.
            durability: for the target; by default that of this table.
            handler: how its versions are created.

        Raises:
            AlreadyExists: there is a table at the target.
            NotFound: there is no such version or tag.
        """
        if version is not None and tag is not None:
            raise InvalidInput("Give one of version and tag.", argument="version")
        place, file = self._place, self._file
        if tag is not None:
            found = self.tags[tag]
            place = self._main.on_branch(found.branch)
            file = place.load(found.version, place.head()[1])
        elif version is not None and version != self.version:
            file = place.load(version, self._scheme)
        target = open_place(
            target_uri,
            storage_options=place.storage_options if storage_options is None else storage_options,
            durability=durability or place.durability,
            handler=handler,
        )
        how = Cloning(bool(shallow), workers, progress)
        return clone_table(place, file, target, how, properties_with_message(properties, message))
