"""Runs the simulator over many seeds, on all cores, and shows the first failing run as short as it can be made.

python -m tools.prove                             a million runs
python -m tools.prove --first-seed 5 --count 10   some of them; so a long proof can be done in parts
python -m tools.prove --pairs                     every interleaving of every pair of operations, with counts
python -m tools.prove --replay 4711               one run; in full if it fails
python -m tools.prove --lakes                     a million steps of walks over lakes; with --first-seed, --count and --replay as above
python -m tools.prove --merges                    200,000 merges of tables beside a model; with --first-seed, --count and --replay so
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context

from tiltyard_proofs.simulator import describe, equivalent_runs, explore, pairs, run_seed, shrink

RUNS = 1_000_000
CHUNK = 500
LAKE_WALKS = 17_000
"""Of 60 steps each: a million and a little."""
LAKE_CHUNK = 20
MERGE_LAKES = 6_000
"""Lakes of about 35 merges of a table each: 200,000 and a little."""
MERGES = 200_000


def be_quiet() -> None:
    """Unknown outcomes are logged; here they are made by the thousand."""
    logging.getLogger("tiltyard").addHandler(logging.NullHandler())


def prove_chunk(first: int, count: int) -> tuple[int, int | None]:
    """How many runs were made, and the first seed that failed."""
    for seed in range(first, first + count):
        if run_seed(seed).violation is not None:
            return seed - first + 1, seed
    return count, None


def prove_pairs(share: int, shares: int) -> tuple[int, int, int, str | None]:
    """For a share of all pairs: scenarios, runs, runs they stand for, and the first failure."""
    scenarios = runs = stand_for = 0
    for pair in islice(pairs(), share, None, shares):
        scenarios += 1
        for outcome in explore(pair.scenario):
            runs += 1
            stand_for += equivalent_runs(outcome)
            if outcome.violation is not None:
                return scenarios, runs, stand_for, f"{pair.words}\n{describe(outcome)}"
    return scenarios, runs, stand_for, None


def replay(seed: int) -> int:
    outcome = run_seed(seed)
    if outcome.violation is None:
        print(f"seed {seed}: {len(outcome.trace)} steps, all promises hold")
        return 0
    print(f"seed {seed}: {outcome.violation}\n\n{describe(shrink(outcome))}\n\nAgain: python -m tools.prove --replay {seed}")
    return 1


def walk_chunk(first: int, count: int) -> tuple[int, Counter[str], int | None]:
    """Steps that walks over lakes took, what they did, and the first seed that failed."""
    from tests.proofs.lakewalk import walk

    steps, done = 0, Counter[str]()
    with walk.quietly():
        for seed in range(first, first + count):
            ended = walk.run_seed(seed)
            steps += len(ended.steps)
            done.update(ended.done)
            if ended.broken:
                return steps, done, seed
    return steps, done, None


def replay_walk(seed: int) -> int:
    from tests.proofs.lakewalk import walk

    with walk.quietly():
        ended = walk.run_seed(seed)
        print(walk.described(walk.shrunk(ended) if ended.broken else ended))
    if ended.broken:
        print(f"\nAgain: python -m tools.prove --lakes --replay {seed}")
    return 1 if ended.broken else 0


def prove_lakes(first: int, count: int, workers: int) -> int:
    """Walks over lakes, by many processes: catalogs lost and restored, branches, foreign writers, kills between any two calls."""
    started = time.monotonic()
    steps, done, failed = 0, Counter[str](), []
    jobs = ((walk_chunk, (start, min(LAKE_CHUNK, first + count - start))) for start in range(first, first + count, LAKE_CHUNK))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for result in _results(pool, jobs, workers * 2):
            assert isinstance(result, tuple)
            steps += result[0]
            done.update(result[1])
            _show(f"{steps:,} steps, {steps / (time.monotonic() - started):,.0f} a second")
            if result[2] is not None:
                failed.append(result[2])
                pool.shutdown(wait=False, cancel_futures=True)
                break
    if failed:
        return replay_walk(min(failed))
    for name, number in sorted(done.items()):
        print(f"{number:10,}  {name}")
    print(f"{steps:,} steps in {count:,} walks from seed {first}: all promises hold")
    return 0


def merge_chunk(first: int, count: int) -> tuple[int, int, int, list[tuple[int, str]]]:
    """Lakes that were merged beside the model: the first seed, merges of tables, those with conflicts, and seeds that failed."""
    from tests.lakes.merge_lines import hurried
    from tests.lakes.merge_run import made, scratch

    merges, conflicts, failed = 0, 0, []
    with hurried(), scratch() as room:
        for seed in range(first, first + count):
            try:
                run = made(room, seed)
            except AssertionError as error:
                failed.append((seed, str(error)))
            else:
                merges, conflicts = merges + run.merges, conflicts + run.conflicts
    return first, merges, conflicts, failed


def prove_merges(first: int, count: int, workers: int) -> int:
    """Merges beside the model. Each chunk is told as it ends, with all so far, so that a run that is stopped has a figure."""
    merges = conflicts = seeds = 0
    failed: list[int] = []
    jobs = ((merge_chunk, (start, min(LAKE_CHUNK, first + count - start))) for start in range(first, first + count, LAKE_CHUNK))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for result in _results(pool, jobs, workers * 2):
            assert isinstance(result, tuple)
            begun, more, with_conflicts, broken = result
            merges, conflicts, seeds = merges + more, conflicts + with_conflicts, seeds + LAKE_CHUNK
            for seed, text in broken:
                failed.append(seed)
                print(f"FAILED: seed {seed}\n{text}\n", flush=True)
            print(f"seeds from {begun} done; {merges:,} merges, {conflicts:,} with conflicts, {len(failed)} differences", flush=True)
    print(f"{merges:,} merges of tables from seeds {first} to {first + count - 1}, {len(failed)} differences {sorted(failed) or ''}")
    return 1 if failed or (count >= MERGE_LAKES and merges < MERGES) else 0


def _results(pool: ProcessPoolExecutor, jobs: Iterable[tuple[Callable[..., object], tuple[int, int]]], at_once: int) -> Iterator[object]:
    """What the jobs give, as they end; only a few are under way at a time, so that stopping early stops soon."""
    waiting = iter(jobs)
    running: set[Future[object]] = {pool.submit(job, *arguments) for job, arguments in islice(waiting, at_once)}
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        running |= {pool.submit(job, *arguments) for job, arguments in islice(waiting, len(done))}
        for one in done:
            yield one.result()


def _show(text: str, *, last: bool = False) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        print(text, file=sys.stderr)


def prove(first: int, count: int, workers: int) -> int:
    started = time.monotonic()
    done, failed = 0, []
    jobs = ((prove_chunk, (start, min(CHUNK, first + count - start))) for start in range(first, first + count, CHUNK))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=be_quiet) as pool:
        for result in _results(pool, jobs, workers * 2):
            assert isinstance(result, tuple)
            done += result[0]
            seconds = time.monotonic() - started
            _show(f"{done:,} of {count:,} runs, {done / seconds:,.0f} a second", last=done == count)
            if result[1] is not None:
                failed.append(result[1])
                pool.shutdown(wait=False, cancel_futures=True)
                break
    if failed:
        return replay(min(failed))
    print(f"{done:,} runs from seed {first}: all promises hold")
    return 0


def prove_all_pairs(workers: int) -> int:
    shares = workers * 16
    totals = [0, 0, 0]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=be_quiet) as pool:
        for result in _results(pool, ((prove_pairs, (share, shares)) for share in range(shares)), workers * 2):
            assert isinstance(result, tuple)
            totals = [one + two for one, two in zip(totals, result[:3], strict=True)]
            _show(f"{totals[0]} scenarios, {totals[1]:,} runs")
            if result[3] is not None:
                print(result[3])
                return 1
    print(f"{totals[0]:,} scenarios, {totals[1]:,} runs that stand for {totals[2]:,}: all promises hold")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description="Runs the real commit loop under simulated schedules.")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed to begin with (default 0)")
    parser.add_argument(
        "--count", type=int, help=f"how many seeds (default {RUNS:,}; {LAKE_WALKS:,} walks with --lakes, {MERGE_LAKES:,} with --merges)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at work (default one a core)")
    parser.add_argument("--pairs", action="store_true", help="every interleaving of every pair of operations instead")
    parser.add_argument("--lakes", action="store_true", help="walks over lakes instead")
    parser.add_argument("--merges", action="store_true", help="merges of branches beside the model instead")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and show it if it fails")
    given = parser.parse_args(arguments)
    be_quiet()
    if given.lakes:
        if given.replay is not None:
            return replay_walk(given.replay)
        return prove_lakes(given.first_seed, LAKE_WALKS if given.count is None else given.count, given.workers)
    if given.merges:
        if given.replay is not None:
            return prove_merges(given.replay, 1, 1)
        return prove_merges(given.first_seed, MERGE_LAKES if given.count is None else given.count, given.workers)
    if given.replay is not None:
        return replay(given.replay)
    if given.pairs:
        return prove_all_pairs(given.workers)
    return prove(given.first_seed, RUNS if given.count is None else given.count, given.workers)


if __name__ == "__main__":
    sys.exit(main())
