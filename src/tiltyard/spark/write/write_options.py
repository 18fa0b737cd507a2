"""What a write can be told, as options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import tiltyard as ty
from tiltyard.errors import InvalidInput
from tiltyard.options import OnDuplicate
from tiltyard.spark.source_options import Options
from tiltyard.spark.write.schema_fit import parse_vectors

WRITE: Final = (
    "max_rows_per_file", "max_bytes_per_file", "message", "properties", "primary_key", "stable_row_ids", "data_format", "vectors",
    "on_duplicate", "query_id", "epoch", "retries", "if_exists", "expected_version",
)  # fmt: skip
STREAM_WRITE: Final = (
    "max_rows_per_file", "max_bytes_per_file", "message", "properties", "primary_key", "stable_row_ids", "data_format", "vectors",
    "on_duplicate", "query_id", "retries", "mode", "on", "newest_by", "checkpointlocation", "queryname",
)  # fmt: skip
"""The last two are Spark's own, and Spark hands them over with ours."""

ROWS: Final = 1024 * 1024
BYTES: Final = 90 * 1024**3
"""When a file ends, if nobody says."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are written and committed.

    Attributes:
        max_rows_per_file, max_bytes_per_file: when a task begins a new file.
        message, properties: for the history.
        primary_key, stable_row_ids, data_format: of a table that is made; the key also of one that is replaced.
        vectors: columns of arrays that become vectors, and of how many values.
        on_duplicate: what to do about keys that come twice or are there.
        query_id, epoch: who numbers the work, and its number: work whose number is in the table is not committed again.
        retries: how often the commit is worked out again after a conflict that allows it.
        if_exists: for an append to a table that is there: ``append``, ``error`` or ``ignore``.
        expected_version: for an overwrite, the version that the rows were made of: others must not have changed the table since.
    """

    max_rows_per_file: int = ROWS
    max_bytes_per_file: int = BYTES
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    primary_key: tuple[str, ...] | None = None
    stable_row_ids: bool = False
    data_format: str = "2.2"
    vectors: Mapping[str, int] = field(default_factory=dict)
    on_duplicate: OnDuplicate = "error"
    query_id: str | None = None
    epoch: int | None = None
    retries: int = 10
    if_exists: str = "append"
    expected_version: int | None = None

    @classmethod
    def of(cls, options: Options) -> WriteOptions:
        """What options say.

        Raises:
            InvalidInput: one of them cannot be used.
        """
        return cls(
            max_rows_per_file=options.integer("max_rows_per_file", least=1) or ROWS,
            max_bytes_per_file=options.size("max_bytes_per_file") or BYTES,
            message=options.text("message"),
            properties=_properties(options.text("properties")),
            primary_key=options.names("primary_key"),
            stable_row_ids=options.boolean("stable_row_ids"),
            data_format=options.text("data_format") or "2.2",
            vectors=parse_vectors(options.text("vectors")),
            on_duplicate=cast(OnDuplicate, options.one_of("on_duplicate", ("error", "allow"), "error")),
            query_id=options.text("query_id"),
            epoch=options.integer("epoch", least=0),
            retries=cast(int, options.integer("retries", 10, least=0)),
            if_exists=cast(str, options.one_of("if_exists", ("append", "error", "ignore"), "append")),
            expected_version=options.integer("expected_version", least=1),
        )

    @property
    def files(self) -> ty.FileLimits:
        """When files end."""
        return ty.FileLimits(self.max_rows_per_file, self.max_bytes_per_file)

    @property
    def new_table(self) -> ty.TableOptions:
        """What a table that is made is like."""
        return ty.TableOptions(data_format=self.data_format, on_duplicate=self.on_duplicate, files=self.files)

    def commit(self, numbered: Mapping[str, str] | None = None) -> ty.CommitOptions:
        """How the commit is made, with the number of the work if it has one."""
        return ty.CommitOptions({**self.properties, **(numbered or {})}, reexecutions=self.retries)

    def numbered(self, epoch: int | None) -> dict[str, str]:
        """The number of the work, as properties; none if it has none."""
        return ty.distributed.once(self.query_id, epoch) if self.query_id is not None and epoch is not None else {}


def _properties(text: str | None) -> dict[str, str]:
    try:
        known = json.loads(text) if text else {}
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise InvalidInput("Option properties is a JSON object of texts.", argument="properties", advice='Write it like {"job": "7"}.')
    return {str(name): str(value) for name, value in known.items()}
