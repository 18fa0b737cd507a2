"""Every verb, in any order, from several handles at different versions and with stock pylance in between, against a model.

What can be done is in ``tests/support/stateful_*.py``, by what it changes. A failure is shown as a short program of steps.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.stateful_columns import ColumnDeeds, SettingDeeds
from tests.stateful.stateful_past import CleanupDeeds
from tests.stateful.stateful_reduce import program, reduced
from tests.stateful.stateful_upkeep import StockDeeds, UpkeepDeeds
from tests.support.proving import pick
from tests.support.stateful_bench import STEPS, Kind
from tests.support.stateful_rows import MergeDeeds

KINDS: Final = [Kind(stable, keyed, naming) for stable in (False, True) for keyed in (False, True) for naming in ("v1", "v2")]
SEED: Final = 20261115
EXAMPLES: Final = pick(4, 25)
"""For each kind of table, with all their steps: 200 altogether in the long form."""

VERBS: Final = """
append; append a taken id; overwrite; delete; update auto; update rows; update columns; low door append; low door delete
merge upsert; merge update; merge update one; merge insert; merge newer; merge fail; merge delete some; merge mirror; merge mirror some
merge delete; add_columns number; add_columns text; add_columns sql; add_columns nulls; add_columns lookup; add_columns function
drop_columns; rename; cast; nullability; replace_data function; replace_data tables
update_config; update_metadata; update_schema_metadata; update_field_metadata; add_bases
restore; tag; untag; create a branch; delete a branch; shallow clone; deep clone; cleanup; cleanup dry; changes
compact; create_index BTREE; create_index BITMAP; optimize_indices; extend_index; drop_index; mem_wal initialize; mem_wal mark_merged
open; open a version; open a timestamp; open a tag; refresh; read
pylance append; pylance delete; pylance update; pylance merge; pylance compact; pylance optimize indices; pylance add columns
pylance drop columns; pylance cleanup
carried over others; met IncompatibleConflict; met RetryableConflict; met KeyConflict; met HistoryUnavailable; met InvalidInput
"""
"""What has to happen, and how stale handles have to fare."""
EACH: Final = pick(1, 8)
"""How often, at the least, over all kinds of tables."""


class TableMachine(MergeDeeds, ColumnDeeds, SettingDeeds, CleanupDeeds, UpkeepDeeds, StockDeeds):
    """All rules together."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_verbs(kind: Kind, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    TableMachine.kind, TableMachine.root = kind, tmp_path
    TableMachine.done.clear()
    number = SEED + KINDS.index(kind)
    print(f"seed {number}")
    how = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS + 1,  # the table is made in the first one
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        # Examples that Hypothesis makes of others would often stop early.
        run_state_machine_as_test(seed(number)(TableMachine), settings=how, _min_steps=STEPS + 1)
    except Exception as error:
        error.add_note(f"In short, on a table {kind}:\n{program(reduced(TableMachine, TableMachine.script))}\nstate.teardown()")
        raise
    done = TableMachine.done
    print(sorted(done.items()))
    assert done["whole examples"] >= EXAMPLES
    assert done["steps"] >= EXAMPLES * STEPS
    _check_variety(kind, done, tmp_path_factory.getbasetemp())


def _check_variety(kind: Kind, done: Counter[str], directory: Path) -> None:
    """Whoever is the last of all kinds, in whichever process, sees whether every verb was there."""
    shared = directory.parent if directory.name.startswith("popen-") else directory
    (shared / f"stateful-{kind}.json").write_text(json.dumps(done))
    told = [path for one in KINDS if (path := shared / f"stateful-{one}.json").exists()]
    if len(told) < len(KINDS):
        return
    every: Counter[str] = Counter()
    for path in told:
        every.update(json.loads(path.read_text()))
    verbs = [verb.strip() for line in VERBS.strip().splitlines() for verb in line.split(";")]
    assert {verb: every[verb] for verb in verbs if every[verb] < EACH} == {}
