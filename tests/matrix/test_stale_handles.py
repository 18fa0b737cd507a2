"""A stale handle against a fresh one: every verb beside every pair of winners.

Whatever a stale handle commits is what a fresh handle would have made of the head, or it is refused by a typed error. Without
``TILTYARD_PROVE`` a covering set runs: each verb beside each winner, as the first or as the second of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest

import tiltyard as ty
from tests.matrix.stale import READ_VERSION, SETTINGS, VERBS, WINNERS, Bench, Deed, Setting, expected, facts_of, in_turn, run
from tests.support.proving import PROVING, pick

REPLACED = ("overwrite", "restore", "pylance overwrite")
"""Winners after which the table is not the one that a stale handle read."""

Winners = tuple[Deed, ...]


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> dict[Setting, Bench]:
    return {setting: Bench(tmp_path_factory.mktemp(str(setting)), setting) for setting in SETTINGS}


def _covering(verb: int) -> Iterator[tuple[Setting, Winners]]:
    """For one verb: every winner in one of the pairs, and a replaced table right after a commit that alone would be retryable."""
    shuffled = Random(verb).sample(WINNERS, len(WINNERS))
    for number, pair in enumerate(zip(shuffled[::2], [*shuffled[1::2], shuffled[0]], strict=False)):
        yield SETTINGS[(number + verb) % len(SETTINGS)], pair
    retryable = next(deed for deed in WINNERS if deed.name == ("update" if verb % 2 else "append"))
    for number, name in enumerate(REPLACED):
        replaced = next(deed for deed in WINNERS if deed.name == name)
        yield SETTINGS[(number + verb) % len(SETTINGS)], (retryable, replaced)
    yield SETTINGS[verb % len(SETTINGS)], (WINNERS[verb % len(WINNERS)],)


def _all() -> Iterator[tuple[Setting, Winners]]:
    for setting in SETTINGS:
        yield setting, ()
        for winner in WINNERS:
            yield setting, (winner,)
        for first, second in product(WINNERS, WINNERS):
            yield setting, (first, second)


@pytest.mark.timeout(pick(600, 7200))
@pytest.mark.parametrize("number", range(len(VERBS)), ids=[verb.name for verb in VERBS])
def test_a_stale_handle_does_what_a_fresh_one_would(benches: dict[Setting, Bench], number: int) -> None:
    verb = VERBS[number]
    wrong: list[str] = []
    committed = refused = 0
    for setting, winners in _all() if PROVING else _covering(number):
        bench = benches[setting]
        at = bench.after(winners)
        if at is None:
            continue  # the second winner makes no sense after the first
        root = bench.copy(at[0])
        error = run(verb, ty.Table.open(root, version=READ_VERSION, durability="os"))
        committed, refused = committed + (error is None), refused + (error is not None)
        problem = _problem(bench, verb, winners, root, error)
        if problem:
            wrong.append(f"{setting}: {verb.name} over {' and '.join(deed.name for deed in winners)}: {problem}")
    print(f"{verb.name}: {committed} committed, {refused} refused")
    assert wrong == []
    assert committed
    assert refused or verb.name in ("restore", "overwrite")


def _problem(bench: Bench, verb: Deed, winners: Sequence[Deed], root: Path, error: ty.TiltyardError | None) -> str:
    at = bench.after(winners)
    assert at is not None
    before, state = at
    if error is not None:
        if not isinstance(error, ty.ConflictError | ty.InvalidInput):
            return f"{type(error).__name__}: {error}"
        found = facts_of(root, bench.setting.keyed)
        return "" if found.seen() == state.seen() else f"refused ({error}), and yet {found.seen()}"
    found = facts_of(root, bench.setting.keyed)
    possible = [expected(verb, state)]
    fresh_root = bench.copy(before)
    fresh = run(verb, ty.Table.open(fresh_root, durability="os"))
    if fresh is None:
        [model] = possible
        assert model is not None, f"{verb.name}: the model refuses what a fresh handle does"
        fresh_facts = facts_of(fresh_root, bench.setting.keyed)
        assert fresh_facts.seen() == model.seen(), f"{verb.name}: the model is wrong: {model.seen()}, not {fresh_facts.seen()}"
    if fresh is not None or verb.of_its_rows:
        # A fresh handle cannot say it any more (a column that it names is gone); a stale one could, before one of the winners.
        base = bench.after(())
        assert base is not None
        late = replace(verb, model=verb.late or verb.model)
        possible += [in_turn(base[1], [*winners[:at], late, *winners[at:]]) for at in range(len(winners) + 1)]
    replaced = [deed.name for deed in winners if deed.name in REPLACED]
    if replaced and verb.name not in ("overwrite", "restore", "config"):
        return f"committed on a table after {replaced[0]}"
    wanted = [state.seen() for state in possible if state is not None]
    return "" if found.seen() in wanted else f"{found.seen()}, not {wanted}"
