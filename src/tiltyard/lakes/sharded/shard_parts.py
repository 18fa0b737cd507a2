"""``t.indices``, ``t.settings`` and ``t.maintenance`` of a sharded table: each verb is done to every shard, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from tiltyard.errors import UnsupportedFeature
from tiltyard.handles.indices import TableIndices
from tiltyard.handles.settings import TableSettings, Values
from tiltyard.handles.upkeep import Upkeep
from tiltyard.lakes.sharded import shard_verbs
from tiltyard.lakes.sharded.shard_reading import ShardedIndexReader
from tiltyard.lakes.sharded.shard_verbs import Describes
from tiltyard.options import CommitOptions
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.check.findings import CheckReport
from tiltyard.verbs.cleanup.run_cleanup import Progress

if TYPE_CHECKING:
    from tiltyard.lakes.sharded.sharded_tables import ShardedTransactionTable
    from tiltyard.lakes.sharded.sharded_writer import ShardedVerbs

P = ParamSpec("P")
Part = TypeVar("Part")


def on_each(part: str, verb: Callable[Concatenate[Part, P], CommitResult]) -> Callable[Concatenate[Part, P], CommitResult]:
    """A verb of a part of a handle, such as ``t.indices``, done to every shard in one transaction."""

    @wraps(verb)
    def call(self: Part, /, *given: P.args, **named: P.kwargs) -> CommitResult:
        def work(table: ShardedTransactionTable) -> CommitResult:
            return shard_verbs.each(table, lambda shard: getattr(getattr(shard, part), verb.__name__)(*given, **named))

        sharded: ShardedVerbs = self._table  # type: ignore[attr-defined]
        return sharded._transact(work, Describes(named.get("message"), named.get("commit")))  # type: ignore[arg-type]

    return call


def each_by_itself(verb: Callable[Concatenate[Part, P], CommitResult]) -> Callable[Concatenate[Part, P], CommitResult]:
    """A verb of ``t.maintenance`` done to every shard, in a commit of its own: it changes no row, so there is nothing to keep together."""

    @wraps(verb)
    def call(self: Part, /, *given: P.args, **named: P.kwargs) -> CommitResult:
        sharded: ShardedVerbs = self._table  # type: ignore[attr-defined]
        return sharded._compact(lambda shard: getattr(shard.maintenance, verb.__name__)(*given, **named))

    return call


class ShardedIndices(ShardedIndexReader, TableIndices):
    """The indices of all shards, with the verbs that change them in one transaction."""

    _table: ShardedVerbs

    create = on_each("indices", TableIndices.create)
    drop = on_each("indices", TableIndices.drop)
    extend = on_each("indices", TableIndices.extend)
    optimize = on_each("indices", TableIndices.optimize)

    @property
    def mem_wal(self) -> Any:
        """Refused: a sharded table has no write-ahead log."""
        raise UnsupportedFeature(
            "A sharded table has no write-ahead log.",
            feature="write-ahead log of sharded tables",
            advice="Use t.writer() for small appends.",
        )


class ShardedSettings(TableSettings):
    """Config and metadata of a sharded table: those of all shards are the same."""

    _table: ShardedVerbs

    def update_config(
        self, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the config of all shards.

        Arguments are those of ``TableSettings.update_config``, without ``replace``."""
        shard_verbs.refuse_own_keys(values)
        if replace:
            raise UnsupportedFeature(
                "The config of a sharded table is not replaced as a whole.", feature="replace", advice="Set a key to None to remove it."
            )
        return self._each_and_anchor("update_config", values, message=message, commit=commit)

    def update_metadata(
        self, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the metadata of all shards; arguments are those of ``TableSettings.update_metadata``."""
        return self._each_and_anchor("update_metadata", values, replace=replace, message=message, commit=commit)

    def update_schema_metadata(
        self, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the schema metadata of all shards.

        Arguments are those of ``TableSettings.update_schema_metadata``."""
        return self._each_and_anchor("update_schema_metadata", values, replace=replace, message=message, commit=commit)

    def update_field_metadata(
        self, path: str, values: Values, *, replace: bool = False, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Changes the metadata of a column in all shards.

        Arguments are those of ``TableSettings.update_field_metadata``."""
        return self._each_and_anchor("update_field_metadata", path, values, replace=replace, message=message, commit=commit)

    def _each_and_anchor(self, verb: str, *given: Any, **named: Any) -> CommitResult:
        def work(table: ShardedTransactionTable) -> CommitResult:
            getattr(table.anchor.settings, verb)(*given, **named)
            return shard_verbs.each(table, lambda shard: getattr(shard.settings, verb)(*given, **named))

        return self._table._transact(work, Describes(named["message"], named["commit"]))

    def add_bases(
        self,
        bases: Iterable[str] | Mapping[str, str],
        *,
        is_dataset_root: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Refused: tables of a lake have no files elsewhere."""
        raise UnsupportedFeature("A sharded table has no bases.", feature="bases of sharded tables")


class ShardedUpkeep(Upkeep):
    """Compaction and checks of all shards."""

    _table: ShardedVerbs

    compact = each_by_itself(Upkeep.compact)
    optimize = each_by_itself(Upkeep.optimize)

    def check(
        self, *, versions: Iterable[int] | None = None, data: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Checks all shards, and that each row is in the right one."""
        return self._table.check(versions=versions, data=data, progress=progress)

    def analyze(self, columns: Sequence[str] | None = None, *, progress: Progress | None = None) -> NoReturn:
        """Refused: statistics are of the data files of each shard."""
        raise UnsupportedFeature(
            "A sharded table has no statistics of its own.",
            feature="statistics of sharded tables",
            advice="Analyze each shard: t.shard(number).maintenance.analyze().",
        )
