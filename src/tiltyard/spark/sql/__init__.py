"""SQL statements on tables."""
