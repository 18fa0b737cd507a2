"""Reading tables in Spark: partitions, pushed filters and aggregates.

    ``reading``          ``TiltyardReader``: partitions of a version, and their batches
    ``partitioning``     fragments into partitions of about equal size
    ``read_pins``        the version that a statement which changes rows reads
    ``datasets``         open datasets of a worker process
    ``optimizer_rule``   compiles and installs the rule that calls ``planner``
    ``planner``          decides what is pushed into a scan: ``filters``, ``aggregates``
    ``filters``          Spark's conditions as SQL of pylance, where both mean the same
    ``join_keys``        keys that the other side of a join has, when a query is executed
    ``passing_rows``     about how many rows pass a condition, which Spark chooses joins by
    ``small_tables``     rows of small tables, read by the driver while a query is planned
    ``aggregates``       partial aggregates in workers
    ``reading_tables``   rows, history and changes as data frames

What cannot be pushed stays with Spark. Fails with ``HistoryUnavailable`` or ``NotFound`` for a version that is gone; errors in an executor
end its task.
"""
