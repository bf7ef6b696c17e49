"""Statements of threads: versions, lists, searches."""
