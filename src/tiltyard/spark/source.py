"""The data source ``tiltyard`` as Spark sees it. Light to import: Spark loads it in every session, used or not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

from pyspark.sql.datasource import DataSource

from tiltyard.errors import TiltyardError
from tiltyard.spark.worker_process import begin_work, is_worker

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from tiltyard.spark.source_options import Options
    from tiltyard.spark.target import Address

NAME: Final = "tiltyard"

BEGIN: Final = "tiltyard-facts:"
END: Final = ":tiltyard-end"
"""Around the facts in the pickled source: the only thing of ours that Spark's JVM keeps with a relation, and it can search bytes."""


Given = ParamSpec("Given")
Self = TypeVar("Self")
Made = TypeVar("Made")

_HIDE: Final = "SPARK_HIDE_TRACEBACK"


def plainly(method: Callable[Concatenate[Self, Given], Made]) -> Callable[Concatenate[Self, Given], Made]:
    """Has Spark show a mistake of the caller by its message alone, which would stand below all calls of ours.

    Spark asks the environment of the process that it started whether calls are shown, and ends that process after an error: no other
    error is told without its calls. Elsewhere, as in the driver, nothing is changed.
    """

    @wraps(method)
    def call(self: Self, /, *given: Given.args, **named: Given.kwargs) -> Made:
        begin_work()
        try:
            return method(self, *given, **named)
        except TiltyardError:
            if is_worker():
                os.environ[_HIDE] = "1"
            raise

    return call


class TiltyardSource(DataSource):
    """One use of the source: ``spark.read.format("tiltyard")`` and its three siblings.

    Spark makes it when the DataFrame is made and keeps it, pickled, so what is fixed here holds for every use of the DataFrame.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._address: Address | None = None
        self.facts = self._noted()

    @classmethod
    def name(cls) -> str:
        return NAME

    @plainly
    def schema(self) -> StructType:
        """The columns of the table. Spark calls it when a DataFrame is made, which fixes its version."""
        from tiltyard.spark.read.reading import pin, read_schema

        options = self._given()
        address = pin(options)
        if not options.boolean("follow"):
            self._address = address
        self.facts = self._noted()
        return read_schema(options, address)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        from tiltyard.spark.read.reading import TiltyardReader, pin

        options = self._given()
        return TiltyardReader(options, self._address or pin(options), schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tiltyard.spark.write.writing import TiltyardWriter

        return TiltyardWriter(self._given(), schema, overwrite)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tiltyard.spark.stream.stream_reading import TiltyardStreamReader

        return TiltyardStreamReader(self._given(), schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tiltyard.spark.stream.stream_writing import TiltyardStreamWriter

        return TiltyardStreamWriter(self._given(), schema, overwrite)

    def _noted(self) -> str:
        """What the optimizer's rule needs to read the same rows: the options, and the version once it is fixed."""
        address = None if self._address is None else self._address.to_json()
        return BEGIN + json.dumps({"id": uuid4().hex, "options": dict(self.options), "address": address}) + END

    def _given(self) -> Options:
        from tiltyard.spark.source_options import Options

        return Options(dict(self.options))
