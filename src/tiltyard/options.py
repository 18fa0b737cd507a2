"""Options that travel together, as values: how a verb commits, how files are cut, how a store is reached, what a new table is like.

Each value is frozen and checks itself when it is made, so that a verb never has to. An ``InvalidInput`` names the argument.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.interfaces import CommitHandler, Runtime
from tiltyard.storage import Durability as Durability

if TYPE_CHECKING:
    from tiltyard.verbs.engine.isolated import ReadLimits

OnDuplicate = Literal["error", "allow"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _count(value: object, name: str, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}.", argument=name)


def _mapping(value: object, name: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is a mapping, not a {type(value).__name__}.", argument=name)


def span_of(text: str) -> timedelta | None:
    """A span of time such as ``7d``, ``12h`` or ``1d12h``; None for what is none, or is longer than any table is old."""
    parts = re.findall(r"(\d{1,9})([smhdw])", text, re.ASCII)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    try:
        return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta(0))
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """How a verb commits.

    Attributes:
        properties: text by key, kept in the history beside the message.
        race_retries: how often a lost race for a version number is retried; None for as often as it takes. The verb is rebased, not
            re-executed.
        reexecutions: how often the verb is re-executed on the latest version after a retryable conflict.
        deadline: seconds after which no retry and no re-execution starts; None for no limit.
        expected_version: for an overwrite, the version of the table that its rows were made from: if others changed rows or columns since,
            that is a conflict, and nothing is replaced. Without it an overwrite replaces the latest version. For
            ``distributed.change_rows`` the version that the change was made from. Other verbs do not take it.
    """

    properties: Mapping[str, str] | None = None
    race_retries: int | None = None
    reexecutions: int = 10
    deadline: float | None = None
    expected_version: int | None = None

    def __post_init__(self) -> None:
        _mapping(self.properties, "properties")
        if self.race_retries is not None:
            _count(self.race_retries, "race_retries")
        _count(self.reexecutions, "reexecutions")
        if self.deadline is not None and (
            isinstance(self.deadline, bool) or not isinstance(self.deadline, int | float) or not self.deadline >= 0
        ):
            raise InvalidInput("deadline must be a number of seconds, 0 or more, or None.", argument="deadline")
        if self.expected_version is not None:
            _count(self.expected_version, "expected_version", 1)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How rows are split into data files, and where these are written.

    Attributes:
        rows: begin a new file after so many rows.
        bytes: or after so many bytes.
        base: the base that the files are written to, by its name, id or path (see ``t.settings.add_bases``); the table's directory without
            one.
    """

    rows: int = 1024 * 1024
    bytes: int = 90 * 1024**3
    base: str | int | None = None

    def __post_init__(self) -> None:
        _count(self.rows, "rows", 1)
        _count(self.bytes, "bytes", 1)


@dataclass(frozen=True, slots=True)
class Storage:
    """How a table's store is reached, and who decides about its versions.

    Attributes:
        options: as for pylance: keys, endpoint, region.
        durability: ``"fsync"`` survives power loss, ``"os"`` leaves it to the operating system.
        handler: how a version is created: ``"conditional-put"``, ``"rename"``, ``"lock"`` or a handler of your own.
        commit_store: a database that decides instead, ``sqlite:///file`` or ``postgresql://...``; all writers must name the same.
        allowed_bases: places outside the table where its files may be, as those of a shallow clone are; ``"*"`` for anywhere.
        verify: ``"read"`` compares every file of a version with its digest before rows of it are handed out, each file once. The first
            read of a version then takes as long as reading all its files. Files that others wrote have no digest and pass.
        isolate: whether rows are decoded in a child process with a memory limit, for tables that others made: bytes that would end this
            process end in ``CorruptTable``. ``ReadLimits`` sets the bounds. Each read takes the time to start a process.
        runtime: clock and randomness, for tests.
        token: for a lake behind a server, as ``tiltyard token create`` showed it; it needs a role for all tables.
    """

    options: Mapping[str, Any] | None = field(default=None, repr=False)
    durability: Durability = "fsync"
    handler: str | CommitHandler | None = None
    commit_store: str | None = field(default=None, repr=False)
    allowed_bases: Sequence[str | os.PathLike[str]] = ()
    verify: Literal["read"] | None = None
    isolate: bool | ReadLimits = False
    runtime: Runtime | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _mapping(self.options, "storage_options")
        if self.durability not in ("fsync", "os"):
            raise InvalidInput(f"durability is 'fsync' or 'os', not {self.durability!r}.", argument="durability")
        if self.handler is not None and self.commit_store is not None:
            raise InvalidInput("handler and commit_store exclude each other: one of them decides about versions.", argument="commit_store")
        if isinstance(self.allowed_bases, str):
            raise InvalidInput("allowed_bases is a list of places.", argument="allowed_bases", advice="Put brackets around it.")
        if self.verify not in (None, "read"):
            raise InvalidInput(f"verify is 'read' or None, not {self.verify!r}.", argument="verify")


