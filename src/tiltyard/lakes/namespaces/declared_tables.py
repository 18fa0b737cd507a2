"""Tables that a client has announced and not written yet: a directory that is theirs, and no version.

A declaration is a record under the table's name. It names the table's id, its directory, and the transaction that will make it, which is
also in the directory's owner file. So a declaration that nobody follows up is given up like every creation that died: a cleanup aborts the
transaction, and the directory goes. The first version is decided like the creation of any table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from lance_namespace import ConcurrentModificationError, InvalidTableStateError, TableAlreadyExistsError

from tiltyard.catalog.lake_values import Change, Publication, TableHead, VersionStep
from tiltyard.catalog.ledger import maker_of
from tiltyard.catalog.marks import remove_owner, write_owner
from tiltyard.catalog.publishing import AbortedError, StaleError
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import transaction_key
from tiltyard.errors import ContentionError, StorageError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.lakes.recovery.journal import note_names
from tiltyard.lakes.table_names import JOINT, directory_of, refuse_reserved, shown
from tiltyard.storage.external import ExternalStore
from tiltyard.storage.staged import STAGED
from tiltyard.transaction.operations import MAINTENANCE

if TYPE_CHECKING:
    from tiltyard.lake import Lake

DECLARED: Final = "declared/"


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table without a version.

    Attributes:
        table: the id it will have.
        name: its full name.
        location: its directory below the root.
        transaction: the lake transaction that makes it.
        properties: what the client says of it.
    """

    table: str
    name: str
    location: str
    transaction: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def head(self) -> TableHead:
        """What it is like before its first version."""
        return TableHead(self.table, self.name, self.location, 0, 0)

    def body(self, at: str) -> Body:
        """As a record."""
        return {
            "table": self.table,
            "location": self.location,
            "transaction": self.transaction,
            "properties": dict(self.properties),
            "at": at,
        }


def declared_key(branch: str, full: str) -> str:
    return f"{DECLARED}{branch}/{full}"


def find_declared(lake: Lake, full: str) -> DeclaredTable | None:
    """The declaration of that full name, unless it was withdrawn."""
    key = declared_key(lake.branch, full)
    found = lake.catalog.records.get([key])
    if key not in found:
        return None
    declared = _from_body(full, found[key])
    known = lake.catalog.transaction(declared.transaction)
    return None if known is not None else declared


def list_declared(lake: Lake, parts: Iterable[str]) -> list[str]:
    """Full names of declared tables right in a namespace."""
    start = declared_key(lake.branch, "".join(part + JOINT for part in parts))
    found = {key: transaction_key(str(body["transaction"])) for key, body in lake.catalog.records.scan([start])}
    decided = lake.catalog.records.get(found.values()) if found else {}
    names = [key.removeprefix(declared_key(lake.branch, "")) for key, transaction in found.items() if transaction not in decided]
    return [name for name in names if JOINT not in name[len(start) - len(declared_key(lake.branch, "")) :]]


def declare(lake: Lake, name: str, properties: Mapping[str, str] | None) -> DeclaredTable:
    """Reserves a name and a directory for a table.

    Raises:
        TableAlreadyExistsError: the name is taken, or declared by somebody else.
    """
    full, random = refuse_reserved(name), lake.catalog.runtime.random
    view, table = lake.view(), random.uuid()
    if view.find(full) is not None:
        raise TableAlreadyExistsError(f"There is a table {shown(full)!r} in the lake already.")
    new = DeclaredTable(table, full, directory_of(full, table), random.uuid(), dict(properties or {}))
    access = lake.plain_access_of(new.head)
    write_owner(access, lake.marks_of(new.head, lake.branch, view.snapshot, new.transaction), view.line)
    try:
        _note(lake, new)
    except TableAlreadyExistsError:
        remove_owner(access)
        raise
    return new


def _note(lake: Lake, new: DeclaredTable) -> None:
    key = declared_key(lake.branch, new.name)
    before = lake.catalog.records.get([key]).get(key)
    taken = TableAlreadyExistsError(f"The table {shown(new.name)!r} is declared already.")
    if before is not None and lake.catalog.transaction(str(before["transaction"])) is None:
        raise taken
    now = lake.catalog.runtime.clock.now().isoformat()

    def decide(found: Found) -> Writes[None]:
        if found.get(key) != before:
            raise taken
        return Writes(None, {key: new.body(now)})

    lake.catalog.records.transact([key], [], decide)


def give_up(lake: Lake, declared: DeclaredTable) -> bool:
    """Makes sure that a declared table is never made. False where it was made just now."""
    if not lake.catalog.abort(declared.transaction):
        return False
    forget_declared(lake, declared)
    remove_owner(lake.plain_access_of(declared.head))
    return True


def make_declared(lake: Lake, declared: DeclaredTable, version: int, data: bytes, source: str) -> TableHead:
    """Publishes the first version of a declared table.

    Raises:
        ConcurrentModificationError: somebody else made it, or a table of that name.
        InvalidTableStateError: the declaration was aborted by a cleanup.
    """
    if version != 1:
        raise ConcurrentModificationError(f"{shown(declared.name)} has no version yet: its first one is 1, not {version}.")
    view, made = lake.view(), maker_of(data, source)
    access = lake.access_of(declared.head, lake.branch, None, view.snapshot, declared.transaction)
    path = manifest_path(1, Scheme.V2)
    store = cast(ExternalStore, access.store)
    staged = f"{STAGED}{declared.transaction}/1-{lake.catalog.runtime.random.uuid()}.manifest"
    store.inner.put(staged, data)
    content = not isinstance(made.operation, MAINTENANCE)
    step = VersionStep(1, path, staged, made.uuid, made.operation.name, content)
    change = Change(declared.table, "create", declared.name, 0, 0, (step,), declared.location, Scheme.V2.value)
    publication = Publication(
        declared.transaction, (change,), lake.branch, author=lake.author, message=made.message, base=view.snapshot, line=view.line,
        blind=True,
    )  # fmt: skip
    try:
        done = lake.catalog.publish(publication)
    except StaleError:
        store.inner.delete(staged)
        raise ConcurrentModificationError(f"A table {shown(declared.name)!r} was made by another writer.") from None
    except AbortedError:
        store.inner.delete(staged)
        raise InvalidTableStateError(f"The declaration of {shown(declared.name)!r} was aborted. Declare the table again.") from None
    if done.replayed:
        store.inner.delete(staged)
        raise ConcurrentModificationError(f"Version 1 of {shown(declared.name)} is taken.")
    store.finish()
    note_names(lake, lake.branch, done.snapshot, declared.transaction)
    forget_made(lake, declared)
    head = lake.view().find(declared.name)
    return declared.head if head is None else head


def forget_made(lake: Lake, declared: DeclaredTable) -> None:
    """Removes the record of a declaration whose table was just made. If that fails the table is there, and nobody takes the record for more
    than it is: its transaction is decided."""
    with suppress(ContentionError, StorageError):
        forget_declared(lake, declared)


def forget_declared(lake: Lake, declared: DeclaredTable) -> None:
    """Removes the record of a declaration that was followed up or given up."""
    key = declared_key(lake.branch, declared.name)

    def decide(found: Found) -> Writes[None]:
        return Writes(None, delete=[key] if found.get(key, {}).get("transaction") == declared.transaction else [])

    lake.catalog.records.transact([key], [], decide)


def _from_body(full: str, body: Body) -> DeclaredTable:
    return DeclaredTable(str(body["table"]), full, str(body["location"]), str(body["transaction"]), dict(body.get("properties") or {}))
