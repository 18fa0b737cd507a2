"""What the handle ``Lake`` is made of: transactions, tables, snapshots, recovery, cleanup. ``lake.py`` is its only door.

A transaction's way: ``lake_transaction`` reads a base snapshot and stages the writes of each table, ``commit_transaction`` publishes all
of them in one step of the catalog, and ``finishing`` gives the versions their final names. Any reader may
finish what a dead writer committed.

    ``lake_transaction``   ``LakeTransaction``
    ``commit_transaction`` how all tables of a transaction are published
    ``hot_tables``        turns at tables that many transactions write to
    ``lake_batches``      commits those who wait together; ``batch_members`` one of them
    ``lake_snapshot``      ``LakeSnapshot``; ``lake_history`` the history, read as it is looked at
    ``running``           ``Lake.run``: re-executes a function after a conflict
    ``conflict_report``   the error that says which table moved, and who moved it
    ``refusals``          records of refused transactions, for the console
    ``finishing``         final names for versions that are committed
    ``lake_tables``       ``LakeTable``, ``TransactionTable``, ``LakeReader``; ``StagedTable``, one table in a transaction
    ``table_names``       names of tables, tags and branches; the names that a transaction sees
    ``new_tables``        tables whose rows other processes write
    ``lake_clone``        ``Lake.clone``: a new lake over the files of a snapshot
    ``registering``       existing tables, registered once
    ``opening``           from a URI to catalog and root; ``claim`` the lake's claim on its root
    ``namespace``         ``LakeNamespace`` for other Lance clients
    ``remote_lake``       a lake behind a server, for transactions of stock clients
    ``short_name``        what stock clients call a lake as a namespace: tiltyard
    ``lake_maintenance``  cleanup, check, backup, repair as members of ``Lake``
    ``checking``          the check of a whole lake; ``check_catalog`` of its records
    ``retention``         which snapshots stay, and which versions they need
    ``spark_door``        ``lake.spark``, loaded on first use

Folders: ``branches/`` lake-wide tags and branches, ``merging/`` comparing and merging them, ``cleanup/``, ``namespaces/`` the operations of
``LakeNamespace``, ``recovery/`` of a lost catalog, ``sharded/`` tables over several.

Fails with ``ExpectedVersionMismatch`` and the other conflicts (a table moved), ``OwnershipError`` (root or catalog of another lake),
``OutcomeUnknown`` (the catalog's answer was lost), ``StorageError`` (it cannot be reached).
"""