def storage_of(
    storage: Storage | None,
    options: Mapping[str, Any] | None = None,
    durability: Durability | None = None,
    allowed_bases: Sequence[str | os.PathLike[str]] = (),
    *,
    of_lake: bool = False,
) -> Storage:
    """The storage that is meant: the value, or what the shorthands beside it say.

    Raises:
        InvalidInput: both were given, or a token for a single table.
    """
    if storage is None:
        return Storage(options, "fsync" if durability is None else durability, allowed_bases=allowed_bases)
    if not isinstance(storage, Storage):
        raise InvalidInput(f"storage is a ty.Storage, not a {type(storage).__name__}.", argument="storage")
    if options is not None or durability is not None or allowed_bases:
        raise InvalidInput("Give storage=, or its shorthands storage_options= and durability=, not both.", argument="storage")
    if storage.token is not None and not of_lake:
        raise InvalidInput("Only a lake behind a server asks for a token.", argument="token", advice="Leave it out, or use ty.Lake.open.")
    return storage


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a new table is like, beside its rows and its key.

    Attributes:
        config: table config to begin with.
        data_format: version of the data files.
        manifest_naming: ``"v1"`` only for readers that know nothing else.
        on_duplicate: what to do, with a primary key, about duplicate keys in the rows; ``"allow"`` looks for none.
        files: how the first rows are split into files.
        message: a sentence for the history of the first version.
        properties: text by key, kept beside it.
    """

    config: Mapping[str, str] | None = None
    data_format: str = "2.2"
    manifest_naming: Literal["v1", "v2"] = "v2"
    on_duplicate: OnDuplicate = "error"
    files: FileLimits = FileLimits()
    message: str | None = None
    properties: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _mapping(self.config, "config")
        _mapping(self.properties, "properties")
        if self.manifest_naming not in ("v1", "v2"):
            raise InvalidInput(f"manifest_naming is 'v1' or 'v2', not {self.manifest_naming!r}.", argument="manifest_naming")
        if not isinstance(self.files, FileLimits):
            raise InvalidInput(f"files is a ty.FileLimits, not a {type(self.files).__name__}.", argument="files")


@dataclass(frozen=True, slots=True)
class Backfill:
    """How the values of whole columns are computed.

    Attributes:
        read_columns: what a function is given; all columns by default.
        schema: what it returns; by default that of the first batch.
        batch_size: how many rows it is given at once.
        progress: called with the number of finished fragments, and of all.
        checkpoint: a file that records finished fragments: after a crash the same call resumes from it.
    """

    read_columns: Sequence[str] | None = None
    schema: pa.Schema | None = None
    batch_size: int | None = None
    progress: Callable[[int, int], object] | None = None
    checkpoint: str | os.PathLike[str] | None = None


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index type with its options; verbs that create an index take it in place of the bare name.

    Attributes:
        type: such as ``"BTREE"`` or ``"IVF_PQ"``.
        options: options of this type, as pylance takes them, such as ``num_partitions``, ``metric`` or ``with_position``.
        progress: called with the stage of the work, how much of it is done, and of how much or None.
        runner: builds segments in other processes: is given a task and returns what ``task.segment(fragments)`` made, over all
            fragments, each once. A vector index is built in this process all the same.
    """

    type: str
    options: Mapping[str, Any] | None = None
    progress: Callable[[str, int, int | None], object] | None = None
    runner: Callable[[Any], Iterable[Any]] | None = None

    def __post_init__(self) -> None:
        _mapping(self.options, "options")


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """How a table is cloned.

    Attributes:
        workers: how many files are copied at a time.
        progress: called with how many of how many bytes are copied.
        properties: text by key, kept in the history of the new table beside the message.
    """

    workers: int = 8
    progress: Callable[[int, int], object] | None = None
    properties: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _count(self.workers, "workers", 1)
        _mapping(self.properties, "properties")


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """How the catalog of a lake is recovered.

    Attributes:
        replace: whether an existing catalog may be replaced.
        author: who recovers it, for the history; user and machine by default.
        progress: called with how many of how many tables were read.
    """

    replace: bool = False
    author: str | None = None
    progress: Callable[[int, int], object] | None = None


@dataclass(frozen=True, slots=True)
class WalSharding:
    """How the write-ahead log of a table is split into shards, in at most one way.

    Without any, writers name their shards themselves.

    Attributes:
        bucket_column: with ``num_buckets``, shards by the hash of this column.
        num_buckets: how many.
        identity_column: shards by the values of this column.
        unsharded: one shard for all.
    """

    bucket_column: str | None = None
    num_buckets: int | None = None
    identity_column: str | None = None
    unsharded: bool = False


@dataclass(frozen=True, slots=True)
class LakeRetention:
    """What a lake's cleanup keeps, beside snapshots.

    Attributes:
        outcomes: how long ``Lake.outcome`` of a committed transaction can be asked for; after that it is ``Unknown``, and a transaction
            that was begun before is refused.
        keys: how long an idempotency key holds; after that a transaction with that key is committed again.
        pin_snapshots: leaves a Lance tag at each version that a kept snapshot needs, so that a cleanup of lancedb or pylance keeps it
            as well; a small file for each. Without it only what tags and branches of the lake need is safe from those.
        include_unknown: directories to delete although nothing proves that they are this lake's, by the names that ``orphans`` of an
            earlier report gives them. One that belongs to another lake is refused.
    """

    outcomes: timedelta = timedelta(days=30)
    keys: timedelta = timedelta(days=30)
    pin_snapshots: bool = False
    include_unknown: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("outcomes", "keys"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise InvalidInput(f"{name} must be a timedelta of zero or more.", argument=name)
