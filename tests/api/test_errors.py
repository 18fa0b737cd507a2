"""The error tree is an interface: classes, parents, kinds and attributes stay, messages stay short, and errors can travel."""

from __future__ import annotations

import copy
import inspect
import json
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.support.commits import InterruptedStore, append, fragment, is_version, memory_table, overwrite, plant, reopened
from tiltyard import errors, ops
from tiltyard.errors import TiltyardError, Winner
from tiltyard.merges import TableConflict
from tiltyard.options import CommitOptions
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import Fault, FaultStore

TREE = {
    # class: (parents, kind)
    "TiltyardError": (("Exception",), "error"),
    "ConflictError": (("TiltyardError",), "conflict"),
    "RetryableConflict": (("ConflictError",), "retryable-conflict"),
    "ExpectedVersionMismatch": (("RetryableConflict",), "expected-version-mismatch"),
    "KeyConflict": (("RetryableConflict",), "key-conflict"),
    "MergeConflict": (("ConflictError",), "merge-conflict"),
    "IncompatibleConflict": (("ConflictError",), "incompatible-conflict"),
    "ContentionError": (("TiltyardError",), "contention"),
    "OutcomeUnknown": (("TiltyardError",), "outcome-unknown"),
    "HistoryUnavailable": (("TiltyardError",), "history-unavailable"),
    "CorruptTable": (("TiltyardError",), "corrupt-table"),
    "UnsupportedFeature": (("TiltyardError",), "unsupported-feature"),
    "UnsafeStore": (("TiltyardError",), "unsafe-store"),
    "OwnershipError": (("TiltyardError",), "ownership"),
    "ProtectedBranch": (("TiltyardError",), "protected-branch"),
    "NotFound": (("TiltyardError", "LookupError"), "not-found"),
    "AlreadyExists": (("TiltyardError",), "already-exists"),
    "AlreadyCommitted": (("TiltyardError",), "already-committed"),
    "InvalidInput": (("TiltyardError", "ValueError"), "invalid-input"),
    "StorageError": (("TiltyardError", "OSError"), "storage-error"),
    "WriterTimeout": (("TiltyardError", "TimeoutError"), "writer-timeout"),
}

LONG = "a very long name " * 1000
WINNERS = [Winner(7, "uuid-7", "Append", "lance 14.0.2", LONG), Winner(8, "uuid-8", "Delete")]
CONFLICT = {
    "operation": "Append",
    "read_version": 6,
    "winners": WINNERS,
    "fragments": [1, 2],
    "sample": ["k", b"\0", Decimal(1), datetime.max],
}

MAKERS: dict[str, Callable[[str], TiltyardError]] = {
    "TiltyardError": lambda text: TiltyardError(text, advice=text),
    "ConflictError": lambda text: errors.ConflictError(text, **CONFLICT),  # type: ignore[arg-type]
    "RetryableConflict": lambda text: errors.RetryableConflict(text, **CONFLICT),  # type: ignore[arg-type]
    "ExpectedVersionMismatch": lambda text: errors.ExpectedVersionMismatch(
        text,
        table=text,
        expected=3,
        actual=4,
        **CONFLICT,  # type: ignore[arg-type]
    ),
    "KeyConflict": lambda text: errors.KeyConflict(text, **CONFLICT),  # type: ignore[arg-type]
    "MergeConflict": lambda text: errors.MergeConflict(text, conflicts=[TableConflict("t", "rows", text)], **CONFLICT),
    "IncompatibleConflict": lambda text: errors.IncompatibleConflict(text, **CONFLICT),  # type: ignore[arg-type]
    "ContentionError": lambda text: errors.ContentionError(
        text, operation="Append", read_version=6, attempts=21, winners=WINNERS, seconds=1.5
    ),
    "OutcomeUnknown": lambda text: errors.OutcomeUnknown(
        text, transaction_id=text, version=9, uri=text, operation="Append", read_version=6, winners=WINNERS
    ),
    "HistoryUnavailable": lambda text: errors.HistoryUnavailable(
        text, operation="Append", read_version=6, missing=[4, 5], head=9, winners=WINNERS
    ),
    "CorruptTable": lambda text: errors.CorruptTable(text, text),
    "UnsupportedFeature": lambda text: errors.UnsupportedFeature(text, feature=text, bits=[64], writing=True),
    "UnsafeStore": lambda text: errors.UnsafeStore(text, store=text),
    "OwnershipError": lambda text: errors.OwnershipError(text, root=text, lake=text, catalog=text),
    "ProtectedBranch": lambda text: errors.ProtectedBranch(text, branch=text, author=text, writers=[text], checks=[text]),
    "NotFound": lambda text: errors.NotFound(text, name=text),
    "AlreadyExists": lambda text: errors.AlreadyExists(text, name=text),
    "AlreadyCommitted": lambda text: errors.AlreadyCommitted(text, source=text, number=7, last=8),
    "InvalidInput": lambda text: errors.InvalidInput(text, argument=text),
    "StorageError": lambda text: errors.StorageError(text, name=text, maybe_applied=True, transient=True, unsynced=True),
    "WriterTimeout": lambda text: errors.WriterTimeout(text, seconds=1.5, appends=3, bytes=4096, advice="Append again later."),
}

