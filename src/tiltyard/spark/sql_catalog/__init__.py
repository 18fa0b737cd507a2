"""A lake as a catalog of Spark, so that plain ``spark.sql`` finds its tables by name.

    ``catalog_jar``       the classes of the JVM side (``java/catalog/``), compiled once and kept
    ``session_catalog``   ``use_lake``, ``configured``: makes a session, or one to be, know the catalog
    ``catalog_process``   the process that serves it where no Python driver does
    ``answers``           ``CatalogAnswers``: what the JVM asks, and how errors go back
    ``catalog_tables``    names, tables and namespaces; ``catalog_changes`` CREATE and ALTER
    ``open_transactions`` ``transaction``: what statements are part of; columns that a statement adds for itself
    ``statements_run``    statements that write, each one transaction
    ``row_statements``    DELETE, UPDATE and MERGE as Spark rewrote them
    ``self_reads``        statements that read the table which they write to
    ``replace_statements`` INSERT ... REPLACE USING and ON, which Spark parses and does not analyze
    ``more_statements``   OPTIMIZE, RESTORE, DESCRIBE HISTORY and table_changes, which Spark's grammar does not have
    ``metadata_tables``   ``t.history`` and its siblings
    ``procedures``        CALL; ``branch_procedures`` those about branches, ``procedure_types`` what one is made of

The JVM holds no state but what a query resolved: a class there describes what Spark asks as JSON, and ``CatalogAnswers`` on the Python
driver answers. Statements that write come with their plan. Fails as the verbs of a table do; the JVM throws what they said.
"""
