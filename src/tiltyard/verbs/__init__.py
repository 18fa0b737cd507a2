"""One file for each verb, built on format, storage and transaction. Does not know the handles that call it.

A verb takes a ``TableAccess``, the version that was read and its own arguments, and hands a function to ``engine.reexecution.run_verb``,
which re-executes it on the latest version after a retryable conflict. Only ``engine/pylance`` calls pylance.

Rows
    ``write``             create, append, overwrite
    ``delete``            delete; ``update`` update
    ``merge``             merge by key; ``merge_plan`` its clauses and its key
    ``compact``           compact; ``cluster_rows`` with rows sorted by columns
History
    ``restore``           restore an older version
    ``changes``           the change feed; ``changed_rows`` the rows of one version for it
    ``table_history``     history entries, the version at a time
    ``table_refs``        tags and branches
    ``clone``             shallow and deep clones
Commits
    ``commit_operation``  commits an operation whose files are written
    ``outcome``           what became of a transaction
    ``explain``           records of failed commits, and why they failed
Settings
    ``table_settings``    config, metadata, bases, manifest names

Folders: ``engine/`` what all verbs use, ``keys/`` primary keys, ``columns/`` and ``indices/`` their verbs, ``cleanup/``, ``check/``,
``statistics/`` of columns, and ``distributed/`` for work in other processes.

Fails with what the commit loop raises (see ``transaction``), ``InvalidInput`` before anything is written, and ``CorruptTable`` or
``StorageError`` while files are read or written. Files of a failed verb are removed, unless its outcome is unknown.
"""
