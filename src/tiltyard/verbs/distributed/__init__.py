"""Verbs whose work is done in other processes: they read and write files, one process commits.

Tasks are values that can be pickled; the handle's ``distributed`` group makes them and commits what they return.

    ``write_tasks``     ``WriteTask`` writes data files and returns a ``Piece``
    ``commit_files``    commits pieces by the rules of append, overwrite and create
    ``scan_tasks``      ``ScanTask`` reads rows of one version
    ``key_tasks``       ``MatchTask`` looks up keys in some fragments
    ``row_tasks``       ``change_rows``: deletes, updates and merges found elsewhere
    ``column_tasks``    ``ColumnTask`` writes new columns of fragments
    ``compact_tasks``   ``CompactTask`` rewrites a group of fragments
    ``cluster_tasks``   ``ClusterTask`` writes rows in the order that it is given
    ``plain_files``     data files under names we choose, so that all can be removed

Fails as the verb it stands for. A part that was written twice is committed once; its other files are removed.
"""
