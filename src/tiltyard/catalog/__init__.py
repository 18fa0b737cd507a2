"""The records of a lake, and the one decision over several tables. Does not know the lake's handle.

All is written in terms of ``Records``: lock some records, look at them, and replace them, all or nothing. ``publishing.decide`` is that
step for a transaction; it is pure.

Records
    ``records``            the protocol: ``get``, ``scan``, ``transact``
    ``open_records``       from an address to records, and records in memory
    ``sql_records``        records in a SQL database: ``sqlite``, ``postgres``; ``database`` what differs, ``migrations`` their tables
    ``manifest_records``   records in a ``__manifest`` table; ``manifest_rows`` its rows, ``manifest_mirror`` all of them in memory,
                           ``manifest_publish`` puts some in the place of others
    ``server_records``     records behind ``tiltyard serve``, and the catalog that has it decide; ``server_link`` the connection to it,
                           ``server_offers`` commits that it makes for its clients
    ``record_codec``       keys and bodies of records
    ``process_queue``      processes of one machine that wait for the same lock
    ``tickets``            the order in which transactions that want the same tables go on; ``batch_offers`` what they leave there
Lake
    ``catalog``            ``Catalog``: heads, snapshots, transactions
    ``lake_values``        ``TableHead``, ``Cut``, ``Snapshot``, ``Publication``; ``value_codec`` as records
    ``base_view``          a snapshot, read table by table
    ``publishing``         the decision: ``decide``
    ``read_set``           where a transaction stands and what it read, for serializable isolation
    ``snapshot_index``     snapshots of the past
    ``line_identity``      ids of branches whose names are reused
    ``protection``         who may write to a branch, and what must be checked before a merge
    ``forwarding``         fast-forward of a branch, in one step
    ``merge_records``      which lines were merged into which, and the step that commits a merge
    ``expiry``             outcomes and idempotency keys that expire
Versions
    ``ledger``             decides versions of a table in the catalog; adopts those of foreign writers
    ``marks``              what files of a lake say of their owner
    ``commit_store``       a database that decides for a table without a lake

Fails with ``StorageError`` (``maybe_applied``: an answer was lost), ``ContentionError`` (locks), and inside the room ``StaleError``,
``ExpiredError`` and ``AbortedError``, which ``lakes/`` turns into conflicts; after a ``MembersError`` a leader goes on without some.
"""