COMMIT = {"operation", "read_version", "winners", "fragments", "sample", "transaction_id"}
"""What every error tells that ends a commit because of others."""

ATTRIBUTES = {
    "ConflictError": {*COMMIT, "executions", "attempts"},
    "RetryableConflict": {*COMMIT, "executions", "attempts"},
    "KeyConflict": {*COMMIT, "executions", "attempts"},
    "MergeConflict": {*COMMIT, "executions", "attempts", "conflicts"},
    "IncompatibleConflict": {*COMMIT, "executions", "attempts"},
    "ExpectedVersionMismatch": {*COMMIT, "executions", "attempts", "table", "expected", "actual", "cause", "by"},
    "ContentionError": {*COMMIT, "attempts", "seconds"},
    "OutcomeUnknown": {*COMMIT, "version", "uri"},
    "HistoryUnavailable": {*COMMIT, "attempts", "missing", "head"},
    "CorruptTable": {"file", "reason"},
    "UnsupportedFeature": {"feature", "bits", "writing"},
    "UnsafeStore": {"store"},
    "OwnershipError": {"root", "lake", "catalog"},
    "ProtectedBranch": {"branch", "author", "writers", "checks"},
    "NotFound": {"name"},
    "AlreadyExists": {"name"},
    "InvalidInput": {"argument"},
    "StorageError": {"name", "maybe_applied", "transient", "unsynced"},
    "WriterTimeout": {"seconds", "appends", "bytes"},
}


def _classes() -> dict[str, type[TiltyardError]]:
    found = vars(errors).values()
    return {one.__name__: one for one in found if inspect.isclass(one) and issubclass(one, TiltyardError)}


def test_the_tree() -> None:
    assert {name: (tuple(base.__name__ for base in one.__bases__), one.kind) for name, one in _classes().items()} == TREE


def test_each_kind_stands_for_one_class() -> None:
    kinds = [one.kind for one in _classes().values()]
    assert len(set(kinds)) == len(kinds)


def test_the_tree_is_drawn_where_people_look() -> None:
    drawn = errors.__doc__ or ""
    assert [name for name in TREE if f"+-- {name}" not in drawn] == ["TiltyardError"]


@pytest.mark.parametrize("name", TREE)
def test_messages_stay_short_and_keep_their_advice(name: str) -> None:
    long = MAKERS[name](LONG)
    assert 0 < len(str(long)) < 300
    if default := type(long).default_advice:
        assert str(long).endswith(default)
    assert len(default) < 150, "advice must leave room for what happened"
    assert str(MAKERS[name]("What happened.")).find("What happened.") >= 0


@pytest.mark.parametrize(("name", "attributes"), ATTRIBUTES.items())
def test_what_a_program_needs_is_an_attribute(name: str, attributes: set[str]) -> None:
    error = MAKERS[name]("What happened.")
    assert set(error.to_dict()) == attributes | {"kind", "message", "advice", "retryable"}
    assert all(hasattr(error, attribute) for attribute in attributes)


