"""Primary keys: which rows have the same key. ``write``, ``merge`` and ``check`` call it.

    ``primary_keys``   ``Key``: the columns, what equal means, duplicate keys in rows and in a version
    ``key_hash``       ``KeyHashes``: hashes of keys with a Bloom filter in front
    ``batch_keys``     appends that are to be one commit and have keys in common: ``clashing_parts``
    ``key_join``       matches rows of a table and of a source: ``match_rows``

Fails with ``KeyConflict`` (a duplicate key, with a sample) or ``InvalidInput`` (a type that cannot be compared).
"""
