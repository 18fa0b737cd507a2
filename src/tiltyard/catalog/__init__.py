"""Catalogs: where the heads of many tables stand, so that several of them can move in one step."""
