"""A deterministic simulator: the real commit loop under schedules that a seed or an enumeration decides, checked against a model.

``run_seed`` runs what belongs to a seed, ``explore`` every interleaving of a scenario; ``pairs`` are the scenarios in which two operations
meet. A run that broke a promise is made short by ``shrink`` and put into words by ``describe``.
"""

from tiltyard.testing.simulator.exhaustive import equivalent_runs, explore
from tiltyard.testing.simulator.intentions import Intention
from tiltyard.testing.simulator.model import Violation
from tiltyard.testing.simulator.pairs import Pair, pairs
from tiltyard.testing.simulator.random_runs import run_seed, scripted
from tiltyard.testing.simulator.report import describe
from tiltyard.testing.simulator.scenario import Outcome, Part, Scenario, run
from tiltyard.testing.simulator.shrink import shrink
from tiltyard.testing.simulator.template import Kind

__all__ = [
    "Intention",
    "Kind",
    "Outcome",
    "Pair",
    "Part",
    "Scenario",
    "Violation",
    "describe",
    "equivalent_runs",
    "explore",
    "pairs",
    "run",
    "run_seed",
    "scripted",
    "shrink",
]
