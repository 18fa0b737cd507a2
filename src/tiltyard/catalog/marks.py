"""Marks: what the files of a lake say of themselves, so that their owner is known without the catalog.

Three kinds, each of which any Lance writer keeps or never sees:

- **Owner file**, ``_tiltyard/owner.json`` in the directory of every table that the lake makes, written before the first data file::

      {"format": 1, "lake": ID, "table": ID, "name": FULL_NAME, "transaction": ID, "branch": NAME, "base": SNAPSHOT, "at": TIME,
       "line": ID}

  ``transaction`` is the lake transaction that decides whether there is a table at all. It is empty for a table of pieces, which no
  transaction has been begun for yet; then only the catalog's ``gone/`` record can say that there never will be one.
- **Config of the table**, from its first version on: ``tiltyard.lake.id``, ``tiltyard.lake.table``, ``tiltyard.lake.name`` (full name at
  creation, namespaces joined with ``$``). A foreign commit carries config on.
- **Transaction properties of every version** committed through the lake: ``tiltyard.lake.id``, ``tiltyard.lake.transaction`` (the lake
  transaction that decides about it; for a single verb the version's own), ``tiltyard.lake.branch`` (lake branch),
  ``tiltyard.lake.branch.id`` (its id as far as the table's own branch tells it, ``lake-<branch>-<id>``; empty for main and for a table that
  was made on the branch), ``tiltyard.lake.base`` (a snapshot of that branch it was built on or after), ``tiltyard.lake.author``, and
  ``tiltyard.lake.says`` (what the author of a transaction over several tables says of it, as JSON: ``message``, ``properties``, and the
  idempotency ``key``, without which a restored catalog would let the same work be committed twice).

The snapshot's own number is decided under the locks of the catalog, after the version's bytes are staged, so no version can carry it. A
rebuild derives it: versions with one ``tiltyard.lake.transaction`` are one snapshot; snapshots of a branch are ordered by the versions of
the tables they share, then by base, then by the time in the manifest. Names, tags and branches leave no version at all: see
``lakes/recovery/journal.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tiltyard.catalog.lake_values import TableHead
from tiltyard.errors import CorruptTable, NotFound, StorageError, TiltyardError
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction.group import GROUP
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import LAKE_MARKS, CommitMarks, Transaction
from tiltyard.verbs.engine.access import TableAccess

OWNER_FILE: Final = "_tiltyard/owner.json"
OWNER_FORMAT: Final = 1
LARGEST_OWNER: Final = 64 * 1024
"""Bytes; whatever is larger under that name is not ours."""

PREFIX: Final = LAKE_MARKS
LAKE_ID: Final = PREFIX + "id"
TABLE_ID: Final = PREFIX + "table"
TABLE_NAME: Final = PREFIX + "name"
TRANSACTION: Final = PREFIX + "transaction"
BRANCH: Final = PREFIX + "branch"
BRANCH_ID: Final = PREFIX + "branch.id"
BASE: Final = PREFIX + "base"
AUTHOR: Final = PREFIX + "author"
SAYS: Final = PREFIX + "says"
_MOST_DIGITS: Final = 18
"""Of a snapshot's number."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What is put into all that one writer commits to one table of a lake.

    Attributes:
        lake: the lake's id.
        table: the table's id.
        name: the table's full name.
        branch: the lake's branch.
        branch_id: tells it from others of that name; empty for main.
        base: the snapshot the writer has seen.
        author: who writes.
        transaction: the lake transaction; empty for a single verb, whose own id it is then.
        says: what its author says of it, see ``Says``; empty where that is nothing.
    """

    lake: str
    table: str
    name: str
    branch: str
    branch_id: str = ""
    base: int = 0
    author: str = ""
    transaction: str = ""
    says: str = ""

    def config(self) -> dict[str, str]:
        """For the first version of a table."""
        return {LAKE_ID: self.lake, TABLE_ID: self.table, TABLE_NAME: self.name}

    def properties(self) -> dict[str, str]:
        """For every version."""
        return {
            LAKE_ID: self.lake,
            **({TRANSACTION: self.transaction} if self.transaction else {}),
            BRANCH: self.branch,
            BRANCH_ID: self.branch_id,
            BASE: str(self.base),
            AUTHOR: self.author,
            **({SAYS: self.says} if self.says else {}),
        }

    def stamp(self) -> CommitMarks:
        """For the commits of one writer, whose own transactions decide unless a lake's does."""
        return CommitMarks(self.properties(), TRANSACTION, self.config())

    def owner(self, at: str, line: str) -> Owner:
        """For the directory of a new table."""
        return Owner(self.lake, self.table, self.name, self.transaction, self.branch, self.base, at, line)


@dataclass(frozen=True, slots=True)
class Says:
    """What the author of a lake transaction says of it.

    Attributes:
        message, properties: for the history.
        key: the idempotency key; None for a transaction without one.
    """

    message: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    def to_text(self) -> str:
        """As one JSON text; empty where nothing is said."""
        members = {"message": self.message, "properties": dict(self.properties), "key": self.key}
        told = {name: value for name, value in members.items() if value or (name == "key" and value is not None)}
        return json.dumps(told, separators=(",", ":")) if told else ""

    @classmethod
    def from_text(cls, text: str) -> Says:
        """Reads that back; whatever is not of that form says nothing."""
        try:
            members = json.loads(text) if text else {}
            message, properties, key = members.get("message", ""), members.get("properties", {}), members.get("key")
        except (ValueError, AttributeError, RecursionError):
            return cls()
        if not isinstance(properties, dict) or not all(isinstance(value, str) for value in (message, *properties.values())):
            return cls()
        return cls(message, properties, key if isinstance(key, str) else None)


