"""Tags and branches over all tables of a lake.

    ``branch_rules``     protected branches and checks
    ``ref_sizes``        how many bytes each of them holds
    ``lake_refs``        ``LakeTags``, ``LakeBranches``
    ``table_branches``   a table's own branch, made when it is first opened there to write
    ``fast_forward``     brings a branch to main, in one commit

Fails with ``AlreadyExists`` or ``NotFound`` by name, and ``ExpectedVersionMismatch`` where main changed what the branch changed.
"""
