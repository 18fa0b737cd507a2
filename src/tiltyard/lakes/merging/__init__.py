"""Comparing and merging branches of a lake.

    ``table_state``     one table at a snapshot; how two states differ by the files they share
    ``row_identity``    what makes a row the same row in two states: key, stable row id, or nothing
    ``lake_diff``       ``Lake.diff``: tables, columns, settings and rows that differ
    ``merge_verbs``     merge, rebase, cherry-pick, revert and restore as members of ``lake.branches``
    ``merge_branches``  what they have in common: finds the common ancestor, plans, and commits in one transaction
    ``branch_plan``     what is done to each table
    ``schema_merge``    three-way comparison of columns and settings
    ``row_merge``       which rows come and go; ``place_merge`` where columns were written again in place
    ``replay``          repeats the operations of a branch on a table that the target has left as it was
    ``apply_merge``     commits a plan for one table that both changed
    ``merge_values``    results, conflicts and how they are settled

Fails with ``MergeConflict``, ``NotFound`` (no such snapshot or branch) and ``InvalidInput``.
"""
