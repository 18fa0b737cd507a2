"""Whole tables with one damaged metadata file, used through every verb: an error of ours, or the right rows.

What a manifest says cannot always be proven wrong, since it carries no checksum:

- a smaller number of rows makes stock pylance return fewer. Tables with stable row ids repeat the number and are refused; others are
  found by ``Table.check``, which has pylance count the rows of the data files, and compares what other versions say of the same file;
- another name, type, id or order of columns is another schema. ``check`` notices only where another version names the same file;
- another number of deleted rows changes ``count_rows`` but not the rows; ``check`` reads the deletion file and compares.

Such tables are used all the same here: they must not crash anything, and what is wrong must be reported wherever it can be known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.children import path_of_the_tree
from tests.support.corpus import message_of, with_message
from tests.support.hostile import damaged
from tests.support.proving import pick
from tiltyard.errors import CorruptTable, UnsupportedFeature
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.manifest_file import decode_manifest_file

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = pa.table({"id": pa.array(range(20), pa.int64()), "s": [f"row {n}" for n in range(20)], "x": pa.array(range(20), pa.int64())})
SEED: Final = 20_260
METADATA: Final = ("_versions", "_transactions", "_deletions", "_refs")


@dataclass(frozen=True)
class Original:
    root: Path
    rows: list[str]


def _ours(root: Path) -> None:
    table = ty.Table.create(root, ROWS, durability="os", options=ty.TableOptions(config={"team": "blue"}, files=ty.FileLimits(rows=8)))
    table.append(ROWS)


def _ours_stable(root: Path) -> None:
    table = ty.Table.create(root, ROWS, stable_row_ids=True, durability="os")
    table.append(ROWS)


def _deletions(root: Path) -> None:
    _ours(root)
    lance.dataset(root).delete("id % 5 = 0")


def _stock_stable(root: Path) -> None:
    table = lance.write_dataset(ROWS, root, enable_stable_row_ids=True, max_rows_per_file=7)
    table.update({"s": "'new'"}, where="id < 4")
    table.delete("id > 17")


def _indexed(root: Path) -> None:
    table = lance.write_dataset(ROWS, root)
    table.create_scalar_index("id", "BTREE")
    table.create_scalar_index("s", "BITMAP")
    lance.write_dataset(ROWS, root, mode="append")


MAKERS: Final = {"ours": _ours, "ours stable": _ours_stable, "deletions": _deletions, "stock stable": _stock_stable, "indexed": _indexed}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Original]:
    made = {}
    for name, make in MAKERS.items():
        root = tmp_path_factory.mktemp("tables") / name.replace(" ", "_")
        make(root)
        made[name] = Original(root, sorted(map(repr, lance.dataset(root).to_table().to_pylist())))
    return made


def _copy(original: Path, to: Path) -> Path:
    """The same table: metadata copied, everything else linked."""
    for directory in original.iterdir():
        if directory.name in METADATA:
            shutil.copytree(directory, to / directory.name)
        else:
            shutil.copytree(directory, to / directory.name, copy_function=os.link)
    return to


def _use(uris: list[Path]) -> list[dict[str, Any]]:
    """What came of using each table. A process that dies leaves the rest unanswered."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.hostile_child"],
        input="".join(f"{uri}\n" for uri in uris),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path_of_the_tree(), "RUST_BACKTRACE": "0", "RUST_LOG": "off"},
        check=False,
        timeout=300,
    )
    results = [json.loads(line) for line in child.stdout.splitlines()]
    if len(results) < len(uris):
        raise AssertionError(f"died with {child.returncode} at {uris[len(results)]}: {child.stderr[-2000:]}")
    assert child.returncode == 0
    return results


def _kind_of_file(original: Path, kind: str) -> list[Path]:
    return sorted(path.relative_to(original) for path in (original / kind).iterdir() if path.suffix != ".json")


def _latest(root: Path) -> Path:
    return min((root / "_versions").glob("*.manifest"))


def _no_bare_errors(results: dict[str, Any], case: str) -> None:
    for verb, result in results.items():
        assert "bare" not in result, f"{case}: {verb} raised {result}"
        assert len(result.get("text", "")) < 300, case


