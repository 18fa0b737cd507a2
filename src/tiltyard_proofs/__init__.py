"""Tools that prove the engine: the deterministic simulator and the checker of histories. Not part of the wheel."""
