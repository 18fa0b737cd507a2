"""Comparing and merging branches of a lake.

    ``table_state``     one table at a snapshot; how two states differ by the files they share
    ``row_identity``    what makes a row the same row in two states: key, stable row id, or nothing
    ``lake_diff``       ``Lake.diff``: tables, columns, settings and rows that differ
    ``schema_merge``    three-way comparison of columns and settings

Fails with ``NotFound`` (no such snapshot) and ``InvalidInput``.
"""
