"""What a stored procedure is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tiltyard.spark.spark_lake import LakeSpark

Values: TypeAlias = Mapping[str, Any]
"""Arguments of a call, by name; None for those that were not given."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a procedure."""

    name: str
    type: str = "string"
    required: bool = False


@dataclass(frozen=True)
class Procedure:
    """A verb that CALL can run.

    Attributes:
        description: what it does.
        parameters: in order.
        columns: of the row it tells.
        run: does it, and returns that row.
        many: whether it returns a list of rows.
    """

    description: str
    parameters: tuple[Parameter, ...]
    columns: str
    run: Callable[[LakeSpark, Values], list[Any]]
    many: bool = False
