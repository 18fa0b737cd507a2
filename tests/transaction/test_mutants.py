"""The list of planted bugs is in step with the code, and the tool notices what it must. All of them are planted by ``make mutants``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Bed, Fate, Mutant

ALL = mutants.read_list()
MODULES = (
    *("resolve", "rules", "conditions", "index_conditions", "footprint", "rebaser", "system_indices", "deletion_vectors", "key_filter"),
    *("commit", "head", "verify", "log", "new_files", "row_map", "joint_delete", "group", "recent", "turns"),
    *("apply/next_manifest", "apply/row_changes", "apply/row_lineage", "apply/column_changes", "apply/coverage", "apply/maps"),
    *("apply/rewrite", "apply/version_fields", "apply/mem_wal_state"),
)
ELSEWHERE = (
    *("catalog/protection", "catalog/server_records", "lakes/merging/row_merge", "lakes/merging/merge_branches"),
    *("server/catalog_door", "server/principals", "spark/sql_catalog/statements_run"),
)

FEW = ("order-without-rank", "log-goes-back", "any-hint-will-do")
"""One of each kind, with fast tests."""


ONE_TEST = "tests/transaction/test_row_map.py::test_no_rows_are_nowhere"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    return Bed(tmp_path_factory.mktemp("bed"))


def test_there_are_enough_and_no_two_share_a_name() -> None:
    assert len(ALL) >= 100
    assert len({one.id for one in ALL}) == len(ALL)
    assert {f"transaction/{module}.py" for module in MODULES} <= {one.file for one in ALL}
    assert {f"{module}.py" for module in ELSEWHERE} <= {one.file for one in ALL}


@pytest.mark.parametrize("mutant", ALL, ids=lambda one: one.id)
def test_it_fits_the_code_and_is_still_code(mutant: Mutant) -> None:
    for file, text in mutants.mutated_files(mutant, lambda one: (mutants.PACKAGE / one).read_text()).items():
        compile(text, file, "exec")
    assert mutant.breaks


def _defined(path: Path) -> set[str]:
    return {one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize("named", sorted({test for one in ALL for test in one.tests}))
def test_the_tests_it_names_are_there(named: str) -> None:
    path, _, function = named.partition("[")[0].partition("::")
    assert (mutants.ROOT / path).is_file()
    assert not function or function.partition("[")[0] in _defined(mutants.ROOT / path)


@pytest.mark.parametrize("name", FEW)
def test_a_few_are_caught(name: str, bed: Bed) -> None:
    (mutant,) = (one for one in ALL if one.id == name)
    report = mutants.examine(mutant, bed)
    assert report.fate is Fate.CAUGHT, report.by
    assert report.by.startswith(mutant.tests[0])


def test_what_changes_nothing_that_matters_survives(bed: Bed) -> None:
    harmless = Mutant("harmless", "transaction/row_map.py", "nothing", 'KEPT: Final = "kept"', 'KEPT: Final = "ke" "pt"', (ONE_TEST,))
    assert mutants.examine(harmless, bed).fate is Fate.SURVIVED


def test_what_cannot_be_run_counts_as_neither(bed: Bed) -> None:
    broken = Mutant("broken", "transaction/row_map.py", "the module", 'KEPT: Final = "kept"', "KEPT = nowhere", (ONE_TEST,))
    assert mutants.examine(broken, bed).fate is Fate.BROKEN


@pytest.mark.parametrize(("old", "new"), [("no such text", ""), ("import", "export"), ("KEPT: Final", "KEPT: Final")])
def test_what_does_not_fit_is_said(old: str, new: str, bed: Bed) -> None:
    report = mutants.examine(Mutant("lost", "transaction/row_map.py", "nothing", old, new, (ONE_TEST,)), bed)
    assert report.fate is Fate.MISPLACED
    assert report.by
