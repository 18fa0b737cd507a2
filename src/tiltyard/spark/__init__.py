"""Tiltyard on Spark: the data source, distributed verbs and SQL, without JARs."""
