"""The conflict table: which operation goes over which, under what condition, and why. ``tiltyard.resolve`` decides by it."""

from tiltyard.transaction.conditions import CONDITIONS, Condition
from tiltyard.transaction.context import Context, Found
from tiltyard.transaction.examples import Example, ExplainedRule, Explanation, explain
from tiltyard.transaction.rules import CELLS, OPERATIONS, RULES, SIGNS, UNKNOWN, Outcome, Rule

__all__ = [  # noqa: RUF022 - sorted as all our lists of names are, not constants first
    "CELLS",
    "CONDITIONS",
    "Condition",
    "Context",
    "Example",
    "ExplainedRule",
    "Explanation",
    "Found",
    "OPERATIONS",
    "Outcome",
    "RULES",
    "Rule",
    "SIGNS",
    "UNKNOWN",
    "explain",
]
