"""Measurements and storms: `python -m benchmarks.FOLDER.MODULE` in the root of the repository."""
