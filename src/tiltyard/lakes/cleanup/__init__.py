"""Cleanup of a lake: snapshots, dead transactions, orphans."""
