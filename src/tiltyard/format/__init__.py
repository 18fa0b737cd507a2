"""Bytes <-> values. Knows Lance's layout; performs no I/O, knows no policy, imports nothing of ours but errors."""
