"""From a URI to the catalog of a lake and to where its tables live, which have to belong together."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Body, Records
from tiltyard.catalog.server_link import ServerLink, check_server, is_server
from tiltyard.catalog.server_records import HOME, ServerRecords, VendedOptions
from tiltyard.errors import InvalidInput, NotFound, OwnershipError, TiltyardError
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.lakes.claim import (
    LAKE_DIRECTORY,
    UNKNOWN_CATALOG,
    CatalogId,
    RootClaim,
    claim_existing,
    make_claim,
    read_claim,
    refuse_other_catalog,
    refuse_other_lake,
    replace_claim,
    table_directories,
)
from tiltyard.lakes.table_names import below, resolved, shown_database
from tiltyard.options import Storage, storage_of
from tiltyard.redact import redact
from tiltyard.storage import Durability, address_of, local_path, open_store, refuse_file
from tiltyard.storage.renewed_options import EXPIRES, RenewedOptions
from tiltyard.verbs.engine.isolated import read_limits

CATALOG_FILE: Final = "catalog.db"
"""The SQLite catalog inside the directory of an embedded lake."""
MANIFEST_TABLE: Final = "__manifest"
"""The table that is the catalog of a directory without a database."""

SERVER: Final = "server"
"""The kind of a catalog that a server has."""
_SQL: Final = ("sqlite", "postgresql", "postgres")


def lake_storage(
    storage: Storage | None,
    options: Mapping[str, Any] | None = None,
    durability: Durability | None = None,
    token: str | None = None,
    *,
    recovering: bool = False,
) -> Storage:
    """The storage of a lake, whose catalog decides about versions, and knows which other places its tables may name files in.

    Args:
        storage: what the caller gave.
        options, durability, token: shorthands for it.
        recovering: whether that catalog is lost, so that the caller says which places these are.

    Raises:
        InvalidInput: it names who decides about the versions of one table, or shorthands were given beside it.
    """
    there = storage_of(storage, options, durability, of_lake=True)
    if token is not None and storage is not None:
        raise InvalidInput("There is a token beside storage=.", argument="token", advice="Give it as ty.Storage(token=...).")
    there = there if token is None else replace(there, token=token)
    if there.handler is not None or there.commit_store is not None or (there.allowed_bases and not recovering):
        raise InvalidInput(
            "A lake's catalog decides about versions, and which other places its tables may use.",
            argument="storage",
            advice="Leave handler, commit_store and allowed_bases out.",
        )
    return there


@dataclass(frozen=True)
class LakeLocation:
    """Where the tables of a lake live.

    Attributes:
        root: the directory that locations are relative to; empty where only the catalog knows.
        beside: whether the root is known from where the catalog is, so that the lake can be moved as a whole.
        home: the directory that the catalog lies in; empty for one that lies in none.
        catalog: which one it is.
        lake: the lake's id; empty until the catalog was asked.
        lost: since when the root is known to hold tables that a new catalog does not know; empty for a whole lake.
        storage: how all of it is reached, and how much of it is trusted.
    """

    root: str
    beside: bool
    home: str = ""
    catalog: CatalogId = UNKNOWN_CATALOG
    lake: str = ""
    lost: str = ""
    storage: Storage = field(default_factory=Storage, repr=False)

    def __post_init__(self) -> None:
        read_limits(self.storage.isolate)

    @property
    def stated_root(self) -> str | None:
        """What the catalog has to remember of it."""
        return None if self.beside else self.root

    def with_root(self, stated: str | None) -> LakeLocation:
        """The root as the catalog remembers it, unless the caller named one.

        Raises:
            InvalidInput: nobody named one.
        """
        root = self.root or stated
        if not root:
            raise InvalidInput("The lake has no table root.", argument="root", advice="Pass root= the first time.")
        return replace(self, root=root)

    def root_store(self) -> ObjectStore:
        return open_store(self.root, storage_options=self.storage.options, durability=self.storage.durability)

    def store_at(self, uri: str) -> ObjectStore:
        """The store of a table, by its URI."""
        return open_store(uri, storage_options=self.storage.options, durability=self.storage.durability)

    def uri_of(self, location: str) -> str:
        """The URI of a table: below the root, or a place of its own."""
        if "://" in location or os.path.isabs(location):  # noqa: PTH117
            return location
        return f"{self.root.rstrip('/')}/{location}"


def open_where(
    uri: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    catalog: str | None,
    storage: Storage,
    runtime: Runtime,
    *,
    create: bool = True,
    check: Callable[[LakeLocation], None] | None = None,
) -> tuple[LakeLocation, Records]:
    """The catalog at a URI, and what is known of where its tables live.

    Args:
        uri, root, catalog, storage, runtime: as for ``Lake.open``.
        create: whether a catalog is made where there is none.
        check: looks at the root before a catalog is made there; refuses one that is not that of the root by default.

    Raises:
        InvalidInput: no catalog is known for the URI.
        NotFound: there is no such file, and none may be made.
    """
    if is_server(uri):
        return _served(str(uri), root, storage, runtime)
    if storage.token is not None:
        raise InvalidInput("Only a server asks for a token.", argument="token", advice="Leave it out, or open https://host:port.")
    text = address_of(uri)
    scheme = text.partition("://")[0].partition("+")[0].lower() if "://" in text else ""
    stated = None if root is None else _absolute(address_of(root, "root"))
    if stated is not None and redact(stated) != stated:  # the catalog remembers it, and everybody who opens the lake reads that
        raise InvalidInput("The root of a lake must not hold credentials.", argument="root", advice="Pass them in storage_options.")
    if catalog not in (None, "sqlite", "manifest"):
        raise InvalidInput(f"catalog is 'sqlite' or 'manifest', not {catalog!r}.", argument="catalog")
    if scheme in _SQL:
        if catalog == "manifest":
            raise InvalidInput(f"{redact(text)} is a database, not a place for a manifest table.", argument="catalog")
        beside = _sqlite_directory(text) if scheme == "sqlite" else ""
        at = stated or beside
        where = LakeLocation(at, stated is None and bool(beside), beside, storage=storage)
        return _opened(where, text, create, runtime, check)
    refuse_file(text, "A lake")
    home = _absolute(text)
    where = LakeLocation(stated or home, stated is None, home, storage=storage)
    if catalog == "manifest" or (catalog is None and (scheme not in ("", "file") or _has_manifest(home, where))):
        return _opened_manifest(where, home, create, runtime, check)
    if scheme not in ("", "file"):
        raise InvalidInput(f"A SQLite catalog needs a local directory, not {redact(text)}.", argument="catalog")
    return _opened(where, f"sqlite:///{local_path(home)}/{CATALOG_FILE}", create, runtime, check)


def _served(url: str, root: object, storage: Storage, runtime: Runtime) -> tuple[LakeLocation, Records]:
    """A lake behind a server, which knows where its tables live, and who brings the token.

    Raises:
        InvalidInput: the server refuses the token or its role, or a root was named.
        StorageError: the server cannot be reached.
    """
    if root is not None:
        raise InvalidInput("A server knows where the tables of its lake are.", argument="root", advice="Leave root= out.")
    link = ServerLink(check_server(url, storage.token), storage.token)
    try:
        told = link.post(f"{HOME}/lake/describe", {}, writes=False)
    except TiltyardError:
        link.close()
        raise
    if storage.options is None and (given := told.get("storage_options")):
        storage = replace(storage, options=RenewedOptions(VendedOptions(link), given) if EXPIRES in given else given)
    where = LakeLocation(str(told["root"]), False, "", CatalogId(SERVER, link.url), str(told["id"]), storage=storage)
    return where, ServerRecords(link, runtime, "" if told["way"] == "open" else str(told["author"]))


def somebody() -> str:
    """User and machine, for the history."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def known_author(records: Records) -> str:
    """Who commits, where nobody said: the one whom a server knows by the token, or user and machine."""
    return (records.author if isinstance(records, ServerRecords) else "") or somebody()


