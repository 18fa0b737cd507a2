"""Primary keys: which rows have the same key, by hash and by join."""
