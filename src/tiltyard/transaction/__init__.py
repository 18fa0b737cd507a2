"""What a commit is: operations, the conflict table, rebase, the next manifest, and the commit loop.

I/O, time and chance come in through ``interfaces`` alone. Verbs and catalogs call ``Committer.commit`` with a ``Transaction``:

    commit --> head, log            find the latest version and the transactions since the one that was read
           --> rebaser --> resolve  check each against ours: ``rules`` is the table, ``conditions`` its tests
           --> verify               field ids, idempotency keys
           --> ``apply/``           build the next manifest on the latest version
           --> turns, group         take along what others wait to have committed
           --> log.Landing          create it; lost the race: ``backoff``, and from the top

Values
    ``operations``         one frozen class for each operation; ``operation_codec`` and ``config_codec`` their wire form
    ``transaction``        ``Transaction``: an operation, the version it read, its id and properties
    ``race``               ``CommitResult``, and ``Race``, a commit under way
Conflicts
    ``rules``              the conflict table as data
    ``conditions``         what its cells ask; ``index_conditions`` those about indices; ``context`` what they may know
    ``resolve``            the verdict on a pair: ``Compatible``, ``Rebase``, ``Retry``, ``Incompatible``
    ``footprint``          what an operation reads and changes: fragments, fields, indices, keys
    ``examples``           worked examples for each rule
Commit
    ``commit``             the commit loop: ``Committer``
    ``rebaser``            ``Rebaser``: rebases our operation over each later commit
    ``log``                ``VersionLog``: the versions in a store; ``Landing``: creating one
    ``first_version``      ``create_first``: the commit that makes a table
    ``head``               which version is the latest, and whether ours came in time
    ``looks``              how long a look at a table is good where each costs requests: ``Look``
    ``verify``             checks against the version below: idempotency keys, field ids, parents
    ``turns``              whose turn it is: lead, wait, or be committed by whoever leads
    ``group``              several writers' transactions in one version; ``recent`` the last versions in short, from leader to leader
    ``pending_rows``       new rows that no file has yet: whoever commits them writes them, with those of others
    ``backoff``            waits after a lost race
    ``joint_delete``       deletes of several writers in one version
    ``row_map``            where rows are after a rewrite
    ``deletion_vectors``   deletion vectors, read and merged
    ``key_filter``         which keys a commit inserts: ``WrittenKeys`` and Bloom filters
    ``new_files``          digests of new files, and whether these still exist
    ``system_indices``     indices a table has one of: fragment reuse, write-ahead log
Notified
    ``observers``          the log, the counts and callers' observers; ``metrics`` the counts

Fails with a ``ConflictError`` (retryable, incompatible or a duplicate key), ``ContentionError``, ``HistoryUnavailable``,
``AlreadyCommitted`` or ``StorageError``: then nothing was committed and its files may go. ``OutcomeUnknown``: it may have been, and nothing
is deleted.
"""
