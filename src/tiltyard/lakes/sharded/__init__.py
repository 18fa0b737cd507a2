"""Sharded tables: one logical table of a lake, its rows in several physical ones by the hash of their key. ``lake.table`` opens them.

A verb is one lake transaction over the shards it concerns; commits to different shards have nothing in common. A read sees all shards at
one snapshot. What a single table can do and several cannot - tags of its own, pylance's dataset, a change feed - is refused by name.

    ``shard_hash``        the hash that assigns rows to shards: documented, and the same everywhere
    ``sharding``          ``Sharding``: the definition, in the config of anchor and shards; names of shards
    ``pruning``           the shards that a condition can be about
    ``shard_definitions`` creates and reshards
    ``shard_reading``     reads several shards as one: scans, limits, vector search, indices
    ``shard_verbs``       what the verbs do to the shards, inside a transaction
    ``shard_parts``       ``t.indices``, ``t.settings`` and ``t.maintenance``, done to every shard
    ``shard_check``       shards that are missing, foreign or differ, and rows in the wrong one
    ``sharded_reader``    ``ShardedReader``, the reading half of the other handles, and the members that are refused
    ``sharded_writer``    the verbs, as the handles have them
    ``sharded_tables``    ``ShardedTable``, ``ShardedTransactionTable``

Fails with ``InvalidInput`` (a definition that cannot hold), ``CorruptTable`` (a shard is gone or another table has its name), and as the
verbs on each shard do.
"""
