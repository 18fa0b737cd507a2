"""The conflict table: which operations conflict, on what condition, and why; ``resolve`` applies it."""

from tiltyard.transaction.conditions import CONDITIONS, Condition
from tiltyard.transaction.context import Context, Found
from tiltyard.transaction.examples import Example, ExplainedRule, PairExplanation, explain
from tiltyard.transaction.resolve import Compatible, Incompatible, Rebase, Retry, Verdict, resolve
from tiltyard.transaction.rules import CELLS, OPERATIONS, RULES, SIGNS, UNKNOWN, Outcome, Rule

__all__ = [  # noqa: RUF022 - sorted as all our lists of names are, not constants first
    "CELLS",
    "CONDITIONS",
    "Compatible",
    "Condition",
    "Context",
    "Example",
    "ExplainedRule",
    "Found",
    "Incompatible",
    "OPERATIONS",
    "Outcome",
    "PairExplanation",
    "RULES",
    "Rebase",
    "Retry",
    "Rule",
    "SIGNS",
    "UNKNOWN",
    "Verdict",
    "explain",
    "resolve",
]