def _opened(
    where: LakeLocation, url: str, create: bool, runtime: Runtime, check: Callable[[LakeLocation], None] | None
) -> tuple[LakeLocation, Records]:
    """The records of a database, which is not made before it is known that the root is free or belongs to it."""
    if url.startswith("sqlite:"):
        path = os.path.realpath(_sqlite_path(url))
        where = replace(where, catalog=CatalogId("sqlite", _at(path, where.root)))
        if check is None and not Path(path).is_file():
            _check_root(where, create=create)
            if not create:
                raise NotFound(f"There is no lake at {redact(path)}.", name=redact(path), advice="Use `tiltyard lake init`.")
    else:
        where = replace(where, catalog=CatalogId("postgresql", shown_database(url)))
    if check is not None:
        check(where)
    return where, open_records(url, runtime=runtime, durability=where.storage.durability)


def _opened_manifest(
    where: LakeLocation, home: str, create: bool, runtime: Runtime, check: Callable[[LakeLocation], None] | None
) -> tuple[LakeLocation, Records]:
    from tiltyard.catalog.manifest_records import ManifestRecords

    access = f"{home.rstrip('/')}/{MANIFEST_TABLE}"
    where = replace(where, catalog=CatalogId("manifest", _at(resolved(access), where.root)))
    if check is not None:
        check(where)
    elif _second_catalog(where) and read_claim(where.root_store()) is None:
        _check_root(where, create=create)
    return where, ManifestRecords(home, runtime=runtime, storage_options=where.storage.options, durability=where.storage.durability)


