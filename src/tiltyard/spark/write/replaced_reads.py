"""Rows that replace the very table they were read from: of which version they are, so that no commit since is undone.

The version is fixed when a data frame is made, and may be an old one when it is written. An overwrite expects that version, and is refused
if others changed the table since. A plan tells of its scans, and of those whose rows Spark cached. What cuts a data frame off from its
scans, such as a checkpoint, an RDD or rows that were collected, cannot be seen here.

In a Connect session the client has the plan before anything is resolved, and the server keeps the version that it found first. So it is
known only where the plan names it, as in data frames of ``SparkTable.to_df``. Names, and texts of SQL, are looked through for the table's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import tiltyard as ty
from tiltyard.errors import ConflictError, ExpectedVersionMismatch, TiltyardError
from tiltyard.redact import redact
from tiltyard.spark.read.read_pins import addresses_of
from tiltyard.spark.source import BEGIN, END, NAME
from tiltyard.spark.source_options import Options
from tiltyard.spark.statements.sql_plans import as_list, kind_of
from tiltyard.spark.target import Address, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DETACHED: Final = 1 << 63
"""From here on versions are those that only a transaction sees."""
_WORD: Final = re.compile(r"\w+")
_AGAIN: Final = "Nothing was changed. Read the table again, and write again."


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """What one scan of a table of ours reads.

    Attributes:
        facts: as the scan tells them: options, the address once it is fixed, a mark.
        cached: whether Spark has a cache of the rows, so that no other version can be read.
        by_name: whether the table was found by name, in a catalog of ours.
    """

    facts: Mapping[str, Any]
    cached: bool
    by_name: bool

    @property
    def is_latest(self) -> bool:
        """Whether the table was meant as it is; else a moment was named, and just that is wanted."""
        options = Options(self.facts["options"])
        named = any(options.text(name) is not None for name in ("version", "tag", "timestamp", "snapshot"))
        return bool(self.facts.get("latest", True)) and not named

    @property
    def follows(self) -> bool:
        """Whether each query reads the version that is the latest one then, as views of a lake do."""
        return self.facts["address"] is None and not self.cached and Options(self.facts["options"]).boolean("follow")

    def addresses(self) -> tuple[Address, ...]:
        """The version that is read, of a sharded table those of all shards; none where it is not known."""
        return () if self.facts["address"] is None else addresses_of(self.facts, pinned=not self.cached)

    def address(self, uri: str) -> Address | None:
        """The version of the table at that place that is read; None where it is not known."""
        return next((address for address in self.addresses() if address.uri == uri), None)

    def uris(self) -> tuple[str, ...]:
        """Where the table is, or its shards are."""
        found = tuple(address.uri for address in self.addresses())
        return found or (Target.from_options(self.facts["options"]).newest().locate().uri,)


def scans_in(plan: Any, *, cached: bool = False) -> Iterator[ScanFacts]:
    """All scans of tables of ours in a plan, analyzed or optimized."""
    kind = kind_of(plan)
    if kind == "DataSourceV2ScanRelation" and _is_ours(plan.scan(), "LakeScan"):
        yield ScanFacts(json.loads(str(plan.scan().facts())), cached, by_name=True)
    elif kind in ("DataSourceV2ScanRelation", "DataSourceV2Relation"):
        relation = plan.relation() if kind == "DataSourceV2ScanRelation" else plan
        table = relation.table()
        if _is_ours(table, "LakeTable"):
            yield ScanFacts(json.loads(str(table.facts(relation.options()))), cached, by_name=True)
        elif kind_of(table) == "PythonTable" and str(table.name()).lower() == NAME and (found := _noted(table)) is not None:
            yield ScanFacts(found, cached, by_name=False)
    elif kind == "InMemoryRelation":
        yield from scans_in(plan.cacheBuilder().logicalPlan(), cached=True)
    for inner in [*as_list(plan.children()), *as_list(plan.subqueries())]:
        yield from scans_in(inner, cached=cached)


def _is_ours(given: Any, name: str) -> bool:
    return str(given.getClass().getName()).startswith(f"tiltyard.{name}")


def _noted(table: Any) -> Mapping[str, Any] | None:
    """What a source in Python noted of itself, in the bytes that Spark keeps of it."""
    made = _held(_held(table, "ds"), "dataSourceInPython")
    if made is None:
        return None
    _, found, rest = bytes(made.dataSource()).partition(BEGIN.encode())
    text, ended, _ = rest.partition(END.encode())
    facts: Mapping[str, Any] | None = json.loads(text) if found and ended else None
    return facts


def _held(holder: Any, name: str) -> Any:
    member = holder.getClass().getDeclaredField(name)
    member.setAccessible(True)
    return member.get(holder)


def version_replaced(plan: Any, table: ty.TableReader, *, follows: bool = True) -> int | None:
    """The version of a table that a plan reads, which may be written over that table only as long as it is the latest one.

    Args:
        plan: what the rows are made by.
        table: the table that they replace, at its latest version.
        follows: whether a scan that follows its table can still be planned, and so reads this version or a later one.

    Returns:
        The oldest of them, as the table counts; None where it is not read, or as it was at a moment that was named.

    Raises:
        ConflictError: it is not known which version is read.
        ExpectedVersionMismatch: the rows are of another table that was in the same place.
    """
    return _version_read(scans_in(plan), table, follows=follows)


def _version_read(scans: Iterable[ScanFacts], table: ty.TableReader, *, follows: bool) -> int | None:
    found: set[int] = set()
    here: Address | None = None
    for scan in scans:
        if not scan.is_latest:
            continue
        here = here or Address.of(table)
        if here.uri not in scan.uris():
            continue
        address = scan.address(here.uri)
        if address is None and not (follows and scan.follows):
            raise unknown_version(table.uri)
        found.add(table.version if address is None or _is_same(address, here, table) else address.version)
    return min(found, default=None)


def _is_same(read: Address, here: Address, table: ty.TableReader) -> bool:
    """Whether a version is the one that a handle is at."""
    if read.version != here.version:
        if read.version >= _DETACHED:
            raise unknown_version(table.uri)
        return False
    if read.version_id and read.version_id != here.version_id:
        raise ExpectedVersionMismatch(
            f"The rows are of another table that was at {redact(table.uri)}.",
            table="",
            expected=read.version,
            actual=here.version,
            cause="replaced",
            operation="Overwrite",
            advice=_AGAIN,
        )
    return True


def unknown_version(uri: str) -> ConflictError:
    """The error for rows that replace the table they come from, of whatever version they are."""
    return ConflictError(
        f"The rows were read from {redact(uri)}, which they replace, and it is not known of which version they are.",
        operation="Overwrite",
        advice="Uncache them, read the table again, and write again.",
    )


def frame_replacing(df: DataFrame, table: ty.TableReader, *, told: bool = False) -> tuple[DataFrame, int | None]:
    """A data frame whose rows replace a table, and the version of the table that it reads, as ``version_replaced`` has it.

    Args:
        df: the data frame.
        table: the table, at its latest version.
        told: whether the caller says which version that is.

    Raises:
        ConflictError: as there.
    """
    if getattr(df, "_jdf", None) is None:  # a Connect session keeps its plans elsewhere
        return df, None if told else _read_in_connect(df, table)
    from tiltyard.spark.read.optimizer_rule import rule_of

    fresh: Any = df.select("*")  # Spark plans a data frame once, and that may have been before its rows were cached or others committed
    plan = fresh._jdf.queryExecution().withCachedData()
    expected = version_replaced(plan, table, follows=rule_of(df.sparkSession) is not None)
    return (df if expected is None else fresh), expected


def versions_replaced(df: DataFrame, tables: Sequence[ty.TableReader], whole: str) -> list[int | None]:
    """The versions of all shards of a table, at their latest ones, that a data frame reads whose rows replace them.

    Raises:
        ConflictError: as ``frame_replacing``.
        ExpectedVersionMismatch: it reads shards that the table has no more.
    """
    if getattr(df, "_jdf", None) is None:
        refuse_former_shards(_scans_in_connect(df), whole, [table.uri for table in tables])
        return [_read_in_connect(df, table) for table in tables]
    from tiltyard.spark.read.optimizer_rule import rule_of

    fresh: Any = df.select("*")
    scans, follows = list(scans_in(fresh._jdf.queryExecution().withCachedData())), rule_of(df.sparkSession) is not None
    refuse_former_shards(scans, whole, [Address.of(table).uri for table in tables])
    return [_version_read(scans, table, follows=follows) for table in tables]


def refuse_former_shards(scans: Iterable[ScanFacts], whole: str, places: Collection[str]) -> None:
    """Refuses rows of a sharded table that were read before it got other shards: what was committed there since, nobody compares.

    Raises:
        ExpectedVersionMismatch: there are such rows.
    """
    for scan in scans:
        former = [read for read in scan.addresses() if whole and read.whole == whole and read.uri not in places] if scan.is_latest else []
        if former:
            raise ExpectedVersionMismatch(
                "The rows were read before the table they replace was resharded.",
                table="",
                expected=former[0].version,
                actual=0,
                cause="replaced",
                operation="Overwrite",
                advice=_AGAIN,
            )


def _scans_in_connect(df: DataFrame) -> list[ScanFacts]:
    """What a data frame of a Connect session reads through the data source."""
    options = [(given, Options(given).text("address")) for given in _sources_read(df)]
    # None of them follows its table: the server keeps the version that it found first.
    return [ScanFacts({"options": given, "address": address}, cached=True, by_name=False) for given, address in options]


def _read_in_connect(df: DataFrame, table: ty.TableReader) -> int | None:
    """The version that a data frame of a Connect session reads; None where it does not read the table."""
    scans = _scans_in_connect(df)
    name = str(getattr(table, "name", "")).rpartition(".")[2].lower()
    try:
        found = _version_read(scans, table, follows=False)
    except ConflictError as error:
        raise _unknown_in_connect(table.uri) from error
    if name and name in _names_read(df):
        raise _unknown_in_connect(table.uri)
    return found


def _unknown_in_connect(uri: str) -> ConflictError:
    return ConflictError(
        f"The rows may be of {redact(uri)}, which they replace; of which version, a Connect client cannot tell.",
        operation="Overwrite",
        advice="Read with SparkTable.to_df(), or pass CommitOptions(expected_version=) with the version that was read.",
    )


def _sources_read(df: DataFrame) -> list[dict[str, str]]:
    """Options of all tables of ours that a data frame reads through the data source; of each what it names."""
    found = []
    for read in _messages(df, "spark.connect.Read.DataSource"):
        if read.format.lower() == NAME:
            options = {str(key): str(value) for key, value in read.options.items()}
            found.append({**options, "path": str(read.paths[0])} if read.paths else options)
    return found


def _names_read(df: DataFrame) -> set[str]:
    """Whatever may be a table's name in a data frame, in lower case: the last parts of names, and words of SQL texts."""
    named = [str(read.unparsed_identifier) for read in _messages(df, "spark.connect.Read.NamedTable")]
    texts = [str(sql.query) for sql in _messages(df, "spark.connect.SQL")]
    last = [words[-1] for name in named if (words := _WORD.findall(name.lower()))]
    return {*last, *(word for text in texts for word in _WORD.findall(text.lower()))}


def _messages(df: DataFrame, kind: str) -> Iterator[Any]:
    frame: Any = df
    waiting = [frame._plan.to_proto(frame._session.client)]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.full_name == kind:
            yield message
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                inside = field.message_type.fields_by_name["value"].message_type
                waiting += list(value.values()) if inside is not None else []
            else:
                waiting += list(value) if field.is_repeated else [value]


class ReplacedVersions:
    """Answers the rule about overwrites through the data source: the version that a plan reads of the table it overwrites."""

    def apply(self, overwrite: Any) -> str:
        """The version as text; empty where the table is not read, and after ``!`` why it is not known."""
        from tiltyard.spark.write.writing import existing_table

        given = overwrite.table().options()
        told = {str(name): str(given.get(name)) for name in given.keySet()}
        try:
            if next(scans_in(overwrite.query()), None) is None:
                return ""
            table = existing_table(Target.from_options(told).require_newest("write"))
            expected = None if table is None else version_replaced(overwrite.query(), table)
        except TiltyardError as error:
            return f"!{type(error).__name__}: {error}"
        return "" if expected is None else str(expected)

    class Java:
        """What py4j has to know to hand this to the JVM."""

        implements: Final = ["java.util.function.Function"]