@pytest.mark.parametrize("name", MAKERS)
def test_damaged_manifests(originals: dict[str, Original], tmp_path: Path, name: str) -> None:
    """Mutants that our decoder refuses are cheap and many elsewhere; here half of the places go to those that it accepts."""
    original = originals[name]
    latest = _latest(original.root).relative_to(original.root)
    sound = (original.root / latest).read_bytes()
    cases: list[tuple[bytes, bool]] = []
    for mutant in damaged([sound], 3000, SEED):
        accepted = _accepted(mutant)
        if sum(was == accepted for _, was in cases) < pick(*((12, 50) if accepted else (4, 12))):
            cases.append((mutant, accepted))
    assert {accepted for _, accepted in cases} == {True, False}
    uris = []
    for number, (mutant, _) in enumerate(cases):
        uris.append(_copy(original.root, tmp_path / str(number)))
        (uris[-1] / latest).unlink()
        (uris[-1] / latest).write_bytes(mutant)
    for (mutant, accepted), uri, results in zip(cases, uris, _use(uris), strict=True):
        case = f"{name}, seed {SEED}, {uri.name}"
        _no_bare_errors(results, case)
        if accepted:
            _right_or_reported(results, original, sound, mutant, case)
        else:
            assert results["open"]["error"] == "corrupt-table", case


def _accepted(data: bytes) -> bool:
    try:
        decode_manifest_file(data, source="x", version=None)
    except (CorruptTable, UnsupportedFeature):
        return False
    return True


def _right_or_reported(results: dict[str, Any], original: Original, sound: bytes, mutant: bytes, case: str) -> None:
    rows = results.get("rows", {}).get("value")
    if rows is None or rows == original.rows:
        return
    reported = bool(results["check"].get("value")) or "error" in results["check"]
    assert reported or _another_schema(message_of(sound), message_of(mutant)), f"{case}: other rows, and nobody noticed"


def _another_schema(sound: pb.Manifest, mutant: pb.Manifest) -> bool:
    """Columns are called, typed or mapped otherwise: a manifest that another writer could have made."""
    if list(sound.fields) != list(mutant.fields):
        return True
    return any(
        list(a.fields) != list(b.fields) or list(a.column_indices) != list(b.column_indices)
        for one, other in zip(sound.fragments, mutant.fragments, strict=False)
        for a, b in zip(one.files, other.files, strict=False)
    )


@pytest.mark.parametrize("name", ["deletions", "stock stable"])
def test_damaged_deletion_files(originals: dict[str, Original], tmp_path: Path, name: str) -> None:
    """pylance reads these files, and believes more than we do: wrong rows must then be reported by ``check``."""
    original = originals[name]
    cases = list(_damaged_files(original.root, "_deletions", pick(20, 60), tmp_path))
    for uri, results in zip(cases, _use(cases), strict=True):
        case = f"{name}, seed {SEED}, {uri.name}"
        _no_bare_errors(results, case)
        if results["rows"].get("value", original.rows) != original.rows:
            assert results["check"].get("value") or "error" in results["check"], f"{case}: other rows, and nobody noticed"


@pytest.mark.parametrize("name", ["ours", "stock stable"])
def test_damaged_transaction_files(originals: dict[str, Original], tmp_path: Path, name: str) -> None:
    """The copy inside the manifest is the one that counts, so a damaged file changes nothing that is read."""
    original = originals[name]
    cases = list(_damaged_files(original.root, "_transactions", pick(10, 25), tmp_path))
    for uri, results in zip(cases, _use(cases), strict=True):
        _no_bare_errors(results, uri.name)
        assert results["rows"]["value"] == original.rows
        assert results["rows after"]["value"] == len(original.rows) + 1


def _damaged_files(original: Path, kind: str, count: int, to: Path) -> Iterator[Path]:
    files = _kind_of_file(original, kind)
    random = Random(SEED)
    for number in range(count):
        uri = _copy(original, to / str(number))
        file = random.choice(files)
        mutant = next(damaged([(original / file).read_bytes()], 1, SEED + number))
        (uri / file).write_bytes(mutant)
        yield uri


EXTREMES: Final[tuple[tuple[str, Any], ...]] = (
    ("max_fragment_id", 2**32 - 1),
    ("next_row_id", 2**64 - 1),
    ("reader_feature_flags", 2**63),
    ("writer_feature_flags", 2**40),
    ("reader_feature_flags", 2),
    ("writer_feature_flags", 2),
    ("reader_feature_flags", 0),
    ("version", 2**63),
    ("tag", "x" * 1_000_000),
)


@pytest.mark.parametrize("name", ["ours", "ours stable"])
def test_extremes_do_no_harm(originals: dict[str, Original], tmp_path: Path, name: str) -> None:
    original = originals[name]
    uris = []
    for number, (member, value) in enumerate(EXTREMES):
        uris.append(_copy(original.root, tmp_path / str(number)))
        path = _latest(uris[-1])
        data = path.read_bytes()
        message = message_of(data)
        setattr(message, member, value)
        path.write_bytes(with_message(data, message.SerializeToString(deterministic=True)))
    for (member, _), results in zip(EXTREMES, _use(uris), strict=True):
        _no_bare_errors(results, member)
        if "value" in results.get("append", {}):
            assert results["rows after"]["value"] == results["count after"]["value"] == len(original.rows) + 1
