"""Cleanup of one table: what goes, what stays, and the record of it."""
