"""Reading tables in Spark: partitions, pushed filters and aggregates."""
