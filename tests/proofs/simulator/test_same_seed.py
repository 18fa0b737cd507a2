"""The same seed gives the same run, call by call and byte by byte, in whatever process."""

import os
import subprocess
import sys

from tests.support.children import path_with
from tests.support.proving import pick
from tiltyard_proofs.simulator import run_seed, scripted
from tiltyard_proofs.simulator.scenario import run

SEEDS = range(pick(12, 40))
PROGRAM = f"""
from tiltyard_proofs.simulator import run_seed
for seed in range({SEEDS.stop}):
    print(run_seed(seed).digest())
"""


def test_the_same_run_twice() -> None:
    for seed in SEEDS:
        one, two = run_seed(seed), run_seed(seed)
        assert one.trace == two.trace
        assert one.world.store.objects() == two.world.store.objects()
        assert one.digest() == two.digest()


def test_another_process_with_another_hash_seed() -> None:
    found = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path_with(*sys.path)}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=300)
        found.add(done.stdout)
    assert found == {"".join(f"{run_seed(seed).digest()}\n" for seed in SEEDS)}


def test_different_seeds_differ() -> None:
    assert len({run_seed(seed).digest() for seed in SEEDS}) == len(SEEDS)


def test_a_schedule_that_was_written_down_gives_the_same_run() -> None:
    for seed in SEEDS:
        first = run_seed(seed)
        assert run(first.scenario, scripted(first.schedule)).digest() == first.digest()
