"""Names of tables, tags and branches in a lake: checked once, at the edge."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tiltyard.catalog.base_view import BaseView
from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.read_set import ReadSet
from tiltyard.errors import InvalidInput
from tiltyard.redact import redact
from tiltyard.storage import lance_uri

if TYPE_CHECKING:
    from tiltyard.lakes.lake_tables import StagedTable

JOINT: Final = "$"
"""Between the parts of a full name as the catalog keeps it; people write a dot."""

_PART: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9_])?", re.ASCII)
_REF: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
_PARTS: Final = 8
_LONGEST_KEY: Final = 1000


def full_name(name: str) -> str:
    """A table's name as the catalog keeps it, from ``"orders"`` or ``"sales.orders"``.

    Raises:
        InvalidInput: a part is empty, too long, or holds more than letters, digits, ``_`` and ``-``.
    """
    parts = name.split(".") if isinstance(name, str) else []
    if not 0 < len(parts) <= _PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidInput(
            f"{str(name)[:80]!r} is not a valid table name.",
            argument="name",
            advice="Use letters, digits, _ and -, with dots between namespaces: sales.orders.",
        )
    return JOINT.join(parts)


def shown(full: str) -> str:
    """A table's name as people write it."""
    return full.replace(JOINT, ".")


def check_ref(name: str, what: str) -> str:
    """The name of a tag or branch, if it is one."""
    if not isinstance(name, str) or _REF.fullmatch(name) is None or ".." in name or name.endswith(".lock"):
        advice = "Use letters, digits, '.', '_' and '-'; begin and end with a letter or digit."
        raise InvalidInput(f"{str(name)[:80]!r} is not a valid name for a {what}.", argument="name", advice=advice)
    return name


def check_idempotency_key(key: str | None) -> str | None:
    """The idempotency key of a transaction, if it is one; None where it has none.

    Raises:
        InvalidInput: it is empty, so that transactions which have nothing in common would share it, or cannot be kept.
    """
    if key is None:
        return None
    if not isinstance(key, str) or not key.strip() or not 0 < _size(key) <= _LONGEST_KEY or "\0" in key:
        raise InvalidInput(
            f"{str(key)[:80]!r} is not a valid idempotency key.",
            argument="idempotency_key",
            advice=f"Use a text of 1 to {_LONGEST_KEY:,} bytes that no other work has, or none at all.",
        )
    return key


def _size(text: str) -> int:
    """Bytes of UTF-8; nothing for a text that has no such form."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def directory_of(full: str, table: str) -> str:
    """Where a new table lives below the root: told apart by its id, so that a name can be used again."""
    return f"{table.replace('-', '')[:12]}_{full.replace(JOINT, '_')}.lance"


SHARD_PREFIX: Final = "__shard_"
"""What the last part of a shard's name begins with."""
_SHARD: Final = re.compile(rf"(?P<table>.+){re.escape(JOINT)}{SHARD_PREFIX}(0|[1-9][0-9]*)", re.ASCII)


def shard_name(full: str, number: int) -> str:
    """The full name of a shard of a table, from the table's full name."""
    return f"{full}{JOINT}{SHARD_PREFIX}{number}"


def logical_name(full: str) -> str | None:
    """The full name of the table that a shard belongs to by its name; None for any other name."""
    found = _SHARD.fullmatch(full)
    return None if found is None else found["table"]


def shard_names(full: str, there: Callable[[str], bool]) -> list[str]:
    """The shards that a table has by their names; none for one that is not sharded."""
    names: list[str] = []
    while there(name := shard_name(full, len(names))):
        names.append(name)
    return names


def without_shards(names: Container[str], listed: Sequence[str]) -> list[str]:
    """Of full names those that people work with: no shards, unless their table is gone."""
    return [name for name in listed if (logical := logical_name(name)) is None or logical not in names]


def refuse_shard(name: str, there: Callable[[str], bool]) -> str:
    """A table's full name, unless it is that of a shard.

    Raises:
        InvalidInput: it is.
    """
    full = full_name(name)
    if SHARD_PREFIX in full and (logical := logical_name(full)) is not None and there(logical):
        raise InvalidInput(
            f"{name} is a shard of {shown(logical)}.",
            argument="name",
            advice=f"Use {shown(logical)}, or lake.table({shown(logical)!r}).shard(number) to read it.",
        )
    return full


