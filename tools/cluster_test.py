"""A Spark standalone cluster of two workers on loopback runs the example pipelines, and SQL through the catalog; no row twice or lost.

Master and workers are started from PySpark's own files, each as a process of its own, and ended again whatever happens.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "telemetry"
sys.path.insert(0, str(EXAMPLE))

HOST = "127.0.0.1"
WORKERS = 2
PATIENCE = 90.0


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def environment(scratch: Path) -> dict[str, str]:
    """Where executors find Python and what it imports; all on loopback."""
    paths = [str(ROOT / "src"), str(EXAMPLE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(scratch / "spark"),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


@contextmanager
def process(name: str, arguments: list[str], scratch: Path) -> Iterator[Path]:
    """One of the cluster's processes; where it writes what it does."""
    log = scratch / f"{name}.log"
    command = [str(spark_home() / "bin" / "spark-class"), *arguments]
    with log.open("w") as output:
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment(scratch), cwd=scratch)
    try:
        yield log
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_for(log: Path, text: str, times: int = 1) -> None:
    """Until a process has said something so many times."""
    until = time.monotonic() + PATIENCE
    while log.read_text().count(text) < times:
        if time.monotonic() > until:
            raise SystemExit(f"{log.name} never said {text!r}:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)


@contextmanager
def cluster(scratch: Path) -> Iterator[str]:
    """A master and its workers; the master's URL."""
    port = free_port()
    url = f"spark://{HOST}:{port}"
    master = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0"]
    with process("master", master, scratch) as log:
        wait_for(log, "I have been elected leader")
        with _workers(url, WORKERS, scratch):
            wait_for(log, "Registering worker", WORKERS)
            yield url


@contextmanager
def _workers(url: str, count: int, scratch: Path) -> Iterator[None]:
    if count == 0:
        yield
        return
    kept = scratch / f"worker-{count}"
    host = f"127.0.0.{count}"  # each of its own: a second attempt at a task is never made on the host of the first
    worker = ["org.apache.spark.deploy.worker.Worker", url, "--host", host, "--cores", "1", "--memory", "700m", "--webui-port", "0"]
    with process(f"worker-{count}", [*worker, "--work-dir", str(kept)], scratch), _workers(url, count - 1, scratch):
        yield


def run_pipelines(url: str, directory: Path, passes: int, readings: int) -> bool:
    """Ingest, correction and roll-up on the cluster, each as the command line runs it."""
    made = import_module("downlinks")
    for one in made.passes(passes, readings):
        made.put(directory / "landing" / one.name, one.rows)
    for name in ("ingest", "correct", "rollup"):
        text = (EXAMPLE / f"{name}.toml").read_text()
        settings = (
            f'master = "{url}"\n"spark.executor.memory" = "512m"\n"spark.driver.host" = "{HOST}"\n"spark.driver.bindAddress" = "{HOST}"'
        )
        settings += '\n"spark.cores.max" = 2\n"spark.executor.cores" = 1'
        (directory / f"{name}.toml").write_text(
            text.replace('master = "local[1]"', settings).replace("max_files = 3", "").replace("max_files = 2", "")
        )
    shutil.copy(EXAMPLE / "calibration.py", directory)
    for name in ("ingest", "correct", "rollup"):
        if name == "correct":
            for file, rows in made.corrections(passes, readings):
                made.put(directory / "corrections" / file, rows)
        command = [sys.executable, "-m", "tiltyard.cli", "run", str(directory / f"{name}.toml")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(directory), check=False, timeout=600)
        print(done.stdout, end="", flush=True)
        if done.returncode != 0 or not done.stdout.startswith("committed"):
            print(done.stderr[-3000:])
            return False
    return True


def run_speculation(url: str, directory: Path) -> bool:
    """Tasks that are run twice at the same time."""
    command = [sys.executable, str(ROOT / "tools" / "speculation.py"), url, str(directory / "speculation")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(directory), timeout=600, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        print(done.stderr[-3000:])
    return done.returncode == 0


def run_catalog(url: str, directory: Path) -> bool:
    """An application that uses the lake as a catalog by nothing but settings."""
    import tiltyard as ty
    from tools.catalog_app import ROWS

    lake = directory / "catalog-lake"
    ty.Lake.open(lake).close()
    settings = {
        "spark.sql.catalog.lake": "tiltyard.LakeCatalog",
        "spark.sql.catalog.lake.uri": str(lake),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", url, "--jars", ty.spark.catalog_jar()]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    app = str(ROOT / "tools" / "catalog_app.py")
    done = subprocess.run([*command, app], capture_output=True, text=True, env=environment(directory), timeout=600, check=False)
    kept = [number for number in range(ROWS + 1000) if number % 10]
    wanted = f"found {len(kept)} {len(kept)} {sum(-number if number >= ROWS // 2 else 2 * number for number in kept)}"
    told = next((line for line in done.stdout.splitlines() if line.startswith("found")), "")
    print(f"catalog by settings alone: {told}", flush=True)
    if told != wanted:
        print(f"expected {wanted}\n{done.stderr[-3000:]}")
        return False
    with ty.Lake.open(lake, create=False) as opened:
        return opened.table("shop.orders").count_rows() == len(kept) and opened.check().ok


def executors_used(directory: Path) -> int:
    """How many workers had an executor: each keeps a directory of it."""
    return sum(any(one.glob("app-*/*")) for one in directory.glob("worker-*") if one.is_dir())


def check(directory: Path, passes: int, readings: int) -> bool:
    import tiltyard as ty

    proof = import_module("proof")
    expected = proof.Expected.from_seed(passes, readings, 1)
    with ty.Lake.open(directory / "lake", create=False) as lake:
        fine, told = proof.compared(lake.table("telemetry.readings").to_arrow(["reading", "temperature", "quality"]), expected)
        print(f"readings: {told}")
        hours = sum(lake.table(proof.HOURS).to_arrow()["readings"].to_pylist())
        print(f"roll-up: {hours:,} readings in {lake.table(proof.HOURS).count_rows()} hours")
        return bool(fine) and hours == len(expected.readings) and lake.check().ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--readings", type=int, default=4000, help="of each pass; 120,000 in all are more than the driver writes by itself")
    given = parser.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whatever was started is ended then, too
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        with cluster(directory) as url:
            print(f"a cluster of {WORKERS} workers at {url}", flush=True)
            fine = run_catalog(url, directory)
            fine = run_speculation(url, directory) and fine
            fine = run_pipelines(url, directory, given.passes, given.readings) and check(directory, given.passes, given.readings) and fine
            used = executors_used(directory)
            print(f"{used} of {WORKERS} workers had executors; {time.monotonic() - began:.0f} s")
    return 0 if fine and used == WORKERS else 1


if __name__ == "__main__":
    raise SystemExit(main())
