"""Which table is meant, and at which moment: from options to an open handle, the same way for reading, writing and streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, cast

import tiltyard as ty
from tiltyard.errors import InvalidInput
from tiltyard.spark.source_options import TARGET, Options

_MOMENTS: Final = ("version", "tag", "timestamp", "snapshot")


@dataclass(frozen=True, slots=True)
class Address:
    """Where pylance finds the very rows: all a worker has to know. No catalog is asked again.

    Attributes:
        uri: as pylance takes it; a branch has one of its own.
        version: as pylance numbers it; a version that only a transaction sees has a number nobody else uses.
        storage: what goes to the object store.
        version_id: which version of this number it is: a table may have been removed and made again in the same place.
        whole: of a shard, which sharded table it is a part of; that one may have other shards by now.
    """

    uri: str
    version: int
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    version_id: str = ""
    whole: str = field(default="", compare=False)

    @classmethod
    def of(cls, table: ty.TableReader, storage: Mapping[str, Any] | None = None, whole: str = "") -> Address:
        """The address of what a handle shows now."""
        opened = table.lance
        if storage is None:
            storage = opened.latest_storage_options() or {}
        options = tuple(sorted((str(name), str(value)) for name, value in storage.items()))
        return cls(opened.uri, int(opened.version), options, table.layout.version_id(), whole)

    def to_json(self) -> str:
        part = {"whole": self.whole} if self.whole else {}
        told = {"uri": self.uri, "version": self.version, "storage": dict(self.storage), "version_id": self.version_id}
        return json.dumps(told | part)

    @classmethod
    def from_json(cls, text: str) -> Address:
        """The address from an option.

        Raises:
            InvalidInput: it is no address.
        """
        try:
            known = json.loads(text)
            storage = tuple(sorted(dict(known.get("storage") or {}).items()))
            identity, whole = str(known.get("version_id", "")), str(known.get("whole", ""))
            return cls(str(known["uri"]), int(known["version"]), storage, identity, whole)
        except (ValueError, TypeError, KeyError):
            raise InvalidInput("Option address is not what Address.to_json gives.", argument="address") from None


@dataclass(frozen=True, slots=True)
class Target:
    """A table by path, or by lake and name, at its latest or an earlier version. Picklable; opens lazily.

    Attributes:
        path: where the table is; None for a table of a lake.
        lake: where the lake is.
        table: the name in the lake, with dots between namespaces.
        version, tag, timestamp: when; of a lake, tag and timestamp are lake-wide and version is the table's own.
        branch: on which line of history.
        snapshot: a snapshot's number, of a lake only.
        storage: what goes to the object store.
        commit_store: the database that decides who has a version, if a table by path has one.
        token: for a lake behind a server.
        durability: ``"fsync"`` or ``"os"``, as for ``Storage``.
        allowed_bases: places outside the table where its files may be.
        address: the exact rows, for those that only this session can find, such as rows inside a transaction.
    """

    path: str | None = None
    lake: str | None = None
    table: str | None = None
    version: int | None = None
    tag: str | None = None
    branch: str | None = None
    timestamp: str | None = None
    snapshot: int | None = None
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    commit_store: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    durability: str = "fsync"
    allowed_bases: tuple[str, ...] = ()
    address: Address | None = None

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> Target:
        """The target that options describe; options that are not about it are left alone.

        Raises:
            InvalidInput: they contradict each other, or say too little.
        """
        options = given if isinstance(given, Options) else Options(given)
        address = options.text("address")
        target = cls(
            path=options.text("path"),
            lake=options.text("lake"),
            table=options.text("table"),
            version=options.integer("version", least=1),
            tag=options.text("tag"),
            branch=options.text("branch"),
            timestamp=options.text("timestamp"),
            snapshot=options.integer("snapshot", least=0),
            storage=tuple(sorted(options.storage().items())),
            commit_store=options.text("commit_store"),
            token=options.text("token"),
            durability=options.one_of("durability", ("fsync", "os"), "fsync") or "fsync",
            allowed_bases=options.names("allowed_bases") or (),
            address=None if address is None else Address.from_json(address),
        )
        target._check()
        return target

    def _check(self) -> None:
        if self.lake is not None and self.table is None and self.path is not None:
            raise _contradiction("path and lake", "Give path alone, or lake with table.", "path")
        if self.lake is not None and self.path is not None:
            raise _contradiction("path, lake and table", "A table of a lake is found by lake and table.", "path")
        if self.lake is None and self.table is not None:
            raise InvalidInput(
                "Option table names a table of a lake, but no lake is given.", argument="lake", advice="Add lake, or use path."
            )
        if self.lake is not None and self.table is None:
            raise InvalidInput("Option lake needs the name of a table.", argument="table", advice="Add table, such as sales.orders.")
        if self.lake is None and self.path is None and self.address is None:
            raise InvalidInput("No table is given.", argument="path", advice="Use load(path), or options lake and table.")
        given = [name for name in _MOMENTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise _contradiction(" and ".join(given), "Each says when; give one of them.", given[1])
        if self.tag is not None and self.branch is not None:
            raise _contradiction("tag and branch", "A tag names its branch itself.", "branch")
        if self.lake is None and self.snapshot is not None:
            raise InvalidInput("Only a lake has snapshots.", argument="snapshot", advice="Use version for a table by path.")
        if self.lake is not None and self.commit_store is not None:
            raise _contradiction("lake and commit_store", "A lake's catalog decides for its tables.", "commit_store")

    @property
    def name(self) -> str:
        """For people."""
        return self.path or self.table or (self.address.uri if self.address else "")

    @property
    def moment(self) -> str | None:
        """The option that chooses a version; None for the latest one."""
        return next((name for name in _MOMENTS if getattr(self, name) is not None), "address" if self.address else None)

    def require_newest(self, doing: str) -> Self:
        """Refuses a target that is not the latest version, which is the only one that can be changed.

        Raises:
            InvalidInput: an option chooses an earlier version.
        """
        if self.moment is not None:
            raise InvalidInput(
                f"Option {self.moment} cannot be used to {doing}.",
                argument=self.moment,
                advice="Writes start from the latest version: leave the option out.",
            )
        return self

    def pinned(self, version: int) -> Target:
        """The same table at one version of its own."""
        return replace(self, version=version, tag=None, timestamp=None, snapshot=None, address=None)

    def newest(self) -> Target:
        """The same table at its latest version."""
        return replace(self, version=None, tag=None, timestamp=None, snapshot=None, address=None)

    def storage_options(self) -> dict[str, str] | None:
        """Options of the store; None without any."""
        return dict(self.storage) or None

    def to_options(self) -> dict[str, str]:
        """The options that mean this target."""
        found = {name: getattr(self, name) for name in TARGET if name not in ("allowed_bases", "address", "durability")}
        options = {name: str(value) for name, value in found.items() if value is not None}
        if self.durability != "fsync":
            options["durability"] = self.durability
        if self.allowed_bases:
            options["allowed_bases"] = ",".join(f"`{base}`" for base in self.allowed_bases)
        if self.address is not None:
            options["address"] = self.address.to_json()
        return options | {f"storage.{name}": value for name, value in self.storage}

    def open_lake(self) -> ty.Lake:
        """The lake, on the branch that the options choose.

        Raises:
            InvalidInput: the table is not one of a lake.
            NotFound: there is no such lake or branch.
        """
        if self.lake is None:
            raise InvalidInput(f"{self.name} is given by its path, not by a lake.", argument="lake")
        storage = ty.Storage(self.storage_options(), self._durability, token=self.token)
        lake = ty.Lake.open(self.lake, create=False, storage=storage)
        return lake if self.branch is None else lake.on_branch(self.branch)

    @property
    def _durability(self) -> Literal["fsync", "os"]:
        return cast("Literal['fsync', 'os']", self.durability)

    @property
    def reached_by(self) -> ty.Storage:
        """How the store of a table by path is reached, and who decides about its versions."""
        return ty.Storage(self.storage_options(), self._durability, commit_store=self.commit_store, allowed_bases=self.allowed_bases)

    def open_latest(self) -> ty.TableWriter:
        """The latest version, to be written to.

        Raises:
            InvalidInput: an option chooses an earlier version.
            NotFound: there is no such table or branch.
        """
        self.require_newest("write")
        if self.lake is not None:
            return self.open_lake().table(cast(str, self.table))
        return ty.Table.open(cast(str, self.path), branch=self.branch, storage=self.reached_by)

    def open(self) -> ty.TableReader:
        """The table at the version that the options choose.

        Raises:
            NotFound: there is no such table, version, tag, branch or snapshot.
        """
        if self.lake is not None:
            return self._open_in_lake()
        if self.path is None:
            raise InvalidInput("Rows inside a transaction can only be read.", argument="address")
        version = self.version if self.tag is None else self.tag
        return ty.Table.open(self.path, version, branch=self.branch, timestamp=self.timestamp, storage=self.reached_by)

    def _open_in_lake(self) -> ty.TableReader:
        lake, name = self.open_lake(), cast(str, self.table)
        at = self.snapshot if self.snapshot is not None else self.tag or self.timestamp
        if at is not None:
            return lake.snapshot(at).table(name)
        newest = lake.table(name)
        if self.version is None or self.version == newest.version:
            return newest
        return ty.Table.open(newest.uri, version=self.version, branch=newest.branch, storage_options=self.storage_options())

    def locate(self) -> Address:
        """Where workers find the rows, with the version fixed now."""
        return self.address or Address.of(self.open(), dict(self.storage))


def _contradiction(what: str, advice: str, argument: str) -> InvalidInput:
    return InvalidInput(f"Options {what} contradict each other.", argument=argument, advice=advice)
