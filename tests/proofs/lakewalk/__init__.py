"""A random walk over lakes: what may happen to them from any side, against a model of what must exist."""
