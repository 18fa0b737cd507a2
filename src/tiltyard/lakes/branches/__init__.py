"""Branches and tags over all tables of a lake."""
