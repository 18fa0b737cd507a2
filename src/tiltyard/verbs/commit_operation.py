"""Commits an operation whose files are written already, as it is."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.errors import HistoryUnavailable, InvalidInput, NotFound
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import TableAccess


def as_transaction(
    operation: Operation | Transaction,
    read_version: int | None,
    properties: Mapping[str, str] | None,
    access: TableAccess,
    read: ManifestFile,
) -> Transaction:
    """A whole transaction as it came, or a new one around an operation."""
    if isinstance(operation, Transaction):
        if read_version is not None or properties is not None:
            raise InvalidInput("A transaction brings its read version, message and properties along.", argument="read_version")
        return operation
    if not isinstance(operation, Operation):
        raise InvalidInput(f"A {type(operation).__name__} is not an operation.", argument="operation", advice="See tiltyard.ops.")
    built_on = read.manifest.version if read_version is None else read_version
    return Transaction(built_on, access.runtime.random.uuid(), operation, properties or {})


def commit_transaction(
    access: TableAccess, read: ManifestFile, scheme: Scheme, transaction: Transaction, policy: RetryPolicy
) -> tuple[CommitResult, ManifestFile]:
    """Commits it on top of the version it was built on, which need not be the one the handle is at."""
    access.ensure_safe()
    if transaction.read_version != read.manifest.version:
        try:
            read = access.load(transaction.read_version, scheme)
        except NotFound as error:
            refusal = HistoryUnavailable(
                f"Read version {transaction.read_version} cannot be read.",
                operation=transaction.operation.name,
                read_version=transaction.read_version,
                missing=[transaction.read_version],
            )
            refusal.transaction_id = transaction.uuid
            raise refusal from error
    return access.committer.commit(transaction, read, scheme, policy, unverified=True)
