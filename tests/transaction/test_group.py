"""Group commit as values: what a version says of those it was made by, and what a leader may go over without reading it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.commits import append, memory_table
from tiltyard.errors import AlreadyCommitted
from tiltyard.format.digests import DIGESTS, Digest, decode_digests, encode_digests
from tiltyard.format.values import DataFile, DataFragment
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.context import Context
from tiltyard.transaction.examples import DEEDS
from tiltyard.transaction.group import GROUP, can_be_taken_along, fold, last_read, made_by, members_of
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.operations import Append, Delete
from tiltyard.transaction.recent import AlreadyThereError, NotedVersion, RecentVersions, Seen, judge
from tiltyard.transaction.resolve import Compatible, resolve
from tiltyard.transaction.rules import BY_ROWS
from tiltyard.transaction.transaction import MESSAGE_PROPERTY, Transaction
from tiltyard.transaction.verify import PARENT, mark


def _fragment(name: str, base: int | None = None) -> DataFragment:
    return DataFragment(id=0, files=(DataFile(f"{name}.lance", (0,), (0,), base_id=base),), physical_rows=1)


def _transaction(name: str, **properties: str) -> Transaction:
    return Transaction(3, name, Append((_fragment(name),)), properties)


def _digest(name: str) -> str:
    return encode_digests({f"data/{name}.lance": Digest(1, name * 32)})


# ---- one version, several transactions -----------------------------------------------------------------------------------------


def test_alone_nothing_is_added() -> None:
    leader = _transaction("leader")
    assert fold(leader, []) is leader
    assert made_by(leader) == ("leader",)
    assert members_of(leader) == ()


def test_a_version_names_all_that_made_it() -> None:
    members = [
        _transaction("b", **{MESSAGE_PROPERTY: "from b", PARENT: "p", DIGESTS: _digest("b")}),
        replace(_transaction("c", **mark("q", 4)), read_version=2),
    ]
    leader = _transaction("a", **{"who": "a", DIGESTS: _digest("a")})
    folded = fold(leader, members)
    assert isinstance(folded.operation, Append)
    assert [fragment.files[0].path for fragment in folded.operation.fragments] == ["a.lance", "b.lance", "c.lance"]
    assert made_by(folded) == ("a", "b", "c")
    assert last_read(folded) == last_read(leader) == 3
    assert (folded.uuid, folded.read_version, folded.properties["who"]) == ("a", 3, "a")
    assert folded.properties["tiltyard.once.q"] == "4", "the table remembers the work of members, too"
    assert set(decode_digests(folded.properties[DIGESTS], "here")) == {"data/a.lance", "data/b.lance"}
    told = members_of(Transaction.from_bytes(folded.to_bytes()))
    assert [(member.transaction_id, member.read_version, member.operation, member.fragments) for member in told] == [
        ("b", 3, "Append", 1),
        ("c", 2, "Append", 1),
    ]
    assert [member.message for member in told] == ["from b", ""]
    assert set(told[0].properties) == {MESSAGE_PROPERTY}, "what an engine notes for itself is not repeated"


NO_LISTS = ["", "{", "null", "3", "[3]", '[{"id":"x"}]', "[" * 100_000]


@pytest.mark.parametrize(
    "text",
    [
        *NO_LISTS,
        '[{"id":"x","read":"y","operation":"","fragments":0,"properties":{}}]',
        '[{"id":"../x","read":1,"operation":"Append","fragments":1,"properties":{}}]',
    ],
)
def test_a_property_that_is_no_list_of_members_names_nobody(text: str) -> None:
    assert members_of(_transaction("a", **{GROUP: text})) == ()
    assert made_by(_transaction("a", **{GROUP: text})) == ("a",)


def test_who_can_be_taken_along() -> None:
    assert can_be_taken_along(_transaction("a"))
    assert can_be_taken_along(replace(_transaction("a"), operation=Delete((), (3,))))
    assert not can_be_taken_along(replace(_transaction("a"), operation=Delete()))
    assert not can_be_taken_along(replace(_transaction("a"), operation=Delete((), (3,), unknown=b"\x08\x01")))
    assert not can_be_taken_along(replace(_transaction("a"), operation=Delete((), (3,)), unknown=b"\x08\x01"))
    assert not can_be_taken_along(replace(_transaction("a"), operation=Append((_fragment("a", base=3),))))
    assert not can_be_taken_along(replace(_transaction("a"), operation=Append((), unknown=b"\x08\x01")))
    assert not can_be_taken_along(replace(_transaction("a"), unknown=b"\x08\x01"))


# ---- going over versions in short ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DEEDS))
def test_new_rows_go_over_whatever_is_called_calm(name: str) -> None:
    """By the rules themselves, whatever the rows are and whatever the other one did."""
    table = _history(1)
    anything = [deed.operation for deed in DEEDS["Append"] if can_be_taken_along(_with(deed.operation))]
    assert anything
    for theirs in DEEDS[name]:
        created = replace(table[1], transaction=replace(table[1].transaction, operation=theirs.operation))
        if _calm(created, table[0]):
            assert {type(resolve(mine, theirs.operation, context=Context(keys_apart=True))) for mine in anything} == {Compatible}


def test_what_is_called_calm() -> None:
    below, made = _history(1)
    calm = set()
    for name, deeds in DEEDS.items():
        created = replace(made, transaction=replace(made.transaction, operation=deeds[0].operation))
        calm |= {name} if _calm(created, below) else set()
    assert {"Append", "Delete", "CreateIndex", "Rewrite"} <= calm
    assert calm.isdisjoint({"Overwrite", "Restore", "Merge", "Project"})


@pytest.mark.parametrize("name", sorted(DEEDS))
def test_deletes_of_other_rows_go_over_whatever_left_rows_in_place(name: str) -> None:
    """By the rules themselves: where rows stay in place, no rule but those about shared rows has a say."""
    table = _history(1)
    for theirs in DEEDS[name]:
        created = replace(table[1], transaction=replace(table[1].transaction, operation=theirs.operation))
        if Seen.of(NotedVersion.of(created, table[0].file)).in_place:
            for mine in DEEDS["Delete"]:
                verdict = resolve(mine.operation, theirs.operation)
                assert isinstance(verdict, Compatible) or (verdict.rule in BY_ROWS and name == "Delete"), verdict


def test_what_is_said_to_leave_rows_in_place() -> None:
    below, made = _history(1)
    still = set()
    for name, deeds in DEEDS.items():
        created = replace(made, transaction=replace(made.transaction, operation=deeds[0].operation))
        still |= {name} if Seen.of(NotedVersion.of(created, below.file)).in_place else set()
    assert {"Append", "Delete", "CreateIndex", "UpdateConfig"} <= still
    assert still.isdisjoint({"Overwrite", "Restore", "Merge", "Rewrite", "Update", "DataReplacement"})


def _calm(created: CreatedVersion, below: CreatedVersion) -> bool:
    return Seen.of(NotedVersion.of(created, below.file)).calm


def _with(operation: Any) -> Transaction:
    return Transaction(3, "any", operation)


def _history(count: int) -> list[CreatedVersion]:
    """The versions of a real table, oldest first."""
    store = MemoryStore()
    table = memory_table(store)
    for number in range(count):
        table.commit(append(f"f{number}"))
    log = table._access.log
    return [log.committed(version, table._scheme) for version in range(1, count + 2)]


def _noted(history: list[CreatedVersion]) -> RecentVersions:
    recent = RecentVersions()
    for below, created in zip([None, *history], history, strict=False):
        recent.note(created, below.file if below is not None else None)
    return recent


def _since(recent: RecentVersions, first: CreatedVersion, last: CreatedVersion) -> list[int] | None:
    found = recent.since(first.manifest.version, first.transaction.uuid, last.manifest.version, last.transaction.uuid)
    return None if found is None else [seen.version for seen in found]


def test_a_run_of_versions() -> None:
    history = _history(5)
    recent = _noted(history)
    assert _since(recent, history[0], history[5]) == [2, 3, 4, 5, 6]
    assert _since(recent, history[3], history[5]) == [5, 6]
    assert _since(recent, history[5], history[5]) == []
    assert _since(recent, history[1], history[4]) == [3, 4, 5]
    stranger = replace(history[2], transaction=replace(history[2].transaction, uuid="stranger"))
    assert _since(recent, stranger, history[5]) is None, "of another table that had the same number"
    assert _since(recent, history[0], replace(history[5], transaction=replace(history[5].transaction, uuid="stranger"))) is None
    assert _since(recent, stranger, stranger) == []


def test_the_first_version_that_is_known_says_what_it_stands_on() -> None:
    history = _history(4)
    recent = _noted(history[2:])
    assert _since(recent, history[1], history[4]) == [3, 4, 5]
    assert _since(recent, history[0], history[4]) is None
    stranger = replace(history[1], transaction=replace(history[1].transaction, uuid="stranger"))
    assert _since(recent, stranger, history[4]) is None


def test_a_version_may_be_noted_more_than_once() -> None:
    history = _history(3)
    recent = _noted(history)
    recent.note(history[3], history[2].file)
    assert _since(recent, history[0], history[3]) == [2, 3, 4]
    recent.note(history[3], None)
    assert _since(recent, history[0], history[3]) == [2, 3, 4]


def test_a_gap_or_another_history_starts_a_new_run() -> None:
    history, other = _history(5), _history(5)
    recent = _noted(history[:3])
    recent.note(history[4], None)
    assert _since(recent, history[1], history[4]) is None
    assert _since(recent, history[3], history[4]) == [5]
    recent = _noted(history[:3])
    recent.note(other[3], None)
    assert _since(recent, history[1], other[3]) is None
    recent = _noted(history[:4])
    recent.note(other[3], None)
    assert _since(recent, history[1], history[3]) is None, "the version that was read last is the one that is there"


def test_what_one_leader_leaves_another_goes_on_with() -> None:
    history = _history(6)
    note = _noted(history).encoded()
    fresh = RecentVersions()
    fresh.learn(note)
    assert _since(fresh, history[1], history[6]) == [3, 4, 5, 6, 7]
    behind = _noted(history[:4])
    behind.learn(note)
    assert _since(behind, history[0], history[6]) == [2, 3, 4, 5, 6, 7]
    assert behind.encoded() == note
    ahead = _noted(history)
    ahead.learn(_noted(history[:3]).encoded())
    assert _since(ahead, history[1], history[6]) == [3, 4, 5, 6, 7]
    elsewhere = _noted(_history(3))
    elsewhere.learn(note)
    assert _since(elsewhere, history[0], history[6]) is None


def test_a_note_that_was_torn_says_nothing() -> None:
    note = _noted(_history(3)).encoded()
    for torn in (b"", note[:10], note[:-1], note[:40] + b"x" + note[41:], b"0" * 16 + note[16:]):
        recent = RecentVersions()
        recent.learn(torn)
        assert recent.newest() is None


@pytest.mark.parametrize("line", [b"[]", b"3", b"{}", b'[1,"x"]', b"\xff"])
def test_a_note_of_something_else_says_nothing(line: bytes) -> None:
    import xxhash

    recent = RecentVersions()
    recent.learn(xxhash.xxh3_64_hexdigest(line).encode() + line)
    assert recent.newest() is None


def test_versions_that_nobody_looked_below_are_not_calm() -> None:
    history = _history(2)
    assert _calm(history[2], history[1])
    assert not Seen.of(NotedVersion.of(history[2], None)).calm
    other = replace(history[1].file, manifest=replace(history[1].manifest, fields=history[1].manifest.fields[:0]))
    assert not _calm(history[2], replace(history[1], file=other))


# ---- the verdict on a member -------------------------------------------------------------------------------------------------------


def _seen(version: int, *ids: str, calm: bool = True, in_place: bool = True) -> Seen:
    told = (version, ids, "", calm, in_place, "Append", "w", "")
    return Seen(*told, json.dumps(told).encode())


def test_a_member_goes_over_calm_versions_alone() -> None:
    member = _transaction("m")
    assert judge(member, [], {}, {})
    assert judge(member, [_seen(4, "a"), _seen(5, "b", "c")], {}, {})
    assert not judge(member, [_seen(4, "a"), _seen(5, "b", calm=False)], {}, {})
    assert judge(member, [_seen(4, "a", in_place=False)], {}, {})


def test_a_delete_goes_over_versions_that_left_rows_in_place() -> None:
    member = Transaction(3, "m", Delete((), (4,)))
    assert judge(member, [_seen(4, "a", calm=False), _seen(5, "b", "c")], {}, {})
    assert not judge(member, [_seen(4, "a"), _seen(5, "b", in_place=False)], {}, {})


def test_a_member_that_is_there_is_found_before_anything_else() -> None:
    with pytest.raises(AlreadyThereError) as caught:
        judge(_transaction("m", **mark("q", 1)), [_seen(4, "a", calm=False), _seen(5, "b", "m")], {"tiltyard.once.q": "1"}, {})
    assert caught.value.version == 5


def test_numbered_work_is_taken_once() -> None:
    member = _transaction("m", **mark("q", 4))
    assert judge(member, [], {"tiltyard.once.q": "3"}, mark("r", 9))
    assert not judge(member, [], {}, mark("q", 3)), "two numbers of one source do not fit into one version"
    with pytest.raises(AlreadyCommitted):
        judge(member, [], {"tiltyard.once.q": "4"}, {})
