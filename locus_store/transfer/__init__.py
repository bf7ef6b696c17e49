"""Threads from one place to another: copies, JSON Lines, imports, and the check of them all."""
