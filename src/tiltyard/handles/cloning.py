"""Tags, branches and clones: what a table of its own has beside the main line of its history."""

from __future__ import annotations

from functools import cached_property

from tiltyard.catalog.commit_store import decided_outside
from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.handles.history import Uri
from tiltyard.options import CloneOptions, Storage, storage_of
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.clone import Cloning, clone_table
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.engine.arguments import version_number
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.table_refs import Branches, Tags


class CloneVerb(Handle):
    """What a handle does beside its own line of history."""

    @cached_property
    def tags(self) -> Tags:
        """Names for versions."""
        return Tags(self._main)

    @cached_property
    def branches(self) -> Branches:
        """Lines of history beside the main one."""
        return Branches(self._main)

    def clone(
        self,
        target_uri: Uri,
        shallow: bool = True,
        version: int | str | None = None,
        *,
        storage: Storage | None = None,
        options: CloneOptions | None = None,
        message: str | None = None,
    ) -> CommitResult:
        """Creates a new table with the content of a version. Its first version has the same number.

        A shallow clone is made at once and refers to the files here: open it with ``allowed_bases=[t.uri]``, and keep the version it is
        made of, best by a tag. A deep clone copies all files; it becomes visible when all are copied, and the same call resumes one
        that was interrupted.

        Args:
            target_uri: where to make it.
            shallow: whether to refer to files instead of copying them.
            version: the version to clone, by its number or a tag; by default this handle's.
            storage: of the target; by default that of this table.
            options: how files are copied, and properties for the history of the new table.
            message: a sentence for that history.

        Raises:
            AlreadyExists: there is a table at the target.
            NotFound: there is no such version or tag.
        """
        access, file = self._access, self._file
        if isinstance(version, str):
            found = self.tags[version]
            access = self._main.on_branch(found.branch)
            file = access.load(found.version, access.head()[1])
        elif version is not None and version_number(version) != self.version:
            file = access.load(version, self._scheme)
        there = Storage(access.storage_options, access.durability) if storage is None else storage_of(storage)
        if there.allowed_bases:
            raise InvalidInput(
                "The bases of a clone are recorded in the clone itself.", argument="storage", advice="Leave allowed_bases out."
            )
        target = decided_outside(open_access(target_uri, there), there.commit_store)
        how = options or CloneOptions()
        described = properties_with_message(how.properties, message)
        return clone_table(access, file, target, Cloning(bool(shallow), how.workers, how.progress), described)
