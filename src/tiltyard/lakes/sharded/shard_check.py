"""Is a sharded table sound? Its shards are there, are its own, have the same columns, and each row is in the right one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tiltyard.errors import TiltyardError
from tiltyard.lakes.sharded.shard_hash import shard_numbers
from tiltyard.lakes.sharded.sharding import Sharding
from tiltyard.lakes.table_names import logical_name, shard_name, shown
from tiltyard.table import TableReader
from tiltyard.verbs.check.findings import CheckReport, Problem
from tiltyard.verbs.keys.primary_keys import in_words

if TYPE_CHECKING:
    from tiltyard.lakes.lake_snapshot import LakeSnapshot
    from tiltyard.lakes.sharded.sharded_reader import ShardedReading

INVARIANT = "S1"
"""What the problems of shards are listed under: all rows of a key are in one shard, the one that its hash says."""

_ANCHOR_ROWS = "{} rows were appended to the table itself instead of to a shard; no read shows them"

Progress = Callable[[int, int], object]


def check_sharded(table: ShardedReading, *, data: bool = False, progress: Progress | None = None) -> CheckReport:
    """Checks the anchor and each shard by themselves, and then what makes them one table."""
    problems: list[Problem] = []
    reports: list[CheckReport] = []
    count = table.sharding.shards
    for number in range(count):
        try:
            shard = table._reader(number)
            report = shard.check(data=data)
        except TiltyardError as error:
            problems.append(Problem(INVARIANT, f"shard {number} cannot be read: {error}"))
            continue
        reports.append(report)
        problems += [Problem(found.invariant, f"shard {number}: {found.text}", found.version) for found in report.problems]
        problems += [Problem(INVARIANT, f"shard {number}: {text}") for text in shard_problems(table.sharding, number, shard, table.schema)]
        if progress is not None:
            progress(number + 1, count)
    if rows := table._anchor_rows():
        problems.append(Problem(INVARIANT, _ANCHOR_ROWS.format(rows)))
    return CheckReport(
        table.uri,
        versions=sum(report.versions for report in reports),
        files=sum(report.files for report in reports),
        problems=tuple(problems),
        orphans=tuple(f"shard {number}: {name}" for number, report in enumerate(reports) for name in report.orphans),
        not_checked=tuple(dict.fromkeys(text for report in reports for text in report.not_checked)),
        data=data,
        verified=sum(report.verified for report in reports),
        unverified=sum(report.unverified for report in reports),
    )


def lake_problems(snapshot: LakeSnapshot) -> Iterator[tuple[str, str]]:
    """What is wrong with the shards of a snapshot: full names of tables, and in words what it is. The tables themselves are not checked."""
    names = snapshot.cut.tables
    for full in sorted(names):
        logical = logical_name(full)
        if logical is not None and logical not in names:
            yield full, f"it is a shard of {shown(logical)}, which is gone"
        if logical is not None:
            continue
        if names[full].quarantine:
            continue
        try:
            anchor = snapshot._physical(full)
        except TiltyardError:
            continue  # whoever looks at tables one by one finds that
        try:
            sharding = Sharding.of(anchor._blind()[1].manifest, full)
        except TiltyardError as error:
            yield full, str(error)
            continue
        beyond = shard_name(full, 0 if sharding is None else sharding.shards)
        if beyond in names:
            yield beyond, f"{shown(full)} has no such shard"
        if sharding is not None:
            yield from _of_table(snapshot, full, anchor, sharding)


def _of_table(snapshot: LakeSnapshot, full: str, anchor: TableReader, sharding: Sharding) -> Iterator[tuple[str, str]]:
    if rows := anchor.count_rows():
        yield full, _ANCHOR_ROWS.format(rows)
    for number in range(sharding.shards):
        name = shard_name(full, number)
        try:
            shard = sharding.verified(number, name, partial(snapshot._physical, name))
            for text in shard_problems(sharding, number, shard, anchor.schema):
                yield name, text
        except TiltyardError as error:
            yield full, str(error)


def shard_problems(sharding: Sharding, number: int, shard: TableReader, schema: pa.Schema) -> Iterator[str]:
    """What is wrong with a shard as part of its table: other columns, and rows of other shards."""
    if not shard.schema.equals(schema):
        yield "its columns differ from the table's"
    if missing := [column for column in sharding.columns if column not in shard.schema.names]:
        yield f"it has no column {missing[0]}"
        return
    misplaced, sample = 0, list[str]()
    for batch in shard.scan(list(sharding.columns)):
        wrong = np.flatnonzero(shard_numbers(batch, sharding.columns, sharding.shards) != number)
        misplaced += len(wrong)
        if len(wrong) and not sample:
            sample = in_words(pa.Table.from_batches([batch]).take(pa.array(wrong[:3])))
    if misplaced:
        yield f"{misplaced} rows belong into other shards, such as {'; '.join(sample)}; t.reshard(shards={sharding.shards}) moves them"