@pytest.mark.parametrize("name", [name for name, attributes in ATTRIBUTES.items() if attributes >= COMMIT])
def test_what_an_error_tells_of_a_commit(name: str) -> None:
    error: Any = MAKERS[name]("What happened.")
    is_conflict = isinstance(error, errors.ConflictError)
    assert (error.operation, error.read_version, error.winners) == ("Append", 6, tuple(WINNERS))
    assert error.fragments == ((1, 2) if is_conflict else ())
    assert error.sample == (("k", b"\0", Decimal(1), datetime.max) if is_conflict else ())
    assert error.retryable == (name not in ("ConflictError", "IncompatibleConflict", "MergeConflict", "OutcomeUnknown"))
    assert error.advice or name == "ConflictError"
    facts = json.loads(json.dumps(error.to_dict()))
    assert {fact: facts[fact] for fact in COMMIT | {"retryable"}} == {
        "transaction_id": "What happened." if name == "OutcomeUnknown" else "",
        "operation": "Append",
        "read_version": 6,
        "winners": [
            {"version": 7, "transaction_id": "uuid-7", "operation": "Append", "writer": "lance 14.0.2", "message": LONG, "author": ""},
            {"version": 8, "transaction_id": "uuid-8", "operation": "Delete", "writer": "", "message": "", "author": ""},
        ],
        "fragments": [1, 2] if is_conflict else [],
        "sample": ["k", "b'\\x00'", "1", str(datetime.max)] if is_conflict else [],
        "retryable": error.retryable,
    }
    if is_conflict:
        assert facts["executions"] == 1


@pytest.mark.parametrize("name", TREE)
def test_other_advice_changes_nothing_else(name: str) -> None:
    error = MAKERS[name]("What happened.")
    error.add_note("a note")
    other = error.advised("Do this.")
    assert (other.advice, str(other)) == ("Do this.", str(error).removesuffix(error.advice).rstrip() + " Do this.")
    assert type(other) is type(error)
    assert {**vars(other), "advice": ""} == {**vars(error), "advice": ""}
    assert str(error) == str(MAKERS[name]("What happened."))
    assert len(str(MAKERS[name](LONG).advised("Do this."))) < 300
    assert str(MAKERS[name](LONG).advised("Do this.")).endswith(" Do this.")


@pytest.mark.parametrize("name", ["RetryableConflict", "ContentionError", "OutcomeUnknown", "HistoryUnavailable"])
def test_what_was_not_known_where_it_was_raised_is_added(name: str) -> None:
    known: Any = MAKERS[name]("What happened.")
    known.attempts = known.transaction_id = 5
    before = copy.copy(known)
    errors.complete(known, operation="Delete", read_version=1, winners=[], transaction_id="t", attempts=3)
    _same(known, before)
    bare: Any = {
        "RetryableConflict": errors.RetryableConflict("x", winners=WINNERS),
        "ContentionError": errors.ContentionError("x"),
        "OutcomeUnknown": errors.OutcomeUnknown("x", transaction_id="t", version=9),
        "HistoryUnavailable": errors.HistoryUnavailable("x"),
    }[name]
    errors.complete(bare, operation="Delete", read_version=0, winners=WINNERS, transaction_id="t", attempts=3)
    assert (bare.operation, bare.read_version, bare.winners, bare.transaction_id) == ("Delete", 0, tuple(WINNERS), "t")
    assert name == "OutcomeUnknown" or bare.attempts == 3


def test_an_error_that_is_not_about_a_commit_stays_as_it_is() -> None:
    error = errors.StorageError("What happened.")
    errors.complete(error, operation="Delete", read_version=1, winners=WINNERS, transaction_id="t", attempts=3)
    _same(error, errors.StorageError("What happened."))


@pytest.mark.parametrize("name", TREE)
def test_as_json(name: str) -> None:
    error = MAKERS[name]("What happened.")
    facts = json.loads(json.dumps(error.to_dict()))
    assert (facts["kind"], facts["message"]) == (error.kind, str(error))
    if "winners" in facts:
        assert facts["winners"][0]["transaction_id"] == "uuid-7"


