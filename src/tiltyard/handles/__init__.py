"""The parts of the handles that users hold. ``table.py`` puts them together; a part checks arguments and calls a verb.

``Handle`` knows where the table is and its version. ``_commit`` runs a verb, keeps a record of a failure, and moves the handle. What reads
gets at the table through ``_access``, ``_file`` or ``_data``, what does not through ``_blind``: a handle in a transaction notes it there.

    ``base``       ``Handle``
    ``row_reading``  ``scan``, ``to_arrow``, ``count_rows``, Arrow streams
    ``history``    ``history``, ``changes``, ``check``, ``commit``; ``t.transactions``
    ``rows``       ``append``, ``overwrite``, ``delete``, ``update``, ``restore``, ``merge`` and its ``MergeBuilder``
    ``batches``    ``writer``: appends of many threads, committed together
    ``columns``    ``add_columns``, ``drop_columns``, ``alter_columns``
    ``indices``    ``t.indices`` and its write-ahead log
    ``settings``   ``t.settings``, ``t.layout``
    ``upkeep``     ``t.maintenance``, and what only a table without a lake has of it
    ``parts``      ``t.distributed``; ``pieces`` its rows
    ``cloning``    ``clone``, ``t.tags``, ``t.branches``

Fails with ``InvalidInput`` before anything happens, then as the verb does.
"""
