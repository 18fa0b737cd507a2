"""Makes up what ground stations receive: passes of satellites, each a file of readings, and corrections that come later.

Everything follows from a seed, so that a reader who has the seed knows what must be in the lake in the end.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SATELLITES = ("artemis-1", "artemis-2", "artemis-3")
STATIONS = ("kiruna", "svalbard")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass of a satellite over a station brought down."""

    number: int
    rows: tuple[dict[str, Any], ...]

    @property
    def name(self) -> str:
        return f"pass-{self.number:05}.json"


def passes(count: int, readings: int, seed: int = 1) -> Iterator[Pass]:
    """Passes with their readings. Some readings are not plausible: the radio link is what it is."""
    chance = random.Random(seed)
    for number in range(count):
        satellite, station = chance.choice(SATELLITES), STATIONS[number % len(STATIONS)]
        begin = START + timedelta(minutes=10 * number)
        yield Pass(number, tuple(_reading(number * readings + row, satellite, station, begin, row, chance) for row in range(readings)))


def _reading(number: int, satellite: str, station: str, begin: datetime, row: int, chance: random.Random) -> dict[str, Any]:
    broken = chance.random() < 0.02
    return {
        "reading": number,
        "satellite": satellite,
        "station": station,
        "at": (begin + timedelta(seconds=row)).isoformat(),
        "temperature": 1e9 if broken else round(chance.gauss(-20, 15), 2),
        "quality": "raw",
    }


def corrections(count: int, readings: int, every: int = 4, seed: int = 1) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A file of corrections for each so many passes: the sensor was calibrated, so its readings are shifted."""
    chance = random.Random(seed + 1)
    for number, downlink in enumerate(passes(count, readings, seed)):
        if number % every == 0:
            shift = round(chance.uniform(0.5, 3.0), 2)
            good = [row for row in downlink.rows if plausible(row)][:20]
            yield f"calibration-{number:05}.json", [{"reading": row["reading"], "shift": shift} for row in good]


def plausible(row: dict[str, Any]) -> bool:
    return -150 <= row["temperature"] <= 150


def put(path: Path, rows: list[dict[str, Any]] | tuple[dict[str, Any], ...]) -> None:
    """Writes a file under another name first, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--readings", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for downlink in passes(given.passes, given.readings, given.seed):
        put(given.directory / "landing" / downlink.name, downlink.rows)
    for name, rows in corrections(given.passes, given.readings, seed=given.seed):
        put(given.directory / "corrections" / name, rows)
    print(f"{given.passes} passes of {given.readings} readings, and corrections, in {given.directory}")


if __name__ == "__main__":
    main()
