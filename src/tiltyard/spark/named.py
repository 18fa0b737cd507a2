"""What a lake and a transaction offer alike: tables by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

import tiltyard as ty
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.spark.merging import SparkMerge
from tiltyard.spark.table import SparkTable
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mode = Literal["append", "overwrite"]


class NamedTables(ABC):
    """Tables by name, and the verbs on them that bring rows."""

    def __init__(self, session: SparkSession, work: Work) -> None:
        self.session = session
        self.work = work

    def options(self) -> dict[str, Any]:
        """The options this was made with."""
        return {one.name: getattr(self.work, one.name) for one in fields(self.work)}

    @abstractmethod
    def table(self, name: str) -> SparkTable:
        """A table by name."""

    @abstractmethod
    def _create(self, df: DataFrame, name: str, primary_key: Sequence[str] | None, **how: Any) -> ty.CommitResult:
        """Makes a table of a data frame's columns, with its rows."""

    def write(
        self,
        df: DataFrame,
        name: str,
        mode: Mode = "append",
        *,
        create: bool = False,
        primary_key: Sequence[str] | None = None,
        **how: Any,
    ) -> ty.CommitResult:
        """Writes a data frame into a table.

        Args:
            df: the rows.
            name: the table's name in the lake.
            mode: ``"append"``, or ``"overwrite"`` to replace rows and columns.
            create: make the table if there is none of that name.
            primary_key: of a table that is made here.
            how: what ``SparkTable.append`` or ``overwrite`` take beside, such as ``message``.

        Raises:
            NotFound: there is no such table, and none is to be made.
            InvalidInput: the rows do not fit the table.
            KeyConflict: a key comes twice, or is there already.
        """
        if mode not in ("append", "overwrite"):
            raise InvalidInput(f"mode is 'append' or 'overwrite', not {mode!r}.", argument="mode")
        try:
            table = self.table(name)
        except NotFound:
            if not create:
                raise
            return self._create(df, name, primary_key, **how)
        return table.append(df, **how) if mode == "append" else table.overwrite(df, **how)

    def merge(self, df: DataFrame, name: str, on: str | Sequence[str] | None = None, *, allow_duplicates: bool = False) -> SparkMerge:
        """A merge of a data frame into a table, to be described clause by clause; see ``SparkTable.merge``."""
        return self.table(name).merge(df, on, allow_duplicates=allow_duplicates)

    def sql(self, text: str) -> DataFrame:
        """Runs a statement on the tables; see ``tiltyard.spark.sql``."""
        from tiltyard.spark.statements import run  # it knows this module

        return run(self.session, text, self)
