"""Which tests are quick: ``make check`` runs those that get no marker here. Fixtures, parameters and paths decide.

A test that starts a process without a marker fails, so that the table stays true.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final

import pytest

MARKERS: Final = {
    "spark": "needs a JVM",
    "server": "needs a server: PostgreSQL, S3 or our own",
    "process": "starts processes",
    "fuzz": "feeds random bytes or runs random programs, by the thousand",
    "slow": "needs none of these, and takes its time all the same",
}
STARTS_PROCESSES: Final = ("spark", "server", "process", "fuzz")

BY_FIXTURE: Final = {
    "spark": "spark",
    "postgres_url": "server",
    "s3_server": "server",
    "seaweedfs_server": "server",
    "forgetful_server": "server",
    "pool": "process",
    "tiltyard": "process",
}
BY_PARAMETER: Final = {"postgres": "server", "s3": "server"}
BY_SUITE: Final = {"tiltyard.testing.record_process_conformance": "process"}
BY_PATH: Final[dict[str, tuple[str, ...]]] = {
    "fuzz": ("tests/fuzz/",),
    "server": (
        "tests/server/",
        "tests/catalog/test_records_manifest.py::TestOnS3",
        "tests/lakes/test_s3.py",
        "tests/storage/test_servers.py",
        "tests/api/test_bench_object_store.py",
        "tests/api/test_bench_peers.py",
    ),
    "spark": (
        "tests/spark/test_another_python.py::test_a_session",
        "tests/spark/test_connect.py",
        "tests/spark/test_many_writers.py",
        "tests/spark/test_other_tools.py",
        "tests/spark/test_settings_alone.py",
        "tests/pipeline/test_cli.py",
        "tests/pipeline/test_example.py",
    ),
    "process": (
        "tests/api/test_bench_cliffs.py",
        "tests/api/test_bench_verbs.py",
        "tests/api/test_bench_writers.py",
        "tests/api/test_errors.py::test_errors_reach_the_parent_process_whole",
        "tests/catalog/test_line.py",
        "tests/catalog/test_records_sqlite.py::TestDisk",
        "tests/catalog/test_records_sqlite.py::TestForks",
        "tests/cli/test_process.py",
        "tests/cli/test_verb_process.py",
        "tests/docs/test_demo.py",
        "tests/docs/test_examples.py",
        "tests/batching/test_forks.py",
        "tests/faults/test_batch_writer_kills.py",
        "tests/faults/test_group_kills.py",
        "tests/faults/test_kill.py",
        "tests/faults/test_kills.py",
        "tests/faults/test_load.py",
        "tests/faults/test_sharded_kills.py",
        "tests/house/test_limits.py::test_no_call",
        "tests/interop/test_processes.py",
        "tests/lakes/test_branch_kills.py",
        "tests/lakes/test_batch_kills.py",
        "tests/lakes/test_catalog_faults.py",
        "tests/lakes/test_histories.py",
        "tests/lakes/test_hot_kills.py",
        "tests/lakes/test_merge_kills.py",
        "tests/lakes/test_namespace.py::test_a_stock_client",
        "tests/lakes/test_verb_kills.py",
        "tests/lakes/test_kills.py",
        "tests/lakes/test_lost_catalogs.py",
        "tests/lakes/test_recovery_kills.py",
        "tests/security/test_isolated_reads.py",
        "tests/proofs/simulator/test_prove.py",
        "tests/proofs/simulator/test_same_seed.py",
        "tests/storage/test_faults.py::TestARealKill",
        "tests/storage/test_local.py::TestFlushing::test_a_forked_child",
        "tests/storage/test_local_queue.py::test_the_dead",
        "tests/storage/test_queue_seats.py::test_a_child",
        "tests/storage/test_locks.py",
        "tests/verbs/test_interrupts.py",
        "tests/verbs/test_pieces.py::test_other_processes",
        "tests/transaction/test_key_filter.py::test_siphash",
        "tests/transaction/test_mutants.py",
    ),
    "slow": (
        "tests/catalog/test_records_conformance.py::TestManifest",
        "tests/cli/test_conflicts.py::test_explain_for_programs",
        "tests/cli/test_mistakes.py",
        "tests/faults/test_cleanup_races.py",
        "tests/faults/test_fault_sweep.py",
        "tests/faults/test_two_faults.py",
        "tests/format/test_schema.py::test_mutated_fields_are_corrupt_or_a_schema",
        "tests/format/test_schema.py::test_random_schemas",
        "tests/interop/test_arrow_types.py",
        "tests/interop/test_pylance_on_top.py",
        "tests/interop/test_pylance_tables.py",
        "tests/interop/test_reencode.py",
        "tests/interop/test_splice.py",
        "tests/interop/test_stale_handles.py",
        "tests/interop/test_two_writers_one_key.py",
        "tests/lakes/test_backup.py",
        "tests/lakes/test_branch_walks.py",
        "tests/lakes/test_merge_model.py",
        "tests/lakes/test_pick_model.py",
        "tests/lakes/test_branches.py",
        "tests/lakes/test_checking.py",
        "tests/lakes/test_costs.py",
        "tests/lakes/test_foreign.py",
        "tests/lakes/test_ownership.py",
        "tests/lakes/test_read_set.py",
        "tests/lakes/test_repair.py",
        "tests/lakes/test_sharded_model.py",
        "tests/lakes/test_snapshots.py",
        "tests/lakes/test_upgrade.py",
        "tests/matrix/",
        "tests/proofs/histories/test_all_orders.py",
        "tests/proofs/histories/test_planted.py",
        "tests/proofs/simulator/test_pairs.py",
        "tests/proofs/simulator/test_random.py",
        "tests/proofs/simulator/test_reduction.py",
        "tests/proofs/simulator/test_variety.py",
        "tests/stateful/",
        "tests/storage/test_handlers.py",
        "tests/transaction/test_apply_as_pylance.py",
        "tests/transaction/test_apply_invariants.py",
        "tests/transaction/test_operations.py::test_a_transaction_survives_the_wire",
        "tests/verbs/test_bit_rot.py",
        "tests/verbs/test_changes.py::test_a_random_history_can_be_played_again",
        "tests/verbs/test_columns_beside_others.py::test_every_fault_leaves_the_table_sound",
        "tests/verbs/test_conditions.py",
        "tests/verbs/test_delete_update.py::test_every_fault_leaves_the_table_sound",
        "tests/verbs/test_indices.py",
        "tests/verbs/test_merge.py::test_random_merges_against_a_model",
    ),
}
"""A test is marked by fixtures it asks for, by its parameters, by the suite it comes from, and by beginnings of its id."""


def markers_of(item: pytest.Item) -> set[str]:
    """What the table says of a test."""
    fixtures = getattr(item, "fixturenames", ())
    found = {marker for fixture, marker in BY_FIXTURE.items() if fixture in fixtures}
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    found |= {marker for value in parameters if isinstance(value, str) for name, marker in BY_PARAMETER.items() if value.startswith(name)}
    suite = getattr(getattr(item, "function", None), "__module__", "")
    found |= {BY_SUITE[suite]} if suite in BY_SUITE else set()
    return found | {marker for marker, beginnings in BY_PATH.items() if item.nodeid.startswith(beginnings)}


def pytest_configure(config: pytest.Config) -> None:
    for marker, words in MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {words}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in sorted(markers_of(item)):
            item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _watched(item))


def _watched(item: pytest.Item) -> Generator[None, None, None]:
    """Not while fixtures are taken down: the last test of a session ends servers that others asked for."""
    if any(item.get_closest_marker(marker) for marker in STARTS_PROCESSES):
        return (yield)
    with _no_processes(item.nodeid):
        return (yield)


@contextmanager
def _no_processes(test: str) -> Iterator[None]:
    """Whatever starts one meanwhile is told where to write it down."""

    def refusing(owner: type, name: str) -> Callable[[], None]:
        real = getattr(owner, name)

        def refused(*_given: Any, **_more: Any) -> None:
            pytest.fail(f"{test} starts a process: mark it in tests/support/lanes.py")

        setattr(owner, name, refused)
        return lambda: setattr(owner, name, real)

    undo = [refusing(subprocess.Popen, "_execute_child"), refusing(BaseProcess, "start")]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()
