"""The next manifest: an operation and a manifest in, a manifest out. Pure; the commit loop calls it for each attempt.

    ``next_manifest``      ``apply``, ``create`` and ``clone``: chooses by operation, and stamps the version
    ``row_changes``        Append, Overwrite, Delete, Update
    ``column_changes``     Merge, Project, DataReplacement
    ``rewrite``            ReserveFragments, Rewrite
    ``version_fields``     Restore, Clone
    ``maps``               UpdateConfig, UpdateBases
    ``mem_wal_state``      UpdateMemWalState
    ``coverage``           what indices cover after each of them
    ``row_lineage``        row ids and row versions after each of them
    ``frame``              what all share: fragments after a change, ids that only rise

Fails with ``IncompatibleConflict`` where the manifest no longer has what the operation needs, ``InvalidInput`` where the operation
contradicts itself or would make an unreadable version, and ``UnsupportedFeature`` for an operation that cannot be applied.
"""
