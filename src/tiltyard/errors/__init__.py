"""Every error Tiltyard raises, arranged by what the caller does next.

    TiltyardError
    +-- ConflictError                another commit won; nothing of ours is visible
    |   +-- RetryableConflict        refresh and re-execute the operation on the latest version
    |   |   +-- ExpectedVersionMismatch
    |   |   +-- KeyConflict
    |   +-- MergeConflict            two branches changed the same things; settle the conflicts, and merge again
    |   +-- IncompatibleConflict     a person decides: re-executing it may mean something else
    +-- ContentionError              too many lost races; wait, or send fewer commits
    +-- OutcomeUnknown               ask ``t.transactions.outcome(id)`` or ``ty.outcomes.outcome_at``; delete nothing
    +-- HistoryUnavailable           reopen the table: a version since the one it read cannot be read
    +-- CorruptTable                 a file holds wrong bytes; restore it, or open another version
    +-- UnsupportedFeature           the table needs a newer release; upgrade
    +-- UnsafeStore                  the store overwrites existing objects; use a lock, or another store
    +-- OwnershipError               open the lake that owns it, or rebuild its catalog
    +-- ProtectedBranch              work on another branch, and have it checked and merged
    +-- NotFound                     (also LookupError) no such table, version, tag or object
    +-- AlreadyExists                the name is taken
    +-- AlreadyCommitted             nothing to do: this idempotency key was committed before
    +-- InvalidInput                 (also ValueError) correct the argument
    +-- StorageError                 (also OSError) the store failed; ``maybe_applied`` says whether the request may have succeeded
    +-- WriterTimeout                (also TimeoutError) a batching writer's buffer stays full; append again later

``commit_errors`` holds those of a commit, ``general_errors`` all others.

``kind`` is a stable, machine-readable code. Messages are for people, stay under 300 characters and are not an API. Programs use the
attributes; ``to_dict()`` returns all of them.
"""

from tiltyard.errors.commit_errors import (
    ConflictError,
    ContentionError,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    IncompatibleConflict,
    KeyConflict,
    MergeConflict,
    OutcomeUnknown,
    RetryableConflict,
    complete,
)
from tiltyard.errors.general_errors import (
    MESSAGE_LIMIT,
    AlreadyCommitted,
    AlreadyExists,
    CorruptTable,
    InvalidInput,
    NotFound,
    OwnershipError,
    ProtectedBranch,
    StorageError,
    TiltyardError,
    UnsafeStore,
    UnsupportedFeature,
    Winner,
    WriterTimeout,
    fit,
)

__all__ = [
    "MESSAGE_LIMIT",
    "AlreadyCommitted",
    "AlreadyExists",
    "ConflictError",
    "ContentionError",
    "CorruptTable",
    "ExpectedVersionMismatch",
    "HistoryUnavailable",
    "IncompatibleConflict",
    "InvalidInput",
    "KeyConflict",
    "MergeConflict",
    "NotFound",
    "OutcomeUnknown",
    "OwnershipError",
    "ProtectedBranch",
    "RetryableConflict",
    "StorageError",
    "TiltyardError",
    "UnsafeStore",
    "UnsupportedFeature",
    "Winner",
    "WriterTimeout",
    "complete",
    "fit",
]

for _public in map(globals().__getitem__, __all__):
    if isinstance(_public, type):
        _public.__module__ = __name__  # what tracebacks and pickles call it
del _public
