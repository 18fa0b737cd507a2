"""Cleanup of a lake, while others work on it: old snapshots, dead transactions, orphans.

    ``lake_cleanup``        ``cleanup_lake``: the steps in order, and the report
    ``dead_transactions``   files of transactions that never will be committed
    ``orphans``             directories that no snapshot shows, and what is known of them
    ``merged_pins``         tags for versions whose files another branch names after a merge
    ``references``          files of one branch of a table that another one names
    ``removal``             removes directories that marks and records prove to be this lake's
    ``version_deletion``    chosen versions of one table, as far as nothing needs them
    ``pins``                Lance tags that keep foreign cleanups away from needed versions

Deletes nothing without proof; the rest is reported as orphans. A transaction on a removed snapshot gets ``HistoryUnavailable``.
"""
