"""Statistics of columns, by data files: least and greatest values, nulls, about how many distinct values.

    ``gather_statistics``   of rows on their way into files, for the writers in ``engine/data_files`` and ``distributed/plain_files``
    ``distinct``            sketches of distinct values
    ``statistics_records``  where they are kept: ``_tiltyard/statistics/``; joined by writers, cleaned by cleanup
    ``lookup``              what is known of the fragments of a version
    ``bounded_conditions``  SQL conditions, as far as bounds can answer them
    ``fragment_pruning``    the fragments that a condition can hold for: scans, deletes and updates read no others
    ``version_statistics``  what is known of a version, by its address: for Spark's driver
    ``analyze``             the verb that reads what nobody looked at, and summaries

``format.statistics`` has the values and the bytes of a record. Nothing here fails a read or a write: a record that cannot be read or
written costs time. ``analyze`` fails with ``InvalidInput`` for a column that cannot be analyzed, and with whatever reading rows fails with.
"""
