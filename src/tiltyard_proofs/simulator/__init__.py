"""A deterministic simulator: the real commit loop under schedules that a seed or an enumeration decides, checked against a model.

``run_seed`` runs what belongs to a seed, ``explore`` every interleaving of a scenario; ``pairs`` are the scenarios in which two operations
meet. A run that broke a promise is made short by ``shrink`` and put into words by ``describe``.
"""

from tiltyard_proofs.simulator.exhaustive import equivalent_runs, explore
from tiltyard_proofs.simulator.intentions import Intention
from tiltyard_proofs.simulator.model import Violation
from tiltyard_proofs.simulator.pairs import Pair, pairs
from tiltyard_proofs.simulator.random_runs import run_seed, scripted
from tiltyard_proofs.simulator.report import describe
from tiltyard_proofs.simulator.scenario import Outcome, Part, Scenario, run
from tiltyard_proofs.simulator.shrink import shrink
from tiltyard_proofs.simulator.template import Kind

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
