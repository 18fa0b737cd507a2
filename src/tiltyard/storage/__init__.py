"""Where bytes live, and who may create a version. Imports nothing of ours but errors and interfaces."""

from tiltyard.storage.cloud import CloudStore
from tiltyard.storage.local import Durability, LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.open_store import StorageOptions, address_of, lance_uri, local_path, open_store, refuse_file
from tiltyard.storage.paths import check_path, check_prefix, is_temporary
from tiltyard.storage.probe import ensure_safe

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
    "refuse_file",
]
