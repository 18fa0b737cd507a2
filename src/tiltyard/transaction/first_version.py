"""The first version of a table: nothing to rebase over, and two creators that must not both succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.errors import AlreadyExists, CorruptTable, StorageError
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.transaction.apply.next_manifest import Creation, create
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.new_files import Taken
from tiltyard.transaction.operations import Overwrite
from tiltyard.transaction.race import CommitResult, Race
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import to_be_sealed

if TYPE_CHECKING:
    from tiltyard.transaction.commit import Committer


def create_first(
    committer: Committer, transaction: Transaction, creation: Creation, scheme: Scheme, *, begun: float | None = None
) -> tuple[CommitResult, ManifestFile]:
    """Commits the first version of a table; ``begun`` as in a policy.

    Raises:
        AlreadyExists: there is a table, or somebody was faster.
        StorageError: the store failed, or files of ours are gone, before anything was committed.
        OutcomeUnknown: the store left open whether the table was made.
    """
    if committer.stamp is not None:
        transaction = committer.stamp(transaction)
    operation = transaction.operation
    assert isinstance(operation, Overwrite)
    transaction = Taken(committer.digests).added_to(transaction, None)
    manifest = create(operation, creation, committer.stamped(transaction, None))
    inline = to_be_sealed(transaction).to_bytes()
    data, made = encode_manifest_file(manifest, inline)
    started = committer.runtime.clock.monotonic()
    race = Race(transaction, made, scheme, started, begun=started if begun is None else begun)
    log = committer.log

    def attempt(race: Race) -> ManifestFile:
        if log.head() is not None:
            raise AlreadyExists.table(log.store.uri)
        committer.announce(race, manifest.transaction_file, transaction, inline)
        committer.sync_files(race, announced=True)
        committer.look_for_files(race)
        created = committer.landing.create(transaction, manifest.version, scheme, data)
        if created.winner is not None:
            raise AlreadyExists.table(log.store.uri)
        _check_alone(committer, manifest.version, scheme)
        committer.head_check.leave_hint(manifest.version)
        return created.file or made

    with committer.withdrawing(race):
        return committer.run_race(race, RetryPolicy(), attempt)


def _check_alone(committer: Committer, version: int, scheme: Scheme) -> None:
    """Two creators that name their manifests differently do not meet at one name; the one who sees both gives way."""
    log = committer.log
    try:
        log.head()
    except StorageError:
        return  # the table is there; only this second look failed
    except CorruptTable:
        log.store.delete(manifest_path(version, scheme))
        raise AlreadyExists.table(log.store.uri) from None
