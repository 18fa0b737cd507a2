"""The heart: operations, the conflict table, apply, and the commit loop. Pure but for ``commit`` and ``log``."""
