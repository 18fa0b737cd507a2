"""Writing tables from Spark: executors write files, the driver commits.

    ``writing``         ``TiltyardWriter``: batch append and overwrite; ``write_options`` its options
    ``schema_fit``      columns of a data frame under those of a table
    ``arrow_batches``   rows from Spark to us, in batches
    ``row_layout``      the columns that rows are sorted and split by
    ``replaced_reads``  the version of a table that rows which replace it were read from
    ``row_verbs``       update and delete
    ``merging``         ``SparkMerge`` and its clauses; ``upserting`` how it is done
    ``row_jobs``        changed rows written in executors, for the two above
    ``shard_rows``      rows for the shards of a table, each its own
    ``table_verbs``     add columns, compact, create an index

Fails as the verbs of a table do. Files of a job that failed are removed, unless its outcome is unknown.
"""
