"""The declarative pipeline: sources, steps in Spark, outputs to lake tables, all of a run in one transaction."""
