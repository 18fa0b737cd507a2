"""The journal of names: what a lake's catalog knows that no version of a table tells, kept beside the tables for `tiltyard lake rebuild`.

Below the root, each file a JSON object, written after the catalog has decided, and never read in the ordinary course of things:

- ``_tiltyard/lake/names/<branch>/<snapshot, 20 digits>-<transaction>.json``, one for every commit that
  creates, registers, renames or drops::

      {"format": 1, "lake": ID, "branch": NAME, "branch_id": ID, "snapshot": N, "transaction": ID, "at": TIME, "author": WHO, "says": TEXT,
       "as_of": M, "tables": {FULL_NAME: {"id": ID, "location": L, "version": V, "branch": TABLE_BRANCH | null, "home": LAKE_BRANCH,
       "naming": "v2"}}}

  ``says`` is the mark of that name.
  ``tables`` is the whole lake branch right after snapshot ``as_of``, which is ``snapshot`` or a later one. Of two files of one branch the
  one with the higher ``as_of`` knows more. The file's name alone proves that the transaction was committed.
- ``_tiltyard/lake/tags/<name>.json``: ``{"format": 1, "lake", "name", "snapshot", "branch", "created", "deleted": false}``.
- ``_tiltyard/lake/branches/<name>.json``: ``{"format": 1, "lake", "name", "id", "origin", "snapshot", "created", "ended": [ID],
  "known": {ID: {"<location>/tree/<branch>": VERSION}}, "deleted": false}``; ``ended`` are lines that had the name before, which nobody
  needs any more, and ``known`` up to which versions whoever ended them knew the tables' branches they wrote to.
  One that is deleted stays with ``"deleted": true``; a name that is used again is written anew.
- ``_tiltyard/lake/rules/<branch>.json``: ``{"format": 1, "lake", "name", "id", "snapshot", "created", "writers", "checks",
  "deleted": false}``: the rule of a protected branch since ``created``; ``id`` is that of the branch, empty for main.

The journal is advice. Where it could not be written the commit stands all the same, and the next cleanup writes what is missing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tiltyard.catalog.lake_values import MAIN, Cut
from tiltyard.catalog.marks import Says
from tiltyard.catalog.protection import BranchProtection, protection_in
from tiltyard.catalog.value_codec import BRANCHES, ended_key, tip_key
from tiltyard.errors import NotFound, TiltyardError
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.claim import LAKE_DIRECTORY

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.branches.lake_refs import LakeBranch, LakeTag

JOURNAL_FORMAT: Final = 1
NAMES: Final = LAKE_DIRECTORY + "names/"
TAGS: Final = LAKE_DIRECTORY + "tags/"
BRANCH_FILES: Final = LAKE_DIRECTORY + "branches/"
MOST_KNOWN: Final = 64
"""Of how many lines that ended under one name it is told what was known of them; cleanups have been at the earlier ones by then."""
RULES: Final = LAKE_DIRECTORY + "rules/"
DEFINING: Final = ("create", "register", "rename", "drop")
"""Kinds of changes that are about names."""

_NAMED: Final = re.compile(rf"{NAMES}(?P<branch>[^/]+)/(?P<snapshot>[0-9]{{20}})-(?P<transaction>[^/]+)\.json")
_log = logging.getLogger("tiltyard.lake")


@dataclass(frozen=True, slots=True)
class NamesEntry:
    """A file of the journal, known by its name alone."""

    path: str
    branch: str
    snapshot: int
    transaction: str


def names_path(branch: str, snapshot: int, transaction: str) -> str:
    return f"{NAMES}{branch}/{snapshot:020d}-{transaction}.json"


def note_names(lake: Lake, branch: str, snapshot: int, transaction: str, says: str = "") -> None:
    """Writes down what tables are called, after a commit that changed it."""
    try:
        cut = lake.catalog.cut(branch)
        _put(lake, names_path(branch, snapshot, transaction), {**_names_body(lake, cut, snapshot, transaction), "says": says})
    except TiltyardError as error:
        _log.warning("snapshot %s is committed, but the journal of names could not be written: %s", snapshot, error)


def _names_body(lake: Lake, cut: Cut, snapshot: int, transaction: str) -> Mapping[str, Any]:
    identity = _id_of(lake, cut.branch)
    tables = {
        head.name: {
            "id": head.id,
            "location": head.location,
            "version": head.version,
            "branch": head.branch,
            "home": head.home,
            "naming": head.naming,
        }
        for head in sorted(cut.tables.values(), key=lambda head: head.name)
    }
    return {
        "branch": cut.branch,
        "branch_id": identity,
        "snapshot": snapshot,
        "transaction": transaction,
        "at": lake.catalog.runtime.clock.now().isoformat(),
        "author": lake.author,
        "as_of": cut.snapshot,
        "tables": tables,
    }


def note_tag(lake: Lake, tag: LakeTag, *, deleted: bool = False) -> None:
    """Writes down that a lake-wide tag was made, or is gone."""
    body = {"name": tag.name, "snapshot": tag.snapshot, "branch": tag.branch, "created": tag.created.isoformat(), "deleted": deleted}
    _note(lake, f"{TAGS}{tag.name}.json", body)


def note_branch(lake: Lake, branch: LakeBranch, *, ended: str = "", deleted: bool = False) -> None:
    """Writes down that a branch of the lake was made, began anew, or is gone.

    Args:
        lake: the lake.
        branch: as it is now, or was.
        ended: the line of that name that whoever writes this has ended.
        deleted: whether it is gone.
    """
    path, key = f"{BRANCH_FILES}{branch.name}.json", ended_key(branch.name, ended)
    try:
        said = read_entry(lake.root_access().store, path) or {}
        records = lake.catalog.records.get([key]) if ended else {}
    except TiltyardError as error:
        _log.warning("the journal entry %s could not be read: %s", path, error)
        said, records = {}, {}
    before = {str(line) for line in said["ended"]} if isinstance(said.get("ended"), list) else set()
    known = dict(said["known"]) if isinstance(said.get("known"), Mapping) else {}
    if records.get(key, {}).get("known"):
        known[ended] = records[key]["known"]
    body = {
        "ended": sorted(before | ({ended} if ended else set())),
        "known": dict(list(known.items())[-MOST_KNOWN:]),
        "name": branch.name,
        "id": branch.id,
        "origin": branch.origin,
        "snapshot": branch.snapshot,
        "created": branch.created.isoformat(),
        "deleted": deleted,
    }
    _note(lake, path, body)


def note_rule(lake: Lake, branch: str) -> None:
    """Writes down the rule of a branch as it is now, after it changed, or after its branch began anew and kept it."""
    key = tip_key(branch)
    try:
        tip = lake.catalog.records.get([key]).get(key)
        if tip is not None:
            since = lake.catalog.runtime.clock.now().isoformat()
            known = {"name": branch, "id": _id_of(lake, branch), "snapshot": int(tip["snapshot"]), "created": since}
            _put(lake, f"{RULES}{branch}.json", {**known, **_rule_body(protection_in(tip))})
    except TiltyardError as error:
        _log.warning("the rule of branch %s could not be written into the journal: %s", branch, error)


def _rule_body(rule: BranchProtection | None) -> dict[str, Any]:
    if rule is None:
        return {"writers": None, "checks": [], "deleted": True}
    return {"writers": None if rule.writers is None else list(rule.writers), "checks": list(rule.checks), "deleted": False}


def _id_of(lake: Lake, branch: str) -> str:
    return "" if branch == MAIN else str(lake.catalog.records.get([BRANCHES + branch]).get(BRANCHES + branch, {}).get("id", ""))


def _note(lake: Lake, path: str, body: Mapping[str, Any]) -> None:
    try:
        _put(lake, path, body)
    except TiltyardError as error:
        _log.warning("the journal entry %s could not be written: %s", path, error)


def _put(lake: Lake, path: str, body: Mapping[str, Any]) -> None:
    lake.root_access().store.put(path, json.dumps({"format": JOURNAL_FORMAT, "lake": lake.id, **body}, separators=(",", ":")).encode())


# ---- reading ---------------------------------------------------------------------------------------------------------------------------


def entries(store: ObjectStore) -> Iterator[NamesEntry]:
    """All files about names, known by their names alone."""
    for info in store.list(NAMES):
        match = _NAMED.fullmatch(info.path)
        if match is not None:
            yield NamesEntry(info.path, match["branch"], int(match["snapshot"]), match["transaction"])


def read_entry(store: ObjectStore, path: str) -> Mapping[str, Any] | None:
    """A file of the journal; None where it is not there or no longer what it was."""
    try:
        body = json.loads(store.get(path))
    except (NotFound, ValueError):
        return None
    return body if isinstance(body, Mapping) else None


# ---- mending ---------------------------------------------------------------------------------------------------------------------------


def complete_journal(lake: Lake) -> None:
    """Writes what is missing: the tags and branches as they are, and the names of each branch, after its last commit that changed any."""
    store = lake.root_access().store
    there = {(entry.branch, entry.transaction) for entry in entries(store)}
    for branch in (MAIN, *lake.branches):
        for snapshot in lake.catalog.history(branch):
            if not snapshot.voided and any(change.kind in DEFINING for change in snapshot.changes):
                if (branch, snapshot.transaction) not in there:
                    says = Says(snapshot.message, snapshot.properties, _key_of(lake, snapshot.transaction)).to_text()
                    note_names(lake, branch, snapshot.id, snapshot.transaction, says)
                break
    for tag in lake.tags.list():
        if not _says(store, f"{TAGS}{tag.name}.json", tag.snapshot, tag.branch):
            note_tag(lake, tag)
    for branch in lake.branches.list():
        if not _says(store, f"{BRANCH_FILES}{branch.name}.json", branch.snapshot, branch.id):
            note_branch(lake, branch)
    _complete_rules(lake, store, {MAIN: "", **{branch.name: branch.id for branch in lake.branches.list()}})


def _complete_rules(lake: Lake, store: ObjectStore, ids: Mapping[str, str]) -> None:
    tips = lake.catalog.records.get([tip_key(branch) for branch in ids])
    for branch, identity in ids.items():
        rule = protection_in(tips.get(tip_key(branch)))
        said, expected = read_entry(store, f"{RULES}{branch}.json"), {"id": identity, **_rule_body(rule)}
        if (said is not None or rule is not None) and {name: (said or {}).get(name) for name in expected} != expected:
            note_rule(lake, branch)


def _key_of(lake: Lake, transaction: str) -> str | None:
    key = (lake.catalog.transaction(transaction) or {}).get("key")
    return key if isinstance(key, str) else None


def _says(store: ObjectStore, path: str, snapshot: int, other: str) -> bool:
    body = read_entry(store, path)
    return (
        body is not None and not body.get("deleted") and body.get("snapshot") == snapshot and other in (body.get("branch"), body.get("id"))
    )
