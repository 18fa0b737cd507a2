"""Streams from and to tables."""