def _at(access: str, root: str) -> str:
    """Where a catalog is, as its claim has it."""
    inside = below(access, resolved(root)) if root else None
    return inside or access


def _seen_from(where: LakeLocation, root: str) -> CatalogId:
    """The same catalog, as the claim on another root has it."""
    kind, at = where.catalog.kind, where.catalog.at
    if kind == "postgresql" or not where.home or os.path.isabs(at) or "://" in at:  # noqa: PTH117
        return where.catalog
    return CatalogId(kind, _at(resolved(f"{where.home.rstrip('/')}/{at}"), root))


def _check_root(where: LakeLocation, *, create: bool) -> None:
    """Refuses a catalog that is not that of the root before it is opened, since opening one makes one.

    Raises:
        OwnershipError: the root has another catalog, or had one that is gone.
    """
    claim = read_claim(where.root_store())
    if claim is not None:
        refuse_other_catalog(claim, where.catalog, where.root)
        if not create:
            raise lost_catalog(where.root, claim)
        return
    other = _second_catalog(where)
    if other:
        raise OwnershipError(
            f"{where.root} is a lake whose catalog is {other}; {where.catalog} would hide it.",
            root=where.root,
            catalog=other,
            advice="Open it without catalog=, or use another directory.",
        )


def _second_catalog(where: LakeLocation) -> str:
    """The catalog of a root that no lake has claimed, if it is another one than the one to be opened: an earlier release made it."""
    if "://" in where.root or where.catalog.kind == "postgresql":
        return ""
    root = Path(where.root)
    if where.catalog.kind == "sqlite" and (root / MANIFEST_TABLE).is_dir() and not (root / where.catalog.at).exists():
        return f"the table {MANIFEST_TABLE}"
    return CATALOG_FILE if where.catalog.kind == "manifest" and (root / CATALOG_FILE).exists() else ""


# ---- whose the root is -------------------------------------------------------------------------------------------------------------


def settle_owner(where: LakeLocation, catalog: Catalog, *, create: bool) -> LakeLocation:
    """Sees that root and catalog belong together, and makes an empty lake where there is none: first the claim, then the record.

    Raises:
        NotFound: there is no lake, and none may be made.
        OwnershipError: the root belongs to another lake, or the catalog to another root.
    """
    facts = catalog.describe()
    if where.catalog.kind == SERVER:
        return _reached(where, facts or {})
    if facts is None:
        return _made(where, catalog, create=create)
    where = _checked_root(where, catalog, facts)
    store, mine = where.root_store(), RootClaim(str(facts["id"]), where.catalog, str(facts.get("created", "")))
    claim = read_claim(store) or claim_existing(store, mine, catalog.runtime)
    refuse_other_lake(claim, mine.lake, where.root)
    refuse_other_catalog(claim, where.catalog, where.root)
    if claim.catalog != where.catalog and where.catalog.kind != "postgresql":
        replace_claim(store, mine)  # the catalog was moved
    return trusting(replace(where, lake=mine.lake, lost=str(facts.get("lost", ""))), facts)


def trusting(where: LakeLocation, facts: Body) -> LakeLocation:
    """Lets a clone read the files that it names, where the lake that it was made of has them."""
    return replace(where, storage=replace(where.storage, allowed_bases=tuple(map(str, facts.get("bases", ())))))


