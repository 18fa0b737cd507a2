"""Goes back to the content of an older version, as a new one."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.errors import InvalidInput
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.transaction.operations import Restore
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.table_refs import Tags


def version_of(access: TableAccess, main: TableAccess, version: object) -> int:
    """The version a caller names by its number, or by a tag of this branch."""
    if isinstance(version, str):
        tag = Tags(main)[version]
        if tag.branch != access.branch:
            raise InvalidInput(f"Tag {version!r} is of branch {tag.branch or 'main'}, not of this one.", argument="version")
        return tag.version
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidInput(f"A version is a number of at least 1, or a tag, not {version!r}.", argument="version")
    return version


def restore_version(
    access: TableAccess, read: ManifestFile, scheme: Scheme, version: int, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Restores a version, over whatever was committed meanwhile: none of it is lost, it is in the history."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        access.load(version, run.scheme)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), Restore(version), properties)
        return access.committer.commit(transaction, run.read, run.scheme, run.policy)

    return run_verb(access, read, scheme, execute, policy)
