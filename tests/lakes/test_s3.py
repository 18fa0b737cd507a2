"""A part of the suite with everything, the catalog included, behind S3's protocol on a real server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lakes import (
    test_conflicts,
    test_definitions,
    test_foreign,
    test_kills,
    test_namespace,
    test_serializable,
    test_snapshots,
    test_transactions,
    test_unknown,
)
from tests.lakes.conftest import s3_site
from tests.support.lakes import Site, add_to_both, both, ids, numbers, stock, together
from tests.support.proving import sample
from tests.support.servers import S3Server
from tiltyard.lake import Lake


@pytest.fixture
def site(s3_server: S3Server) -> Iterator[Site]:
    here = s3_site(s3_server)
    yield here
    here.close()


CASES: list[Callable[..., None]] = [
    test_transactions.test_nothing_of_several_tables_is_seen_before_and_all_of_it_after,
    test_transactions.test_a_second_write_builds_on_the_first,
    test_transactions.test_tables_made_or_dropped_by_others_are_not_seen,
    test_definitions.test_two_names_can_be_swapped,
    test_definitions.test_a_name_can_be_dropped_and_made_again_in_one_transaction,
    test_definitions.test_dropping_beats_writing,
    test_definitions.test_writing_goes_on_when_the_table_is_renamed,
    test_serializable.test_blind_appends_are_carried_over,
    test_serializable.test_upkeep_of_a_table_that_was_read_and_written_breaks_nothing_either,
    test_conflicts.test_one_key_at_the_same_moment_makes_one_snapshot,
    test_conflicts.test_run_begins_anew_with_a_fresh_transaction,
    test_snapshots.test_a_snapshot_stays_what_it_is,
    test_snapshots.test_history_says_who_changed_which_tables_together,
    test_snapshots.test_tags_name_cuts,
    test_foreign.test_a_reader_past_the_lake_is_behind_but_never_torn_inside_one_table,
    test_foreign.test_foreign_upkeep_does_not_break_a_read,
    test_namespace.test_pylance_opens_tables_at_the_catalogs_version,
    test_namespace.test_what_pylance_commits_is_decided_in_the_catalog,
    test_namespace.test_many_clients_at_once_lose_nothing,
]
CHOSEN: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "killed at every step": (test_kills.test_killed_at_every_step, {"tables": 2}),
    "write skew": (test_serializable.test_write_skew_is_refused, {"read": "to_arrow"}),
    "the swap": (test_conflicts.test_two_writers_meet_at_the_swap, {"how": "transactions"}),
    "finished by a snapshot": (test_foreign.test_whoever_comes_first_finishes_what_a_dead_writer_left, {"who": "verb"}),
    "a lost answer": (
        test_unknown.test_a_lost_answer_is_found_out_at_once_where_the_catalog_can_be_asked,
        {"at": 1, "when": "after"},
    ),
}


@pytest.fixture
def losing(site: Site) -> Any:
    return test_unknown.losing_records(site)


@pytest.fixture
def timed(site: Site) -> Any:
    return test_snapshots.timed_lake(site)


@pytest.mark.parametrize("case", sample(CASES, 7), ids=lambda case: case.__name__.removeprefix("test_"))
def test_through_s3(request: pytest.FixtureRequest, case: Callable[..., None]) -> None:
    case(**{name: request.getfixturevalue(name) for name in inspect.signature(case).parameters})


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_through_s3(request: pytest.FixtureRequest, name: str) -> None:
    case, given = CHOSEN[name]
    others = {one: request.getfixturevalue(one) for one in inspect.signature(case).parameters if one not in given}
    case(**others, **given)


def test_writers_at_once_through_s3(site: Site, lake: Lake) -> None:
    def work(first: int) -> None:
        here = site.open()
        for number in range(3):
            with here.transaction() as tx:
                add_to_both(tx, first + number)

    assert together(lambda: work(10), lambda: work(20)) == [None, None]
    assert both(lake) == ([1, 10, 11, 12, 20, 21, 22],) * 2
    assert ids(stock(lake, "a")) == ids(stock(lake, "b")) == both(lake)[0]
    lake.table("a").append(numbers(30))
    assert lake.table("a").check().problems == ()


def test_credentials_stay_out_of_everything_written(s3_server: S3Server, site: Site, lake: Lake) -> None:
    from tiltyard.storage import open_store

    with lake.transaction(message="m") as tx:
        add_to_both(tx, 2)
    store = open_store(site.uri, storage_options=s3_server.storage_options)
    secrets = [value for key, value in s3_server.storage_options.items() if "key" in key]
    paths = [one.path for one in store.list("")]
    assert len(paths) > 10
    for path in paths:
        data = store.get(path)
        assert not [one for one in secrets if one.encode() in data], path
    assert not [one for one in secrets if one in repr(lake) + repr(lake.snapshot()) + repr(lake.table("a")) + repr(vars(lake))]
