"""Fails unless the tests of the transaction room take every branch of it.

A plugin of pytest, so that the one run of ``make test`` measures as it goes: ``pytest -p tools.coverage_gate``. Only while a test of the
room runs is anything traced. By itself, ``python tools/coverage_gate.py`` (``make coverage``) runs those tests alone.

Tests that run long and reach nothing that the others do not are left out: those on tables of pylance, and those of planted bugs.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "tiltyard.transaction"
SOURCE: Final = ROOT / "src" / "tiltyard" / "transaction"
TESTS: Final = (
    "tests/transaction",
    "tests/faults/test_lost_answers.py",
    "tests/verbs/test_joint_deletes.py",
)
LEFT_OUT: Final = ("test_apply_as_pylance.py", "test_pylance_transactions.py", "test_peek.py", "test_mutants.py", "test_rebase.py")
DIRECTORY: Final = "coverage_gate_directory"


def is_gated(file: str) -> bool:
    """Whether tests of this file count."""
    return file.startswith(TESTS) and Path(file).name not in LEFT_OUT


class Gate:
    """Measures in each process of a run; the process that started the run adds up and judges."""

    def __init__(self, directory: Path, *, judges: bool) -> None:
        self.directory = directory
        self.judges = judges
        self.gated = 0
        self.verdict = ""
        self.measured = self._coverage()
        self._import_all()

    def _coverage(self) -> coverage.Coverage:
        return coverage.Coverage(
            data_file=str(self.directory / "coverage"), data_suffix=True, config_file=False, branch=True, source=[str(SOURCE)]
        )

    def _import_all(self) -> None:
        """Lines that run on import are seen here, before anything else imports the room."""
        early = sorted(name for name in sys.modules if name.startswith(PACKAGE))
        if early:
            raise pytest.UsageError(f"{early[0]} was imported before the coverage gate; load the gate with -p.")
        self.measured.start()
        room = importlib.import_module(PACKAGE)
        for module in pkgutil.walk_packages(room.__path__, f"{PACKAGE}."):
            importlib.import_module(module.name)
        self.measured.stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not is_gated(item.nodeid.split("::", 1)[0]):
            return (yield)
        self.gated += 1
        self.measured.start()
        try:
            return (yield)
        finally:
            self.measured.stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[DIRECTORY] = str(self.directory)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.gated:
            self.measured.save()
        if self.judges:
            self._judge(session)

    def _judge(self, session: pytest.Session) -> None:
        whole = self._coverage()
        whole.combine([str(self.directory)])
        text = io.StringIO()
        percent = whole.report(file=text, show_missing=True, skip_covered=True, precision=2)
        self.verdict = text.getvalue()
        shutil.rmtree(self.directory)
        if percent < 100 and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"branches of {PACKAGE}: 100 % is asked")
        terminalreporter.write(self.verdict)


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", None)
    directory = Path(given[DIRECTORY]) if given else Path(tempfile.mkdtemp(prefix="coverage-gate-"))
    config.pluginmanager.register(Gate(directory, judges=given is None), "coverage gate")


def main(arguments: list[str]) -> int:
    ignored = [f"--ignore=tests/transaction/{name}" for name in LEFT_OUT]
    return int(pytest.main(["-q", "-p", "tools.coverage_gate", "-p", "no:cacheprovider", *ignored, *TESTS, *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
