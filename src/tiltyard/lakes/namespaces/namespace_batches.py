"""Several tables in one commit, for clients of a namespace: versions that they staged, published all together or not at all.

Of each version the transaction is taken, not the bytes: it is committed again inside a transaction of the lake, by the lake's conflict
rules. So a batch is rebased over what others appended, and refused as a whole where one of its parts conflicts. A client names its batch
by a key; the same batch sent again is not done twice, and what became of it can be asked for by that key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    BatchCreateTableVersionsResponse,
    CommitTableResult,
    ConcurrentModificationError,
    CreateTableVersionEntry,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DeregisterTableResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    InvalidInputError,
    InvalidTableStateError,
    TableNotFoundError,
    TableVersion,
    TransactionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.ledger import maker_of
from tiltyard.errors import CorruptTable, ExpectedVersionMismatch, HistoryUnavailable, NotFound, StorageError
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.lakes.namespaces.declared_tables import DeclaredTable, find_declared, forget_made
from tiltyard.lakes.namespaces.namespace_base import typed
from tiltyard.lakes.namespaces.namespace_versions import VersionOperations, read_staged, refuse_elsewhere, staged_path
from tiltyard.lakes.refusals import RefusedTable
from tiltyard.lakes.table_names import full_name, shown
from tiltyard.transaction.apply.next_manifest import Creation, has_stable_row_ids
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.explain import LOST
from tiltyard.verbs.outcome import Committed, NotCommitted

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import TableHead
    from tiltyard.lakes.lake_transaction import LakeTransaction

KEY: Final = "tiltyard.key"
MESSAGE: Final = "tiltyard.message"
"""In the context of a batch: what it is called, and a sentence for the history."""
MOST_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One version of a batch, read and checked."""

    name: str
    version: int
    staged: str
    location: str
    transaction: Transaction
    file: ManifestFile
    declared: DeclaredTable | None


