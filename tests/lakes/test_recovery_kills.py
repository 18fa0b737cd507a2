"""Backup, restore, rebuild and upgrade, killed at every step: run again they come to the same, and no file of a table is lost."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.recovery_killed import Pristine, child, command
from tests.support.lakes import Site, add_to_both, numbers, two_tables
from tests.support.lost_catalogs import as_format_1, lose_catalog, unmarked, whole
from tests.support.proving import sample
from tiltyard.errors import CorruptTable, NotFound
from tiltyard.lake import Lake
from tiltyard.lakes import finishing
from tiltyard.lakes.recovery.backup import read_backup
from tiltyard.storage import external

LEAST_STEPS = {"backup": 5, "restore": 10, "rebuild": 10, "upgrade": 40}
SAMPLES = {"sqlite": 3}
"""How many of the steps are deadly in the short form; on other catalogs two, the first and the last."""


class _DeadError(BaseException):
    """A process that died."""


def _die(*given: Any) -> Any:
    raise _DeadError


def _prepared(site: Site, name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pristine:
    """A lake right before the command: with everything that it has to deal with."""
    lake = two_tables(site.open())
    lake.tags.create("first")
    lake.branches.create("trial")
    lake.backup(file)
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    lake.on_branch("trial").table("a").append(numbers(9))
    lake.create_table("c", numbers(1))
    if name in ("restore", "rebuild"):
        with monkeypatch.context() as patched:
            plain = external.finalize
            calls = iter([plain, _die])
            patched.setattr(finishing, "finalize", lambda *given: next(calls)(*given))
            half = lake.transaction()
            add_to_both(half, 3)
            with pytest.raises(_DeadError):
                half.commit()
        lose_catalog(site)
    site.close()
    site.opened.clear()
    if name == "upgrade":
        as_format_1(site)
    return Pristine(site, tmp_path / "pristine")


def _tables(site: Site) -> set[str]:
    """Files of tables, but for what only tells how far a commit is."""
    return {path for path in site.files(".lance/") if "/_tiltyard/" not in path and "latest_version" not in path}


def _seen(site: Site) -> dict[str, Any]:
    with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
        assert lake.check().problems == ()
        seen = whole(lake)
    return {key: seen[key] for key in ("main", "branches", "tags")} | {"commits": len(seen["commits"])}


@pytest.mark.parametrize("name", ["backup", "restore", "rebuild", "upgrade"])
def test_killed_at_every_step(site: Site, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, names = tmp_path / "backup", tmp_path / "steps"
    arguments = {"durability": "os", **site.arguments}
    if name == "upgrade":
        with unmarked():
            pristine = _prepared(site, name, file, tmp_path, monkeypatch)
    else:
        pristine = _prepared(site, name, file, tmp_path, monkeypatch)
    before = _tables(site)
    old = file.read_bytes()
    assert child(name, site.uri, arguments, file, None, names) == 0
    steps = names.read_text().splitlines()
    print(f"{len(steps)} steps: {steps}")
    assert len(steps) >= LEAST_STEPS[name]
    expected, files = _seen(site), len(_tables(site))
    for step in sample(range(len(steps)), SAMPLES.get(site.kind, 2)):
        pristine.put_back()
        file.write_bytes(old)
        assert child(name, site.uri, arguments, file, step, names) == -signal.SIGKILL, steps[step]
        assert before <= _tables(site), f"after a death at {steps[step]!r} files are gone"
        _check_backup(file, name, steps[step])
        command(name, site.uri, arguments, file)
        assert _seen(site) == expected, f"after a death at {steps[step]!r}"
        assert name == "upgrade" or len(_tables(site)) == files, f"after a death at {steps[step]!r}"


def _check_backup(file: Path, name: str, step: str) -> None:
    try:
        read_backup(file)
    except (CorruptTable, NotFound) as error:
        pytest.fail(f"{name}, after a death at {step!r}: {error}")
