"""The catalog for lakes that are opened by the address of a server: records, and the decisions that every commit needs.

Roles. Whoever opens a lake this way needs a role for all of its tables: its records do not come apart by names. A reader reads them. A
writer publishes, makes what is not there yet (a tag, a branch), and does the bookkeeping of commits; whether a publication is allowed is
asked of each table in it, by the name that the catalog has for it at that moment. A maintainer replaces and removes records, an admin
changes what the lake says of itself. Tokens are not among the records: nobody reads or writes them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from lance_namespace import InvalidInputError, PermissionDeniedError

from tiltyard.catalog.catalog import Catalog, Pending
from tiltyard.catalog.lake_values import Change, Publication
from tiltyard.catalog.publishing import AbortedError, ExpiredError, StaleError, is_decided
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.server_records import HOME, moved_to_body, protected_to_body, publication_from_body, said_by
from tiltyard.catalog.value_codec import table_key
from tiltyard.errors import CorruptTable, HistoryUnavailable, InvalidInput, NotFound, ProtectedBranch
from tiltyard.format.safe_text import check_text
from tiltyard.lake import Lake
from tiltyard.lakes.claim import TABLE_DIRECTORY
from tiltyard.lakes.finishing import recover
from tiltyard.lakes.table_names import JOINT, directory_of
from tiltyard.server.principals import Principal
from tiltyard.server.routes import Role, RouteSpec
from tiltyard.server.tokens import TOKENS
from tiltyard.server.vending import Vendor
from tiltyard.server.wire import parsed
from tiltyard.server.written_records import check_bodies, is_step, role_for

_NEEDED: Final[Mapping[str, Role]] = {
    "create": Role.WRITER, "write": Role.WRITER, "adopt": Role.WRITER, "drop": Role.MAINTAINER, "rename": Role.MAINTAINER,
    "register": Role.ADMIN,
}  # fmt: skip
"""The role for each kind of change, on the table that it is about."""


def _route(path: str, operation: str, role: Role = Role.READER) -> RouteSpec:
    return RouteSpec(f"{HOME}/{path}", operation, dict, role, "catalog", answer="plain")


CATALOG_ROUTES: Final = (
    _route("lake/describe", "describe_lake"),
    _route("records/get", "get_records"),
    _route("records/scan", "scan_records"),
    _route("records/transact", "write_records"),
    _route("catalog/publish", "publish", Role.WRITER),
    _route("catalog/offer", "offer", Role.WRITER),
    _route("catalog/settle", "settle", Role.WRITER),
    _route("catalog/abort", "abort", Role.WRITER),
    _route("catalog/void", "void", Role.WRITER),
    _route("catalog/quarantine", "quarantine", Role.WRITER),
)


class CatalogDoor:
    """The catalog of one lake, operation by operation. Errors are those of ``lance_namespace``, or ours.

    Args:
        lake: whose it is.
        vendor: says with which storage options clients reach the store.
    """

    def __init__(self, lake: Lake, vendor: Vendor) -> None:
        self._lake, self._vendor = lake, vendor
        self._catalog: Catalog = lake.catalog

    def read(self, principal: Principal, spec: RouteSpec, body: bytes) -> dict[str, Any]:
        """What somebody asks for.

        Raises:
            PermissionDeniedError: their role for all tables does not allow it.
            InvalidInputError: it is malformed.
        """
        if not principal.may(spec.role, ()):
            what = f"needs the role {spec.role.name.lower()} for all tables"
            raise PermissionDeniedError(f"{spec.operation} was refused: opening a lake by the address of its server {what}.")
        given = parsed(body) if body.strip() else {}
        if not isinstance(given, dict):
            raise InvalidInputError("The body must be a JSON object.")
        return given

    def answer(self, principal: Principal, spec: RouteSpec, given: dict[str, Any]) -> Mapping[str, Any]:
        """Does an operation for somebody.

        Raises:
            PermissionDeniedError: their role does not allow it.
            InvalidInputError: it is malformed.
        """
        work: Callable[[Principal, dict[str, Any]], Mapping[str, Any]] = getattr(self, f"_{spec.operation}")
        with _well_formed():
            return work(principal, given)

    def _describe_lake(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        where = self._lake.where
        options = self._vendor.for_lake(principal, where.root, where.storage.options)
        return {"id": self._lake.id, "root": where.root, "author": principal.name, "way": principal.way, "storage_options": options}

    # ---- records -----------------------------------------------------------------------------------------------------------------

    def _get_records(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        keys = [key for key in _texts(given["keys"]) if not key.startswith(TOKENS)]
        return {"records": self._catalog.records.get(keys)}

    def _scan_records(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        limit = given.get("limit")
        prefixes, descending = _texts(given["prefixes"]), bool(given.get("descending"))
        over = any(TOKENS.startswith(prefix) or prefix.startswith(TOKENS) for prefix in prefixes)
        found = self._catalog.records.scan(prefixes, limit=None if over or limit is None else int(limit), descending=descending)
        shown = [(key, body) for key, body in found if not key.startswith(TOKENS)]
        return {"records": shown if limit is None else shown[: int(limit)]}

    def _write_records(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        looked: dict[str, Body | None] = dict(given["looked"])
        put, delete = {key: dict(body) for key, body in given["put"].items()}, _texts(given["delete"])
        if any(key.startswith(TOKENS) for key in (*looked, *put, *delete)):
            raise PermissionDeniedError("Clients cannot read or write tokens through the catalog.")
        if any(key not in looked for key in (*put, *delete)):
            raise InvalidInputError("The request writes a record that it did not read first.")
        needed = max((role_for(key, looked[key], put.get(key)) for key in {*put, *delete}), default=Role.READER)
        if not principal.may(needed, ()):
            raise PermissionDeniedError(f"This needs the role {needed.name.lower()} for all tables.")
        check_bodies(principal, self._catalog.records, put)

        def decide(found: Found) -> Writes[Mapping[str, Any]]:
            if any(found.get(key) != body for key, body in looked.items()):
                return Writes({"moved": {key: found.get(key) for key in looked}})
            return Writes({"done": True}, put, delete)

        written = {*put, *delete}
        return self._catalog.records.transact(sorted(written), [key for key in looked if key not in written], decide)

    # ---- what every commit does --------------------------------------------------------------------------------------------------

    def publication(self, given: dict[str, Any]) -> Publication:
        """What is to be published.

        Raises:
            InvalidInputError: it is malformed, or names files that are none of its own.
        """
        with _well_formed():
            # Whether something only notes what has happened, nobody says from afar: the rules of protected branches rest on it.
            publication = replace(publication_from_body(given["publication"]), noted=False)
            _check_paths(publication)
            return publication

    def publish(self, principal: Principal, publication: Publication) -> Mapping[str, Any]:
        """Publishes something for somebody; what became of it."""
        with _well_formed():
            return self._published(principal, publication)

    def finish(self, changes: Sequence[Change]) -> None:
        """Gives versions that were just published their names, as any reader would. What fails is left to the next one who looks."""
        recover(self._lake, [(change.table, change.branch) for change in changes])

    def _published(self, principal: Principal, publication: Publication) -> Mapping[str, Any]:
        self._check_adopted(publication)
        if principal.way != "open":  # where nobody proves who they are, they may as well say it
            publication = replace(publication, author=principal.name)
        else:
            check_text(publication.author, "The author", "author")
        try:
            done = self._catalog.publish(publication, lambda found: _check_roles(principal, publication, found))
        except StaleError as stale:
            return {"moved": [moved_to_body(moved) for moved in stale.moved]}
        except AbortedError:
            return {"refused": "aborted"}
        except ExpiredError:
            return {"refused": "expired"}
        except NotFound:
            return {"refused": "no branch"}
        except ProtectedBranch as error:
            return {"protected": protected_to_body(error)}
        except HistoryUnavailable as error:
            return {"unavailable": {"what": said_by(error), "read_version": error.read_version, "head": error.head}}
        except CorruptTable as error:
            return {"corrupt": {"file": error.file, "reason": error.reason, "advice": error.advice}}
        told = {"snapshot": done.snapshot, "transaction": done.transaction, "replayed": done.replayed, "tables": done.tables}
        return {"published": told, "transaction_id": done.transaction}

    def _check_adopted(self, publication: Publication) -> None:
        """Looks whether versions that were found in the store are there: no rule of a branch concerns what has happened."""
        adopted = {change.table: change for change in publication.changes if change.kind == "adopt"}
        heads = {head.id: head for head in self._catalog.heads(adopted, publication.branch)} if adopted else {}
        for table, change in adopted.items():
            if table not in heads:
                continue  # the decision says that it is gone
            store = self._lake.plain_access_of(heads[table]).on_branch(change.branch or heads[table].branch).store
            for step in change.steps:
                try:
                    store.head(step.path)
                except NotFound:
                    raise InvalidInputError("A version that is adopted must be in the table under its final name.") from None
            if any(step.staged is not None for step in change.steps):
                raise InvalidInputError("A version that is adopted was made by a foreign writer, and is not staged.")

    def _settle(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        self._catalog.settle([Pending(**pending) for pending in given["pending"]])
        return {"done": True}

    def _abort(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        return {"done": self._catalog.abort(str(given["transaction"]))}

    def _void(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        self._catalog.void(Pending(**given["pending"]), str(given["maker"]))
        return {"done": True}

    def _quarantine(self, principal: Principal, given: dict[str, Any]) -> Mapping[str, Any]:
        self._catalog.quarantine(Pending(**given["pending"]), str(given["why"])[:1000])
        return {"done": True}


@contextmanager
def _well_formed() -> Iterator[None]:
    """Whoever trips over a request that lacks something blames the request."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInputError("The request is malformed: a member is missing or has the wrong type.") from error


