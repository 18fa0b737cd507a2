"""Verbs that change columns, and the files they write."""
