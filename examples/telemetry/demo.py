"""Satellite downlinks into one lake, by many at once: two ingest runners, a correction job with a roll-up, compaction and a reader.

One runner is killed in the middle of a run and started again. In the end every reading must be there exactly once; if not, the exit
code is 1. All of it is local: files in a temporary directory, SQLite as the catalog.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from downlinks import corrections, passes, put
from proof import Expected, conflicts, history, prove
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

import tiltyard as ty

HERE = Path(__file__).resolve().parent
READINGS, QUARANTINE = "telemetry.readings", "telemetry.quarantine"
SCHEMA = pa.schema(
    {
        "reading": pa.int64(),
        "satellite": pa.string(),
        "station": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "temperature": pa.float64(),
        "quality": pa.string(),
    }
)
SMALL = """[spark]
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.codegen.wholeStage" = false
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"""
"""Settings for very little data in many processes on few cores: code that is compiled here is not run often enough to be worth it."""


class Failed(Exception):
    """The demo cannot continue."""


@dataclass
class Member:
    """One process, and what it says."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[str] | None = None
    commits: int = 0
    rows: int = 0
    retried: int = 0
    points: list[str] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    told: str = "starting"
    heard: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        errors = self.log.open("a")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
        errors.close()
        assert self.process.stdout is not None
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                self._hear(json.loads(line))
            except json.JSONDecodeError:
                pass  # the last line of a process that was killed in the middle of it
            self.heard.set()

    def _hear(self, said: dict[str, Any]) -> None:
        if report := said.get("report"):
            self.reports.append(report)
            self.retried += bool(report["conflicts"])
            if report["transaction"]:
                self.commits += 1
                self.rows += report["rows_out"]
                over = sum(len(output["over"]) for output in report["outputs"])
                self.told = f"{self.commits} commits, {self.rows:,} rows" + (f", rebased over {over} others" if over else "")
        elif "point" in said:
            self.points.append(said["point"])
        elif "upkeep" in said:
            self.commits += 1
            self.told = said["upkeep"][0]
        elif "inserted" in said:
            self.told = f"saw {said['inserted']:,} readings come and {said['updated']} change, up to version {said['version']}"
        elif "trouble" in said:
            self.told = said["trouble"]

    def stop(self, patience: float) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    @property
    def failed(self) -> bool:
        return self.process is not None and self.process.poll() not in (None, 0, -signal.SIGKILL)


