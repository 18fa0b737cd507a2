"""The demo is run: whatever it claims at its end must be true here as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_two_writers() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "two_writers.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.endswith("Nothing lost, nothing doubled.\n")
    assert "16 of 16 batches acknowledged" in done.stdout
    assert done.stdout.count("800 of 800 rows: 0 lost, 0 doubled, 0 unexpected") == 2
    assert "rebased over" in done.stdout, "the two never met"
