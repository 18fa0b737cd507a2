"""Streams from and to tables.

    ``stream_reading``   ``TiltyardStreamReader``: versions are offsets
    ``stream_plan``      what each version means for a stream
    ``stream_writing``   ``TiltyardStreamWriter``: each micro-batch is one commit with an idempotency key
    ``stream_commits``   the same for tables by name: tasks are planned once, the driver commits

Fails with ``HistoryUnavailable`` where a version the stream needs was cleaned up, and a ``RetryableConflict`` that is not retryable
where rows were changed and the stream reads appends only.
"""
