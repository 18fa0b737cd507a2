"""The handle on a table, in parts: what it is, what it reads, and its verbs by what they change. ``Table`` puts them together."""
