"""A session by ``configure`` alone, where ``python3`` on the path is another interpreter, a real one without Tiltyard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environments import plain
from tiltyard.spark.placement import name_python

NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
SESSION = """
import sys
from pyspark.sql import SparkSession
import tiltyard as ty

place = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.local.dir", place + "/local").config("spark.sql.warehouse.dir", place + "/warehouse")
ty.Lake.open(place + "/lake", durability="os").close()
spark = ty.spark.configure(builder, lake=place + "/lake").getOrCreate()
spark.range(5).write.format("tiltyard").mode("append").save(place + "/t")
rows = spark.read.format("tiltyard").load(place + "/t").count()
spark.sql("CREATE TABLE lake.a AS SELECT id FROM range(3)")
print("found", rows, spark.table("lake.a").count())
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that begins with a directory with another ``python3``, and nobody has named one."""
    there = tmp_path / "bare" / "bin"
    there.mkdir(parents=True)
    (there / "python3").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", f"{there}{os.pathsep}{os.environ['PATH']}")
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the test leaves there goes when it ends
        monkeypatch.delenv(name)
    return there


def test_a_session_that_is_only_configured(elsewhere: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(elsewhere.parent)], check=True)
    other = subprocess.run([elsewhere / "python3", "-c", "import tiltyard"], capture_output=True, text=True, env=plain(), check=False)
    assert "No module named 'tiltyard'" in other.stderr
    place = tmp_path / "place"
    place.mkdir()
    told = {**plain(), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(place)], capture_output=True, text=True, env=told, cwd=place, timeout=500, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["found 5 3"], done.stderr[-3000:]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, sys.executable),
        ({"spark.master": "local[2]"}, sys.executable),
        ({"spark.master": "spark://there:7077"}, None),
        ({"spark.pyspark.python": "/their/python"}, "/their/python"),
        ({"spark.pyspark.python": "/their/python", "spark.pyspark.driver.python": "/ours/python"}, "/ours/python"),
    ],
)
def test_which_python_is_named(elsewhere: Path, options: dict[str, str], expected: str | None) -> None:
    name_python(options)
    assert os.environ.get("PYSPARK_DRIVER_PYTHON") == expected
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize(
    ("defaults", "arguments", "environment", "expected"),
    [
        ("spark.master   yarn\n", "", "", None),
        ("# spark.master yarn\nspark.master=local[4]\n", "", "", sys.executable),
        ("spark.master local\nspark.master spark://there:7077\n", "", "", None),
        ("", "--master yarn pyspark-shell", "", None),
        ("spark.master yarn", "--master=local[2] pyspark-shell", "", sys.executable),
        ("", "", "k8s://there", None),
        ("spark.master local", "", "yarn", sys.executable),
        ("", "", "", sys.executable),
    ],
)
def test_a_master_that_the_options_do_not_name(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: str, arguments: str, environment: str, expected: str | None
) -> None:
    """Spark finds it in arguments, its file of defaults and the environment; on a cluster nobody's path is named."""
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name, value in (("PYSPARK_SUBMIT_ARGS", arguments), ("MASTER", environment)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    name_python({})
    assert os.environ.get("PYSPARK_DRIVER_PYTHON") == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_python_that_somebody_named_stays(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/their/python")
    name_python({})
    assert {one: os.environ.get(one) for one in NAMES} == {one: "/their/python" if one == name else None for one in NAMES}


def test_the_own_python_needs_no_name(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    name_python({})
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
