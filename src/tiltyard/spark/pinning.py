"""The moment a DataFrame is made: which version it reads from then on, and what the optimizer may know of it."""

from __future__ import annotations

from pyspark.sql.types import StructType

from tiltyard.spark.options import STREAM_READ, Options
from tiltyard.spark.reading import READ, table_schema
from tiltyard.spark.target import Address, Target


def pin(options: Options) -> Address:
    """The table as it is now, or at the moment the options name. Options come first: one that nobody knows may be why there is no table.

    Raises:
        InvalidInput: there is an option that no read has.
    """
    options.require_known([*READ, *STREAM_READ], "read")
    return Target.from_options(options).locate()


def read_schema(options: Options, address: Address) -> StructType:
    """The columns that a DataFrame has."""
    found = table_schema(address, options)
    return found.add("_change_type", "string").add("_commit_version", "long") if options.boolean("read_changes") else found
