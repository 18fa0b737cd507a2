"""A branch's directory: made from a version of another line of history, by reference; and removed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from tiltyard.errors import AlreadyExists, InvalidInput, OutcomeUnknown, StorageError, TiltyardError
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.format.refs import branch_root
from tiltyard.transaction.apply import Stamp, clone
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.operations import Clone
from tiltyard.transaction.succession import to_be_sealed
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.place import WRITER, Place

_OWN: Final = frozenset({"_versions", "_transactions", "_deletions", "_indices", "_refs", "_tiltyard", "data", "tree"})
"""Directories of a table: a branch below another one must not lie in one of these."""
_TICK_NS: Final = 1000


def check_no_directory(name: str) -> None:
    if taken := _OWN.intersection(name.split("/")[1:]):
        raise InvalidInput(f"{sorted(taken)[0]!r} is a directory of branch {name.split('/')[0]!r}.", argument="name")


def make_branch(main: Place, name: str, source: Place, file: ManifestFile, scheme: Scheme) -> None:
    """Creates the first version of a branch: the source's content under the same number, with files left where they are.

    Raises:
        AlreadyExists: there are versions in its directory, of a branch that is being made or was not removed to the end.
        OutcomeUnknown: the store left open whether it was made.
    """
    place = main.on_branch(name)
    if place.log.head() is not None:
        raise _taken(name)
    version = file.manifest.version
    operation = Clone(True, source.branch, version, source.lance_uri, name)
    transaction = Transaction(version, place.runtime.random.uuid(), operation)
    now = int(place.runtime.clock.now().timestamp() * 1_000_000) * 1000
    stamp = Stamp(max(now, file.manifest.timestamp_ns + _TICK_NS), WRITER, transaction.file_name)
    inline = to_be_sealed(transaction).to_bytes()
    data, _ = encode_manifest_file(clone(operation, file.manifest, stamp), inline)
    announced = TRANSACTIONS + transaction.file_name
    try:
        place.store.put(announced, inline)
        if place.committer.landing.create(transaction, version, scheme, data).winner is not None:
            raise _taken(name)
    except TiltyardError as error:
        if not isinstance(error, OutcomeUnknown):
            with suppress(StorageError):
                place.store.delete(announced)
        raise
    place.committer.lateness.leave_hint(version)


def _taken(name: str) -> AlreadyExists:
    advice = "Somebody is making it, or did not end removing it; then use branches.delete(name, force=True)."
    return AlreadyExists(f"There are versions of a branch {name!r}.", name=name, advice=advice)


def remove_branch(main: Place, name: str, others: Iterable[str]) -> int:
    """Removes a branch's files, versions first, so that nobody opens the rest. Returns how many.

    Args:
        main: the table.
        name: the branch.
        others: all other branches: one below this one keeps its files.
    """
    root = branch_root(name) + "/"
    kept = tuple(branch_root(one) + "/" for one in others if branch_root(one).startswith(root))
    paths = [info.path for info in main.store.list(root) if not info.path.startswith(kept)]
    for path in sorted(paths, key=lambda path: (not path.endswith(".manifest"), path)):
        main.store.delete(path)
    return len(paths)
