"""Fails unless the tests of the transaction room take every branch of it: ``python tools/coverage_gate.py``.

Tests that run long and reach nothing that the others do not are left out: those on tables of pylance, and those of planted bugs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = "src/tiltyard/transaction"
TESTS: Final = ("tests/transaction", "tests/faults/test_lost_answers.py")
LEFT_OUT: Final = ("test_apply_as_pylance.py", "test_pylance_transactions.py", "test_peek.py", "test_mutants.py", "test_rebase.py")


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, "COVERAGE_FILE": str(Path(directory) / "coverage"), "PYTHONPATH": paths}
        ignored = [f"--ignore=tests/transaction/{name}" for name in LEFT_OUT]
        pytest = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *ignored, *TESTS, *arguments]
        run = ["run", "--branch", f"--source={SOURCE}", *pytest]
        report = ["report", "--show-missing", "--skip-covered", "--fail-under=100", "--precision=2"]
        for step in (run, report):
            status = subprocess.run([sys.executable, "-m", "coverage", *step], cwd=ROOT, env=environment, check=False).returncode
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