@pytest.mark.parametrize("name", TREE)
def test_copies_are_equal_in_everything(name: str) -> None:
    error = MAKERS[name]("What happened.")
    error.add_note("a note")
    for double in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        _same(double, error)


def _same(found: TiltyardError, error: TiltyardError) -> None:
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


def _raise(name: str) -> None:
    raise MAKERS[name]("What happened.")


def test_errors_reach_the_parent_process_whole() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in TREE:
            raised = pool.submit(_raise, name).exception(60)
            assert isinstance(raised, TiltyardError)
            _same(raised, MAKERS[name]("What happened."))


def test_a_winner_in_words() -> None:
    assert str(WINNERS[0]) == "version 7 (Append by lance 14.0.2)"
    assert str(WINNERS[1]) == "version 8 (Delete)"


# ---- as real commits raise them ---------------------------------------------------------------------------------------------


def _raised(kind: type[TiltyardError], store: MemoryStore, *, read_version: int = 1, by: ops.Operation | None = None, **how: Any) -> Any:
    handle = reopened(how.pop("through", store))
    with pytest.raises(kind) as caught:
        handle.commit(append() if by is None else by, read_version=read_version, **how)
    return caught.value


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    memory_table(made)
    return made


def _others(store: MemoryStore, *operations: ops.Operation) -> list[Winner]:
    """Commits of a stranger, as an error shall tell of them."""
    found = []
    for number, operation in enumerate(operations, 2):
        theirs = plant(store, operation)
        found.append(Winner(number, theirs.uuid, operation.name, "stranger 9.9", theirs.message))
    return found


def _theirs() -> ops.Append:
    return ops.Append((fragment("theirs"),))


def test_a_conflict_tells_who_won(store: MemoryStore) -> None:
    _, winner = _others(store, _theirs(), ops.Restore(1))
    error = _raised(errors.IncompatibleConflict, store)
    assert (error.operation, error.read_version, error.winners, error.retryable) == ("Append", 1, (winner,), False)


def test_a_conflict_that_can_be_run_again_tells_who_won(store: MemoryStore) -> None:
    (winner,) = _others(store, overwrite("theirs"))
    error = _raised(errors.RetryableConflict, store, by=overwrite())
    assert (error.operation, error.read_version, error.winners, error.retryable) == ("Overwrite", 1, (winner,), True)


def test_a_lost_race_tells_to_whom(store: MemoryStore) -> None:
    busy = InterruptedStore(store, is_version, lambda: plant(store, _theirs()), 100)
    error = _raised(errors.ContentionError, store, through=busy, commit=CommitOptions(race_retries=2))
    assert (error.operation, error.read_version, error.attempts, error.retryable) == ("Append", 1, 3, True)
    assert [(winner.version, winner.operation, winner.writer) for winner in error.winners] == [
        (version, "Append", "stranger 9.9") for version in (2, 3, 4)
    ]
    assert all(winner.transaction_id and winner.message == "planted Append" for winner in error.winners)


def test_a_gap_in_history_tells_what_could_be_read(store: MemoryStore) -> None:
    winners = _others(store, _theirs(), _theirs(), _theirs())
    store.delete(f"_versions/{2**64 - 1 - 3:020}.manifest")
    error = _raised(errors.HistoryUnavailable, store)
    assert (error.operation, error.read_version, error.missing, error.head) == ("Append", 1, (3,), 4)
    assert (error.winners, error.retryable) == ((winners[0],), True)


def test_a_read_version_that_is_gone(store: MemoryStore) -> None:
    error = _raised(errors.HistoryUnavailable, store, read_version=9)
    assert (error.operation, error.read_version, error.missing) == ("Append", 9, (9,))


def test_an_unknown_outcome_tells_what_it_was_carried_over(store: MemoryStore) -> None:
    winners = _others(store, _theirs())
    silent = FaultStore(store, Fault.UNAVAILABLE, match=is_version, times=100)
    error = _raised(errors.OutcomeUnknown, store, through=silent)
    assert (error.operation, error.read_version, error.version, error.retryable) == ("Append", 1, 3, False)
    assert error.winners == tuple(winners)
    assert error.uri
