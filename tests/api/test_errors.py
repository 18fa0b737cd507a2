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

import pytest

from tiltyard import errors
from tiltyard.errors import TiltyardError, Winner

TREE = {
    # class: (parents, kind)
    "TiltyardError": (("Exception",), "error"),
    "ConflictError": (("TiltyardError",), "conflict"),
    "RetryableConflict": (("ConflictError",), "retryable-conflict"),
    "ExpectedVersionMismatch": (("RetryableConflict",), "expected-version-mismatch"),
    "KeyConflict": (("RetryableConflict",), "key-conflict"),
    "IncompatibleConflict": (("ConflictError",), "incompatible-conflict"),
    "ContentionError": (("TiltyardError",), "contention"),
    "OutcomeUnknown": (("TiltyardError",), "outcome-unknown"),
    "HistoryUnavailable": (("TiltyardError",), "history-unavailable"),
    "CorruptTable": (("TiltyardError",), "corrupt-table"),
    "UnsupportedFeature": (("TiltyardError",), "unsupported-feature"),
    "UnsafeStore": (("TiltyardError",), "unsafe-store"),
    "NotFound": (("TiltyardError", "LookupError"), "not-found"),
    "AlreadyExists": (("TiltyardError",), "already-exists"),
    "InvalidInput": (("TiltyardError", "ValueError"), "invalid-input"),
    "StorageError": (("TiltyardError", "OSError"), "storage-error"),
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
    "ExpectedVersionMismatch": lambda text: errors.ExpectedVersionMismatch(text, table=text, expected=3, actual=4, **CONFLICT),
    "KeyConflict": lambda text: errors.KeyConflict(text, **CONFLICT),  # type: ignore[arg-type]
    "IncompatibleConflict": lambda text: errors.IncompatibleConflict(text, **CONFLICT),  # type: ignore[arg-type]
    "ContentionError": lambda text: errors.ContentionError(text, operation="Append", attempts=21, winners=WINNERS, seconds=1.5),
    "OutcomeUnknown": lambda text: errors.OutcomeUnknown(text, transaction_id=text, version=9, uri=text),
    "HistoryUnavailable": lambda text: errors.HistoryUnavailable(text, read_version=3, missing=[4, 5], head=9),
    "CorruptTable": lambda text: errors.CorruptTable(text, text),
    "UnsupportedFeature": lambda text: errors.UnsupportedFeature(text, feature=text, bits=[64], writing=True),
    "UnsafeStore": lambda text: errors.UnsafeStore(text, store=text),
    "NotFound": lambda text: errors.NotFound(text, name=text),
    "AlreadyExists": lambda text: errors.AlreadyExists(text, name=text),
    "InvalidInput": lambda text: errors.InvalidInput(text, argument=text),
    "StorageError": lambda text: errors.StorageError(text, name=text, maybe_applied=True, transient=True, unsynced=True),
}

ATTRIBUTES = {
    "ConflictError": {"operation", "read_version", "winners", "fragments", "sample", "retryable"},
    "ExpectedVersionMismatch": {"table", "expected", "actual"},
    "ContentionError": {"operation", "attempts", "winners", "seconds"},
    "OutcomeUnknown": {"transaction_id", "version", "uri"},
    "HistoryUnavailable": {"read_version", "missing", "head"},
    "CorruptTable": {"file", "reason"},
    "UnsupportedFeature": {"feature", "bits", "writing"},
    "UnsafeStore": {"store"},
    "NotFound": {"name"},
    "AlreadyExists": {"name"},
    "InvalidInput": {"argument"},
    "StorageError": {"name", "maybe_applied", "transient", "unsynced"},
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
    facts = MAKERS[name]("What happened.").to_dict()
    assert attributes | {"kind", "message", "advice"} <= set(facts)


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
