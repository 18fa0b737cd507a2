"""Is this table sound? Manifests, files, rows and indices."""
