"""Deletes the rows that a condition holds for."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.errors import TiltyardError
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.transaction.operations import Delete
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import discard_files, matching_rows, strike_out

Committed = tuple[CommitResult, ManifestFile]


def delete_rows(
    access: TableAccess, read: ManifestFile, scheme: Scheme, where: str, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Deletes rows. Where the condition holds for none, nothing is committed."""

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        rows = matching_rows(access, manifest, where)
        if not rows:
            return nothing_done(run, Delete.name, {"deleted": 0})
        struck = strike_out(access, manifest, rows)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), Delete(struck.updated, struck.removed, where), properties)
        counts = {"deleted": sum(map(len, rows.values()))}
        try:
            return access.committer.commit(transaction, run.read, run.scheme, run.policy, rows=struck.rows, counts=counts)
        except TiltyardError as error:
            discard_files(access, struck.files(), error)
            raise

    return run_verb(access, read, scheme, execute, policy)


def nothing_done(run: Execution, operation: str, counts: Mapping[str, int]) -> Committed:
    """The result of a verb that found nothing to do: the version it looked at, and no commit."""
    version = run.read.manifest.version
    return CommitResult(version, operation, "", version, attempts=0, rows=dict(counts)), run.read
