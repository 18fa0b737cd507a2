"""Writing tables from Spark: append, merge, update, delete, maintenance."""