def refuse_reserved(name: str) -> str:
    """A table's full name, unless it is one that only a shard may have.

    Raises:
        InvalidInput: it is.
    """
    full = full_name(name)
    if logical_name(full) is not None:
        raise InvalidInput(
            f"{name} is a name reserved for shards.", argument="name", advice=f"Do not begin the last part with {SHARD_PREFIX}."
        )
    return full


_OWN_HOSTS = ("s3", "gs", "memory")
"""Schemes whose first part is a bucket: everything in it is told apart by case."""


def resolved(uri: str | os.PathLike[str]) -> str:
    """A directory's location in its one spelling: absolute, without symbolic links, ``.``, ``..``, doubled or trailing slashes.

    Raises:
        InvalidInput: it points outside its bucket.
    """
    text = os.fspath(uri)
    scheme, mark, rest = text.partition("://")
    if mark and scheme.lower() == "memory":
        return "memory://" + posixpath.normpath(rest).rstrip("/")
    known = lance_uri(text)
    if "://" not in known:
        return os.path.realpath(known)
    scheme, _, rest = known.partition("://")
    bucket, _, path = rest.partition("?")[0].partition("/")
    path = posixpath.normpath("/" + path).strip("/") if path.strip("/") else ""
    if any(part == ".." for part in rest.partition("/")[2].split("/")) and not _stays_inside(rest.partition("/")[2]):
        raise InvalidInput(f"{redact(text)} points outside its bucket.", argument="uri")
    bucket = bucket if scheme.lower() in _OWN_HOSTS else bucket.lower()
    return f"{scheme.lower()}://{bucket}/{path}".rstrip("/")


def _stays_inside(path: str) -> bool:
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return False
    return True


def is_within(location: str, directory: str) -> bool:
    """Whether a resolved location is a resolved directory or lies below it."""
    return location == directory or location.startswith(directory.rstrip("/") + "/")


def below(location: str, directory: str) -> str | None:
    """The path of a resolved location below a resolved directory; None where it lies elsewhere."""
    if not is_within(location, directory):
        return None
    return location[len(directory.rstrip("/")) :].strip("/")


def shown_database(url: str) -> str:
    """The address of a database without user, password and parameters.

    Raises:
        InvalidInput: it is no address.
    """
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise InvalidInput(f"{redact(url)[:80]} is not the address of a database.", argument="uri") from None
    return f"{parts.hostname or ''}{port}{parts.path}"


class TransactionNames:
    """The names of a transaction's tables: those of its base, and what it made of them. Whatever it hands out is noted."""

    def __init__(self, base: BaseView, reads: ReadSet) -> None:
        self._base = base
        self._reads = reads

    def list(self, touched: Mapping[str, StagedTable]) -> set[str]:
        """All names."""
        self._reads.note_list()
        left = left_by(touched.values())
        standing = {name for name in self._base.cut().tables if name not in left and name not in touched}
        return standing | {name for name, table in touched.items() if not table.dropped}

    def find(self, name: str, touched: Mapping[str, StagedTable]) -> TableHead | StagedTable | None:
        """What a name stands for: one of the base, or one the transaction has touched."""
        head = self._base.find(name)
        if head is None:
            self._reads.note_absent(name)
        else:
            self._reads.note_name(head)
        return self._standing(name, head, touched)

    def has(self, name: str, touched: Mapping[str, StagedTable]) -> bool:
        """Whether a name stands for a table, without counting as a look at it."""
        return self._standing(name, self._base.find(name), touched) is not None

    @staticmethod
    def _standing(name: str, head: TableHead | None, touched: Mapping[str, StagedTable]) -> TableHead | StagedTable | None:
        if (found := touched.get(name)) is not None:
            return None if found.dropped else found
        return None if name in left_by(touched.values()) else head


def left_by(touched: Iterable[StagedTable]) -> Collection[str]:
    """Names of the base that the transaction took from their tables."""
    dropped = {table.name for table in touched if table.dropped and table.head is not None}
    return dropped | {table.former for table in touched if table.former}