def _texts(given: Any) -> Sequence[str]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise InvalidInputError("Keys and prefixes must be lists of strings.")
    return given


def _check_roles(principal: Principal, publication: Publication, found: Found) -> None:
    """Asks for each table, by its name in the catalog: what a client calls it is not what is written to."""
    for change in publication.changes:
        known = found.get(table_key(publication.branch, change.table), {}).get("name")
        if known is not None and change.kind in ("create", "register") and not is_decided(publication, found):
            raise InvalidInputError("A new table has an id of its own.")
        for name in {change.name, change.former or change.name, str(known or change.name)}:
            if not principal.may(_NEEDED[change.kind], name.split(JOINT)):
                raise PermissionDeniedError(
                    f"{change.kind} of {name.replace(JOINT, '.')} needs the role {_NEEDED[change.kind].name.lower()}."
                )


def _check_paths(publication: Publication) -> None:
    """Versions lie where versions lie, and new tables where the lake puts them: whoever finishes a version moves files by these names."""
    for change in publication.changes:
        if change.kind not in _NEEDED:
            raise InvalidInputError("The request names an unknown kind of change.")
        if change.location and change.kind != "register" and not _is_own_place(change):
            raise InvalidInputError("The lake chooses where a new table is stored; leave the location out.")
        for step in (*change.steps, *change.lost):
            if not is_step(step.path, step.staged):
                raise InvalidInputError("A version must be below _versions, and its staged file below _tiltyard/staged.")


def _is_own_place(change: Change) -> bool:
    """Whether a new table lies in a directory of its id. Its name may have changed since: a transaction makes and renames at once."""
    return TABLE_DIRECTORY.fullmatch(change.location) is not None and change.location.startswith(directory_of("", change.table)[:13])
