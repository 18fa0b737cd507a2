"""Commit handlers and locks that can be given to ``Table.create`` and ``Table.open``."""

from tiltyard.storage.file_lock import FileLock
from tiltyard.storage.handlers import CommitLock, ConditionalPutHandler, LockHandler, RenameHandler
from tiltyard.storage.postgres_lock import PostgresLock

__all__ = ["CommitLock", "ConditionalPutHandler", "FileLock", "LockHandler", "PostgresLock", "RenameHandler"]
