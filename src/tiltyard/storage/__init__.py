"""Where bytes live, and who may create a version. Does not know what the bytes mean.

A commit rests on one promise: of many writers exactly one creates a name. A ``CommitHandler`` keeps it over an ``ObjectStore``; both
protocols are in ``interfaces``. The commit loop and the verbs call them, nothing here calls back.

Stores
    ``open_store``      from a URI and its options to a store
    ``local``           ``LocalStore``: a directory; ``files`` has its steps on a POSIX file system
    ``renewed_options`` ``RenewedOptions``: keys that end by themselves, and are renewed
    ``cloud``           ``CloudStore``: S3, Google Cloud Storage, Azure through obstore; ``uploads`` has several requests under way
    ``memory``          ``MemoryStore``: this process only
    ``wrapper``         a store around a store
    ``paths``           what a path may be
    ``transfer``        copies an object between stores
Handlers and locks
    ``handlers``        ``ConditionalPutHandler``, ``RenameHandler``, ``LockHandler``; ``handler_for`` chooses
    ``external``        ``ExternalHandler``: a ledger outside the store decides (commit stores, lakes)
    ``staged``          ``StagedStore``: versions that only an open transaction sees
    ``file_lock``       ``FileLock``; ``postgres_lock`` ``PostgresLock``
    ``local_queue``     ``LocalQueue``: writers of a table wait for each other, and commit for each other; on ``queue_seats``
    ``machine_queue``   ``MachineQueue``: the same for the writers on one machine, before a table of an object store
    ``strangers``       whether a writer who knows nothing of the queue was beaten to a version
    ``thread_queue``    ``ThreadQueue``: the same for the threads of one process; ``queue_of`` chooses
    ``probe``           whether a store keeps the promise: ``ensure_safe``

Fails with ``AlreadyExists`` (another writer has the name), ``NotFound``, ``UnsafeStore``, ``InvalidInput`` (a URI or option) or
``StorageError``, whose ``maybe_applied`` says that the store may have applied the request.
"""

from tiltyard.storage.cloud import CloudStore
from tiltyard.storage.local import Durability, LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.open_store import StorageOptions, address_of, lance_uri, local_path, open_store, option_name, refuse_file
from tiltyard.storage.paths import check_path, check_prefix, is_temporary
from tiltyard.storage.probe import ensure_safe
from tiltyard.storage.thread_queue import queue_of

__all__ = [
    "CloudStore",
    "Durability",
    "LocalStore",
    "MemoryStore",
    "StorageOptions",
    "address_of",
    "check_path",
    "check_prefix",
    "ensure_safe",
    "is_temporary",
    "lance_uri",
    "local_path",
    "open_store",
    "option_name",
    "queue_of",
    "refuse_file",
]
