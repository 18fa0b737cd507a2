"""Environments for programs that are not among our own dependencies, built once and kept in the user's cache.

Where the package registries are out of reach a test that needs one says so, and is left out.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

UV = Path(sys.executable).with_name("uv")
LONGEST_BUILD = 300.0


def environment(packages: Sequence[str]) -> Path:
    """The directory with some packages of Python, or of npm, which have a slash in their names; built where it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiltyard" / "clients"
    home = cache / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "built").exists():
            shutil.rmtree(home, ignore_errors=True)
            try:
                _build(home, packages)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", b"") or b""
                pytest.skip(f"the packages {', '.join(packages)} cannot be installed here: {error} {said[-300:]!r}")
            (home / "built").touch()
    return home


def is_node(packages: Sequence[str]) -> bool:
    return any("/" in package for package in packages)


def _build(home: Path, packages: Sequence[str]) -> None:
    if is_node(packages):
        home.mkdir()
        (home / "package.json").write_text("{}", encoding="utf-8")
        steps = [["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages]]
    else:
        steps = [
            [str(UV), "venv", "--quiet", "--python", sys.executable, str(home)],
            [str(UV), "pip", "install", "--quiet", "--python", str(home / "bin/python"), *packages],
        ]
    for step in steps:
        there = home if home.is_dir() else home.parent
        subprocess.run(step, cwd=there, check=True, capture_output=True, env=plain(), timeout=LONGEST_BUILD)


def plain() -> dict[str, str]:
    """The variables of this process without the paths of this tree: a client knows nothing of it."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
