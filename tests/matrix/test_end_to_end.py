"""Every row of the conflict matrix on real tables: the verdict, what the table holds afterwards, and what stock pylance makes of it.

Both operations are real ones against the same version. The expected content comes from ``real_model``, which knows what operations mean
and nothing of how they are done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tiltyard as ty
from tests.matrix.rows import Row, further_rows, matrix_rows
from tests.matrix.sides import Real
from tests.support.captured import committed, head
from tests.support.real_checks import assert_indices_answer, assert_sound, assert_world, commit, happens, open_ours, transactions
from tests.support.real_model import Past, World
from tests.support.real_tables import MINE, RECIPES, THEIRS, Template, Workshop
from tests.support.tables import manifest_path
from tiltyard.conflicts import Outcome
from tiltyard.format.manifest_file import encode_manifest_file

COMMITTED = (Outcome.COMPATIBLE, Outcome.REBASE)


def _theirs(deeds: Real, workshop: Workshop, table: Path, read: int) -> World:
    """Commits what was there first; gives what the table then holds."""
    past = workshop.template(deeds.table).past
    world = past[read]
    for deed in deeds.theirs:
        by_pylance = deed.stock_only or deeds.in_turn
        happens(table, deed, None if by_pylance else workshop.captured(deeds.table, deed, THEIRS), read)
        world = deed.effect(world, past)
    return world


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in (*matrix_rows(), *further_rows())])
def test_row(row: Row, workshop: Workshop, tmp_path: Path) -> None:
    deeds, table = row.deeds, tmp_path / "t"
    template = workshop.copy(deeds.table, table)
    read = template.version
    before = _theirs(deeds, workshop, table, read)
    if deeds.lost:
        _lose(deeds.lost, table, read)
        _is_refused(row, workshop, table, read, ty.errors.HistoryUnavailable)
    elif deeds.mine.operation == "Clone" and row.expected is Outcome.COMPATIBLE:
        # The rules let it pass; it is the table itself that cannot become a clone.
        _is_refused(row, workshop, table, read, ty.errors.InvalidInput)
        assert_world(table, before)
    elif row.expected in (None, *COMMITTED):
        _goes_through(row, workshop, table, template, before)
    else:
        retryable = ty.errors.KeyConflict if row.about_keys else ty.errors.RetryableConflict
        kind = retryable if row.expected is Outcome.RETRY else ty.errors.IncompatibleConflict
        error = _is_refused(row, workshop, table, read, kind)
        assert isinstance(error, ty.errors.ConflictError)
        assert (error.operation, error.read_version) == (deeds.mine.operation, read)
        assert error.winners
        assert {winner.version for winner in error.winners} <= set(range(read + 1, head(table) + 1))
        assert_world(table, before)
        if deeds.again:
            _done_again(deeds, workshop, table, template, before)


def _goes_through(row: Row, workshop: Workshop, table: Path, template: Template, before: World) -> None:
    deeds, read, latest = row.deeds, template.version, head(table)
    captured = workshop.captured(deeds.table, deeds.mine, MINE)
    result = commit(table, deeds.mine, captured, read, race_retries=deeds.retries)
    assert (result.version, result.operation, result.read_version) == (latest + 1, deeds.mine.operation, read)
    assert [winner.version for winner in result.rebased_over] == list(range(read + 1, latest + 1))
    assert_world(table, deeds.mine.effect(before, template.past))
    assert_world(table, before, latest)
    assert_indices_answer(table)
    assert_sound(table, leftover=deeds.leftover)


def _is_refused(row: Row, workshop: Workshop, table: Path, read: int, kind: type[ty.TiltyardError]) -> ty.TiltyardError:
    latest, names = head(table), transactions(table)
    captured = workshop.captured(row.deeds.table, row.deeds.mine, MINE)
    with pytest.raises(kind) as caught:
        commit(table, row.deeds.mine, captured, read, race_retries=row.deeds.retries)
    assert type(caught.value) is kind
    assert head(table) == latest
    assert transactions(table) == names
    return caught.value


def _done_again(deeds: Real, workshop: Workshop, table: Path, template: Template, before: World) -> None:
    """The refused deed, worked out anew on the newest version, goes through."""
    newest: Past = {**template.past, head(table): before}
    assert deeds.again is not None
    anew = workshop.capture(Template("newest", table, newest), deeds.again, MINE)
    assert commit(table, deeds.again, anew, head(table)).rebased_over == ()
    assert_world(table, deeds.again.effect(before, newest))
    assert_sound(table, leftover=True)


def _lose(what: str, table: Path, read: int) -> None:
    if what == "read version":
        manifest_path(str(table), read).unlink()
        return
    file = committed(table, read + 1).file
    manifest_path(str(table), read + 1).write_bytes(encode_manifest_file(file.manifest, None)[0])
    (table / "_transactions" / file.manifest.transaction_file).unlink()


def test_every_row_is_there_once() -> None:
    rows = matrix_rows()
    assert len(rows) == len({row.name for row in rows}) == 460


def test_templates_are_what_they_say(workshop: Workshop) -> None:
    for name in RECIPES:
        template = workshop.template(name)
        for version, world in template.past.items():
            assert_world(template.root, world, version)
        assert_sound(template.root)
        assert open_ours(template.root).version == template.version
