"""Checks of one table: every invariant that its files can show.

    ``check_table``     runs the checks over all versions
    ``check_rows``      rows as pylance sees them, unique keys and row ids
    ``check_indices``   answers of indices against a scan
    ``check_data``      bytes against digests
    ``findings``        ``CheckReport`` and ``Problem``

Problems are reported, not raised; an error means that the check itself could not go on.
"""
