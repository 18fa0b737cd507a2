from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.support.lakes import Site, two_tables
from tests.support.proving import PROVING
from tests.support.records import with_parameters
from tests.support.served import served_here
from tests.support.servers import S3Server, seaweedfs
from tiltyard.lake import Lake

CATALOGS = ["sqlite", "postgres", "manifest"]
BEHIND_A_SERVER = {
    "test_branches.test_after_a_fast_forward_every_line_writes_for_itself",
    "test_checking.test_a_sound_lake",
    "test_conflicts.test_one_key_at_the_same_moment_makes_one_snapshot",
    "test_definitions.test_of_several_who_make_one_name_exactly_one_does",
    "test_definitions.test_two_names_can_be_swapped",
    "test_freed_names.test_a_name_that_was_in_use_since_the_base_is_refused",
    "test_freed_names.test_a_merge_that_takes_a_name_is_planned_again",
    "test_foreign.test_whoever_comes_first_finishes_what_a_dead_writer_left",
    "test_foreign.test_a_number_of_a_single_table_goes_to_the_foreign_writer_and_ours_comes_after",
    "test_cherry_pick.test_a_branch_is_rebased_and_comes_home",
    "test_cherry_pick.test_a_snapshot_is_reverted_and_what_came_later_stays",
    "test_diff.test_refs_and_pages",
    "test_merging.test_a_branch_is_merged_again_and_again",
    "test_merging.test_a_key_that_both_inserted_and_answers_for_some_keys",
    "test_merging.test_foreign_writers_on_either_side_are_adopted_first",
    "test_serializable",
    "test_sharded.test_in_one_transaction_a_name_may_change_hands",
    "test_sharded.test_what_is_committed_during_a_reshard_is_not_lost",
    "test_snapshots.test_every_cut_is_consistent_while_a_writer_moves_two_tables_together",
    "test_snapshots.test_every_snapshot_can_be_looked_at",
    "test_transactions.test_a_transaction_that_is_not_committed_leaves_nothing_behind",
    "test_transactions.test_nothing_of_several_tables_is_seen_before_and_all_of_it_after",
    "test_unknown.test_a_lost_answer_is_found_out_at_once_where_the_catalog_can_be_asked",
    "test_unknown.test_where_it_cannot_be_asked_the_outcome_is_unknown_and_commit_finds_out",
    "test_upkeep.test_a_transaction_on_what_went_is_refused",
}
"""What is shown on a lake that was opened by the address of its server, too; in the long form nearly everything is."""
ON_EVERY_CATALOG = {
    "test_backup",
    "test_branch_kills",
    "test_catalog_faults",
    "test_costs",
    "test_kills",
    "test_recovery_kills",
    "test_snapshots",
    "test_upgrade",
    "test_branches.test_a_branch_made_again_takes_no_commit_of_the_one_before_though_the_numbers_agree",
    "test_branches.test_after_a_fast_forward_every_line_writes_for_itself",
    "test_checking.test_a_sound_lake",
    "test_conflicts.test_one_key_at_the_same_moment_makes_one_snapshot",
    "test_conflicts.test_tables_named_in_opposite_orders_never_lock_each_other_out",
    "test_conflicts.test_two_writers_meet_at_the_swap",
    "test_definitions.test_of_several_who_make_one_name_exactly_one_does",
    "test_definitions.test_two_names_can_be_swapped",
    "test_foreign.test_whoever_comes_first_finishes_what_a_dead_writer_left",
    "test_freed_names.test_a_name_that_was_in_use_since_the_base_is_refused",
    "test_freed_names.test_a_merge_that_takes_a_name_is_planned_again",
    "test_freed_names.test_names_of_expired_transactions_are_forgotten_and_those_who_looked_before_are_refused",
    "test_lost_catalogs.test_all_of_a_life_is_found_again",
    "test_lost_catalogs.test_branches_come_back",
    "test_lost_catalogs.test_nothing_is_shown_of_a_transaction_in_doubt",
    "test_lost_catalogs.test_open_transactions_are_refused_by_the_restored_catalog",
    "test_cherry_pick.test_a_branch_is_rebased_and_comes_home",
    "test_diff.test_refs_and_pages",
    "test_merge_kills.test_a_merge_is_planned_again_when_others_are_faster",
    "test_merging.test_a_branch_is_merged_again_and_again",
    "test_merging.test_a_key_that_both_inserted_and_answers_for_some_keys",
    "test_merging.test_foreign_writers_on_either_side_are_adopted_first",
    "test_ownership.test_a_claim_whose_maker_died_is_gone_on_from",
    "test_ownership.test_a_lost_catalog_is_not_an_empty_lake",
    "test_ownership.test_a_restored_catalog_deletes_nothing_that_came_later",
    "test_ownership.test_a_second_lake_is_refused_the_root",
    "test_ownership.test_of_two_that_register_a_directory_at_once_one_does",
    "test_ownership.test_one_lake_that_is_made_by_several_at_once_is_one_lake",
    "test_ownership.test_records_of_committed_transactions_expire",
    "test_protection.test_a_branch_with_checks_changes_by_merges_of_what_passed",
    "test_protection.test_only_writers_get_into_a_protected_branch",
    "test_serializable.test_write_skew_is_refused_when_both_commit_at_once",
    "test_transactions.test_a_transaction_that_is_not_committed_leaves_nothing_behind",
    "test_transactions.test_nothing_of_several_tables_is_seen_before_and_all_of_it_after",
    "test_transactions.test_tables_made_or_dropped_by_others_are_not_seen",
    "test_unknown.test_a_lost_answer_is_found_out_at_once_where_the_catalog_can_be_asked",
    "test_unknown.test_giving_up_settles_it_for_everybody",
    "test_upkeep.test_old_snapshots_go_with_all_that_only_they_need",
}
"""Modules and tests whose promises rest on what a catalog itself does; the others are about the lake above it."""
_RECOVERED = "it loses the catalog, or brings it back: a server does neither"
_OWN_PLACE = "it is about a catalog and a root that its own process makes or finds"
_COUNTED = "it counts what a client asks of records that it has at hand"
_STEPS = "it counts the steps of a client that decides by itself"
_CLOCK = "the clock of the server counts, not that of the test"
NOT_BEHIND_A_SERVER = {
    "test_backup": _RECOVERED,
    "test_costs.test_a_retry_costs_no_data_and_only_the_tables_that_lost": _COUNTED,
    "test_costs.test_a_second_rebase_goes_on_from_where_the_first_ended": _COUNTED,
    "test_costs.test_a_table_is_opened_once_and_costs_nothing_the_second_time": _COUNTED,
    "test_costs.test_a_table_that_was_not_used_lately_costs_two_reads_of_a_few_records": _COUNTED,
    "test_costs.test_the_costs_do_not_grow_with_the_history": _COUNTED,
    "test_costs.test_the_costs_do_not_grow_with_the_number_of_tables": _COUNTED,
    "test_kills.test_killed_at_every_step": _STEPS,
    "test_lost_catalogs": _RECOVERED,
    "test_lost_merges": _RECOVERED,
    "test_ownership.test_a_claim_whose_maker_died_is_gone_on_from": _OWN_PLACE,
    "test_ownership.test_a_dropped_table_that_a_lost_branch_revived_is_kept": _RECOVERED,
    "test_ownership.test_a_lost_catalog_is_not_an_empty_lake": _RECOVERED,
    "test_ownership.test_a_restored_catalog_deletes_nothing_that_came_later": _RECOVERED,
    "test_ownership.test_another_root_is_refused_and_a_moved_one_is_not": _OWN_PLACE,
    "test_protection.test_a_backup_has_the_rule_and_what_came_since_is_noted_all_the_same": _RECOVERED,
    "test_protection.test_a_branch_made_again_does_not_get_the_rule_of_the_one_before": _RECOVERED,
    "test_protection.test_a_rebuilt_catalog_protects_what_was_protected": _RECOVERED,
    "test_recovery_kills": _RECOVERED,
    "test_sharded.test_a_copy_of_the_catalog_is_brought_up_to_date": _RECOVERED,
    "test_sharded.test_a_rebuilt_catalog_knows_the_shards": _RECOVERED,
    "test_snapshots.test_a_lake_is_found_again_and_only_where_it_is": _OWN_PLACE,
    "test_snapshots.test_every_moment_can_be_looked_at": _CLOCK,
    "test_upgrade": _OWN_PLACE,
}
"""What says nothing about a lake that was opened by the address of its server, and why."""
SERVED = PROVING or bool(os.environ.get("TILTYARD_SERVED"))
"""Whether every promise is shown behind a server as well, as in the long form: ``TILTYARD_SERVED=1 pytest tests/lakes -k served``."""
BUCKET = "lakes"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A promise is shown on one catalog, and on each where the catalog has a share in it; in the long form all are, on S3 too."""
    by_hand = any(mark.args[0] == "site" for mark in metafunc.definition.iter_markers("parametrize"))
    if "site" in metafunc.fixturenames and not by_hand:
        module = metafunc.module.__name__.rpartition(".")[2]
        every = not ON_EVERY_CATALOG.isdisjoint({module, f"{module}.{metafunc.function.__name__}"})
        behind = not BEHIND_A_SERVER.isdisjoint({module, f"{module}.{metafunc.function.__name__}"})
        kinds = [*CATALOGS, "s3"] if PROVING else CATALOGS if every else CATALOGS[:1]
        apart = not NOT_BEHIND_A_SERVER.keys().isdisjoint({module, f"{module}.{metafunc.function.__name__}"})
        kinds = [*kinds, "served"] if (behind or SERVED) and not apart else kinds
        metafunc.parametrize("site", kinds, indirect=True)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.create_bucket(BUCKET)
        yield server


def s3_site(server: S3Server) -> Site:
    return Site("s3", f"s3://{BUCKET}/lake-{uuid.uuid4().hex}", None, {"storage_options": server.storage_options})


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A lake that nobody has opened yet, on a catalog of the kind that ``pytest_generate_tests`` asks for."""
    kind = str(request.param)
    if kind == "postgres":
        home = tmp_path / "tables"
        schema = f"lake_{uuid.uuid4().hex}"
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        here = Site(kind, with_parameters(url, options=f"-csearch_path={schema}"), home, {"root": home})
    elif kind == "s3":
        here = s3_site(request.getfixturevalue("s3_server"))
    elif kind == "served":
        home = tmp_path / "lake"
        with Lake.open(home, durability="os") as behind, served_here(behind) as (url, _):
            here = Site(kind, url, home)
            yield here
            here.close()
        return
    else:
        home = tmp_path / "lake"
        here = Site(kind, str(home), home, {"catalog": kind})
    yield here
    here.close()


@pytest.fixture
def lake(site: Site) -> Lake:
    """A lake with the tables ``a`` and ``b``, each of which holds the id 1."""
    return two_tables(site.open())


@pytest.fixture(scope="module")
def sqlite_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One lake for all tests of a module that change nothing and ask nothing of the catalog."""
    with Lake.open(tmp_path_factory.mktemp("shared") / "lake", durability="os") as lake:
        yield two_tables(lake)


@pytest.fixture
def fresh_postgres(postgres_url: str) -> str:
    """The address of an empty schema."""
    schema = f"lake_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    return with_parameters(postgres_url, options=f"-csearch_path={schema}")
