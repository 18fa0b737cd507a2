"""Every fault at every store call of a create, an append and an overwrite: committed, not committed, or unknown and resolvable."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import (
    HANDLERS,
    MODES,
    THEIRS,
    VERBS,
    InterruptedStore,
    Mode,
    Trial,
    Verb,
    copy_of,
    is_version,
    judge,
    make_template,
    rows,
)
from tests.support.proving import PROVING
from tiltyard.errors import AlreadyExists, OutcomeUnknown, StorageError
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore, all_faults

EVERY = [(verb, handler, mode, fault) for verb in VERBS for handler in HANDLERS for mode in MODES for fault in all_faults()]


def _is_short(verb: Verb, handler: str, mode: Mode, fault: Fault) -> bool:
    """For each verb and fault: the first handler in a race, and in turn that one in another mode or another one in a race.

    Handlers differ in how a version is created, and so where two race for it.
    """
    others = ((HANDLERS[0], MODES[0]), (HANDLERS[1], "racing"), (HANDLERS[0], MODES[1]), (HANDLERS[2], "racing"))
    turn = (VERBS.index(verb) + list(all_faults()).index(fault)) % len(others)
    return (handler, mode) in ((HANDLERS[0], "racing"), others[turn])


SWEEPS = [sweep for sweep in EVERY if PROVING or _is_short(*sweep)]
MOST_CALLS = 60
"""An operation that makes more calls than this has lost its way."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "table")


def _somebody_else(root: Path, verb: Verb) -> None:
    if verb == "create":
        ty.Table.create(root, rows(*THEIRS), durability="os")
    else:
        ty.Table.open(root, durability="os").append(rows(*THEIRS))


def _world(template: Path, root: Path, verb: Verb, mode: Mode) -> tuple[Trial, ObjectStore]:
    if verb != "create":
        copy_of(template, root)
    store: ObjectStore = LocalStore(root, durability="os")
    trial = Trial(verb, root)
    if mode == "behind":
        store = InterruptedStore(store, lambda method, path: True, lambda: _somebody_else(root, verb))
    elif mode == "racing":
        store = InterruptedStore(store, is_version, lambda: _somebody_else(root, verb))
    return trial, store


class Calls:
    """A ``match`` for ``FaultStore`` that takes every call and keeps it, so that the test knows which ones were hit."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, method: str, path: str) -> bool:
        self.seen.append((method, path))
        return True

    def hit(self, at: int, times: int) -> list[tuple[str, str]]:
        return self.seen[at - 1 : at - 1 + times]


@pytest.mark.parametrize(("verb", "handler", "mode", "fault"), SWEEPS, ids=lambda given: getattr(given, "value", given))
def test_every_call(template: Path, tmp_path: Path, verb: Verb, handler: str, mode: Mode, fault: Fault) -> None:
    _sweep(template, tmp_path, verb, handler, mode, fault)


@pytest.mark.parametrize("times", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", VERBS)
def test_an_overloaded_store(template: Path, tmp_path: Path, verb: Verb, mode: Mode, times: int) -> None:
    """503 several times in a row. Short bouts are weathered; a long one may leave the outcome open, never wrong."""
    trials = _sweep(template, tmp_path, verb, "conditional-put", mode, Fault.UNAVAILABLE, times)
    if times < 5 and verb != "create":
        assert not any(isinstance(trial.error, OutcomeUnknown | StorageError) for trial in trials)
    elif times >= 5:
        assert any(isinstance(trial.error, OutcomeUnknown) for trial in trials) == (verb != "create" or mode != "behind")


def _sweep(template: Path, tmp_path: Path, verb: Verb, handler: str, mode: Mode, fault: Fault, times: int = 3) -> list[Trial]:
    trials = []
    for at in range(1, MOST_CALLS):
        trial, inner = _world(template, tmp_path / str(at), verb, mode)
        calls = Calls()
        store = FaultStore(inner, fault, at, match=calls, times=times)
        trial.run(store, handler)
        judge(trial, calls.hit(at, times if fault is Fault.UNAVAILABLE else 1))
        trials.append(trial)
        if not store.fired:
            _expect_untroubled(trial, mode)
            return trials
    pytest.fail(f"after {MOST_CALLS} calls the operation still goes on")


def _expect_untroubled(trial: Trial, mode: Mode) -> None:
    if trial.verb == "create" and mode != "alone":
        assert isinstance(trial.error, AlreadyExists)
    else:
        assert trial.error is None
        assert trial.result_version == {"create": 1}.get(trial.verb, 3 if mode == "alone" else 4)
