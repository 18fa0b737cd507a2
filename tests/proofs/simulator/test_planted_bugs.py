"""Bugs planted on purpose: the simulator finds each within a few seeds, and shows a short run."""

from collections.abc import Callable
from typing import Any

import pytest

from tiltyard.interfaces import CommitHandler, ObjectStore, Runtime
from tiltyard.transaction import commit, rebaser, recent
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.resolve import Compatible, Incompatible, resolve
from tiltyard_proofs.simulator import actors, describe, run_seed, shrink
from tiltyard_proofs.simulator.actors import MakeCommitter, real_committer

SEEDS = range(400)


class OverwritingHandler:
    """Writes over whatever is there."""

    name = "overwriting"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        store.put(path, data)


def overwriting(log: VersionLog, handler: CommitHandler, runtime: Runtime) -> Committer:
    return real_committer(log, OverwritingHandler(), runtime)


def first_failure(make_committer: MakeCommitter = real_committer, seeds: range = SEEDS) -> tuple[int, str, int]:
    for seed in seeds:
        outcome = run_seed(seed, make_committer)
        if outcome.violation is not None:
            short = shrink(outcome, make_committer)
            assert len(short.trace) <= len(outcome.trace)
            return seed, describe(short), len(short.trace)
    pytest.fail(f"not found in {len(seeds)} seeds")


def test_a_handler_that_writes_over_versions() -> None:
    seed, words, steps = first_failure(overwriting)
    print(seed, words)
    assert "was written over" in words
    assert steps <= 40


def _always_compatible(*_arguments: Any, **_options: Any) -> Compatible:
    return Compatible("whatever it is")


def _never_incompatible(real: Callable[..., Any]) -> Callable[..., Any]:
    def lenient(*arguments: Any, **options: Any) -> Any:
        verdict = real(*arguments, **options)
        return Compatible("never mind") if isinstance(verdict, Incompatible) else verdict

    return lenient


def test_a_resolver_that_says_yes_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebaser, "resolve", _always_compatible)
    seed, words, steps = first_failure()
    print(seed, words)
    assert "BROKEN" in words
    assert steps <= 60


def test_a_resolver_that_never_says_incompatible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebaser, "resolve", _never_incompatible(resolve))
    seed, words, _ = first_failure()
    print(seed, words)
    assert "BROKEN" in words


def test_a_cleaner_that_does_not_wait_for_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "outlast_looks", lambda means, seen: None)
    seed, words, _ = first_failure()
    print(seed, words)
    assert "was acknowledged, but made when" in words


def test_members_that_do_not_find_themselves_in_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commit, recent):
        monkeypatch.setattr(module, "made_by", lambda transaction: (transaction.uuid,))
    seed, words, _ = first_failure(seeds=range(200, 400))
    print(seed, words)
    assert "made versions" in words


def test_the_trace_is_numbered_and_names_who_did_what() -> None:
    _, words, steps = first_failure(overwriting)
    lines = words.splitlines()
    assert [line.split()[0] for line in lines if line[:4].strip().isdigit()] == [str(number + 1) for number in range(steps)]
    assert any("put" in line and "_versions/<version " in line and "-> ok" in line for line in lines)
    assert lines[-1].startswith("BROKEN  P2")
