"""One file a verb: what users do to a table, made of format, storage and transaction."""
