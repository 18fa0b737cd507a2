"""A lake as a catalog of Spark, so that plain ``spark.sql`` finds its tables by name.

    ``catalog_jar``       the classes of the JVM side (``java/catalog/``), compiled once and kept
    ``session_catalog``   ``use_lake``, ``configured``: makes a session, or one to be, know the catalog
    ``answers``           ``CatalogAnswers``: what the JVM asks, and how errors go back
    ``catalog_tables``    names, tables and namespaces; ``catalog_changes`` CREATE and ALTER
    ``statements_run``    statements that write, each one transaction
    ``row_statements``    DELETE, UPDATE and MERGE as Spark rewrote them
    ``metadata_tables``   ``t.history`` and its siblings
    ``procedures``        CALL

The JVM holds no state but what a query resolved: a class there describes what Spark asks as JSON, and ``CatalogAnswers`` on the Python
driver answers. Statements that write come with their plan. Fails as the verbs of a table do; the JVM throws what they said.
"""
