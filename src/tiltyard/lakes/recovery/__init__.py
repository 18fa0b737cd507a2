"""A lost or outdated catalog: restored from a backup, or rebuilt from the files.

    ``recovery_verbs``   ``Lake.restore`` and ``Lake.rebuild``; ``restoring`` does them
    ``backup``           ``Lake.backup``
    ``found``            what the files say: owners, versions, marks
    ``gather``           what they say beyond a catalog
    ``regroup``          from versions back to transactions, in an order of commits
    ``found_batches``    which transactions were committed together
    ``reconstruct``      brings a catalog in memory to where the tables are
    ``journal``          names, tags and branches, noted beside the tables; ``journal_replay`` and ``journal_refs`` read it back
    ``lost_versions``    versions that the catalog counts on and the files lack, and merges that only the catalog knew of
    ``repairing``        ``Lake.repair``: two writers with one version number
    ``upgrade``          ``Lake.upgrade``

The new catalog appears in one step. Fails with ``CorruptTable`` (a damaged backup), ``AlreadyExists`` or ``OwnershipError``; then nothing
was changed.
"""
