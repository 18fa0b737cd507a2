"""The data source ``tiltyard`` as Spark sees it. Light to import: Spark loads it in every session, used or not."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from tiltyard.spark.source_options import Options
    from tiltyard.spark.target import Address

NAME: Final = "tiltyard"

BEGIN: Final = "tiltyard-facts:"
END: Final = ":tiltyard-end"
"""Around the facts in the pickled source: the only thing of ours that Spark's JVM keeps with a relation, and it can search bytes."""


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

    def schema(self) -> StructType:
        """The columns of the table. Spark calls it when a DataFrame is made, which fixes its version."""
        from tiltyard.spark.read.reading import pin, read_schema

        options = self._given()
        address = pin(options)
        if not options.boolean("follow"):
            self._address = address
        self.facts = self._noted()
        return read_schema(options, address)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tiltyard.spark.read.reading import TiltyardReader, pin

        options = self._given()
        return TiltyardReader(options, self._address or pin(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tiltyard.spark.write.writing import TiltyardWriter

        return TiltyardWriter(self._given(), schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tiltyard.spark.stream.stream_reading import TiltyardStreamReader

        return TiltyardStreamReader(self._given(), schema)

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
