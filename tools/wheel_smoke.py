"""Builds the wheel, installs it in an empty environment with the locked dependencies, and uses it there.

By default without Spark: ``import tiltyard.spark`` must then say what to install. ``--extras spark`` installs that extra, too.
Dependencies come from ``requirements.lock`` with their hashes; which of them the wheel needs is read from the metadata of the packages in
the environment that runs this script.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.lock"
EXTRAS: Final = ("postgres", "otel")
"""Installed and imported each time. Spark is 400 MB and is asked for by name."""

PIP_INSTALL: Final = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")

MUST_HAVE: Final = (
    "tiltyard/py.typed",
    "tiltyard/testing/conformance.py",
    "tiltyard/testing/record_conformance.py",
    "tiltyard/testing/record_process_conformance.py",
    "tiltyard/format/lance_pb2.py",
    "pyspark_tiltyard/__init__.py",
)
MUST_NOT_HAVE: Final = ("tiltyard/testing/simulator/", "tiltyard/testing/histories/", "tests/", "bench/", "tools/")

USE: Final = """
import sys
from pathlib import Path

import tiltyard as ty

assert Path(sys.prefix).resolve() in Path(ty.__file__).resolve().parents, ty.__file__
rows = [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
table = ty.Table.create("counts", rows, primary_key=["id"])
table.append([{"id": 3, "n": 3}])
done = table.merge([{"id": 3, "n": 30}, {"id": 4, "n": 4}]).when_matched_update_all().when_not_matched_insert_all().execute()
assert done.rows == {"inserted": 1, "updated": 1, "deleted": 0}, done
assert sorted(row["n"] for row in table.to_arrow().to_pylist()) == [1, 2, 4, 30]
assert table.check().ok
with ty.Lake.open("lake") as lake:
    lake.create_table("orders", [{"id": 1}])
    with lake.transaction() as tx:
        tx.table("orders").append([{"id": 2}])
    assert lake.table("orders").count_rows() == 2

from tiltyard.testing import ObjectStoreTests, RecordsAcrossProcessesTests, RecordsTests
"""

WITHOUT_SPARK: Final = """
import tiltyard as ty

for name in ("enable", "SparkTable", "sql"):
    try:
        getattr(ty.spark, name)
    except ImportError as error:
        assert "tiltyard[spark]" in str(error) and "pyspark" in str(error), error
    else:
        raise AssertionError(f"ty.spark.{name} came without pyspark")
"""

WITH_EXTRA: Final = {
    "postgres": "import psycopg\nimport tiltyard.locks\n",
    "otel": "import tiltyard as ty\nty.telemetry.export_to_opentelemetry()()\n",
    "spark": "import tiltyard as ty\nassert ty.spark.enable and ty.spark.SparkTable and ty.spark.sql\n",
}


def needed(package: str, extras: Iterable[str]) -> set[str]:
    """Canonical names of everything a package needs to run here, with some of its extras."""
    found: set[str] = set()
    waiting = [(canonicalize_name(package), frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                continue
            other = canonicalize_name(requirement.name)
            if other not in found or requirement.extras:
                found.add(other)
                waiting.append((other, frozenset(requirement.extras)))
    return found


def locked(names: set[str]) -> Iterator[str]:
    """The entries of the lock file for these packages, with their hashes."""
    entries = re.split(r"\n(?=\S)", LOCK.read_text())
    for entry in entries:
        head = re.match(r"[A-Za-z0-9._-]+", entry)
        if head and canonicalize_name(head[0]) in names:
            yield entry


def run(*command: str | Path, where: Path) -> str:
    """The command's output; ends the script with all of it if the command fails."""
    done = subprocess.run([str(part) for part in command], cwd=where, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(where: Path) -> Path:
    """Builds the wheel and looks at what is in it."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", where, where=ROOT)
    (wheel,) = where.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    missing = [name for name in MUST_HAVE if name not in names]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        missing.append("LICENSE")
    missing += [f"extra {extra}" for extra in WITH_EXTRA if f"Provides-Extra: {extra}" not in text]
    surplus = [name for name in names if name.startswith(MUST_NOT_HAVE)]
    if missing or surplus:
        raise SystemExit(f"{wheel.name}: missing {missing}, surplus {surplus[:5]}")
    return wheel


def install(python: Path, names: set[str], where: Path) -> None:
    """Installs these packages at their locked versions."""
    requirements = where / "requirements.txt"
    requirements.write_text("\n".join(locked(names)) + "\n")
    run(python, *PIP_INSTALL, "--require-hashes", "-r", requirements, where=where)
    run(python, "-m", "pip", "check", where=where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extras", default=",".join(EXTRAS), help="extras to install and import after the base set, with commas between")
    extras = [extra for extra in parser.parse_args().extras.split(",") if extra]
    begun = time.monotonic()
    try:
        base, more = needed("tiltyard", ()), needed("tiltyard", extras)
    except PackageNotFoundError as error:
        raise SystemExit(f"{error} is not installed here; run `make venv`.") from error
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        wheel = build(where)
        run(sys.executable, "-m", "venv", where / "venv", where=where)
        python = where / "venv" / "bin" / "python"
        run(python, *PIP_INSTALL, wheel, where=where)
        install(python, base, where)
        run(python, "-I", "-c", USE, where=where)
        run(python, "-I", "-c", WITHOUT_SPARK, where=where)
        if "Usage" not in run(python.parent / "tiltyard", "--help", where=where):
            raise SystemExit("tiltyard --help printed no usage.")
        if more - base:
            install(python, more - base, where)
        for extra in extras:
            run(python, "-I", "-c", WITH_EXTRA[extra], where=where)
        took = time.monotonic() - begun
        print(f"{wheel.name}: works with {len(base)} packages, and with {', '.join(extras) or 'no'} extras; {took:.0f} s")


if __name__ == "__main__":
    main()
