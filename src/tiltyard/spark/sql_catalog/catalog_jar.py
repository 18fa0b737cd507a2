"""The jar with the classes that Spark's JVM needs: compiled from our sources by the compiler among Spark's own jars, and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import ExitStack
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import UnsupportedFeature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKER: Final = "Packing.java"
_SECONDS: Final = 300


@cache
def catalog_jar() -> str:
    """Where the jar is; made now if no earlier process made it for these sources and this Spark.

    Raises:
        UnsupportedFeature: there is no Java to compile it, or the internals of this Spark differ.
    """
    import pyspark

    folder = files("tiltyard.spark") / "java" / "catalog"
    sources = sorted((item for item in folder.iterdir() if item.name.endswith(".java")), key=lambda item: item.name)
    digest = hashlib.sha256(pyspark.__version__.encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    jar = _cache() / f"lake-catalog-{digest.hexdigest()[:24]}.jar"
    if not jar.is_file():
        with ExitStack() as kept:
            _pack(jar, [kept.enter_context(as_file(source)) for source in sources])
    return str(jar)


def loader_with_jar(spark: SparkSession) -> Any:
    """The loader that catalogs are found by, with our classes in it; they are known to the executors of this session too.

    Raises:
        UnsupportedFeature: there is no Java to compile them, or the internals of this Spark differ.
    """
    jar = catalog_jar()
    there = spark.sql("LIST JARS").collect()
    if not any(Path(str(row[0])).name == Path(jar).name for row in there):
        spark.sql(f"ADD JAR '{jar}'")
    return spark._jsparkSession.sharedState().jarClassLoader()


def _cache() -> Path:
    """A directory that nobody else can write to: the JVM runs what is in it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiltyard"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = base.stat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="tiltyard-jar-"))
    ours = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return base if ours and os.access(base, os.W_OK) else Path(tempfile.mkdtemp(prefix="tiltyard-jar-"))


def _pack(jar: Path, sources: list[Path]) -> None:
    """Compiles in a process of its own, beside the jar's name, so that whoever comes second finds it whole or not at all."""
    packer = next(source for source in sources if source.name == _PACKER)
    with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
        made = Path(scratch) / "made.jar"
        others = [str(source) for source in sources if source.name != _PACKER]
        command = [_java(), "-XX:TieredStopAtLevel=1", "-cp", _class_path(), "org.codehaus.janino.SimpleCompiler"]
        done = subprocess.run(
            [*command, str(packer), "tiltyard.Packing", str(made), *others], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode or not made.is_file():
            reason = next((line for line in done.stderr.splitlines() if "CompileException" in line), done.stderr.strip()[-160:])
            raise UnsupportedFeature(
                f"The catalog cannot be compiled for this Spark: {reason[-160:]}",
                feature="catalog",
                advice="Use format('tiltyard') or ty.spark.sql.",
            )
        made.replace(jar)


def _class_path() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return str(Path(_find_spark_home()) / "jars" / "*")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise UnsupportedFeature("There is no Java on the path, which Spark needs too.", feature="catalog", advice="Set JAVA_HOME.")
    return found
