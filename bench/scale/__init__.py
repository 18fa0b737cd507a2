"""Scale, by simulation: the real commit code in virtual time, with measured latencies, for up to 10,000 writers.

``virtual_time``     actors that wait in no time; the clock
``virtual_stores``   an object store and PostgreSQL, each request as long as it was measured to be, counted
``table_runs``       writers of a table: direct, queued, grouped, over shards
``lake_runs``        writers of a lake
``__main__``         the command: which runs, what they cost, where the figures go
"""