def branch_id_of(head: TableHead, branch: str) -> str:
    """The id of the lake's branch, as far as the table's own branch tells it."""
    line = f"lake-{branch}-"
    return head.branch[len(line) :] if head.branch is not None and head.branch.startswith(line) else ""


def without_marks(properties: Mapping[str, str]) -> dict[str, str]:
    """What the author of a commit said of it himself; what others did whose commits are in the same version is told apart."""
    return {key: value for key, value in properties.items() if key != GROUP and not key.startswith(PREFIX)}


def base_in(properties: Mapping[str, str]) -> int:
    """The snapshot that a commit says it was built on or after; 0 where it says none, or what is no number of a snapshot."""
    base = properties.get(BASE, "")
    return int(base) if base.isascii() and base.isdecimal() and len(base) <= _MOST_DIGITS else 0


# ---- whose a directory is ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom the directory of a table belongs to, by its own word.

    Attributes:
        lake: id of the lake.
        table: id of the table.
        name: full name when it was made.
        transaction: the lake transaction that makes it; empty where that is not known.
        branch, base: the lake's branch, and the snapshot its maker had seen.
        at: when it was begun.
        line: id of the line of the lake's history that it is made on; empty where that is not known.
    """

    lake: str
    table: str = ""
    name: str = ""
    transaction: str = ""
    branch: str = ""
    base: int = 0
    at: str = ""
    line: str = ""

    def to_bytes(self) -> bytes:
        members = {
            "format": OWNER_FORMAT,
            "lake": self.lake,
            "table": self.table,
            "name": self.name,
            "transaction": self.transaction,
            "branch": self.branch,
            "base": self.base,
            "at": self.at,
            "line": self.line,
        }
        return json.dumps(members, separators=(",", ":")).encode()


def owner_of(store: ObjectStore) -> Owner | None:
    """Whom a table's directory belongs to: by its owner file, else by the config of its latest version; None where nothing says so."""
    try:
        return _from_file(store)
    except (NotFound, CorruptTable):
        return _from_config(store)


def write_owner(access: TableAccess, marks: Marks, line: str) -> None:
    """Says whose a new table's directory is, before anything else is in it."""
    access.store.put(OWNER_FILE, marks.owner(access.runtime.clock.now().isoformat(), line).to_bytes())


def remove_owner(access: TableAccess) -> None:
    """Takes that back where nothing else is left; whatever is left is somebody's, and cleanup has to know whose."""
    with suppress(StorageError, NotFound):
        if [info.path for info in access.store.list("")] == [OWNER_FILE]:
            access.store.delete(OWNER_FILE)


def _from_file(store: ObjectStore) -> Owner:
    if store.head(OWNER_FILE).size > LARGEST_OWNER:
        raise CorruptTable(OWNER_FILE, "it is too large for an owner file")
    return parse_owner(store.get(OWNER_FILE))


def parse_owner(data: bytes) -> Owner:
    """Reads an owner file.

    Raises:
        CorruptTable: it is none.
    """
    try:
        members: Any = json.loads(data)
        text = {key: members.get(key, "") for key in ("lake", "table", "name", "transaction", "branch", "at", "line")}
        base = members.get("base", 0)
    except (ValueError, AttributeError) as error:
        raise CorruptTable(OWNER_FILE, "it is not an owner file") from error
    if not text["lake"] or not all(isinstance(value, str) for value in text.values()) or not isinstance(base, int):
        raise CorruptTable(OWNER_FILE, "it is not an owner file")
    return Owner(text["lake"], text["table"], text["name"], text["transaction"], text["branch"], base, text["at"], text["line"])


def _from_config(store: ObjectStore) -> Owner | None:
    log = VersionLog(store)
    try:
        found = log.head()
        if found is None:
            return None
        config = log.load(found[0], found[1], lazily=True).manifest.config
    except TiltyardError:
        return None  # whoever cannot be read is not known, and what is not known is left alone
    if not config.get(LAKE_ID):
        return None
    return Owner(config[LAKE_ID], config.get(TABLE_ID, ""), config.get(TABLE_NAME, ""))


@dataclass(frozen=True, slots=True)
class VersionMarks:
    """What a version says of the lake commit it belongs to. See the module's docstring."""

    lake: str
    transaction: str
    branch: str
    branch_id: str
    base: int
    author: str
    says: Says = field(default_factory=Says)

    @classmethod
    def of(cls, made: Transaction) -> VersionMarks | None:
        """The marks of a version; None for one that was not committed through a lake."""
        said = made.properties
        if not said.get(LAKE_ID):
            return None
        return cls(
            said[LAKE_ID],
            said.get(TRANSACTION, ""),
            said.get(BRANCH, ""),
            said.get(BRANCH_ID, ""),
            base_in(said),
            said.get(AUTHOR, ""),
            Says.from_text(said.get(SAYS, "")),
        )
