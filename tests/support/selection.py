"""Which parameters of a test ``make test`` runs, and in what order tests begin; ``TILTYARD_PROVE=1`` runs every parameter.

A test that is named in ``SHARES`` runs with a part of its parameters: spread evenly, and so that each value of each parameter that
several of them have (a verb, a fault, a type) occurs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

import pytest

from tests.support.proving import PROVING

SHARES: Final = {
    "tests/api/test_bench_cliffs.py::test_both_sides_do_the_same_and_the_table_is_put_back": 8,
    "tests/faults/test_fault_sweep.py::test_an_overloaded_store": 2,
    "tests/interop/test_arrow_types.py::test_pylance_reads_every_version_of_every_type": 4,
    "tests/interop/test_pylance_tables.py::test_we_append_and_overwrite_and_pylance_goes_on": 3,
    "tests/interop/test_reencode.py::test_pylance_opens_what_we_encoded_again": 2,
    "tests/interop/test_stale_handles.py::test_it_is_carried_over_what_does_not_touch_it": 2,
    "tests/interop/test_two_writers_one_key.py::test_we_come_second": 2,
    "tests/lakes/test_cherry_pick.py::test_a_branch_is_rebased_and_comes_home": 3,
    "tests/lakes/test_merging.py::test_a_branch_is_merged_again_and_again": 3,
    "tests/lakes/test_sharded.py::test_rows_of_every_type_reach_their_shards": 4,
    "tests/spark/test_kills_write.py::test_a_worker_dies_during_a_batch_write": 2,
    "tests/spark/test_sharded.py::test_read_append_merge_delete_update": 2,
    "tests/verbs/test_indices.py::test_an_index_is_built_while_others_write": 3,
    "tests/verbs/test_indices.py::test_former_values_do_not_come_back": 3,
}
"""By test: one in so many of its parameters."""
GOLDEN: Final = (5**0.5 - 1) / 2
"""Steps of this length come back to no parameter: one in so many of all is one in so many of any."""

FIRST: Final[tuple[tuple[str, ...], ...]] = (
    ("tests/spark/",),
    ("tests/pipeline/", "tests/docs/test_examples.py", "tests/docs/test_demo.py"),
    ("tests/lakes/test_s3.py", "tests/lakes/test_histories.py", "tests/faults/test_load.py", "tests/storage/", "tests/catalog/"),
    ("tests/stateful/", "tests/faults/test_kill.py", "tests/proofs/simulator/", "tests/faults/", "tests/matrix/test_stale_handles.py"),
)
"""What each worker begins with: what takes longest, and what shares a server. Two workers get two of these each."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After other plugins have chosen theirs, so that a test that was asked for by name runs."""
    left_out = set() if PROVING else set(_left_out(items))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    items[:] = in_order([item for item in items if item.nodeid not in left_out], workers)


def _left_out(items: Iterable[pytest.Item]) -> Iterator[str]:
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for test, share in SHARES.items():
        cases = [item.callspec.params if hasattr(item, "callspec") else {} for item in tests[test]]
        kept = chosen(cases, share)
        yield from (item.nodeid for place, item in enumerate(tests[test]) if place not in kept)


def chosen(cases: Sequence[dict[str, Any]], share: int) -> set[int]:
    """Places of one in ``share`` cases, and of as many more as it takes for every value of every parameter."""
    values = [_values(case) for case in cases]
    often = {value for case in values for value in case if sum(value in other for other in values) > 1}
    kept = {place for place in range(len(cases)) if place * GOLDEN % 1 * share < 1}
    seen = {value for place in kept for value in values[place]}
    for place, case in enumerate(values):
        if case & often - seen:
            kept.add(place)
            seen |= case
    return kept


def _values(case: dict[str, Any]) -> set[tuple[str, object]]:
    return {(name, value) for name, value in case.items() if isinstance(value, str | int | Enum)}


def in_order(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker is given a run of neighbours to begin with: at the front of each goes what takes longest."""
    if workers < 2:
        return list(items)
    by_beginning: dict[str, list[pytest.Item]] = defaultdict(list)
    beginnings = [beginning for several in FIRST for beginning in several]
    for item in items:
        by_beginning[next((one for one in beginnings if item.nodeid.startswith(one)), "")].append(item)
    heads: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for place, several in enumerate(FIRST):
        heads[place % workers] += [item for beginning in several for item in by_beginning[beginning]]
    return _filled(heads, by_beginning[""])


def _filled(heads: Sequence[list[pytest.Item]], rest: list[pytest.Item]) -> list[pytest.Item]:
    """As pytest-xdist deals them: to each worker an equal number of those that are left."""
    ordered: list[pytest.Item] = []
    total = len(rest) + sum(map(len, heads))
    for number, head in enumerate(heads):
        room = (total - len(ordered)) // (len(heads) - number)
        more = max(room - len(head), 0)
        ordered += [*head, *rest[:more]]
        rest = rest[more:]
    return [*ordered, *rest]