class BatchOperations(VersionOperations):
    """A namespace, as far as commits over several tables go."""

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Publishes versions of several tables in one step.

        Raises:
            ConcurrentModificationError: one of them conflicts with what others committed; nothing was published.
        """
        request = typed(BatchCreateTableVersionsRequest, request)
        done, versions = self._committed(request.entries, (), request.context or {})
        return BatchCreateTableVersionsResponse(transaction_id=done, versions=versions)

    def batch_commit_tables(self, request: BatchCommitTablesRequest) -> BatchCommitTablesResponse:
        """The same, with tables that are dropped in the same step."""
        request = typed(BatchCommitTablesRequest, request)
        entries, dropped = [], []
        for operation in request.operations:
            if operation.declare_table is not None or operation.delete_table_versions is not None:
                raise UnsupportedOperationError("A batch publishes versions and drops tables. Declare tables before.")
            if operation.create_table_version is not None:
                entries.append(_entry(operation.create_table_version))
            elif operation.deregister_table is not None:
                dropped.append(self._name(operation.deregister_table.id))
            else:
                raise InvalidInputError("An operation of the batch is empty.")
        done, versions = self._committed(entries, dropped, request.context or {})
        made = iter(versions)
        results = []
        for operation in request.operations:
            if operation.create_table_version is not None:
                results.append(CommitTableResult(create_table_version=CreateTableVersionResponse(version=next(made))))
            elif operation.deregister_table is not None:
                results.append(CommitTableResult(deregister_table=DeregisterTableResponse(id=operation.deregister_table.id)))
        return BatchCommitTablesResponse(transaction_id=done, results=results)

    def describe_transaction(self, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
        """What became of a transaction, by its id or by the key of a batch."""
        request = typed(DescribeTransactionRequest, request)
        asked, lake = (list(request.id or [""]))[-1], self._lake
        keyed = lake.catalog.with_key(asked)
        outcome = lake.outcome(asked if keyed is None else str(keyed["transaction"]))
        if isinstance(outcome, Committed):
            told = {"snapshot": str(outcome.version), **({"transaction_id": str(keyed["transaction"])} if keyed else {})}
            return DescribeTransactionResponse(status="Succeeded", properties=told)
        if isinstance(outcome, NotCommitted):
            return DescribeTransactionResponse(status="Failed", properties={"reason": str(outcome)[:200]})
        raise TransactionNotFoundError(f"No transaction {asked[:80]!r} is known to be committed or aborted.")

    # ---- the commit ------------------------------------------------------------------------------------------------------------

    def _committed(
        self, entries: Sequence[CreateTableVersionEntry], dropped: Sequence[str], context: Mapping[str, str]
    ) -> tuple[str, list[TableVersion]]:
        lake, key = self._writable(), context.get(KEY)
        if lake.branch != MAIN:
            raise UnsupportedOperationError("Batches are published on main; use the lake for its branches.")
        if not 0 < len(entries) + len(dropped) <= MOST_ENTRIES:
            raise InvalidInputError(f"A batch has 1 to {MOST_ENTRIES:,} entries.")
        before = None if key is None else lake.catalog.with_key(key)
        if before is not None:
            return str(before["transaction"]), [self._now(entry) for entry in entries]
        parts = [self.part_of(entry) for entry in entries]
        tx = lake.transaction(message=context.get(MESSAGE), idempotency_key=key)
        try:
            with tx:
                for name in dict.fromkeys(part.name for part in parts):
                    self._stage(tx, name, parts)
                for name in dropped:
                    tx.drop_table(name)
        except (ExpectedVersionMismatch, HistoryUnavailable) as error:
            raise ConcurrentModificationError(str(error)) from error
        for part in parts:
            self._clean(part)
        assert tx.result is not None
        return tx.id, _versions(self, parts, tx.result.tables)

    def _stage(self, tx: LakeTransaction, name: str, parts: Sequence[BatchPart]) -> None:
        """Commits the versions of one table inside the transaction. A conflict refuses the batch as one of the commit would."""
        try:
            commit_parts(tx, [part for part in parts if part.name == name])
        except LOST as error:
            heads = {part.name: tx._view.find(full_name(part.name)) for part in parts}
            done = {known: tuple(part.transaction.operation.name for part in parts if part.name == known) for known in heads}
            tables = {known: "" if head is None else head.id for known, head in heads.items()}
            tx._note_refusal(error, tables[name], [RefusedTable(tables[known], known, done[known]) for known in heads])
            raise

    def part_of(self, entry: CreateTableVersionEntry) -> BatchPart:
        """Reads and checks one version of a batch."""
        name, lake = self._name(entry.id), self._lake
        if entry.branch not in (None, MAIN):
            raise UnsupportedOperationError("A batch has versions of the main line of each table.")
        declared, head = None, lake.view().find(full_name(name))
        if head is None:
            declared = find_declared(lake, full_name(name))
            if declared is None:
                raise TableNotFoundError(f"There is no table {name!r} in the lake.")
            head = declared.head
        staged = staged_path(entry.manifest_path)
        refuse_elsewhere(entry.manifest_path, head.location)
        access = lake.plain_access_of(head)
        try:
            data = read_staged(access.store, staged)
            file = access.trusted(decode_manifest_file(data, source=staged, version=entry.version, check=False))
            made = maker_of(data, staged)
        except (CorruptTable, NotFound) as error:
            raise InvalidTableStateError(str(error)) from error
        return BatchPart(name, entry.version, staged, head.location, made, file, declared)

    def _clean(self, part: BatchPart) -> None:
        if part.declared is not None:
            forget_made(self._lake, part.declared)
        head = self._lake.view().find(full_name(part.name))
        if head is not None:
            with suppress(StorageError):
                self._lake.plain_access_of(head).store.delete(part.staged)

    def _now(self, entry: CreateTableVersionEntry) -> TableVersion:
        """The latest version of a table whose batch was committed before."""
        head = self._head(entry.id)
        return self._version(self._access(head), head, head.version)


def _versions(namespace: BatchOperations, parts: Sequence[BatchPart], last: Mapping[str, int]) -> list[TableVersion]:
    """The versions that a batch made, in the order of its entries."""
    view, found = namespace._view(), []
    for place, part in enumerate(parts):
        head: TableHead | None = view.find(full_name(part.name))
        later = sum(other.name == part.name for other in parts[place + 1 :])
        if head is None:
            raise TableNotFoundError(f"{part.name} was dropped right after the batch.")
        found.append(namespace._version(namespace._access(head), head, last[part.name] - later))
    return found


def commit_parts(tx: LakeTransaction, parts: Sequence[BatchPart]) -> None:
    """Commits the versions of one table, one on top of the other.

    Raises:
        ExpectedVersionMismatch: the table moved, and a later version rests on what an earlier one made of it.
    """
    first = parts[0]
    if first.declared is not None:
        _create(tx, first)
        own, rest = 1, parts[1:]
    else:
        handle = tx.table(first.name)
        moved = handle.version != first.version - 1
        if moved and any(not isinstance(part.transaction.operation, Append) for part in parts[1:]):
            raise ExpectedVersionMismatch(
                f"{shown(first.name)} moved, and the batch has several versions of it.", table=shown(first.name),
                expected=first.version - 1, actual=handle.version, operation="batch", advice="Run it again.",
            )  # fmt: skip
        handle.commit(first.transaction)
        own, rest = handle.version, parts[1:]
    for part in rest:
        handle = tx.table(part.name)
        handle.commit(replace(part.transaction, read_version=own))
        own = handle.version


def _create(tx: LakeTransaction, part: BatchPart) -> None:
    assert part.declared is not None
    if not isinstance(part.transaction.operation, Overwrite):
        raise InvalidTableStateError(f"The first version of {part.name} is not an Overwrite, which creates a table.")
    manifest = part.file.manifest
    if manifest.data_format is None:
        raise InvalidTableStateError(f"The first version of {part.name} does not state the format of its data files.")
    creation = Creation(manifest.data_format, has_stable_row_ids(manifest))
    transaction = replace(part.transaction, read_version=0)
    tx._make_table(
        full_name(part.name), part.declared.table, lambda staged: staged.committer.create_table(transaction, creation, Scheme.V2)
    )


def _entry(request: CreateTableVersionRequest) -> CreateTableVersionEntry:
    return CreateTableVersionEntry(
        id=request.id or [],
        version=request.version,
        branch=request.branch,
        manifest_path=request.manifest_path,
        manifest_size=request.manifest_size,
        naming_scheme=request.naming_scheme,
    )