def environment() -> dict[str, str]:
    """Workers of Spark must find what this process has found."""
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *(path for path in sys.path if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1"}


@dataclass
class Demo:
    """All of it."""

    directory: Path
    passes: int
    readings: int
    seed: int
    patience: float
    kept: bool = False
    out: Console = field(default_factory=Console)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.uri = str(self.directory / "lake")
        self.expected = Expected.from_seed(self.passes, self.readings, self.seed)
        runner, logs = str(HERE / "runners.py"), self.directory / "logs"
        logs.mkdir(parents=True)

        def member(name: str, *command: str) -> Member:
            return Member(name, [sys.executable, runner, *command], logs / f"{name}.log")

        files = {file.stem: str(self.directory / file.name) for file in HERE.glob("*.toml")}
        self.victim = member("ingest-1", "run", self.uri, "ingest-1", files["ingest"])
        self.reader = member("reader", "follow", self.uri, str(self.directory / "seen.json"))
        self.members = [
            self.victim,
            member("ingest-2", "run", self.uri, "ingest-2", files["ingest"]),
            member("corrector", "run", self.uri, "corrector", files["correct"], files["rollup"]),
            member("compactor", "run", self.uri, "compactor", files["upkeep"]),
            self.reader,
        ]

    def run(self) -> bool:
        self._prepare()
        self.out.print(f"{self.passes} passes of {self.readings} readings come down, {len(self.expected.quarantine)} readings are garbled.")
        self.out.print("At once: two ingest runners, corrections with a roll-up, compaction, and a reader. One runner will be killed.\n")
        try:
            with ty.Lake.open(self.uri, author="demo") as lake:
                for member in self.members:
                    member.start()
                self._watch(lake)
                self._stop()
                return self._end(lake)
        finally:
            for member in self.members:
                if member.process is not None and member.process.poll() is None:
                    member.process.kill()
                    member.process.wait()

    def _prepare(self) -> None:
        shutil.copy(HERE / "calibration.py", self.directory)
        for file in HERE.glob("*.toml"):
            (self.directory / file.name).write_text(file.read_text().replace("[spark]", SMALL))
        with ty.Lake.open(self.uri, author="demo") as lake:
            lake.create_table(READINGS, SCHEMA, primary_key=["reading"], stable_row_ids=True)
        for downlink in list(passes(self.passes, self.readings, self.seed))[: self.passes // 3]:
            put(self.directory / "landing" / downlink.name, downlink.rows)

    # ---- while they work -----------------------------------------------------------------------------------------------------

    def _watch(self, lake: ty.Lake) -> None:
        """Lets data come in, shows how far everybody is, kills one, until all is there."""
        later = list(passes(self.passes, self.readings, self.seed))[self.passes // 3 :]
        fixes = list(corrections(self.passes, self.readings, seed=self.seed))
        right = sum(quality == "corrected" for _, quality in self.expected.readings.values())
        columns = (
            TextColumn("{task.description}", table_column=Column(min_width=10, no_wrap=True)),
            BarColumn(24),
            TextColumn("{task.fields[told]}"),
        )
        with Progress(*columns, console=self.out, refresh_per_second=4) as shown:
            total = shown.add_task("readings", total=len(self.expected.readings), told="")
            fixed = shown.add_task("corrected", total=right, told="")
            bars = {member.name: shown.add_task(member.name, total=None, told=member.told) for member in self.members}
            killed = False
            while True:
                present, corrected = self._counts(lake)
                shown.update(total, completed=present, told=f"{present:,} of {len(self.expected.readings):,}")
                shown.update(fixed, completed=corrected, told=f"{corrected} of {right}")
                self._show(shown, bars)
                if later:
                    self._land(later, present)
                self._correct(lake, fixes)
                if not killed and self._in_the_middle():
                    killed = True
                    self._kill(shown)
                if killed and not later and (present, corrected) == (len(self.expected.readings), right) and self._all_worked():
                    return
                self._check_time()
                self.victim.heard.wait(0.25)
                self.victim.heard.clear()

    def _counts(self, lake: ty.Lake) -> tuple[int, int]:
        table = lake.table(READINGS)
        return table.count_rows(), table.count_rows("quality = 'corrected'")

    def _show(self, shown: Progress, bars: dict[str, TaskID]) -> None:
        for member in self.members:
            if member.failed:
                raise Failed(f"{member.name} ended by itself; see {member.log}:\n{member.log.read_text()[-2000:]}")
            shown.update(bars[member.name], told=member.told)

    def _land(self, later: list[Any], present: int) -> None:
        """A few passes more, so that no runner is out of work before all have met."""
        landed = len(list((self.directory / "landing").glob("*.json")))
        if landed * self.readings - present < 6 * self.readings or any(not member.points for member in self.members[:2]):
            downlink = later.pop(0)
            put(self.directory / "landing" / downlink.name, downlink.rows)

    def _correct(self, lake: ty.Lake, fixes: list[tuple[str, list[dict[str, Any]]]]) -> None:
        """Calibrations of readings that have arrived."""
        if not fixes:
            return
        name, rows = fixes[0]
        wanted = [row["reading"] for row in rows]
        if lake.table(READINGS).count_rows(f"reading IN ({', '.join(map(str, wanted))})") == len(wanted):
            put(self.directory / "corrections" / name, rows)
            fixes.pop(0)

    def _in_the_middle(self) -> bool:
        """The victim has committed before, and has just written rows that are not committed yet."""
        return self.victim.commits >= 2 and self.victim.points[-1:] in (["output written"], ["publishing"])

    def _kill(self, shown: Progress) -> None:
        assert self.victim.process is not None
        self.victim.process.kill()
        self.victim.process.wait()
        where = self.victim.points[-1]
        shown.console.print(f"[bold]ingest-1 was killed (SIGKILL) in the middle of a run, right after {where!r}; it is started again.[/]")
        self.victim.points.clear()
        self.victim.start()

    def _all_worked(self) -> bool:
        """Everybody has done something; the one who was killed, too, since then, or found that nothing is left."""
        return all(member.commits for member in self.members if member is not self.reader)

    def _check_time(self) -> None:
        if time.monotonic() - self.began > self.patience:
            raise Failed(f"It took longer than {self.patience:.0f} s; see {self.directory / 'logs'}.")

    # ---- the end -------------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Runners first, so that the roll-up and the reader see the last of it."""
        for member in self.members:
            if member is not self.reader:
                code = member.stop(60)
                if code != 0:
                    raise Failed(f"{member.name} ended with {code}:\n{member.log.read_text()[-2000:]}")
        self.reader.stop(60)

    def _end(self, lake: ty.Lake) -> bool:
        self.out.rule("who was rebased over whom")
        history(lake, self.out)
        self.out.rule("which conflicts were retried")
        conflicts([report for member in self.members for report in member.reports], self.out)
        self.out.rule("is every reading there exactly once?")
        fine = prove(lake, self.expected, self.directory / "seen.json", self.out)
        seconds = time.monotonic() - self.began
        self.out.print(f"\n{'Nothing lost, nothing doubled' if fine else 'Something is wrong: see above'}, in {seconds:.0f} s.")
        self._draw()
        return fine

    def _draw(self) -> None:
        """The history as a picture, and how to look at it in a browser."""
        picture = self.directory / "timeline.svg"
        command = [sys.executable, "-m", "tiltyard.cli", "lake", "timeline", self.uri, "--limit", "80", "--svg", str(picture)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if done.returncode:
            raise Failed(f"The timeline was not drawn: {done.stderr[-500:]}")
        self.out.rule("see it")
        if self.kept:
            self.out.print(f"Who was rebased over whom, as a picture: {picture}", soft_wrap=True)
            self.out.print(f"In a browser: make console, or tiltyard serve {self.uri}; then http://127.0.0.1:2333/console/", soft_wrap=True)
        else:
            self.out.print("`make demo`, or --keep DIRECTORY, keeps the lake; `make console` then shows it in a browser.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--readings", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=170.0, help="seconds after which it is given up")
    parser.add_argument("--keep", type=Path, help="leave everything in this directory, which must not be there yet")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whatever was started is ended then, too
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.keep or Path(temporary) / "telemetry"
        directory.mkdir(parents=True)
        try:
            return (
                0
                if Demo(directory.resolve(), given.passes, given.readings, given.seed, given.patience, given.keep is not None).run()
                else 1
            )
        except Failed as error:
            Console(stderr=True).print(f"[red]{error}[/]")
            return 1


if __name__ == "__main__":
    raise SystemExit(main())
