"""What a commit costs, ours and pylance's measured in turn in one run, so that a noisy machine hits both alike.

    make bench-commit                      all of it, about two minutes
    make bench-commit ARGS="--appends 200" fewer appends; --json for figures, --check to fail when a target is missed
    make bench-commit ARGS="--only growth"  ours alone: 10,000 versions, and 100,000 fragments against 100, in less than a minute

``os`` is compared with pylance, which never flushes; ``fsync``, our default, is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import lance
import pyarrow as pa

import tiltyard as ty
from bench.scratch import scratch

Work = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """One comparison. ``target`` is the highest ratio we are content with."""

    name: str
    ours: float
    against: float
    unit: str
    target: float | None

    @property
    def ratio(self) -> float:
        return self.ours / self.against

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio <= self.target


def timed(work: Work) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def in_turn(rounds: int, **works: Work) -> dict[str, list[float]]:
    """Milliseconds of each, one after the other in every round."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(timed(work))
    return taken


def appended(rounds: int, **works: Callable[[pa.Table], object]) -> dict[str, list[float]]:
    """The same for appends: in every round all of them get the same rows."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for rows in batches(rounds):
        for name, work in works.items():
            taken[name].append(timed(partial(work, rows)))
    return taken


def batches(count: int) -> Iterator[pa.Table]:
    """Small batches of many sizes, the same in every run."""
    random = Random(7)
    for _ in range(count):
        rows = random.randrange(1, 300)
        yield pa.table({"id": pa.array(range(rows), pa.int64()), "text": ["row"] * rows})


class Stock:
    """Plain pylance, its handle kept warm."""

    def __init__(self, uri: str) -> None:
        self.dataset = lance.dataset(uri)

    def append(self, rows: pa.Table) -> None:
        self.dataset = lance.write_dataset(rows, self.dataset, mode="append")


def serial_appends(root: Path, count: int) -> list[Figure]:
    rows = next(batches(1))
    ours = ty.Table.create(root / "os", rows, durability="os")
    synced = ty.Table.create(root / "fsync", rows, durability="fsync")
    stable = ty.Table.create(root / "stable", rows, durability="os", stable_row_ids=True)
    lance.write_dataset(rows, str(root / "pylance"))
    stock = Stock(str(root / "pylance"))
    taken = appended(count, os=ours.append, pylance=stock.append, stable=stable.append)
    # By itself: on one file system, whoever writes after a flush waits for it, too.
    taken |= appended(count, fsync=synced.append)
    edge = max(count // 10, 1)
    first = {name: statistics.median(times[:edge]) for name, times in taken.items()}
    last = {name: statistics.median(times[-edge:]) for name, times in taken.items()}
    new = ty.Table.create(root / "new", rows, durability="os")
    beside = {name: statistics.median(times) for name, times in appended(edge, old=ours.append, new=new.append).items()}
    return [
        # The machine is not the same at the end as at the start, so the start is measured once more, on a new table in the same minute.
        Figure(f"append onto {count} versions against onto a new table", beside["old"], beside["new"], "ms", 1.3),
        Figure(f"append {count}, our end against our start", last["os"], first["os"], "ms", None),
        Figure(f"append {count}, at the end", last["os"], last["pylance"], "ms", 0.5),
        Figure(f"append {count}, at the start", first["os"], first["pylance"], "ms", None),
        Figure(f"append {count}, at the end, fsync", last["fsync"], last["pylance"], "ms", None),
        Figure(f"append {count}, pylance's end against its start", last["pylance"], first["pylance"], "ms", None),
    ]


def opening(root: Path, rounds: int) -> list[Figure]:
    """Opens what ``serial_appends`` left behind; both tables have as many versions."""
    figures = []
    for name, made in (("os", "written by us"), ("pylance", "written by pylance"), ("stable", "stable row ids")):
        uri = str(root / name)
        taken = in_turn(rounds, ours=partial(ty.Table.open, uri), pylance=partial(lance.dataset, uri))
        versions = ty.Table.open(uri).version
        label = f"open latest of {versions}, {made}"
        figures.append(Figure(label, statistics.median(taken["ours"]), statistics.median(taken["pylance"]), "ms", 1.0))
    return figures


def many_fragments(root: Path, fragments: int, rounds: int) -> list[Figure]:
    """One more fragment onto very many. They all name one data file, which commits do not open, but claim many sizes."""
    rows = next(batches(1))
    table = _of_fragments(root / "many", fragments)
    shutil.copytree(root / "many", root / "many-pylance")
    shutil.copytree(root / "many", root / "many-fsync")
    ours, synced, stock = table, ty.Table.open(root / "many-fsync"), Stock(str(root / "many-pylance"))
    for warm in (ours.append, synced.append, stock.append):
        warm(rows)
    taken = appended(rounds, ours=ours.append, pylance=stock.append, fsync=synced.append)
    middle = {name: statistics.median(times) for name, times in taken.items()}
    return [
        Figure(f"one more onto {fragments} fragments", middle["ours"], middle["pylance"], "ms", 0.5),
        Figure(f"one more onto {fragments} fragments, fsync", middle["fsync"], middle["pylance"], "ms", None),
    ]


def _of_fragments(root: Path, fragments: int) -> ty.Table:
    """A table of so many, made in two commits."""
    table = ty.Table.create(root, next(batches(1)), durability="os")
    first = replace(table.layout.fragments[0], id=0)
    random = Random(7)
    sizes = [(random.randrange(1, 300), random.randrange(500, 50_000)) for _ in range(fragments - 1)]
    table.commit(
        ty.ops.Append(tuple(replace(first, physical_rows=rows, files=(replace(first.files[0], size=size),)) for rows, size in sizes))
    )
    return table


def growth(root: Path, versions: int, fragments: int, rounds: int) -> list[Figure]:
    """Ours alone: what a long history and a large table add to a commit."""
    edge = max(versions // 20, 1)
    compacted = _history(ty.Table.create(root / "compacted", next(batches(1)), durability="os"), versions, compact=edge)
    table = ty.Table.create(root / "long", next(batches(1)), durability="os")
    worked: list[float] = []
    times = _history(table, versions, worked=worked)
    os.sync()  # whatever the disk still has to write would slow down who comes later
    new = ty.Table.create(root / "short", next(batches(1)), durability="os")
    beside = {name: statistics.median(taken) for name, taken in appended(edge, old=table.append, new=new.append).items()}
    few, many = _of_fragments(root / "few", 100), _of_fragments(root / "most", fragments)
    for warm in (few.append, many.append):
        warm(next(batches(1)))
    size = max(entry.stat().st_size for entry in (root / "most" / "_versions").iterdir())
    (root / "bytes").mkdir()
    os.sync()
    alone = partial(_write_pieces, root / "bytes", size)
    taken = appended(rounds, few=few.append, many=many.append, bytes=lambda _: alone())
    wide = {name: statistics.median(times) for name, times in taken.items()}
    return [
        Figure(
            f"append {versions}: the last {edge} against the first",
            statistics.median(times[-edge:]),
            statistics.median(times[:edge]),
            "ms",
            1.3,
        ),
        Figure(
            "the same, worked by our own code",
            (worked[-1] - worked[-edge - 1]) / edge,
            (worked[edge] - worked[0]) / edge,
            "ms",
            None,
        ),
        # Each append adds a fragment, so the last versions above have as many, and write 1.6 MB each: these do not.
        Figure(
            f"the same, compacted every {edge}",
            statistics.median(compacted[-edge:]),
            statistics.median(compacted[:edge]),
            "ms",
            1.3,
        ),
        Figure(f"append onto {versions} versions against onto a new table", beside["old"], beside["new"], "ms", 1.3),
        Figure(f"one more onto {fragments} fragments against onto 100", wide["many"], wide["few"], "ms", 3.0),
        # A version names all fragments, so no append to the table can be faster than this.
        Figure(f"one more onto {fragments} against {size / 1e6:.1f} MB into a file", wide["many"], wide["bytes"], "ms", None),
    ]


def _history(table: ty.Table, versions: int, compact: int = 0, worked: list[float] | None = None) -> list[float]:
    """Milliseconds of so many appends, one after the other; with ``compact``, the table is compacted after so many.

    ``worked`` takes down what our own code, and not the system, had worked until each of them was over.
    """
    times: list[float] = []
    for rows in batches(versions):
        times.append(timed(partial(table.append, rows)))
        if worked is not None:
            worked.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime * 1000)
        if compact and len(times) % compact == 0:
            table.compact()
    return times


def _write_pieces(directory: Path, size: int) -> None:
    """A new file of so many bytes, written as fast as this system does it: in pieces of no more than a mebibyte."""
    piece = b"x" * 2**20
    with tempfile.NamedTemporaryFile(dir=directory, buffering=0, delete=False) as file:
        for written in range(0, size, len(piece)):
            file.write(piece[: size - written])


def report(figures: list[Figure]) -> None:
    print(f"{'':52}{'ours':>10}{'against':>10}{'ratio':>8}{'target':>8}")
    for figure in figures:
        target = "" if figure.target is None else f"{figure.target:.2f}"
        verdict = {None: "", True: "  met", False: "  MISSED"}[figure.met]
        print(
            f"{figure.name:52}{figure.ours:>7.2f} {figure.unit}{figure.against:>7.2f} {figure.unit}{figure.ratio:>8.2f}{target:>8}{verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=1000)
    parser.add_argument("--fragments", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--versions", type=int, default=10_000, help="of the table whose history grows")
    parser.add_argument("--only", choices=["pylance", "growth"], help="beside pylance, or ours alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    with scratch("commit") as root:
        figures = []
        if arguments.only != "growth":
            figures += serial_appends(root, arguments.appends)
            figures += opening(root, arguments.rounds * 2)
            figures += many_fragments(root, arguments.fragments, arguments.rounds)
        if arguments.only != "pylance":
            figures += growth(root, arguments.versions, arguments.fragments, arguments.rounds)
    if arguments.json:
        print(json.dumps([{**asdict(figure), "ratio": figure.ratio, "met": figure.met} for figure in figures], indent=2))
    else:
        report(figures)
    if arguments.check and any(figure.met is False for figure in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
