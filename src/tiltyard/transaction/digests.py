"""Digests of the files a transaction brings: taken before it is committed, kept in its properties.

Who takes them is the caller's business: here it is only said of which files. Whoever commits files that others made (``Table.commit``)
knows nothing of how they came to be, and takes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from tiltyard.format.digests import DIGESTS, Digest, decode_digests, encode_digests, file_key
from tiltyard.format.field_ids import is_blob_v2
from tiltyard.format.manifest import Manifest
from tiltyard.transaction.files import new_files
from tiltyard.transaction.operations import Append, Merge, Operation, Overwrite
from tiltyard.transaction.transaction import Transaction


class Digests(Protocol):
    """Who knows the digests of files that were written for a table."""

    def note(self, path: str, data: bytes) -> None:
        """Tells of a file below the table's root that was just written."""

    def of(self, paths: Sequence[str], *, blobs: bool) -> Mapping[str, Digest]:
        """Digests of files; of all below one for a path that ends in ``/``. With ``blobs``, also of the blobs beside data files."""

    def noted(self, keys: Iterable[str]) -> Mapping[str, Digest]:
        """Digests of files in bases, as far as their writer told of them."""


class NoDigests:
    """Takes none."""

    def note(self, path: str, data: bytes) -> None:
        pass

    def of(self, paths: Sequence[str], *, blobs: bool) -> Mapping[str, Digest]:
        return {}

    def noted(self, keys: Iterable[str]) -> Mapping[str, Digest]:
        return {}


NO_DIGESTS: Final = NoDigests()


class Taken:
    """The digests of one commit, each taken once however often the race is run."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self._known: dict[str, Digest] = {}
        self._asked: set[str] = set()

    def added_to(self, transaction: Transaction, base: Manifest | None) -> Transaction:
        """The transaction with the digests of the files that it brings on top of ``base``."""
        operation = transaction.operation
        stated = transaction.properties.get(DIGESTS)
        if stated is not None:  # it is made again on another version, with the files it had
            self._known.update(decode_digests(stated, "the transaction"))
        paths = dict.fromkeys(new_files(operation, base))
        missing = [path for path in paths if path not in self._known and path not in self._asked]
        self._asked.update(missing)
        if missing:
            self._known.update(self._digests.of(missing, blobs=_has_blobs(operation, base)))
        beside = dict.fromkeys(_in_bases(operation))
        self._known.update(self._digests.noted(key for key in beside if key not in self._known))
        known = {key: found for key, found in self._known.items() if key in beside or _brought_by(key) in paths or key in paths}
        if not known:
            return transaction
        return replace(transaction, properties={**transaction.properties, DIGESTS: encode_digests(known)})


def _has_blobs(operation: Operation, base: Manifest | None) -> bool:
    fields = (*(base.fields if base is not None else ()), *(operation.schema if isinstance(operation, Overwrite | Merge) else ()))
    return any(map(is_blob_v2, fields))


def _brought_by(key: str) -> str:
    """The path that an operation names and that a file comes with: the data file of a blob, the directory of an index."""
    top, _, rest = key.partition("/")
    return f"data/{rest.partition('/')[0]}.lance" if top == "data" else f"{top}/{rest.partition('/')[0]}/"


def _in_bases(operation: Operation) -> list[str]:
    """Keys of data files that an operation puts into bases."""
    fragments = operation.fragments if isinstance(operation, Append | Overwrite) else ()
    return [file_key(f"data/{file.path}", file.base_id) for one in fragments for file in one.files if file.base_id is not None]
