"""Threads as JSON files: names, lines, locks; ``backends.file`` stands on it."""
