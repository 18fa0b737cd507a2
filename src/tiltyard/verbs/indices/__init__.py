"""Indices: built, listed, brought up to date."""