def _reached(where: LakeLocation, facts: Body) -> LakeLocation:
    """A lake behind a server, whose root has to be within reach of this process, and has to be the same one."""
    claim = read_claim(where.root_store())
    if claim is None:
        advice = "Mount it, pass storage_options, or read and write rows through the server."
        raise NotFound(f"{redact(where.root)}, where the tables live, cannot be read from here.", name=redact(where.root), advice=advice)
    refuse_other_lake(claim, where.lake, where.root)
    return trusting(replace(where, lost=str(facts.get("lost", ""))), facts)


def _made(where: LakeLocation, catalog: Catalog, *, create: bool) -> LakeLocation:
    if where.root:
        store = where.root_store()
        claim = read_claim(store)
        tables = list(islice(_own_files(store), 1))
    if not create:
        if where.root and (claim is not None or tables):
            raise lost_catalog(where.root, claim)
        url = catalog.records.url
        raise NotFound(f"There is no lake at {url}.", name=url, advice="Use `tiltyard lake init`.")
    where = where.with_root(None)
    now = catalog.runtime.clock.now().isoformat()
    if claim is None:
        claim = make_claim(store, RootClaim(catalog.runtime.random.uuid(), where.catalog, now), catalog.runtime)
    refuse_other_catalog(claim, where.catalog, where.root)
    lost = {"lost": now} if tables else {}
    facts = catalog.initialize({"root": where.stated_root, "id": claim.lake, **lost})
    refuse_other_lake(claim, str(facts["id"]), where.root)
    return replace(where, lake=str(facts["id"]), lost=str(facts.get("lost", "")))


def _own_files(store: ObjectStore) -> Iterator[str]:
    """Files below a root that only a lake can have made: of tables, or in the journal of names."""
    for info in store.list(""):
        if table_directories([info.path]) or (info.path.startswith(LAKE_DIRECTORY) and info.path.count("/") > 2):
            yield info.path


def _checked_root(where: LakeLocation, catalog: Catalog, facts: Body) -> LakeLocation:
    """The lake's root as its catalog knows it, unless the caller names another one.

    Raises:
        OwnershipError: he does, and the lake was not moved there.
    """
    known = facts.get("root")
    if known is None:  # the directory of the catalog, wherever that was moved to
        if where.beside or not where.home or resolved(where.root) == resolved(where.home):
            return replace(where, beside=True) if where.home else where.with_root(None)
        known = where.home
    elif where.beside or not where.root or resolved(str(known)) == resolved(where.root):
        return replace(where, root=str(known), beside=False, catalog=_seen_from(where, str(known)))
    claim = read_claim(where.root_store())
    old = replace(where, root=str(known))
    if claim is None or claim.lake != str(facts["id"]) or read_claim(old.root_store()) is not None:
        raise OwnershipError(
            f"The tables of the lake at {catalog.records.url} live in {known}, not in {where.root}.",
            root=str(known),
            lake=str(facts["id"]),
            catalog=str(where.catalog),
            advice="Leave root= out.",
        )
    catalog.amend({"root": where.root})  # all of it was moved: its claim came with it, and is gone from where it was
    return where


def lost_catalog(root: str, claim: RootClaim | None) -> OwnershipError:
    """For a root with tables whose catalog is gone."""
    what = f"lake {claim.lake[:8]}, whose catalog ({claim.catalog}) is gone" if claim else "a lake whose catalog is gone"
    return OwnershipError(
        f"{root} holds tables of {what}.",
        root=root,
        lake=claim.lake if claim else "",
        catalog=str(claim.catalog) if claim else "",
        advice="Restore the catalog from a copy (`tiltyard lake restore`), or run `tiltyard lake rebuild`.",
    )


def _has_manifest(home: str, where: LakeLocation) -> bool:
    """Whether the catalog of a directory is known to be a table in it: by its claim, else by what is there."""
    claim = read_claim(where.root_store())
    if claim is not None:
        return claim.catalog.kind == "manifest"
    path = Path(local_path(home))
    return (path / MANIFEST_TABLE).is_dir() and not (path / CATALOG_FILE).exists()


def _absolute(uri: str) -> str:
    return uri if "://" in uri else local_path(uri)


def _sqlite_path(url: str) -> str:
    return local_path(url.partition("://")[2].removeprefix("/"))


def _sqlite_directory(url: str) -> str:
    return os.path.dirname(_sqlite_path(url))  # noqa: PTH120
