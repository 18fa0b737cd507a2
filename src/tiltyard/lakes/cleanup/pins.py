"""Pins: Lance tags in the tables of a lake, so that a foreign cleanup leaves what a tag or a branch of the lake needs.

lancedb's ``optimize()`` and pylance's ``cleanup_old_versions`` know nothing of snapshots, but leave tagged versions alone. So a lake-wide
tag and the beginning of a branch have a tag in each table of their snapshot, called ``tiltyard-tag-<name>-<id>`` or
``tiltyard-branch-<name>-<id>``. Snapshots that only retention keeps are pinned by ``cleanup(pin_snapshots=True)``, as
``tiltyard-kept-<version>``: one small file for each version of each table that is kept.

The order leaves a tag too many, never one too few: first a record ``pin/<id>`` in the catalog, then the tags, then the record that refers
to the pin, which is refused where somebody released the pin meanwhile. Releasing goes the other way round. What is left over by a process
that died is known by its record, and removed by the next cleanup. A tag whose pin has no record at all stays: the catalog may be older
than it is.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import BRANCHES, TAGS, pin_key
from tiltyard.catalog.value_codec import PINS as PIN_RECORDS
from tiltyard.errors import ConflictError, NotFound, StorageError, TiltyardError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.refs import Tag, encode_tag, tag_path, timestamp_text
from tiltyard.lakes.retention import Need
from tiltyard.verbs.table_refs import Tags

if TYPE_CHECKING:
    from tiltyard.lake import Lake

PREFIX: Final = "tiltyard-"
KEPT: Final = PREFIX + "kept-"

_log = logging.getLogger("tiltyard.lake")


def pin_name(kind: str, name: str, identity: str) -> str:
    """What the tag in each table is called."""
    return f"{PREFIX}{kind}-{name}-{identity}"


# ---- making and releasing ------------------------------------------------------------------------------------------------------------


def make_pin(lake: Lake, kind: str, name: str, identity: str, cut: Cut) -> None:
    """Tags every table of a cut at its version, after the catalog has noted that this is being done.

    Raises:
        NotFound: a version is gone.
    """
    key = pin_key(identity)
    body = {
        "kind": kind,
        "name": name,
        "branch": cut.branch,
        "snapshot": cut.snapshot,
        "at": lake.catalog.runtime.clock.now().isoformat(),
        "released": False,
    }
    lake.catalog.records.transact([key], [], lambda found: Writes(None, {key: body}))
    for head in cut.tables.values():
        write_pin(lake, cut.branch, head, pin_name(kind, name, identity))


@contextmanager
def pinned(lake: Lake, kind: str, name: str, identity: str, cut: Cut) -> Iterator[None]:
    """Has the tables of a cut tagged while a record is made that refers to them; takes the tags away where that certainly failed."""
    try:
        make_pin(lake, kind, name, identity, cut)
        yield
    except TiltyardError as error:
        if not (isinstance(error, StorageError) and error.maybe_applied):
            release_pin(lake, identity)
        raise


def check_pinned(found: Found, identity: str) -> None:
    """For the decision that refers to a pin, with the pin's record locked.

    Raises:
        ConflictError: somebody released it, since nothing referred to it yet.
    """
    if found.get(pin_key(identity), {}).get("released", True):
        raise ConflictError("A cleanup removed the pin before it was used.", operation="pin", retryable=True, advice="Try again.")


def release_pin(lake: Lake, identity: str) -> None:
    """Removes the tags of a pin that nothing refers to any more. What cannot be removed now, a cleanup removes."""
    try:
        _release(lake, identity)
    except TiltyardError as error:
        _log.warning("tags of %s are left for the next cleanup: %s", identity, error)


def _release(lake: Lake, identity: str) -> None:
    key = pin_key(identity)

    def begin(found: Found) -> Writes[Body | None]:
        body = found.get(key)
        return Writes(body, {} if body is None else {key: {**body, "released": True}})

    body = lake.catalog.records.transact([key], [], begin)
    if body is None:
        return
    name = pin_name(str(body["kind"]), str(body["name"]), identity)
    for location in _locations(lake, str(body["branch"]), int(body["snapshot"])):
        lake.plain_access_of(TableHead("", "", location, 0, 0)).store.delete(tag_path(name))
    lake.catalog.records.transact([key], [], lambda found: Writes(None, delete=[key]))


def _locations(lake: Lake, branch: str, snapshot: int) -> set[str]:
    """Tables that a pin may have tags in: those of its snapshot; all there are where that is gone."""
    try:
        return {head.location for head in lake.catalog.cut_at(snapshot, branch).tables.values()}
    except NotFound:
        from tiltyard.lakes.cleanup.orphans import table_locations

        return table_locations(lake)


def write_pin(lake: Lake, branch: str, head: TableHead, name: str) -> None:
    """Tags the version of a table that a head names."""
    access = lake.access_of(head, branch)
    scheme = Scheme(head.naming)
    size = access.store.head(manifest_path(head.version, scheme)).size  # finished first, if it was not yet
    _put(lake, head, name, head.version, size)


def _put(lake: Lake, head: TableHead, name: str, version: int, size: int) -> None:
    now = timestamp_text(lake.catalog.runtime.clock.now())
    tag = Tag(version, size, head.branch, now, now, {})
    lake.plain_access_of(head).store.put(tag_path(name), encode_tag(tag))


def old_pin(key: str, body: Body) -> str:
    """The pin of a tag that an earlier release made, which noted none."""
    return hashlib.sha256(f"{key} {body['branch']} {body['snapshot']} {body['created']}".encode()).hexdigest()[:8]


# ---- mending -----------------------------------------------------------------------------------------------------------------------------


def mend_pins(lake: Lake) -> None:
    """Releases pins that nothing refers to, and writes tags that are missing: by a foreign hand, or of an earlier release."""
    found = dict(lake.catalog.records.scan([PIN_RECORDS, TAGS, BRANCHES]))
    wanted = _wanted(found)
    for key, _ in found.items():
        if key.startswith(PIN_RECORDS) and key.removeprefix(PIN_RECORDS) not in wanted:
            _release_unless_used(lake, key.removeprefix(PIN_RECORDS))
    there: dict[str, set[str]] = {}
    for identity, (kind, name, branch, snapshot) in wanted.items():
        if pin_key(identity) not in found:
            _pin_late(lake, identity, kind, name, lake.catalog.cut_at(snapshot, branch))
            continue
        tag = pin_name(kind, name, identity)
        for head in lake.catalog.cut_at(snapshot, branch).tables.values():
            if head.location not in there:
                there[head.location] = set(Tags(lake.plain_access_of(head)))
            if tag not in there[head.location]:
                write_pin(lake, branch, head, tag)


def _pin_late(lake: Lake, identity: str, kind: str, name: str, cut: Cut) -> None:
    """Pins what an earlier release named, or a fast-forward that died before it could."""
    make_pin(lake, kind, name, identity, cut)
    if identity not in _wanted(dict(lake.catalog.records.scan([TAGS, BRANCHES]))):
        release_pin(lake, identity)  # it went meanwhile


def _wanted(found: Mapping[str, Body]) -> dict[str, tuple[str, str, str, int]]:
    wanted: dict[str, tuple[str, str, str, int]] = {}
    for key, body in found.items():
        if key.startswith(TAGS):
            wanted[str(body.get("pin") or old_pin(key, body))] = ("tag", key.removeprefix(TAGS), str(body["branch"]), int(body["snapshot"]))
        elif key.startswith(BRANCHES):
            wanted[str(body["id"])] = ("branch", key.removeprefix(BRANCHES), str(body["origin"]), int(body["snapshot"]))
    return wanted


def _release_unless_used(lake: Lake, identity: str) -> None:
    """Nothing referred to it when the records were read; whoever is about to is refused from here on."""
    key = pin_key(identity)

    def begin(found: Found) -> Writes[None]:
        return Writes(None, {key: {**found[key], "released": True}} if key in found else {})

    lake.catalog.records.transact([key], [], begin)
    if identity in _wanted(dict(lake.catalog.records.scan([TAGS, BRANCHES]))):
        lake.catalog.records.transact(
            [key], [], lambda found: Writes(None, {key: {**found[key], "released": False}} if key in found else {})
        )
        return
    _release(lake, identity)


def pin_kept(lake: Lake, needs: Iterable[Need], *, wanted: bool) -> None:
    """Tags every version that a kept snapshot needs, and takes tags away from those that none needs any more."""
    by_table: dict[str, list[Need]] = defaultdict(list)
    for need in needs:
        by_table[need.head.location].append(need)
    for location, lines in by_table.items():
        main = lake.plain_access_of(lines[0].head)
        there = {name for name in Tags(main) if name.startswith(KEPT)}
        expected = {kept_name(need.head.branch, version): (need, version) for need in lines for version in need.keep} if wanted else {}
        for name in there - {*expected}:
            main.store.delete(tag_path(name))
        for name in {*expected} - there:
            need, version = expected[name]
            store = main.on_branch(need.head.branch).store
            try:
                size = store.head(manifest_path(version, Scheme(need.head.naming))).size
            except NotFound:
                _log.warning("version %s of %s is gone and cannot be pinned", version, location)
                continue
            _put(lake, need.head, name, version, size)


def kept_name(branch: str | None, version: int) -> str:
    return f"{KEPT}{branch}-{version}" if branch else f"{KEPT}{version}"
