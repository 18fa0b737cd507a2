"""Plants bugs on purpose and tells whether the tests notice: ``python tools/mutants.py [--only ID] [--jobs N] [--json]``.

Each mutant of ``tools/mutant_list`` is put into a copy of the package, and the tests it names are run against that copy; the work tree
is never touched. A mutant that survives is a test that is missing. Ends with 1 if one survives, if one cannot be planted because the
code has changed, or if the tests fail without any bug.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "tiltyard"
LIST: Final = Path(__file__).resolve().parent / "mutant_list"
PATIENCE: Final = 300.0
"""Seconds for the tests of one mutant. Tests that do not end have noticed as well, and are told apart: a slow machine does the same."""

_PYTEST: Final = ("-m", "pytest", "-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", "pytest_timeout")
_PASSED, _FAILED = 0, 1
_NO_END: Final = -1


@dataclass(frozen=True, slots=True)
class Edit:
    """A text in a file of the package, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug to plant.

    Attributes:
        id: its name.
        file: where, below the package.
        breaks: what is wrong then.
        old: the text that is replaced; it must be there exactly once.
        new: what takes its place.
        tests: who must notice, as pytest takes them.
        also: further edits, where one promise is kept in more than one place.
    """

    id: str
    file: str
    breaks: str
    old: str
    new: str
    tests: tuple[str, ...]
    also: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.file, self.old, self.new), *self.also)


class Fate(Enum):
    CAUGHT = "caught"
    ENDLESS = "no end"
    """The tests were still running after ``PATIENCE``."""
    SURVIVED = "survived"
    MISPLACED = "misplaced"
    """Its text is not there, or not once: the list is behind the code."""
    BROKEN = "broken"
    """The tests could not even be run: no bug that a test has noticed."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a mutant; ``by`` is the first test that failed, or the reason why none was run."""

    mutant: Mutant
    fate: Fate
    by: str = ""
    seconds: float = 0.0


class Misplaced(ValueError):
    """A mutant does not fit the code."""


def read_list(directory: Path = LIST) -> list[Mutant]:
    """All mutants, in the order of the files and within them."""
    found = []
    for path in sorted(directory.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            also = tuple(Edit(**edit) for edit in entry.get("also", ()))
            found.append(Mutant(**{**entry, "tests": tuple(entry["tests"]), "also": also}))
    return found


def mutated(edit: Edit | Mutant, text: str) -> str:
    """The text with the bug in it.

    Raises:
        Misplaced: the old text is not there exactly once, or nothing changes.
    """
    times = text.count(edit.old)
    if times != 1:
        raise Misplaced(f"its text stands {times} times in {edit.file}")
    if edit.old == edit.new:
        raise Misplaced("it changes nothing")
    return text.replace(edit.old, edit.new)


def mutated_files(mutant: Mutant, read: Callable[[str], str]) -> dict[str, str]:
    """The text of every file that a mutant changes, with all its edits; ``read`` gives a file as it is.

    Raises:
        Misplaced: one of them does not fit.
    """
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        texts[edit.file] = mutated(edit, texts[edit.file] if edit.file in texts else read(edit.file))
    return texts


class Bed:
    """A copy of the package in which one bug after the other is planted. What was compiled once stays compiled."""

    def __init__(self, directory: Path) -> None:
        self.package = directory / "package"
        self._compiled = directory / "compiled"
        self._moment = time.time()
        shutil.copytree(PACKAGE, self.package / "tiltyard", ignore=shutil.ignore_patterns("__pycache__"))

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        home = self.package / "tiltyard"
        changed = mutated_files(mutant, lambda file: (home / file).read_text())
        before = {file: (home / file).read_text() for file in changed}
        for file, text in changed.items():
            self._write(home / file, text)
        try:
            yield
        finally:
            for file, text in before.items():
                self._write(home / file, text)

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: by it, and by the size, Python knows that a file has changed."""
        path.write_text(text)
        self._moment += 2
        os.utime(path, (self._moment, self._moment))

    def run(self, tests: Iterable[str], patience: float | None = PATIENCE) -> tuple[int, str]:
        """Runs tests against this copy, not the package in the work tree; gives pytest's exit status and its last words."""
        try:
            ended = self._python([*_PYTEST, *tests], patience)
        except subprocess.TimeoutExpired:
            return _NO_END, f"no end after {patience:.0f} s"
        return ended.returncode, _last_words(ended.stdout + ended.stderr)

    def where(self) -> str:
        """From where the package is imported."""
        return self._python(["-c", "import tiltyard; print(tiltyard.__file__)"]).stdout.strip()

    def _python(self, arguments: Iterable[str], patience: float | None = PATIENCE) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.package), str(ROOT)]),
            "PYTHONPYCACHEPREFIX": str(self._compiled),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience, check=False)


