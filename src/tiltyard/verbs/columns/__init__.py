"""Verbs that change columns, and the files they write.

    ``add_columns``      adds columns
    ``alter_columns``    renames, casts, drops columns, or changes whether they take nulls
    ``replace_data``     replaces whole columns of fragments
    ``column_values``    where new values come from: null, SQL, a lookup, a function
    ``column_files``     finds columns by path, writes files fragment by fragment
    ``column_rewrite``   new values for columns of one fragment, for ``update``

After a conflict only fragments that changed are computed again. Fails with ``InvalidInput`` for a column or value that does not fit.
"""
