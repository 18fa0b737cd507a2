"""The steps of a run: queries in Spark SQL and Python functions, each leaving a view for those after it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.parameters import bound
from tiltyard.pipeline.spec import Step
from tiltyard.redact import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a function of a step is given.

    Attributes:
        spark: the session; sources and earlier steps are views in it.
        inputs: the same as DataFrames, by name.
        run: the id of the run.
        pipeline: the name of the pipeline.
        parameters: values of the pipeline's parameters.
    """

    spark: SparkSession
    inputs: Mapping[str, DataFrame]
    run: str
    pipeline: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> DataFrame:
        try:
            return self.inputs[name]
        except KeyError:
            raise InvalidInput(f"The step has no input {name!r}; it has {', '.join(self.inputs)}.", argument=name) from None


def run_step(step: Step, context: StepContext, directory: Path) -> DataFrame:
    """What a step comes to. Nothing is computed before somebody needs its rows.

    Raises:
        InvalidInput: Spark does not understand the query, or the function is not there or gives no DataFrame.
    """
    from pyspark.sql import DataFrame

    with spark_errors(f"steps.{step.name}"):
        if step.sql is not None:
            return context.spark.sql(step.sql, args=bound(step.sql, context.parameters) or None)
        function = step.function if callable(step.function) else _imported(str(step.function), step.name, directory)
        result = function(context)
    if not isinstance(result, DataFrame):
        raise InvalidInput(f"steps.{step.name}: the function gave {type(result).__name__}, not a DataFrame.", argument=f"steps.{step.name}")
    return result


def _imported(name: str, step: str, directory: Path) -> Callable[[StepContext], Any]:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(directory))
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"steps.{step}.python: {name} is not found ({error}).", argument=f"steps.{step}.python") from None
    finally:
        sys.path.remove(str(directory))
    if not callable(found):
        raise InvalidInput(f"steps.{step}.python: {name} is not a function.", argument=f"steps.{step}.python")
    return found


@contextmanager
def spark_errors(where: str) -> Iterator[None]:
    """Errors of Spark as ours, shortened to what they say first and to what was behind it."""
    try:
        yield
    except _kinds() as error:
        raise InvalidInput(f"{where}: {redact(_gist(str(error)))}", argument=where, advice="Nothing was committed.") from error


def _kinds() -> tuple[type[Exception], ...]:
    from pyspark.errors import PySparkException

    # What Java throws and PySpark does not translate; a client of Spark Connect has no Java, and never loads this.
    java: type[Exception] = getattr(sys.modules.get("py4j.protocol"), "Py4JJavaError", PySparkException)
    return PySparkException, java


def _gist(text: str) -> str:
    """The sentences with Spark's own codes: the first, and the last of its causes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    coded = [line[line.index("[") :] for line in lines if re.search(r"(^|: )\[[A-Z][A-Z_.]+\]", line)]
    chosen = dict.fromkeys([*coded[:1], *coded[-1:]]) if coded else dict.fromkeys(lines[:1])
    return " ".join(chosen) or "Spark failed"