def _last_words(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1] if lines else "")
    return told.removeprefix("FAILED ").partition(" - ")[0]


def examine(mutant: Mutant, bed: Bed) -> Report:
    """Plants one bug and runs the tests that must notice."""
    begun = time.monotonic()
    try:
        with bed.planted(mutant):
            status, told = bed.run(mutant.tests)
    except (Misplaced, OSError) as error:
        return Report(mutant, Fate.MISPLACED, str(error))
    fate = {_PASSED: Fate.SURVIVED, _FAILED: Fate.CAUGHT, _NO_END: Fate.ENDLESS}.get(status, Fate.BROKEN)
    return Report(mutant, fate, "" if fate is Fate.SURVIVED else told, time.monotonic() - begun)


def examine_all(mutants: Sequence[Mutant], beds: Sequence[Bed], tell: Callable[[Report], object] = lambda _: None) -> list[Report]:
    """As many at once as there are copies; the reports are in the order of the mutants, ``tell`` has each as soon as it is there."""
    free: SimpleQueue[Bed] = SimpleQueue()
    for bed in beds:
        free.put(bed)

    def examined(mutant: Mutant) -> Report:
        bed = free.get()
        try:
            report = examine(mutant, bed)
        finally:
            free.put(bed)
        tell(report)
        return report

    with ThreadPoolExecutor(len(beds)) as pool:
        return list(pool.map(examined, mutants))


def problem_without_a_bug(mutants: Sequence[Mutant], bed: Bed) -> str:
    """Why the tests of these mutants prove nothing: they fail as it is, or run against another package. Empty if all is well."""
    if not bed.where().startswith(str(bed.package)):
        return f"the tests would run against {bed.where()}"
    status, told = bed.run(dict.fromkeys(test for mutant in mutants for test in mutant.tests), patience=None)
    return "" if status == _PASSED else f"the tests fail without a bug: {told}"


def _print_progress(report: Report) -> None:
    """A line as soon as it is known: all of them take an hour."""
    told = f"{report.fate.value:9}  {report.mutant.id}  {report.seconds:.1f} s  {report.by or report.mutant.breaks}"
    print(told, file=sys.stderr, flush=True)


def _print_table(reports: Sequence[Report]) -> None:
    width = max(len(report.mutant.id) for report in reports)
    for report in reports:
        print(f"{report.fate.value:9}  {report.mutant.id:{width}}  {report.seconds:5.1f} s  {report.by or report.mutant.breaks}")
    counts = {fate.value: sum(report.fate is fate for report in reports) for fate in Fate}
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count), f"of {len(reports)}")


def _print_json(reports: Sequence[Report]) -> None:
    told = [
        {**asdict(report.mutant), "fate": report.fate.value, "by": report.by, "seconds": round(report.seconds, 1)} for report in reports
    ]
    print(json.dumps(told, indent=1))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plants bugs and tells whether the tests notice.")
    parser.add_argument("--only", action="append", metavar="ID", help="this mutant; may be given several times")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once")
    parser.add_argument("--json", action="store_true", help="tell the outcome as JSON")
    given = parser.parse_args(arguments)
    mutants = [one for one in read_list() if not given.only or one.id in given.only]
    if missing := set(given.only or ()) - {one.id for one in mutants}:
        parser.error(f"no mutant is called {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        beds = [Bed(Path(directory) / str(number)) for number in range(max(given.jobs, 1))]
        if problem := problem_without_a_bug(mutants, beds[0]):
            print(problem, file=sys.stderr)
            return 1
        reports = examine_all(mutants, beds, _print_progress)
    (_print_json if given.json else _print_table)(reports)
    return 0 if all(report.fate in (Fate.CAUGHT, Fate.ENDLESS) for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
