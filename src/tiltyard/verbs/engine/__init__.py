"""What all verbs stand on: access to one table, re-execution, rows in, data files out, pylance."""
