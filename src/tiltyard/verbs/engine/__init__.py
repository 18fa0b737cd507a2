"""What all verbs use: access to one table, re-execution, rows in, data files out, pylance.

    ``access``            ``TableAccess``: store, committer, log and options of one table; ``open_access`` makes it from a URI
    ``staged_access``     ``StagedAccess``: the same inside a transaction over several tables
    ``reexecution``       ``run_verb``: re-executes a verb on the latest version after a ``RetryableConflict``
    ``arguments``         checks of what callers pass
    ``sql_expressions``   SQL conditions and expressions, taken whole or refused
    ``row_input``         anything that holds rows, as Arrow
    ``data_files``        writes data files, before the commit; ``rows_in_memory`` rows of small appends, which whoever leads writes
    ``write_bases``       data files in a base outside the table's directory
    ``blobs``             blob files beside data files
    ``row_deletion``      rows found by a scan, deleted by new deletion files
    ``checkpoint``        finished fragments of a long job
    ``pylance``           the only caller of pylance; ``pylance_errors`` turns its errors into ours; ``lent_streams`` streams it pulls
    ``isolated``          reads in a child process; ``isolated_child`` is that process
    ``verify_files``      compares files with their digests; ``digest_history`` where digests are kept

Errors of pylance become ``CorruptTable``, ``StorageError``, ``InvalidInput`` or ``NotFound`` here and nowhere else.
"""
