"""Verbs on indices. pylance builds the files and publishes nothing; the commit is ours.

    ``build_index``        creates and drops indices, in one process or by ``IndexTask``
    ``optimize_indices``   brings them up to date with new rows and rewritten fragments
    ``index_list``         ``IndexInfo``: what each covers
    ``mem_wal``            the state of a write-ahead log, kept as a system index

Fails with ``AlreadyExists`` or ``NotFound`` by name, and ``RetryableConflict`` when fragments are rewritten again and again.
"""
