"""SQL statements on tables. The folder must not be called ``sql``: the function ``tiltyard.spark.sql`` is.

    ``run_sql``        ``sql``: runs ``MERGE INTO``, ``UPDATE``, ``DELETE FROM``, ``INSERT``, ``OPTIMIZE``, time travel
    ``sql_plans``      the statement as Spark's parser reads it
    ``plan_members``   every member of a plan node is used, or refused by name
    ``statement_words`` statements that Spark's grammar does not have, word by word; ``optimizing`` OPTIMIZE
    ``views``          tables of a lake as temporary views

Fails with ``UnsupportedFeature`` for a clause we do not know, and as the verb that the statement stands for.
"""
