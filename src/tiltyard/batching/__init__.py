"""The batching writer: appends from many threads, committed together. ``t.writer`` makes one.

An append is checked against the table, copied into the buffer and answered with a ``Receipt``. One thread for each writer takes what is due
and commits it as one append of the table's handle; the receipts are acknowledged when that commit is. Memory is the only place where rows
wait, so a crash loses exactly what was not acknowledged.

    ``write_buffer``  ``BatchLimits``, ``WriteBuffer``: what waits, when it is due, who may add; no threads, no I/O
    ``batch_commit``  ``BatchTarget``, ``BatchCommit``: one batch, committed; a culprit is isolated, an unknown outcome is asked for
    ``batch_writer``  ``BatchWriter``, ``Receipt``: the thread, back-pressure, flush and close

Fails with ``InvalidInput`` and ``KeyConflict`` in ``append`` (rows that do not fit), ``WriterTimeout`` (the buffer stays full), and at a
receipt with whatever the commit of its rows ended in.
"""
