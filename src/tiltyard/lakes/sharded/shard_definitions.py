"""Creates a sharded table, and gives one another number of shards: in one transaction of the lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.lakes.sharded.shard_verbs import Describes, append, summed
from tiltyard.lakes.sharded.sharding import DEFINITION, MEMBERSHIP, Sharding
from tiltyard.lakes.table_names import full_name, shard_name
from tiltyard.options import FileLimits, TableOptions
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.row_input import as_rows
from tiltyard.verbs.write import USUAL, Writing

if TYPE_CHECKING:
    from tiltyard.lakes.lake_tables import TransactionTable
    from tiltyard.lakes.lake_transaction import LakeTransaction
    from tiltyard.lakes.sharded.sharded_tables import ShardedTransactionTable


_STAMP: Final = "tiltyard.lake."
"""What config begins with that the lake puts into each of its tables."""


def create_sharded(
    tx: LakeTransaction,
    name: str,
    data: Any,
    shard_by: str | Sequence[str],
    shards: int,
    primary_key: Sequence[str] | None,
    *,
    stable_row_ids: bool,
    options: TableOptions,
) -> ShardedTransactionTable:
    """Makes the anchor and its shards, and adds the rows."""
    rows = as_rows(data)
    key = [primary_key] if isinstance(primary_key, str) else primary_key
    sharding = Sharding.new(tx._new_id(), shard_by, shards, rows.schema, key)
    how = replace(options, config={**(options.config or {}), **sharding.config()})
    tx._create_physical(full_name(name), rows.schema, primary_key=key, stable_row_ids=stable_row_ids, options=how)
    for number in range(sharding.shards):
        _create_shard(tx, full_name(name), number, sharding, rows.schema, key, stable_row_ids=stable_row_ids, options=options)
    made = tx.table(name)
    if not isinstance(data, pa.Schema):
        append(made, rows, Writing(options.files or FileLimits(), options.on_duplicate), Describes(options.message))  # type: ignore[arg-type]
    return made  # type: ignore[return-value]


def _create_shard(
    tx: LakeTransaction,
    full: str,
    number: int,
    sharding: Sharding,
    schema: pa.Schema,
    primary_key: Sequence[str] | None,
    *,
    stable_row_ids: bool,
    options: TableOptions,
) -> TransactionTable:
    how = replace(options, config={**(options.config or {}), **sharding.member_config(number)})
    return tx._create_physical(shard_name(full, number), schema, primary_key=primary_key, stable_row_ids=stable_row_ids, options=how)


def reshard(table: ShardedTransactionTable, shards: int) -> CommitResult:
    """Reads all rows as the transaction sees them, and writes them into new shards; the old ones are dropped."""
    tx, before = table.transaction, table.sharding
    if any(tx._wrote(shard_name(full_name(table.name), number)) for number in range(before.shards)):
        raise InvalidInput("The transaction has written to the table.", argument="shards", advice="Commit that first, then reshard.")
    sharding = before.resized(shards, tx._new_id())
    full, old = full_name(table.name), table.every()
    first = old[0]
    manifest = first._file.manifest
    own = (DEFINITION, MEMBERSHIP)
    config = {key: value for key, value in manifest.config.items() if key not in own and not key.startswith(_STAMP)}
    options = TableOptions(config=config, data_format=manifest.data_format.version if manifest.data_format else "2.2")
    schema, key, stable = table.schema, table.primary_key, has_stable_row_ids(manifest)
    indices = [(index.name, index.type, index.columns) for index in table.indices.list()]
    readers = [shard.scan() for shard in old]  # before they are dropped; each holds its version
    rows = pa.RecordBatchReader.from_batches(schema, (batch for reader in readers for batch in reader))
    for number in range(before.shards):
        tx._drop_physical(shard_name(full, number))
    for number in range(sharding.shards):
        _create_shard(tx, full, number, sharding, schema, key, stable_row_ids=stable, options=options)
    table.anchor.settings.update_config(sharding.config())
    table.redefine(sharding)
    done = append(table, rows, USUAL, Describes())
    for name, kind, columns in indices:
        for shard in table.every():
            shard.indices.create(columns[0], kind, name)
    return replace(summed([done], "Reshard", table.base), rows={"moved": done.rows.get("inserted", 0)})
